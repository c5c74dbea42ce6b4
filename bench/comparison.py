"""The comparison: what the launches of two variants show, as a verdict with ratio, interval and n.

    sample = Sample(metric=Metric(name="throughput", unit="tokens/s/GPU", better=Better.HIGHER), launches=...)
    comparison = compare(sample, margin=0.02, reasons=())

A verdict speaks of the machine, driver, workload and releases of its launches, and of nothing else. Cautions are values
that a report shows; they change no verdict.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from bench.sample import Better, Design, Drop, Metric, Sample, Side
from bench.stats import DRAWN, SEED, Reference, holm, least_p, reference

ALPHA = 0.05
_FAR = 5.0
"""A launch so many robust standard deviations from its side's median is pointed at."""
_RANKED = 0.75
"""From this rank correlation of figure and place on, with eight launches or more, a drift is pointed at."""
_SPREADS = 3.0
"""One side's spread over the other's, from which it is pointed at."""


class Verdict(StrEnum):
    """What was shown of B against A."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    INCOMPARABLE = "incomparable"


class About(StrEnum):
    """What a caution is about."""

    TOO_FEW = "too few launches"
    DROPPED = "pairs left out"
    FAILURES = "failures of one side"
    SEPARATE = "not interleaved"
    DRAWN = "drawn, near the level"
    OUTLIER = "a launch far off"
    DRIFT = "drift"
    SPREAD = "unequal spread"
    SMALL = "smaller than the margin"
    FAMILY = "one of several"
    ONE_LAUNCH = "one launch"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """Something to know before a verdict is believed."""

    about: About
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One side's launches: how many, their median, least and greatest, and how far they scatter.

    `spread` is the standard deviation of the logarithms, 0.01 for about 1 %; None of one launch. A drift over time is
    in it; `Noise` is without. None of it tells whether two sides differ: that is for `compare`.
    """

    n: int
    median: float
    low: float
    high: float
    spread: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the launches of two variants show.

    Attributes:
        ratio: B over A, of the metric as it is measured; None where there is none to be had or it would say nothing.
        interval: for the ratio, at `confidence`; None where so few launches give none at 1 - alpha.
        confidence: what the interval has by construction: 1 - alpha, or a little more where launches are few.
        p_differs: two-sided, against a ratio of 1, adjusted for the family.
        p_equivalent: against a ratio beyond the margin, adjusted for the family.
        margin: 0.02 for 2 %: between 1/1.02 and 1.02 nobody cares.
        test: which test it was, in words.
        family: how many comparisons it was judged with.
        reasons: why it is incomparable.
    """

    metric: Metric
    verdict: Verdict
    a: Summary | None
    b: Summary | None
    ratio: float | None
    interval: tuple[float, float] | None
    confidence: float | None
    p_differs: float | None
    p_equivalent: float | None
    alpha: float
    margin: float
    test: str
    family: int
    reasons: tuple[str, ...]
    cautions: tuple[Caution, ...]
    drops: tuple[Drop, ...]

    @property
    def n(self) -> tuple[int, int]:
        """Return how many launches of A and of B it rests on."""
        return (self.a.n if self.a else 0, self.b.n if self.b else 0)

    @property
    def gain(self) -> float | None:
        """Return how much better B is: above 1 is better, whichever way the metric is good."""
        if self.ratio is None:
            return None
        return self.ratio if self.metric.better is Better.HIGHER else 1 / self.ratio


def compare(
    sample: Sample, *, margin: float, alpha: float = ALPHA, reasons: Sequence[str] = (), seed: int = SEED
) -> Comparison:
    """Return what the sample shows at the level alpha.

    `faster` and `slower`: the two-sided permutation test within blocks refutes that B is A. `equivalent`: two one-sided
    tests refute that they differ by the margin or more; it goes before the former, because the margin says what
    matters. Else `inconclusive`, which is no sign of sameness. With `reasons` (another GPU, driver, clocks, workload,
    throttling, somebody else's work) it is `incomparable`, and there is no ratio.

    Raises:
        ValueError: a margin that is not above 0, or an alpha that is not between 0 and 0.5.
    """
    if not 0 < margin < math.inf or not 0 < alpha < 0.5:
        raise ValueError(f"the margin is above 0 and alpha between 0 and 0.5, not {margin} and {alpha}")
    blocks = sample.blocks
    found = reference(blocks, seed=seed) if blocks and not reasons else None
    interval = found.interval(1 - alpha) if found else None
    comparison = Comparison(
        metric=sample.metric,
        verdict=Verdict.INCOMPARABLE if reasons else Verdict.INCONCLUSIVE,
        a=_summary(sample.values(Side.A)),
        b=_summary(sample.values(Side.B)),
        ratio=math.exp(found.estimate) if found else None,
        interval=(math.exp(interval.low), math.exp(interval.high)) if interval else None,
        confidence=interval.confidence if interval else None,
        p_differs=found.p_differs() if found else None,
        p_equivalent=found.p_equivalent(math.log1p(margin)) if found else None,
        alpha=alpha,
        margin=margin,
        test=_test(sample, found, seed) if found else "none",
        family=1,
        reasons=tuple(reasons),
        cautions=_cautions(sample, found, alpha),
        drops=sample.drops,
    )
    return _judged(comparison)


def judge_together(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return the comparisons judged as one family, in their order: both kinds of p adjusted by Holm.

    With what `compare` gave, once; those without a p value (incomparable, nothing left) do not count. The chance of any
    false `faster` or `slower` is at most alpha, and so is that of any false `equivalent`. Intervals stay those of one
    comparison alone.

    Raises:
        ValueError: one was judged in a family before.
    """
    if any(comparison.family != 1 for comparison in comparisons):
        raise ValueError("a comparison is judged in one family only: begin with what `compare` gave")
    counted = [at for at, comparison in enumerate(comparisons) if comparison.p_differs is not None]
    differs = holm([comparisons[at].p_differs or 0.0 for at in counted])
    equivalent = holm([comparisons[at].p_equivalent or 0.0 for at in counted])
    judged = list(comparisons)
    for at, one, other in zip(counted, differs, equivalent, strict=True):
        before = comparisons[at]
        alone = tuple(caution for caution in before.cautions if caution.about is not About.SMALL)
        after = _judged(
            replace(before, p_differs=one, p_equivalent=other, family=len(counted), cautions=alone),
        )
        if after.verdict is not before.verdict:
            text = f"{before.verdict} alone; among {len(counted)} comparisons it is {after.verdict}"
            after = replace(after, cautions=(*after.cautions, Caution(about=About.FAMILY, text=text)))
        judged[at] = after
    return tuple(judged)


def _judged(comparison: Comparison) -> Comparison:
    """Return the comparison with the verdict that its p values give."""
    differs, equivalent, gain = comparison.p_differs, comparison.p_equivalent, comparison.gain
    if differs is None or equivalent is None or gain is None:
        return comparison
    if equivalent <= comparison.alpha:
        cautions = comparison.cautions
        if differs <= comparison.alpha:
            text = f"a difference is shown, and shown to be smaller than the margin of {comparison.margin:.3g}"
            cautions = (*cautions, Caution(about=About.SMALL, text=text))
        return replace(comparison, verdict=Verdict.EQUIVALENT, cautions=cautions)
    if differs <= comparison.alpha:
        return replace(comparison, verdict=Verdict.FASTER if gain > 1 else Verdict.SLOWER)
    return replace(comparison, verdict=Verdict.INCONCLUSIVE)


def _summary(values: Sequence[float]) -> Summary | None:
    if not values:
        return None
    spread = statistics.stdev([math.log(value) for value in values]) if len(values) > 1 else None
    return Summary(n=len(values), median=statistics.median(values), low=min(values), high=max(values), spread=spread)


def _test(sample: Sample, found: Reference, seed: int) -> str:
    """Return which test it was, in words."""
    if sample.design is Design.SEPARATE:
        where = "over all launches"
    else:
        sizes = [len(block.a) + len(block.b) for block in sample.blocks]
        told = [f"{sizes.count(size)} of {size}" for size in sorted(set(sizes), reverse=True)]
        where = f"within blocks of launches, {' and '.join(told)}"
    how = f"exact, {found.ways} ways" if found.exact else f"{DRAWN} drawn with seed {seed}"
    return f"permutation of labels {where}, {how}"


def _cautions(sample: Sample, found: Reference | None, alpha: float) -> tuple[Caution, ...]:
    """Return what is to be known of the sample before its verdict is believed."""
    cautions = []
    if not sample.blocks:
        cautions.append(Caution(about=About.TOO_FEW, text="nothing is left to compare"))
    elif found is not None and least_p(found.ways) > alpha:
        cautions.append(Caution(about=About.TOO_FEW, text=too_few(found.ways, alpha)))
    if found is not None and not found.exact:
        error = math.sqrt(alpha * (1 - alpha) / found.ways)
        if abs(found.p_differs() - alpha) < 4 * error:
            text = f"p is {found.p_differs():.4f}, known to {2 * error:.4f} only: another seed may say otherwise"
            cautions.append(Caution(about=About.DRAWN, text=text))
    if sample.design is Design.SEPARATE:
        text = "the sides ran one after the other: what changed in between counts as a difference between them"
        cautions.append(Caution(about=About.SEPARATE, text=text))
    return (*cautions, *_of_failures(sample), *_of_figures(sample))


def too_few(ways: int, alpha: float) -> str:
    """Return the sentence for a sample that could not show a difference whatever was measured."""
    return f"{ways} ways to exchange the labels: p is never below {least_p(ways):.3g}, so {alpha:g} cannot be reached"


def _of_failures(sample: Sample) -> list[Caution]:
    """Return cautions about launches that have no figure."""
    if not sample.drops:
        return []
    out = sum(len(drop.places) for drop in sample.drops)
    text = f"{out} of {len(sample.launches)} launches, for {sample.drops[0].reason}"
    cautions = [Caution(about=About.DROPPED, text=text + (", and other reasons" if len(sample.drops) > 1 else ""))]
    failed = [launch.side for launch in sample.launches if launch.fault]
    for side in Side:
        if failed.count(side) > 1 and side.other not in failed:
            text = f"all {len(failed)} failures are {side}'s: the figures are of those launches that went well"
            cautions.append(Caution(about=About.FAILURES, text=text))
    return cautions


def _of_figures(sample: Sample) -> list[Caution]:
    """Return cautions about what the figures look like."""
    cautions = []
    residuals: dict[int, float] = {}
    sides: dict[Side, dict[int, float]] = {}
    for side in Side:
        mine = {x.place: math.log(x.value) for x in sample.used if x.side is side and x.value is not None}
        if len(mine) < 4:
            return []
        middle = statistics.median(mine.values())
        sides[side] = {place: value - middle for place, value in mine.items()}
        residuals |= sides[side]
    for side, rest in sides.items():
        # Of a few launches alone a scale is too rough to call one of them far off: that of both sides is a floor.
        scale = 1.4826 * max(statistics.median(map(abs, some.values())) for some in (rest, residuals))
        far = [place for place, value in rest.items() if abs(value) > _FAR * scale > 0]
        if far:
            text = f"{side} at place {far[0]} is {math.exp(rest[far[0]]):.3g} times its median; it widens the interval"
            cautions.append(Caution(about=About.OUTLIER, text=text))
    ranked = _rank_correlation(sorted(residuals), [residuals[place] for place in sorted(residuals)])
    if sample.design is Design.INTERLEAVED and len(residuals) >= 8 and abs(ranked) >= _RANKED:
        way = "rise" if ranked > 0 else "fall"
        text = f"figures {way} from the first launch to the last (rank correlation {ranked:.2f})"
        cautions.append(Caution(about=About.DRIFT, text=text))
    spreads = {side: statistics.stdev(rest.values()) for side, rest in sides.items()}
    low, high = sorted(spreads.values())
    if len(residuals) >= 12 and high > _SPREADS * low:
        text = f"A scatters by {spreads[Side.A]:.2%}, B by {spreads[Side.B]:.2%}; the test takes them for alike"
        cautions.append(Caution(about=About.SPREAD, text=text))
    return cautions


def _rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the rank correlation of Spearman; 0 where one does not vary."""
    ranks = [_ranks(values) for values in (left, right)]
    if min(len(set(values)) for values in ranks) < 2:
        return 0.0
    return statistics.correlation(*ranks)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, equal ones sharing the mean of theirs."""
    ranks = [0.0] * len(values)
    start = 0
    for _, group in itertools.groupby(sorted(range(len(values)), key=lambda at: values[at]), key=lambda at: values[at]):
        places = list(group)
        for place in places:
            ranks[place] = start + (len(places) - 1) / 2
        start += len(places)
    return ranks
