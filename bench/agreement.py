"""Whether the cheap benches agree with `ppo`, phase by phase: the ratio that each measured of the same pairing.

`ppo` is the truth. A cheap bench agrees in a phase where its ratio over that of `ppo` is shown to lie within a margin,
disagrees where it is shown to lie beyond 1, and is unclear else. The interval of such a ratio of ratios is put together
from the two intervals, of independent launches (Zou and Donner, Construction of confidence limits about effect
measures, Statist. Med. 27, 2008). It does not tell why they differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from bench.recipes import Kind, recipe_named
from bench.sample import Side
from bench.verdicts import Judgement, Paired
from matrix.errors import UsageError

if TYPE_CHECKING:
    from pandas import DataFrame

MARGIN = 0.05
"""Within 1/1.05 and 1.05 a cheap bench says of a phase what `ppo` says of it."""
COLUMNS = ("pairing", "cheap", "ppo", "metric", "cheap ratio", "ppo ratio", "of both", "low", "high", "verdict")


class Agrees(StrEnum):
    """What was shown of a cheap bench against `ppo` in one phase."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One phase of one pairing in a cheap bench and in `ppo`; `ratio` is the cheap ratio over that of `ppo`."""

    pairing: str
    cheap: str
    ppo: str
    metric: str
    cheap_ratio: float
    ppo_ratio: float
    ratio: float
    interval: tuple[float, float] | None
    agrees: Agrees


def agreements(paired: Sequence[Paired], *, margin: float = MARGIN) -> tuple[Agreement, ...]:
    """Return how every cheap bench stands to `ppo`, in each phase that both measured on the same workload and cell."""
    found = []
    for cheap in paired:
        for truth in paired:
            if cheap.kind is not Kind.PPO and truth.kind is Kind.PPO and _same_question(cheap, truth):
                found += list(_phases(cheap, truth, margin))
    return tuple(found)


def _same_question(cheap: Paired, truth: Paired) -> bool:
    """Return whether both ask of the same thing: pairing, device, cells, model and lengths."""
    if (cheap.pairing, cheap.device) != (truth.pairing, truth.device):
        return False
    cells = [[one.judgements[0].gathered.cells.get(side) for side in Side] for one in (cheap, truth)]
    try:
        plans = [recipe_named(one.recipe).plan for one in (cheap, truth)]
    except UsageError:
        return False
    return cells[0] == cells[1] and all(plans[0][name] == plans[1][name] for name in ("shape", "prompt", "response"))


def _phases(cheap: Paired, truth: Paired, margin: float) -> Iterator[Agreement]:
    for judgement in cheap.judgements:
        other = truth.of(judgement.name)
        if not judgement.name.startswith("throughput/") or other is None:
            continue
        mine, theirs = judgement.comparison.ratio, other.comparison.ratio
        if mine is None or theirs is None:
            continue
        interval = _of_both(judgement, other)
        yield Agreement(
            pairing=cheap.pairing,
            cheap=cheap.recipe,
            ppo=truth.recipe,
            metric=judgement.name,
            cheap_ratio=mine,
            ppo_ratio=theirs,
            ratio=mine / theirs,
            interval=interval,
            agrees=_agrees(interval, margin),
        )


def _of_both(cheap: Judgement, truth: Judgement) -> tuple[float, float] | None:
    """Return the interval for the ratio of the ratios; None where one of the two has none."""
    parts = []
    for found in (cheap.comparison, truth.comparison):
        if found.ratio is None or found.interval is None:
            return None
        middle, low, high = (math.log(value) for value in (found.ratio, *found.interval))
        parts.append((middle, middle - low, high - middle))
    (mine, mine_down, mine_up), (theirs, theirs_down, theirs_up) = parts
    between = mine - theirs
    return math.exp(between - math.hypot(mine_down, theirs_up)), math.exp(between + math.hypot(mine_up, theirs_down))


def _agrees(interval: tuple[float, float] | None, margin: float) -> Agrees:
    if interval is None:
        return Agrees.UNCLEAR
    low, high = interval
    if low >= 1 / (1 + margin) and high <= 1 + margin:
        return Agrees.AGREES
    return Agrees.DIFFERS if low > 1 or high < 1 else Agrees.UNCLEAR


def table(found: Sequence[Agreement]) -> DataFrame:
    """Return the agreements as a table, a row a phase."""
    import pandas

    rows = [
        {
            "pairing": one.pairing,
            "cheap": one.cheap,
            "ppo": one.ppo,
            "metric": one.metric,
            "cheap ratio": one.cheap_ratio,
            "ppo ratio": one.ppo_ratio,
            "of both": one.ratio,
            "low": one.interval[0] if one.interval else None,
            "high": one.interval[1] if one.interval else None,
            "verdict": one.agrees.value,
        }
        for one in found
    ]
    return pandas.DataFrame(rows, columns=list(COLUMNS))
