"""The permutation test within blocks, and all that follows from it: p, estimate, interval, equivalence, Holm.

Everything is in natural logarithms of the figures, so that a difference is the logarithm of a ratio. If B were A, the
labels within a block could be exchanged and nothing would be lost: each way of exchanging them is as likely as the one
that was run. The statistic is the difference of means within blocks. For a true difference t, exchanging one set of
launches for another of the same size says that t is more, or less, than the mean difference over what was exchanged;
so one sorted list of such means holds the p value, the interval and the estimate at once (Hartigan, Using subsample
values as typical values, JASA 64, 1969; Tritchler, On inverting permutation tests, JASA 79, 1984).

Written here on the standard library: `scipy.stats.permutation_test` exchanges within pairs or over all, not within
blocks of four, and gives no interval. The unit tests compare both where both can answer.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from bench.sample import Block

EXACT_UP_TO = 50_000
"""So many ways of exchanging are all looked at; of more, DRAWN are drawn."""
DRAWN = 19_999
"""With the arrangement that was run 20,000: the error of a p of 0.05 is then 0.0015."""
SEED = 20261130
_SAME = 1e-12
"""Logarithms closer than this are a tie: what rounding makes of equal figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An interval for the difference of logarithms, and the confidence that it has by construction (at least asked)."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What all ways of exchanging labels say of the difference B minus A, of logarithms.

    Attributes:
        typical: the mean difference over what each exchange swaps, sorted.
        ways: how many arrangements were looked at, the one that was run and its equals included.
        exact: whether these are all there are.
    """

    typical: tuple[float, ...]
    ways: int
    exact: bool

    def p_above(self, than: float) -> float:
        """Return the p value against "the difference is `than` or less": small where it is shown to be more.

        It does not tell how likely that statement is, nor how large the difference is.
        """
        return (self.ways - len(self.typical) + bisect_right(self.typical, than + _SAME)) / self.ways

    def p_below(self, than: float) -> float:
        """Return the p value against "the difference is `than` or more"."""
        return (self.ways - bisect_left(self.typical, than - _SAME)) / self.ways

    def p_differs(self, than: float = 0.0) -> float:
        """Return the two-sided p value against "the difference is `than`": twice the smaller one-sided, at most 1.

        A large p is no sign that there is no difference: `p_equivalent` is for that.
        """
        return min(1.0, 2 * min(self.p_above(than), self.p_below(than)))

    def p_equivalent(self, margin: float) -> float:
        """Return the p value against "the difference is `margin` or more, either way"; `margin` is a logarithm.

        Two one-sided tests, each at the full level (Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987). It does not tell
        that there is no difference, only that it is smaller than the margin.
        """
        return max(self.p_above(-margin), self.p_below(margin))

    def interval(self, confidence: float) -> Interval | None:
        """Return all differences that the test does not refute at 1 - confidence; None where it cannot refute any.

        It assumes that B is A times a constant. It does not tell where a next launch will lie: that interval is wider.
        """
        spare = _floor((1 - confidence) / 2 * self.ways)
        at = spare - (self.ways - len(self.typical))
        if at < 0:
            return None
        return Interval(low=self.typical[at], high=self.typical[-1 - at], confidence=1 - 2 * spare / self.ways)

    @property
    def estimate(self) -> float:
        """Return the difference that the test refutes least: the median of the typical values.

        The estimate that goes with a test (Hodges and Lehmann, Estimates of location based on rank tests, Ann. Math.
        Statist. 34, 1963). Alone it tells nothing of how sure it is.
        """
        return statistics.median(self.typical)


def reference(blocks: Sequence[Block], *, seed: int = SEED, up_to: int = EXACT_UP_TO, drawn: int = DRAWN) -> Reference:
    """Return the reference of these blocks: exact up to so many ways, else from so many drawn with the seed.

    Drawn ones count the arrangement that was run among them, so that the level holds (Phipson and Smyth, Permutation
    p-values should never be zero, Stat. Appl. Genet. Mol. Biol. 9, 2010).

    Raises:
        ValueError: there is no block.
    """
    if not blocks:
        raise ValueError("no block: nothing can be exchanged")
    total = ways(blocks)
    if total <= up_to:
        sums, counts = [0.0], [0]
        for block in blocks:
            exchanges = _exchanges(block)
            sums = [left + right for left in sums for right, _ in exchanges]
            counts = [left + right for left in counts for _, right in exchanges]
        looked_at = total
    else:
        sums, counts = _draw(blocks, random.Random(seed), drawn)  # noqa: S311
        looked_at = drawn + 1
    typical = sorted(total / count for total, count in zip(sums, counts, strict=True) if count)
    return Reference(typical=tuple(typical), ways=looked_at, exact=total <= up_to)


def ways(blocks: Sequence[Block]) -> int:
    """Return in how many ways the labels can be exchanged within blocks, the one that was run included."""
    return math.prod(math.comb(len(block.a) + len(block.b), len(block.a)) for block in blocks)


def least_p(ways_there_are: int) -> float:
    """Return the smallest two-sided p value that so many ways can give, whatever is measured."""
    return min(1.0, 2 / ways_there_are)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p values adjusted for their number, in the order given.

    Rejecting those up to alpha, the chance of any false rejection in the family is at most alpha, however they depend
    on each other (Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6, 1979). It does
    not tell which of several rejections is the false one, and intervals are not widened by it.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = highest
    return tuple(adjusted)


def _floor(value: float) -> int:
    """Return the whole part; what is a whole number but for rounding counts as that."""
    return math.floor(value + 1e-9)


def _exchanges(block: Block) -> list[tuple[float, int]]:
    """Return for each way of exchanging: the sum of B over what is swapped minus that of A, and how many are swapped.

    Blocks of unequal sides then weigh by the harmonic mean of these, which is the weight of least variance.
    """
    found = []
    for size in range(min(len(block.a), len(block.b)) + 1):
        lefts = [math.fsum(some) for some in itertools.combinations(block.a, size)]
        rights = [math.fsum(some) for some in itertools.combinations(block.b, size)]
        found += [(right - left, size) for right in rights for left in lefts]
    return found


def _draw(blocks: Sequence[Block], source: random.Random, drawn: int) -> tuple[list[float], list[int]]:
    """Return sums and counts as of `_exchanges` over all blocks, for arrangements drawn with equal chances."""
    sums, counts = [0.0] * drawn, [0] * drawn
    for block in blocks:
        if math.comb(len(block.a) + len(block.b), len(block.a)) <= EXACT_UP_TO:
            picked = source.choices(_exchanges(block), k=drawn)
        else:
            picked = [_shuffled(block, source) for _ in range(drawn)]
        sums = [left + right for left, (right, _) in zip(sums, picked, strict=True)]
        counts = [left + right for left, (_, right) in zip(counts, picked, strict=True)]
    return sums, counts


def _shuffled(block: Block, source: random.Random) -> tuple[float, int]:
    """Return one exchange of a block that has too many to list."""
    size = len(block.a)
    places = source.sample(range(size + len(block.b)), size)
    stay = {place for place in places if place < size}
    out = [value for place, value in enumerate(block.a) if place not in stay]
    into = [block.b[place - size] for place in places if place >= size]
    return math.fsum(into) - math.fsum(out), len(into)
