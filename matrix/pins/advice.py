"""Advice without a network: for each release of verl the best set that observations and records prove.

    advice(observations, failures=load_failures())

It feeds the report's box "what should I install": the same data as `pins`, only that nothing is resolved anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from matrix.cell import Axis, Cell, parse_name
from matrix.deep import that_count
from matrix.errors import UsageError
from matrix.failure import Failure
from matrix.observe import Observation
from matrix.pins.commands import install_command
from matrix.pins.kept import Kept, weigh
from matrix.pins.policy import Policy
from matrix.pins.proof import Proof, prove
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict, deviation_words, judge

SHOWN = 3
"""So many sets of a release are told of, the best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A cell that was observed, judged under a policy."""

    verdict: Verdict
    proof: Proof
    kept: Kept

    @property
    def cell(self) -> Cell:
        return self.verdict.cell

    @property
    def safe(self) -> bool:
        """Return whether nothing that counts broke and no known failure speaks against it."""
        bad = self.verdict.status is Status.CONFLICT
        return not bad and not self.proof.breaks and not self.kept.against

    @property
    def rank(self) -> tuple[object, ...]:
        """Return what to sort by, the best last: safe, then deep, then new, then with as much tried as can be."""
        tier = self.proof.tier
        versions = tuple(pin.version if (pin := self.cell.pin(axis)) is not None else Version("0") for axis in Axis)
        ran = self.proof.deepest.ran if self.proof.deepest is not None else 0
        return self.safe, -1 if tier is None else tier.depth, versions, ran


def advice(
    observations: Iterable[Observation],
    *,
    failures: Sequence[Failure],
    policy: Policy | None = None,
    releases: Iterable[Version] = (),
) -> dict[str, object]:
    """Return plain JSON data: for each release of verl, newest first, the sets that are worth installing.

    `observations` are those of this machine and those that are shipped (`matrix.evidence.shipped`); `releases` are
    releases that are told of even where nothing was observed of them. Nothing is asked of an index.

    Each release has `best` (a set, or null with `why`) and `others`. A set has `cell`, `versions`, `tier`, `machine`,
    `at` (a day), `shipped`, `tried` (lines), `untested` (tiers), `command`, `deviation`, and the known failures that it
    keeps: `against`, `conditional` and how many `elsewhere`.
    """
    policy = policy or Policy()
    seen = [one for name, items in _by_cell(observations).items() if (one := _judged(name, items, failures, policy))]
    by_release: dict[Version, list[_Seen]] = {version: [] for version in releases}
    for one in seen:
        pin = one.cell.pin(Axis.VERL)
        if pin is not None:
            by_release.setdefault(pin.version, []).append(one)
    return {
        "schema": 1,
        "policy": policy.to_json(),
        "releases": [
            {"verl": str(version), **_release(by_release[version], policy)}
            for version in sorted(by_release, reverse=True)
        ],
    }


def _by_cell(observations: Iterable[Observation]) -> Mapping[str, list[Observation]]:
    found: dict[str, list[Observation]] = {}
    for item in observations:
        found.setdefault(item.question.cell, []).append(item)
    return found


def _judged(name: str, items: Sequence[Observation], failures: Sequence[Failure], policy: Policy) -> _Seen | None:
    """Return a cell that a training run could be made of; None for others: no engine, a build without GPUs."""
    try:
        cell = parse_name(name)
    except UsageError:
        return None
    vllm = cell.pin(Axis.VLLM)
    if vllm is None or vllm.variant or cell.as_of is not None or cell.open_axes:
        return None
    verdict = judge(cell, that_count(items))
    known = _versions(cell, verdict)
    return _Seen(
        verdict=verdict,
        proof=prove(verdict.evidence, policy, failures),
        kept=weigh(failures, known, policy, observations=verdict.evidence),
    )


def _versions(cell: Cell, verdict: Verdict) -> dict[str, Version | None]:
    """Return the versions of a cell as far as they are known: what it pins, what resolving it gave."""
    found: dict[str, Version | None] = {"python": Version(cell.platform.python)}
    resolved = verdict.observation(Tier.RESOLVE)
    locked = resolved.detail.get("versions") if resolved is not None else None
    for name, text in locked.items() if isinstance(locked, Mapping) else ():
        try:
            found[str(name)] = Version(str(text))
        except InvalidVersion:
            continue
    return found | {pin.axis.value: pin.version for pin in cell.pins}


def _release(seen: Sequence[_Seen], policy: Policy) -> dict[str, object]:
    ordered = sorted(seen, key=lambda one: one.rank, reverse=True)
    good = [one for one in ordered if one.safe and one.proof.tier is not None]
    why = "" if good else _why_none(ordered)
    return {
        "best": _set(good[0], policy) if good else None,
        "why": why,
        "others": [_set(one, policy) for one in good[1:SHOWN]],
        "seen": len(seen),
    }


def _why_none(ordered: Sequence[_Seen]) -> str:
    """Return why none of the sets that were seen of a release is worth installing."""
    for one in ordered:
        if one.verdict.status is Status.CONFLICT:
            return f"{one.cell.name}: {one.verdict.reasons[0]}"
        if one.proof.breaks:
            return f"{one.cell.name}: {one.proof.breaks[0]}"
        if one.kept.against:
            failure = one.kept.against[0]
            return f"{one.cell.name}: known failure {failure.id}: {failure.title}"
    return "nothing of it was tried on a machine"


def _set(one: _Seen, policy: Policy) -> dict[str, object]:
    cell, proof = one.cell, one.proof
    ran = {item.tier for item in proof.tried if item.outcome is not Outcome.UNTESTED}
    return {
        "cell": cell.name,
        "versions": {pin.package: str(pin.version) for pin in cell.pins},
        "python": cell.platform.python,
        "tier": proof.tier.value if proof.tier else None,
        "proven": proof.proven(policy),
        "machine": proof.machine,
        "at": f"{proof.at:%Y-%m-%d}" if proof.at else None,
        "shipped": proof.deepest.shipped if proof.deepest else "",
        "partly": proof.partly.line if proof.partly else "",
        "tried": [item.line for item in proof.tried],
        "untested": [tier.value for tier in Tier if tier.is_deep and tier not in ran],
        "untried_features": list(proof.untried),
        "degraded": list(proof.degraded),
        "deviation": deviation_words(cell),
        "command": install_command(cell.requirements, overrides=cell.deviation.overrides if cell.deviation else ()),
        "known_failures": {
            "against": [item.id for item in one.kept.against],
            "conditional": [{"id": item.id, "needs": item.needs} for item in one.kept.conditional],
            "elsewhere": len(one.kept.elsewhere),
        },
    }
