"""What a cell is worth to somebody who chooses what to install: how far it is proven, what breaks it for whom.

It judges as `pins` does (matrix.pins: policy, proof, kept), once a feature, so that the page can answer for any choice
of features without asking anybody.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matrix.cell import Axis
from matrix.failure import Failure, Severity
from matrix.observe import Observation
from matrix.pins.kept import Kept, weigh
from matrix.pins.policy import Policy, patterns
from matrix.pins.proof import prove
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict
from reports.failures import Matcher, installed

ANY = ""
"""Stands for a run that uses no feature in particular: what breaks it breaks every run."""


def choice_document(verdict: Verdict, kept: Kept, matcher: Matcher) -> dict[str, Any] | None:
    """Return what speaks for and against the cell (schema.json: `choice`); None for one that no run could be made of.

    `kept` is what the records say of any run (`weighed`). `against` has, for any run (`ANY`) and for each feature that
    something is said of, the lines that speak against the cell; a feature that is not named has none of its own.
    `untried` are the words of `pins` that no probe on a machine was about, by the records of `matcher`.
    """
    cell = verdict.cell
    if cell.pin(Axis.VERL) is None or cell.pin(Axis.VLLM) is None or cell.as_of is not None:
        return None
    proof = prove(verdict.evidence, Policy())
    conflict = [f"resolve: {verdict.reasons[0]}"] if verdict.status is Status.CONFLICT and verdict.reasons else []
    against = {ANY: [*conflict, *proof.breaks, *(_line(failure) for failure in kept.against)]}
    hurt = [item for item in verdict.evidence if item.outcome not in (Outcome.OK, Outcome.UNTESTED)]
    # A failure of low severity, or one that any run meets, is told already or speaks against nothing.
    others = [one for one in (*kept.conditional, *kept.elsewhere) if one.severity is not Severity.LOW]
    for feature, line in [*_broken(hurt), *_recorded(others)]:
        if line not in against[ANY] and line not in against.setdefault(feature, []):
            against[feature].append(line)
    ran = {item.tier for item in proof.tried if item.ran and item.tier.is_deep}
    return {
        "tier": proof.tier.value if proof.tier else "",
        "machine": proof.machine,
        "at": f"{proof.at:%Y-%m-%d}" if proof.at else "",
        "shipped": proof.deepest.shipped if proof.deepest else "",
        "partly": proof.partly.line if proof.partly else "",
        "tried": [item.line for item in proof.tried],
        "untested": [tier.value for tier in Tier if tier.is_deep and tier not in ran],
        "untried": list(_untried(verdict, matcher)) if proof.tier else [],
        "against": dict(sorted(against.items())),
        "conditional": [{"id": failure.id, "needs": failure.needs} for failure in kept.conditional],
    }


def weighed(verdict: Verdict, known: Sequence[Failure]) -> Kept:
    """Return what the failures that apply to a cell's versions say of it, for a run that uses nothing in particular."""
    return weigh(known, installed(verdict), Policy(), observations=verdict.evidence)


def _untried(verdict: Verdict, matcher: Matcher) -> tuple[str, ...]:
    """Return the words of `pins` that no probe was about; cells whose probes are the same have the same."""
    deep = [item for item in verdict.evidence if item.question.tier.is_deep]
    probes = frozenset((item.question.probe, str(item.detail.get("failure"))) for item in deep if item.answers)
    if probes not in matcher.untried:
        matcher.untried[probes] = prove(deep, Policy(uses=tuple(patterns())), matcher.failures).untried
    return matcher.untried[probes]


def _line(failure: Failure) -> str:
    return f"known failure {failure.id}: {failure.title}"


def _broken(hurt: Sequence[Observation]) -> Iterator[tuple[str, str]]:
    """Yield what breaks for whom: a feature, and the line that `pins` would print for a run that uses it."""
    for item in hurt:
        found = item.detail.get("findings")
        findings = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list | tuple) else []
        texts = {str(one["feature"]) for one in findings if one.get("feature")}
        own = frozenset(text for text in texts if any(_counts(one, text) for one in findings))
        lines = prove([item], Policy(uses=tuple(sorted(own)))).breaks if own else ()
        yield from ((feature, line) for feature in _features(own) for line in lines)


def _counts(finding: Mapping[str, object], text: str) -> bool:
    return finding.get("feature") == text and Policy(uses=(text,)).counts(finding)


def _recorded(others: Sequence[Failure]) -> Iterator[tuple[str, str]]:
    """Yield which feature meets which known failure, as a line."""
    for failure in others:
        texts = frozenset(text for text in (failure.feature, failure.needs) if text)
        yield from ((feature, _line(failure)) for feature in _features(texts, own=False))


@functools.cache
def _features(texts: frozenset[str], *, own: bool = True) -> tuple[str, ...]:
    """Return the words of `pins` that these texts speak of, and with `own` those that none of them covers.

    Many cells have the same texts.
    """
    matched = {name: {text for text in texts if pattern.search(text)} for name, pattern in patterns().items()}
    named = {name for name, found in matched.items() if found}
    left = texts.difference(*matched.values()) if own else ()
    return tuple(sorted(named.union(left)))
