"""The symptom: one thing that is wrong in a training, since when, by which numbers, and what it may come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from matrix.gravity import Gravity


class Kind(StrEnum):
    """What is wrong; the closed set of what is looked for."""

    NOT_FINITE = "not-finite"
    IMPOSSIBLE = "impossible-value"
    KL_RUNAWAY = "kl-runaway"
    KL_HIGH = "kl-high"
    UPDATE_TOO_LARGE = "update-too-large"
    PG_LOSS_JUMP = "pg-loss-jump"
    CLIPPED = "clipped"
    ENTROPY_COLLAPSE = "entropy-collapse"
    ENTROPY_RISE = "entropy-rise"
    GRADIENT_EXPLOSION = "gradient-explosion"
    GRADIENT_SPIKES = "gradient-spikes"
    NO_GRADIENT = "no-gradient"
    NO_RATE = "learning-rate-zero"
    VALUE_LOSS_RISE = "value-loss-rise"
    VALUE_USELESS = "critic-explains-nothing"
    REWARDS_EQUAL = "rewards-all-equal"
    NO_ADVANTAGE = "advantages-all-zero"
    SCORE_FALL = "score-fall"
    SCORE_FLAT = "score-flat"
    LENGTH_COLLAPSE = "length-collapse"
    LENGTH_CLIPPED = "length-clipped"
    ABORTED = "responses-aborted"
    ROLLOUT_GAP = "rollout-gap"
    EFFECTIVE_SAMPLES = "few-effective-samples"
    SLOWER = "slower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One thing that is wrong in one run.

    Attributes:
        kind: what.
        gravity: how bad.
        metric: the metric by the name it has in the log.
        since: the first step that shows it.
        until: the first step that no longer shows it; None where it lasts to the end of the log.
        run: the run, counted from 1.
        message: one line for people, with the numbers that decide.
        limit: the limit that was crossed and where it comes from.
        evidence: the numbers, by name.
        causes: what it may come from, several where several fit; never said to be the cause.
        look: what tells them apart.
    """

    kind: Kind
    gravity: Gravity
    metric: str
    since: int
    message: str
    limit: str
    until: int | None = None
    run: int = 1
    evidence: Mapping[str, float] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    look: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        """Return whether it makes the log unhealthy."""
        return self.gravity is not Gravity.NOTE

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return {
            "kind": self.kind.value,
            "gravity": self.gravity.value,
            "run": self.run,
            "metric": self.metric,
            "since": self.since,
            "until": self.until,
            "message": self.message,
            "limit": self.limit,
            "evidence": dict(self.evidence),
            "causes": list(self.causes),
            "look": list(self.look),
        }
