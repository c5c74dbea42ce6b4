"""What a cell is worth to somebody who chooses what to install: how far it is proven, what breaks it for whom.

It judges as `pins` does (matrix.pins: policy, proof, kept), once a feature, so that the page can answer for any choice
of features without asking anybody.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from matrix.cell import Axis
from matrix.failure import Failure, Severity
from matrix.observe import Observation
from matrix.pins.kept import Kept, weigh
from matrix.pins.policy import Policy, patterns
from matrix.pins.proof import prove
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict
from reports.failures import installed

ANY = ""
"""Stands for a run that uses no feature in particular: what breaks it breaks every run."""


def choice_document(verdict: Verdict, kept: Kept) -> dict[str, Any] | None:
    """Return what speaks for and against the cell (schema.json: `choice`); None for one that no run could be made of.

    `kept` is what the records say of any run (`weighed`). `against` has, for any run (`ANY`) and for each feature that
    something is said of, the lines that speak against the cell; a feature that is not named has none of its own.
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
    for feature in sorted(_features(hurt, others)):
        policy = Policy(uses=(feature,))
        lines = [*prove(hurt, policy).breaks, *(_line(failure) for failure in others if policy.touches(failure))]
        more = [line for line in lines if line not in against[ANY]]
        if more:
            against[feature] = more
    ran = {item.tier for item in proof.tried if item.ran and item.tier.is_deep}
    return {
        "tier": proof.tier.value if proof.tier else "",
        "machine": proof.machine,
        "at": f"{proof.at:%Y-%m-%d}" if proof.at else "",
        "shipped": proof.deepest.shipped if proof.deepest else "",
        "tried": [item.line for item in proof.tried],
        "untested": [tier.value for tier in Tier if tier.is_deep and tier not in ran],
        "against": against,
        "conditional": [{"id": failure.id, "needs": failure.needs} for failure in kept.conditional],
    }


def weighed(verdict: Verdict, known: Sequence[Failure]) -> Kept:
    """Return what the failures that apply to a cell's versions say of it, for a run that uses nothing in particular."""
    return weigh(known, installed(verdict), Policy(), observations=verdict.evidence)


def _line(failure: Failure) -> str:
    return f"known failure {failure.id}: {failure.title}"


def _features(hurt: Sequence[Observation], known: Sequence[Failure]) -> set[str]:
    """Return the features that a finding or a record speaks of: the words of `pins`, and those of verl's own code."""
    texts = {text for failure in known for text in (failure.feature, failure.needs) if text}
    own = set()
    for item in hurt:
        findings = item.detail.get("findings")
        for finding in findings if isinstance(findings, list | tuple) else ():
            if isinstance(finding, Mapping) and finding.get("feature"):
                own.add(str(finding["feature"]))
    return _named(frozenset(texts | own)) | {text for text in own if not _named(frozenset({text}))}


@functools.cache
def _named(texts: frozenset[str]) -> frozenset[str]:
    """Return the words of `pins` whose pattern one of the texts matches; many cells have the same texts."""
    return frozenset(name for name, pattern in patterns().items() if any(pattern.search(text) for text in texts))
