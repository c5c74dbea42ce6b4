"""What a cell is worth to somebody who chooses what to install: how far it is proven, what breaks it for whom.

It judges as `pins` does (matrix.pins: policy, proof, kept), once a feature, so that the page can answer for any choice
of features without asking anybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matrix.cell import Axis
from matrix.failure import Failure
from matrix.pins.kept import Kept, weigh
from matrix.pins.policy import Policy, patterns
from matrix.pins.proof import Proof, prove
from matrix.tier import Status, Tier
from matrix.verdict import Verdict
from reports.failures import installed

ANY = ""
"""Stands for a run that uses no feature in particular: what breaks it breaks every run."""


def choice_document(verdict: Verdict, known: Sequence[Failure]) -> dict[str, Any] | None:
    """Return what speaks for and against the cell (schema.json: `choice`); None for one that no run could be made of.

    `known` are the failures that apply to its versions. `against` has, for any run (`ANY`) and for each feature that
    something is said of, the lines that speak against the cell; a feature that is not named has none of its own.
    """
    cell = verdict.cell
    if cell.pin(Axis.VERL) is None or cell.pin(Axis.VLLM) is None or cell.as_of is not None:
        return None
    base = Policy()
    proof, kept = prove(verdict.evidence, base), _weighed(verdict, known, base)
    conflict = [f"resolve: {verdict.reasons[0]}"] if verdict.status is Status.CONFLICT and verdict.reasons else []
    against = {ANY: [*conflict, *_lines(proof, kept)]}
    for feature in sorted(_features(verdict, known)):
        policy = Policy(uses=(feature,))
        lines = _lines(prove(verdict.evidence, policy), _weighed(verdict, known, policy))
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


def _weighed(verdict: Verdict, known: Sequence[Failure], policy: Policy) -> Kept:
    return weigh(known, installed(verdict), policy, observations=verdict.evidence)


def _lines(proof: Proof, kept: Kept) -> list[str]:
    return [*proof.breaks, *(f"known failure {failure.id}: {failure.title}" for failure in kept.against)]


def _features(verdict: Verdict, known: Sequence[Failure]) -> Iterator[str]:
    """Yield the features that a finding or a record of this cell speaks of: the words of `pins`, and those of verl."""
    texts = {text for failure in known for text in (failure.feature, failure.needs) if text}
    own = set()
    for item in verdict.evidence:
        findings = item.detail.get("findings")
        for finding in findings if isinstance(findings, list | tuple) else ():
            if isinstance(finding, Mapping) and finding.get("feature"):
                own.add(str(finding["feature"]))
    texts |= own
    named = {name for name, pattern in patterns().items() if any(pattern.search(text) for text in texts)}
    # A feature of verl that no pattern covers counts under its own name, as in `pins`.
    yield from named | {text for text in own if not any(pattern.search(text) for pattern in patterns().values())}
