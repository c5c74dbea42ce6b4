"""Verdicts: which words a sample earns, what is said beside them, and families."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from bench.comparison import About, Comparison, Verdict, compare, judge_together
from bench.sample import Better, Launch, Metric, Sample, Side, order
from tests.unit.bench_worlds import NOISE, STEP, THROUGHPUT, lognormal, stragglers, straight_drift, tried

MARGIN = 0.02


def ran(*, ratio: float, pairs: int = 8, seed: int = 3, metric: Metric = THROUGHPUT, noise: float = 1.0) -> Sample:
    values = [noise * value for value in lognormal(random.Random(seed), 2 * pairs)]
    return tried(values, ratio=ratio, metric=metric)


def about(comparison: Comparison) -> list[About]:
    return [caution.about for caution in comparison.cautions]


@pytest.mark.parametrize(
    ("ratio", "metric", "pairs", "noise", "expected"),
    [
        (1.05, THROUGHPUT, 8, 1, Verdict.FASTER),
        (0.95, THROUGHPUT, 8, 1, Verdict.SLOWER),
        (1.05, STEP, 8, 1, Verdict.SLOWER),
        (0.95, STEP, 8, 1, Verdict.FASTER),
        (1.00, THROUGHPUT, 8, 1, Verdict.EQUIVALENT),
        (1.00, THROUGHPUT, 8, 5, Verdict.INCONCLUSIVE),
        (1.50, THROUGHPUT, 3, 1, Verdict.INCONCLUSIVE),
        (1.05, THROUGHPUT, 5, 1, Verdict.FASTER),
        (1.05, THROUGHPUT, 4, 0.5, Verdict.FASTER),
    ],
)
def test_verdicts(ratio: float, metric: Metric, pairs: int, noise: float, expected: Verdict) -> None:
    found = compare(ran(ratio=ratio, metric=metric, pairs=pairs, noise=noise), margin=MARGIN)
    assert found.verdict is expected
    assert found.n == (pairs, pairs)
    assert found.ratio == pytest.approx(ratio, rel=0.05)
    assert found.gain == pytest.approx(found.ratio if metric.better is Better.HIGHER else 1 / (found.ratio or 0))
    assert (found.interval is None) == (pairs == 3)
    if found.interval and expected in (Verdict.FASTER, Verdict.SLOWER):
        assert not found.interval[0] <= 1 <= found.interval[1], "test and interval say the same"


def test_a_comparison_holds_what_a_report_needs() -> None:
    found = compare(ran(ratio=1.05, pairs=6), margin=MARGIN)
    assert found.test == "permutation of labels within blocks of launches, 3 of 4, exact, 216 ways"
    assert found.confidence == pytest.approx(1 - 10 / 216)
    assert found.a is not None
    assert found.a.n == 6
    assert found.a.low <= found.a.median <= found.a.high
    assert found.a.spread == pytest.approx(NOISE, rel=0.8)
    assert (found.alpha, found.margin, found.family, found.reasons, found.drops) == (0.05, MARGIN, 1, (), ())


def test_blocks_and_pairs_are_told_in_words() -> None:
    test = compare(ran(ratio=1.05, pairs=5), margin=MARGIN).test
    assert test == "permutation of labels within blocks of launches, 2 of 4 and 1 of 2, exact, 72 ways"


def test_incomparable_has_reasons_and_no_ratio() -> None:
    reasons = ("driver 580.65 and 575.51", "B throttled for 12 s in the launch at place 3")
    found = compare(ran(ratio=1.5), margin=MARGIN, reasons=reasons)
    assert found.verdict is Verdict.INCOMPARABLE
    assert found.reasons == reasons
    assert (found.ratio, found.gain, found.interval, found.p_differs, found.p_equivalent) == (None,) * 5
    assert found.a is not None, "each side's figures stand on their own"
    assert found.test == "none"
    assert About.TOO_FEW not in about(found)


def test_a_shown_difference_within_the_margin_is_equivalence_and_says_so() -> None:
    found = compare(ran(ratio=1.01, pairs=8, noise=0.2), margin=MARGIN)
    assert found.verdict is Verdict.EQUIVALENT
    assert found.p_differs is not None
    assert found.p_differs < 0.05
    assert about(found) == [About.SMALL]


def test_nothing_left() -> None:
    launches = tuple(Launch(place=at, side=side, fault="out of memory") for at, side in enumerate(order(4)))
    found = compare(Sample(metric=THROUGHPUT, launches=launches), margin=MARGIN)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert (found.n, found.ratio, found.a) == ((0, 0), None, None)
    assert about(found) == [About.TOO_FEW, About.DROPPED]
    assert len(found.drops) == 4
    assert about(compare(Sample(metric=THROUGHPUT, launches=()), margin=MARGIN)) == [About.TOO_FEW]


def test_one_pair() -> None:
    found = compare(ran(ratio=2.0, pairs=1), margin=MARGIN)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.ratio == pytest.approx(2, rel=0.1)
    assert found.a is not None
    assert found.a.spread is None
    assert found.cautions[0].text == "2 ways to exchange the labels: p is never below 1, so 0.05 cannot be reached"


def test_a_failed_launch_drops_its_pair_and_the_rest_goes_on() -> None:
    whole = ran(ratio=1.05, pairs=8)
    broken = tuple(replace(x, value=None, fault="hung in ray.get") if x.place == 5 else x for x in whole.launches)
    found = compare(replace(whole, launches=broken), margin=MARGIN)
    assert found.verdict is Verdict.FASTER
    assert found.n == (7, 7)
    assert [(drop.places, drop.reason) for drop in found.drops] == [((4, 5), "A: hung in ray.get")]
    assert [caution.text for caution in found.cautions] == ["2 of 16 launches, for A: hung in ray.get"]


def test_failures_of_one_side_only_are_pointed_at() -> None:
    whole = ran(ratio=1.0, pairs=8)
    places = [x.place for x in whole.launches if x.side is Side.B][:3]
    broken = tuple(replace(x, value=None, fault="OOM") if x.place in places else x for x in whole.launches)
    found = compare(replace(whole, launches=broken), margin=MARGIN)
    assert About.FAILURES in about(found)
    assert "all 3 failures are B's" in next(x.text for x in found.cautions if x.about is About.FAILURES)


def test_a_launch_far_off_a_drift_and_unequal_spread_are_pointed_at() -> None:
    far = lognormal(random.Random(1), 16)
    far[4] -= 0.4
    assert about(compare(tried(far), margin=MARGIN)) == [About.OUTLIER, About.SPREAD]
    assert about(compare(tried(straight_drift(random.Random(1), 16)), margin=MARGIN)) == [About.DRIFT]
    noise = lognormal(random.Random(2), 24)
    uneven = [value * (6 if side is Side.B else 1) for value, side in zip(noise, order(12), strict=True)]
    assert About.SPREAD in about(compare(tried(uneven), margin=MARGIN))
    assert about(compare(tried([0.0] * 16), margin=MARGIN)) == []


def test_sides_that_ran_one_after_the_other_are_pointed_at() -> None:
    source = random.Random(5)
    sides = [[math.exp(value) for value in lognormal(source, 6)] for _ in range(2)]
    found = compare(Sample.separate(THROUGHPUT, *sides), margin=0.05, alpha=0.01)
    assert found.verdict is Verdict.EQUIVALENT
    assert about(found) == [About.SEPARATE]
    assert found.test == "permutation of labels over all launches, exact, 924 ways"


def test_a_drawn_p_near_the_level_is_pointed_at() -> None:
    near = compare(ran(ratio=1.0, pairs=14, seed=60), margin=MARGIN)
    assert near.p_differs == pytest.approx(0.05, abs=0.006)
    assert About.DRAWN in about(near)
    assert "drawn with seed" in near.test
    assert About.DRAWN not in about(compare(ran(ratio=1.1, pairs=14), margin=MARGIN))


@pytest.mark.parametrize(("margin", "alpha"), [(0.0, 0.05), (-1.0, 0.05), (math.nan, 0.05), (0.02, 0.0), (0.02, 0.5)])
def test_arguments_that_make_no_sense(margin: float, alpha: float) -> None:
    with pytest.raises(ValueError, match="margin is above 0"):
        compare(ran(ratio=1.0), margin=margin, alpha=alpha)


def test_the_same_sample_gives_the_same_comparison() -> None:
    one = ran(ratio=1.0, pairs=16)
    assert compare(one, margin=MARGIN) == compare(one, margin=MARGIN)


def test_swapping_the_sides_turns_the_verdict_round() -> None:
    there = ran(ratio=1.04, pairs=6)
    back = replace(there, launches=tuple(replace(launch, side=launch.side.other) for launch in there.launches))
    one, other = compare(there, margin=MARGIN), compare(back, margin=MARGIN)
    assert (one.verdict, other.verdict) == (Verdict.FASTER, Verdict.SLOWER)
    assert one.ratio is not None
    assert other.ratio is not None
    assert one.ratio * other.ratio == pytest.approx(1)


def test_one_of_twenty_that_stands_alone_falls_in_the_family() -> None:
    alone = compare(ran(ratio=1.05, pairs=5), margin=MARGIN)
    assert alone.verdict is Verdict.FASTER
    others = [compare(ran(ratio=1.0, pairs=5, seed=seed, noise=4), margin=MARGIN) for seed in range(19)]
    incomparable = compare(ran(ratio=1.05), margin=MARGIN, reasons=("other driver",))
    judged = judge_together([incomparable, alone, *others])
    assert judged[0] == incomparable
    assert judged[1].verdict is Verdict.INCONCLUSIVE
    assert judged[1].family == 20
    assert judged[1].p_differs == pytest.approx(20 * 2 / 72)
    assert judged[1].interval == alone.interval
    assert judged[1].cautions[-1].text == "faster alone; among 20 comparisons it is inconclusive"


def test_a_family_keeps_what_is_strong_and_its_order() -> None:
    members = [compare(ran(ratio=ratio, pairs=10), margin=MARGIN) for ratio in (1.1, 1.0, 0.9)]
    judged = judge_together(members)
    assert [member.verdict for member in judged] == [Verdict.FASTER, Verdict.EQUIVALENT, Verdict.SLOWER]
    assert [member.ratio for member in judged] == [member.ratio for member in members]
    with pytest.raises(ValueError, match="one family only"):
        judge_together(judged)
    assert judge_together([]) == ()


def test_a_small_difference_is_told_once_in_a_family() -> None:
    small = compare(ran(ratio=1.01, pairs=8, noise=0.2), margin=MARGIN)
    assert [about(member) for member in judge_together([small, small])] == [[About.SMALL]] * 2


def test_stragglers_are_pointed_at_more_often_than_not() -> None:
    source = random.Random(11)
    seen = [About.OUTLIER in about(compare(tried(stragglers(source, 16)), margin=MARGIN)) for _ in range(40)]
    assert sum(seen) > 20
