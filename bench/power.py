"""What launches could show before any is run: the difference that would be found, and the one that could be ruled out.

The plan takes the noise between launches of one variant for lognormal; `noise` measures it on launches that exist. What
real noise does to a plan is in docs/statistics.md: a heavy tail asks for more launches than is said here.
"""

from __future__ import annotations

import math
import random
import statistics
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache

from bench.comparison import ALPHA, too_few
from bench.sample import Better, Design, Launch, Metric, Sample, order
from bench.stats import SEED, least_p, reference, ways

POWER = 0.8
RUNS = 500
MOST = 64
"""No plan is made for more launches a side than this."""
_UP_TO = 1_500
_DRAWN = 999
_METRIC = Metric(name="simulated", unit="", better=Better.HIGHER)
"""A simulated test looks at fewer arrangements than a real one, which makes a plan cautious by a percent or so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How far launches of one variant scatter: standard deviation of the logarithms, 0.01 for about 1 %.

    Attributes:
        value: as measured, drifts slower than a block left out.
        degrees: how many independent differences it rests on; below ten it is a rough guess.
        high: the noise is below this with 80 % confidence if it is lognormal; a careful plan takes this.
    """

    value: float
    degrees: int
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What n launches a side could show.

    Attributes:
        n: launches a side, in the order of `bench.sample.order`.
        noise: as in `Noise.value`.
        least_p: the smallest two-sided p value possible; above alpha nothing can ever be shown.
        detectable: the ratio above 1 that is shown to be one with probability `power`; 1/it is the one below. None
            where no difference can be shown, however large.
        margin: the equivalence margin asked about.
        equivalent: with what probability two variants that are the same are shown to be `equivalent` within it.
        least_margin: the margin within which sameness is shown with probability `power`; None where it never is.
        notes: what to know before GPU time is spent.
    """

    n: int
    noise: float
    alpha: float
    power: float
    least_p: float
    detectable: float | None
    margin: float
    equivalent: float
    least_margin: float | None
    notes: tuple[str, ...]


def plan(n: int, noise: float, margin: float, *, alpha: float = ALPHA, power: float = POWER, family: int = 1) -> Plan:
    """Return what n launches a side could show at this noise, by simulating the very test.

    In a family of k the level is alpha / k, the strictest that Holm asks for. It does not tell what a run will show,
    only how often such runs would; with the noise wrong, all of it is wrong in proportion.

    Raises:
        ValueError: n is not 1 to MOST, or another argument makes no sense.
    """
    if not 1 <= n <= MOST or not 0 < noise < math.inf or not 0 < margin < math.inf or family < 1:
        raise ValueError(f"a plan is for 1 to {MOST} launches, a noise and a margin above 0, a family of 1 or more")
    if not 0 < alpha < 0.5 or not 0 < power < 1:
        raise ValueError("alpha lies between 0 and 0.5, power between 0 and 1")
    level = alpha / family
    possible = _ways(n)
    unit = _unit(n, level)
    detectable = _quantile(unit.shows, power)
    least_margin = _quantile(unit.equates, power)
    notes = []
    if least_p(possible) > level:
        notes.append(f"{n} launches a side can show no difference: {too_few(possible, level)}")
    if 1 / possible > level:
        notes.append(f"{n} launches a side can show no equivalence: p is never below {1 / possible:.3g}")
    if least_margin is not None and margin < math.expm1(noise * least_margin):
        needed = math.expm1(noise * least_margin)
        notes.append(f"sameness within {margin:.2%} would mostly go unshown; within {needed:.2%} it would be shown")
    return Plan(
        n=n,
        noise=noise,
        alpha=alpha,
        power=power,
        least_p=least_p(possible),
        detectable=None if detectable is None else math.exp(noise * detectable),
        margin=margin,
        equivalent=bisect_right(unit.equates, math.log1p(margin) / noise) / RUNS,
        least_margin=None if least_margin is None else math.expm1(noise * least_margin),
        notes=tuple(notes),
    )


def power_at(n: int, noise: float, ratio: float, *, alpha: float = ALPHA) -> float:
    """Return how often n launches a side show a true ratio to be on its side of 1."""
    unit = _unit(n, alpha)
    return bisect_left(unit.shows, abs(math.log(ratio)) / noise) / (2 * RUNS)


def launches_for(ratio: float, noise: float, *, alpha: float = ALPHA, power: float = POWER) -> int | None:
    """Return the fewest launches a side that show this ratio with that power; None where MOST are not enough."""
    asked = abs(math.log(ratio)) / noise
    normal = statistics.NormalDist()
    # No test of this level does with fewer than the normal one of a known noise, and this one is not far from it.
    least = 2 * ((normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)) / max(asked, 1e-9)) ** 2
    low, high = min(MOST + 1, math.ceil(least)), min(MOST + 1, math.ceil(1.5 * least) + 6)
    while low < high:
        middle = (low + high) // 2
        needed = _quantile(_unit(middle, alpha).shows, power) if middle <= MOST else 0.0
        low, high = (low, middle) if needed is not None and needed <= asked else (middle + 1, high)
    return low if low <= MOST else None


def noise_of(sample: Sample) -> Noise | None:
    """Return the noise of launches that exist, from how those of one side differ within a block; None of too few.

    Where all blocks are pairs it is taken from how the pairs' differences scatter.
    """
    squares, degrees = 0.0, 0
    for block in sample.blocks:
        for side in (block.a, block.b):
            squares += statistics.variance(side) * (len(side) - 1) if len(side) > 1 else 0.0
            degrees += len(side) - 1
    if not degrees and sample.design is Design.INTERLEAVED and len(sample.blocks) > 1:
        differences = [block.b[0] - block.a[0] for block in sample.blocks]
        degrees = len(differences) - 1
        squares = statistics.variance(differences) * degrees / 2
    if not degrees:
        return None
    value = math.sqrt(squares / degrees)
    return Noise(value=value, degrees=degrees, high=value * math.sqrt(degrees / _chi_square_low(degrees)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """For noise 1: the differences from which each simulated run shows them, and the margins that it meets."""

    shows: tuple[float, ...]
    equates: tuple[float, ...]


@lru_cache(maxsize=256)
def _unit(n: int, alpha: float) -> _Unit:
    """Simulate runs of n launches a side without a difference, at noise 1.

    One set of runs answers for every difference and every noise: adding a difference to B shifts the interval by it,
    and a noise stretches it.
    """
    source = random.Random(SEED + n)  # noqa: S311
    shows: list[float] = []
    equates: list[float] = []
    for run in range(RUNS):
        found = reference(_sample(n, source).blocks, seed=SEED + run, up_to=_UP_TO, drawn=_DRAWN)
        differs, equal = found.interval(1 - alpha), found.interval(1 - 2 * alpha)
        if differs is not None:
            shows += [-differs.low, differs.high]
        if equal is not None:
            equates.append(max(-equal.low, equal.high))
    return _Unit(shows=tuple(sorted(shows)), equates=tuple(sorted(equates)))


def _sample(n: int, source: random.Random) -> Sample:
    """Return one simulated run."""
    launches = (Launch(place=at, side=side, value=math.exp(source.gauss())) for at, side in enumerate(order(n)))
    return Sample(metric=_METRIC, launches=tuple(launches))


def _ways(n: int) -> int:
    return ways(_sample(n, random.Random(SEED)).blocks)  # noqa: S311


def _quantile(ordered: tuple[float, ...], share: float) -> float | None:
    """Return the value that the share of the runs does not exceed; None where there are none."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def _chi_square_low(degrees: int) -> float:
    """Return the 20 % point of chi square (Wilson and Hilferty, PNAS 17, 1931: within 1.1 % from two degrees on)."""
    if degrees == 1:
        return statistics.NormalDist().inv_cdf(0.6) ** 2
    ninth = 2 / (9 * degrees)
    return float(degrees * (1 - ninth + statistics.NormalDist().inv_cdf(0.2) * math.sqrt(ninth)) ** 3)
