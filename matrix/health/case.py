"""The case: one run under examination, and how a check words what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from matrix.gravity import Gravity
from matrix.health.episode import Episode
from matrix.health.history import Run, Series
from matrix.health.meanings import MEANINGS
from matrix.health.names import Metric
from matrix.health.symptom import Kind, Symptom


@dataclass(slots=True)
class Case:
    """One run, with the size of the vocabulary where the log tells it (0 else); series are made once."""

    run: Run
    vocabulary: int = 0
    _series: dict[Metric, Series] = field(default_factory=dict)

    def series(self, metric: Metric) -> Series:
        """Return the metric's series; empty where the run did not log it."""
        if metric not in self._series:
            self._series[metric] = self.run.series(metric)
        return self._series[metric]

    def aligned(self, metric: Metric, steps: Sequence[int]) -> list[float | None]:
        """Return the metric's value at each of these steps, None where it was not logged."""
        found = self.series(metric)
        by_step = dict(zip(found.steps, found.values, strict=True))
        return [by_step.get(step) for step in steps]

    def symptom(
        self,
        kind: Kind,
        gravity: Gravity,
        series: Series,
        episode: Episode,
        message: str,
        *,
        limit: str,
        evidence: Mapping[str, float],
    ) -> Symptom:
        """Return the symptom of this run; an error that is over is a warning."""
        ended = episode.end is not None
        if ended and gravity is Gravity.ERROR:
            gravity = Gravity.WARNING
        causes, look = MEANINGS[kind]
        return Symptom(
            kind=kind,
            gravity=gravity,
            metric=series.name,
            since=series.steps[episode.start],
            until=series.steps[episode.end] if episode.end is not None else None,
            run=self.run.number,
            message=message,
            limit=limit,
            evidence=dict(evidence),
            causes=causes,
            look=look,
        )


Check = Callable[[Case], Sequence[Symptom]]


def worst(series: Series, episode: Episode, *, low: bool = False) -> float:
    """Return the highest value of the stretch, or the lowest."""
    values = series.values[episode.start : episode.end]
    return min(values) if low else max(values)
