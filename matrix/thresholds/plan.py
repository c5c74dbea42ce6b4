"""The plan: what each question will cost, and which of them fit into the time there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

from matrix.thresholds.knobs import Script
from matrix.thresholds.question import Asked

FORETOLD = 4
"""Trials until the edge lies between neighbours, where a prediction is near it."""
SECONDS = {Script.UPDATE: (7.0, 2.5), Script.ROLLOUT: (45.0, 45.0)}
"""Seconds of a trial in a fresh process and in a used one, with an engine's or a trainer's start. For a model of half a
billion parameters; the first figure grows with the model, which is read and copied."""
BILLION_S = 5.0
"""Seconds that each further billion of parameters adds to a fresh process."""


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
        search = FORETOLD if predicted is not None else ceil(log2(len(asked.values) + 1))
        confirming = 2 * asked.repeats
        fresh, used = SECONDS[asked.knob.script]
        fresh += BILLION_S * max(0.0, asked.workload.shape.parameters / 1e9 - 0.5) * (2 if asked.workload.critic else 1)
        # About half of the searching trials die, and the next one then needs a new process.
        seconds = confirming * fresh + search * (fresh + used) / 2
        rows.append(
            Row(
                id=name, asked=asked, predicted=predicted, trials=search + confirming, seconds=seconds,
                fits=seconds <= left,
            )
        )  # fmt: skip
        left -= seconds if seconds <= left else 0.0
    return rows
