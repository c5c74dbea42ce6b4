"""Robust statistics of one series: its own baseline, and the stretch over which a condition holds.

A single odd step is not a symptom: in verl's own healthy log two of 61 steps have 15 times the usual gradient norm. A
condition counts once it holds on NEED of WINDOW consecutive steps, so it is told three steps after its first at the
earliest.
"""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WINDOW = 6
NEED = 4
BASELINE = 20
"""So many of the latest steps that were not odd make up the baseline of a step."""
LEAST = 8
"""A baseline of fewer steps is none."""
_SIGMA = 1.4826
"""Standard deviations per median absolute deviation, for normal noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Where a condition held, as places in the series: from `start` until before `end` (None: to the end of the log).

    `told` is the first place at which it counted.
    """

    start: int
    told: int
    end: int | None


def episodes(odd: Sequence[bool], *, need: int = NEED, window: int = WINDOW) -> list[Episode]:
    """Return the stretches in which at least `need` of the last `window` places are odd, in order.

    A stretch ends where less than half of `need` are odd any more, at the place after its last odd one.
    """
    found: list[Episode] = []
    start: int | None = None
    told = count = 0
    last = -1
    for at, is_odd in enumerate(odd):
        count += is_odd
        if at >= window:
            count -= odd[at - window]
        if is_odd:
            last = at
        if start is None and count >= need:
            start = next(place for place in range(max(0, at - window + 1), at + 1) if odd[place])
            told = at
        elif start is not None and count < need / 2:
            found.append(Episode(start=start, told=told, end=last + 1))
            start = None
    if start is not None:
        found.append(Episode(start=start, told=told, end=None))
    return found


def scale(values: Sequence[float]) -> float:
    """Return the noise of the values as a standard deviation, from their median absolute deviation."""
    middle = statistics.median(values)
    return _SIGMA * statistics.median(abs(value - middle) for value in values)


def noise(values: Sequence[float]) -> float:
    """Return the step-to-step noise as a standard deviation; a trend does not add to it.

    From the differences of neighbours, whose deviation is sqrt(2) times that of the values when these are independent.
    """
    if len(values) < 3:
        return 0.0
    differences = [abs(after - before) for before, after in itertools.pairwise(values)]
    return _SIGMA * statistics.median(differences) / 2**0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What was usual before a step: median and noise of the last steps that were not odd."""

    median: float
    scale: float


def against_baseline(
    values: Sequence[float], is_odd: Callable[[float, Baseline], bool], *, lag: int = WINDOW
) -> tuple[list[bool], list[Baseline | None]]:
    """Return for each value whether it is odd against its baseline, and that baseline (None while there is none).

    The baseline is made of the last BASELINE values that lie `lag` places back or more and were not odd themselves: so
    it follows a slow change, and stands still while a sudden one lasts.
    """
    odd: list[bool] = []
    baselines: list[Baseline | None] = []
    ordered: list[float] = []
    recent: list[float] = []
    for at, value in enumerate(values):
        if at >= lag and not odd[at - lag]:
            recent.append(values[at - lag])
            insort(ordered, values[at - lag])
            if len(recent) > BASELINE:
                del ordered[bisect_left(ordered, recent.pop(0))]
        if len(recent) < LEAST:
            odd.append(False)
            baselines.append(None)
            continue
        middle = statistics.median(ordered)
        spread = _SIGMA * statistics.median(abs(item - middle) for item in ordered)
        baselines.append(Baseline(median=middle, scale=spread))
        odd.append(is_odd(value, Baseline(median=middle, scale=spread)))
    return odd, baselines


def rolling_median(values: Sequence[float], window: int) -> list[float]:
    """Return the median of the last `window` values at each place (of fewer at the beginning)."""
    ordered: list[float] = []
    out = []
    for at, value in enumerate(values):
        insort(ordered, value)
        if at >= window:
            del ordered[bisect_left(ordered, values[at - window])]
        out.append(statistics.median(ordered))
    return out
