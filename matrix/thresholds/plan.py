"""The plan: what each question will cost, and which of them fit into the time there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

from matrix.thresholds.knobs import Script, Steps
from matrix.thresholds.question import Asked

FORETOLD = 5
"""Trials until the edge lies between neighbours, where a prediction is near it, and those far below and above."""
SECONDS = {Script.UPDATE: (6.0, 1.0), Script.ROLLOUT: (0.0, 28.0), Script.STEP: (0.0, 140.0)}
"""Seconds that a fresh process adds to a trial, for a model of half a billion parameters, and those of a trial without
what it computes; an engine starts anew for each."""
BILLION_S = 5.0
"""Seconds that each further billion of parameters adds to a fresh process."""
FLOPS = 2.5e14
"""Floating-point operations a second of a trainer on a card of today, far from its peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A question with what it will take: trials, seconds, and whether that fits."""

    id: str
    asked: Asked
    predicted: float | None
    trials: int
    seconds: float
    fits: bool = True

    def to_json(self) -> dict[str, object]:
        """Return plain JSON."""
        return {
            "id": self.id, "name": self.asked.name, "why": self.asked.why, "predicted": self.predicted,
            "trials": self.trials, "seconds": round(self.seconds), "fits": self.fits,
        }  # fmt: skip


def planned(questions: Sequence[tuple[str, Asked, float | None]], minutes: float | None) -> list[Row]:
    """Return the questions in their order, each with its cost; one that does not fit any more is passed over."""
    left = minutes * 60 if minutes else float("inf")
    rows = []
    for name, asked, predicted in questions:
        search = FORETOLD if predicted is not None else ceil(log2(len(asked.values) + 1)) + 1
        # Each trial of an engine has a process of its own, and so is a repeat already.
        confirming = 2 * (asked.repeats - (asked.knob.script is not Script.UPDATE))
        fresh, used = SECONDS[asked.knob.script]
        used += _computing(asked, predicted)
        fresh += used + BILLION_S * max(0.0, asked.workload.shape.parameters / 1e9 - 0.5) * (
            2 if asked.workload.critic else 1
        )
        # About half of the searching trials die, and the next needs a new process.
        seconds = confirming * fresh + search * (fresh + used) / 2
        rows.append(
            Row(
                id=name, asked=asked, predicted=predicted, trials=search + confirming, seconds=seconds,
                fits=seconds <= left,
            )
        )  # fmt: skip
        left -= seconds if seconds <= left else 0.0
    return rows


def _computing(asked: Asked, predicted: float | None) -> float:
    """Return about how many seconds a trial near the edge computes: two micro-batches, forward, again, and backward."""
    if asked.knob.script is not Script.UPDATE or predicted is None:
        return 0.0
    work = asked.settled
    tokens = predicted * (work.length if asked.knob.steps is Steps.ONE else 1)
    if asked.knob.steps is Steps.BLOCK:
        tokens = (predicted + work.prompt_length) * (work.actor.ppo_micro_batch_size_per_gpu or 1) * 2
    return 2 * tokens * 8 * work.shape.parameters / FLOPS
