"""Whether a variant keeps the numbers of training: each against a tolerance that was stated before anything ran.

Faster is not safe where the gap between rollout and trainer grows, or where gradients are others. A number is `held`
when sameness within its tolerance is shown, `moved` when a move beyond it is shown, `unclear` when neither is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.comparison import compare
from bench.sample import Better, Metric, Sample, Side


class Way(StrEnum):
    """Which way a number may not go: up alone, or up and down."""

    UP = "up"
    EITHER = "either"


class Kept(StrEnum):
    """What was shown of a number of B against A."""

    HELD = "held"
    MOVED = "moved"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a number may move: by the factor `1 + margin`, where both lie above the `floor`.

    What lies below the floor counts as the floor: a gap of 1e-6 that doubles is rounding, and no move. `why` says what
    the two rest on.
    """

    name: str
    margin: float
    floor: float
    way: Way
    why: str


TOLERANCES = (
    Tolerance(
        name="gap_k3", margin=0.25, floor=1e-4, way=Way.UP,
        why="on one H200 the k3 of verl 0.9.1 with vLLM 0.24.0 is some 1e-3 in bf16; a tenth of it is rounding",
    ),
    Tolerance(
        name="gap_probability_mean", margin=0.25, floor=1e-4, way=Way.UP,
        why="the mean distance of probabilities that bf16 alone makes is of the order of 1e-3",
    ),
    Tolerance(
        name="actor_grad_norm", margin=0.25, floor=1e-4, way=Way.EITHER,
        why="the same data and seed: a norm that differs by a quarter is another gradient",
    ),
    Tolerance(
        name="critic_grad_norm", margin=0.25, floor=1e-4, way=Way.EITHER,
        why="as for the actor",
    ),
    Tolerance(
        name="entropy", margin=0.05, floor=1e-3, way=Way.EITHER,
        why="the same data and seed; entropy is a mean over all tokens and hardly scatters",
    ),
)  # fmt: skip
"""Stated before any run, and never tuned to one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number of both sides: medians, the ratio B/A after the floor with its interval, and whether it was kept."""

    name: str
    kept: Kept
    a: float
    b: float
    ratio: float | None
    interval: tuple[float, float] | None
    tolerance: Tolerance


def numbers(values: Mapping[Side, Mapping[str, Sequence[float]]]) -> tuple[Number, ...]:
    """Return how each number with a tolerance came out that both sides have; what neither logs is not there.

    It takes launches for exchangeable over the whole series, since numbers of training do not drift with a machine.
    """
    found = []
    for tolerance in TOLERANCES:
        sides = {side: [abs(x) for x in values.get(side, {}).get(tolerance.name, ())] for side in Side}
        if all(sides.values()):
            found.append(_number(tolerance, sides))
    return tuple(found)


def _number(tolerance: Tolerance, sides: Mapping[Side, Sequence[float]]) -> Number:
    from statistics import median

    middle = {side: median(values) if all(map(math.isfinite, values)) else math.nan for side, values in sides.items()}
    if any(math.isnan(value) for value in middle.values()):
        # A NaN is no unclear number: training has left the rails on that side.
        return Number(
            name=tolerance.name, kept=Kept.MOVED, a=middle[Side.A], b=middle[Side.B], ratio=None, interval=None,
            tolerance=tolerance,
        )  # fmt: skip
    raised = {side: [max(value, tolerance.floor) for value in values] for side, values in sides.items()}
    metric = Metric(name=tolerance.name, unit="", better=Better.LOWER)
    sample = Sample.separate(metric, raised[Side.A], raised[Side.B])
    found = compare(sample, margin=tolerance.margin)
    return Number(
        name=tolerance.name,
        kept=_kept(tolerance, found.interval, found.p_equivalent, found.alpha, raised),
        a=middle[Side.A],
        b=middle[Side.B],
        ratio=found.ratio,
        interval=found.interval,
        tolerance=tolerance,
    )


def _kept(
    tolerance: Tolerance,
    interval: tuple[float, float] | None,
    p_equivalent: float | None,
    alpha: float,
    raised: Mapping[Side, Sequence[float]],
) -> Kept:
    limit = 1 + tolerance.margin
    # All below the floor on both sides: there is nothing that a test could tell apart.
    if all(value == tolerance.floor for values in raised.values() for value in values):
        return Kept.HELD
    if interval is not None:
        low, high = interval
        if low > limit or (tolerance.way is Way.EITHER and high < 1 / limit):
            return Kept.MOVED
        if tolerance.way is Way.UP and high <= limit:
            return Kept.HELD
    return Kept.HELD if p_equivalent is not None and p_equivalent <= alpha else Kept.UNCLEAR


def safe(found: Sequence[Number]) -> bool | None:
    """Return whether all numbers were held; None where that is not shown, or where none was logged."""
    if any(number.kept is Kept.MOVED for number in found):
        return False
    return True if found and all(number.kept is Kept.HELD for number in found) else None
