"""The option: one set of versions that could be installed, with all that is known of it under a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

from matrix.cell import Axis, Cell
from matrix.pins.kept import Kept
from matrix.pins.measured import Measured
from matrix.pins.policy import Policy
from matrix.pins.proof import Proof
from matrix.resolve.lock import parse_lock
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict, deviation_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A package whose version differs from what people have; `before` is None where they have none of it."""

    package: str
    before: Version | None
    after: Version | None
    where: str = ""

    @property
    def line(self) -> str:
        """Return it for people, e.g. `vllm 0.24.0 → 0.26.0 (requirements.txt:3)`."""
        before = "none" if self.before is None else str(self.before)
        place = f" ({self.where})" if self.where else ""
        return f"{self.package} {before} → {'none' if self.after is None else self.after}{place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A set of versions and what is known of it.

    Attributes:
        cell: the combination.
        verdict: what was observed of it here and on other machines.
        versions: every package of its lock with its version; empty where it does not resolve.
        lock: the text of its `pylock.toml`; "" where it does not resolve.
        proof: how deep it was tried under the policy.
        kept: what the records say of it.
        changes: axes that differ from what people have.
        unmet: what it lacks of what is wanted.
        measured: comparisons with what people have.
        dropped: people's own statements that it cannot keep, each as a line with the file and line.
        more_changes: how many packages besides the axes differ from what people have.
    """

    cell: Cell
    verdict: Verdict
    versions: Mapping[str, Version]
    lock: str
    proof: Proof
    kept: Kept
    changes: tuple[Change, ...] = ()
    unmet: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()
    dropped: tuple[str, ...] = ()
    more_changes: int = 0

    @property
    def resolves(self) -> bool:
        """Return whether a complete set exists with every pin kept."""
        return self.verdict.resolvable is Outcome.OK and bool(self.versions)

    @property
    def looked(self) -> bool:
        """Return whether its code was compared."""
        seen = self.verdict.observation(Tier.SURFACE)
        return seen is not None and seen.outcome is not Outcome.UNTESTED

    def against(self, policy: Policy) -> tuple[str, ...]:
        """Return in lines why it does not qualify under the policy; empty where it does."""
        lines = [] if self.resolves else [f"it does not resolve: {self.verdict.reasons[0]}"]
        lines += self.unmet
        lines += self.proof.breaks
        lines += [f"known failure {item.id}: {item.title}" for item in self.kept.against]
        for item in self.measured:
            loss = item.slowdown()
            if policy.max_slowdown is not None and loss is not None and loss > policy.max_slowdown:
                lines.append(f"slower by up to {loss:.1%}, allowed are {policy.max_slowdown:.1%}: {item.line}")
            if item.kind == "numerics" and item.beyond:
                lines.append(f"the rollout-to-trainer gap moved beyond its tolerance, so it is not safe: {item.line}")
        if policy.asked and not (self.proof.proven(policy) and not self.kept.present):
            lines.append(f"not proven at {policy.min_tier} or deeper{f' on {policy.gpu}' if policy.gpu else ''}")
        return tuple(lines)

    def qualifies(self, policy: Policy) -> bool:
        """Return whether nothing that is known speaks against it."""
        return not self.against(policy)

    def proven(self, policy: Policy) -> bool:
        """Return whether it qualifies, keeps no break and was tried as deep as the policy asks, on a named machine."""
        return self.qualifies(policy) and not self.kept.present and self.proof.proven(policy)

    @property
    def newness(self) -> tuple[Version, ...]:
        """Return what to sort by, the newest last: verl, then vllm, torch and transformers."""
        none = Version("0")
        return tuple(self.versions.get(axis.value, none) for axis in (Axis.VERL, Axis.VLLM, Axis.TORCH,
                                                                      Axis.TRANSFORMERS))  # fmt: skip

    @property
    def untested(self) -> tuple[Tier, ...]:
        """Return the tiers at which nothing answers of it."""
        ran = {item.tier for item in self.proof.tried if item.outcome is not Outcome.UNTESTED}
        return tuple(tier for tier in Tier if tier not in ran)

    @property
    def status(self) -> Status:
        """Return the verdict's status."""
        return self.verdict.status

    @property
    def deviation(self) -> str:
        """Return in words what it departs from, and what the set that was tried lacked; "" where it keeps to all."""
        return deviation_words(self.cell, self.verdict.evidence)

    @property
    def to_build(self) -> tuple[str, ...]:
        """Return the packages that have no wheel on the index for the platform, as `name==version`."""
        return parse_lock(self.lock).to_build if self.lock else ()

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return what it overrides."""
        return self.cell.deviation.overrides if self.cell.deviation is not None else ()

    def to_json(self, policy: Policy) -> dict[str, object]:
        """Return plain JSON data (evidence.schema.json: `set`)."""
        proof = self.proof
        return {
            "cell": self.cell.name,
            "requirements": list(self.cell.requirements),
            "versions": {name: str(version) for name, version in sorted(self.versions.items())},
            "python": self.cell.platform.python,
            "platform": self.cell.platform.uv,
            "as_of": self.cell.as_of.isoformat() if self.cell.as_of else None,
            "status": self.status.value,
            "resolvable": self.verdict.resolvable.value,
            "qualifies": self.qualifies(policy),
            "against": list(self.against(policy)),
            "proven": self.proven(policy),
            "tier": proof.tier.value if proof.tier else None,
            "machine": proof.machine,
            "at": proof.at.isoformat() if proof.at else None,
            "partly": proof.partly.line if proof.partly else "",
            "tried": [item.to_json() for item in proof.tried],
            "untested": [tier.value for tier in self.untested],
            "untried_features": list(proof.untried),
            "degraded": list(proof.degraded),
            "to_build": list(self.to_build),
            "overrides": list(self.overrides),
            "deviation": self.deviation,
            "known_failures": self.kept.to_json(),
            "changes": [item.line for item in self.changes],
            "more_changes": self.more_changes,
            "dropped": list(self.dropped),
            "measured": [item.to_json() for item in self.measured],
            "evidence": self.verdict.to_json()["evidence"],
        }
