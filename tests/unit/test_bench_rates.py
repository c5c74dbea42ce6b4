"""How often verdicts err, simulated in worlds where the truth is known."""

from __future__ import annotations

import math
import random

import pytest

from bench.comparison import Verdict, compare, judge_together
from bench.sample import Sample, Side
from bench.stats import Reference, reference
from tests.unit.bench_worlds import STEP, THROUGHPUT, WORLDS, heavy_tail, lognormal, straight_drift, tried

RUNS = 500
EXCHANGEABLE = ("lognormal", "heavy tail", "stragglers")
MARGIN = math.log(1.02)


def references(world: str, pairs: int, *, ratio: float = 1.0, runs: int = RUNS) -> list[Reference]:
    """Return what runs of the world give; of many ways to exchange 200 are looked at, which keeps the level."""
    source = random.Random(f"{world} {pairs}")
    return [
        reference(tried(WORLDS[world](source, 2 * pairs), ratio=ratio).blocks, up_to=250, drawn=199, seed=run)
        for run in range(runs)
    ]


def test_false_positives_are_at_most_five_per_cent() -> None:
    rates = {}
    for world in WORLDS:
        for pairs in (4, 5, 8, 12):
            found = references(world, pairs)
            rates[world, pairs] = sum(one.p_differs() <= 0.05 for one in found) / RUNS
    error = math.sqrt(0.05 * 0.95 / RUNS)
    assert max(rates.values()) <= 0.05 + 2.5 * error, rates
    assert sum(rates.values()) / len(rates) <= 0.05, rates
    assert min(rates[world, 8] for world in EXCHANGEABLE) >= 0.05 - 3 * error, "nor much stricter than it says"


@pytest.mark.parametrize("pairs", [6, 8, 12])
def test_the_interval_covers_in_93_to_97_per_cent(pairs: int) -> None:
    """With drift it covers more often, never less: the drift within a block is taken for noise."""
    runs = 1200 if pairs < 12 else RUNS
    for world in EXCHANGEABLE:
        intervals = [one.interval(0.95) for one in references(world, pairs, ratio=1.07, runs=runs)]
        covered = sum(one.low <= math.log(1.07) <= one.high for one in intervals if one) / runs
        assert 0.93 <= covered <= 0.97, (world, covered)
    for world in set(WORLDS) - set(EXCHANGEABLE):
        intervals = [one.interval(0.95) for one in references(world, pairs, ratio=1.07)]
        assert sum(one.low <= math.log(1.07) <= one.high for one in intervals if one) / RUNS >= 0.93, world


def test_with_few_launches_the_interval_has_the_confidence_that_it_says() -> None:
    for pairs, expected in ((4, 1 - 2 / 70), (5, 1 - 2 / 72)):
        intervals = [one.interval(0.95) for one in references("lognormal", pairs, runs=3000)]
        assert {round(one.confidence, 9) for one in intervals if one} == {round(expected, 9)}
        covered = sum(one.low <= 0 <= one.high for one in intervals if one) / 3000
        assert covered == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("pairs", [5, 8, 12])
def test_what_differs_by_the_margin_is_called_equivalent_in_five_per_cent(pairs: int) -> None:
    error = math.sqrt(0.05 * 0.95 / RUNS)
    for world in WORLDS:
        wrong = sum(one.p_equivalent(MARGIN) <= 0.05 for one in references(world, pairs, ratio=1.02)) / RUNS
        assert wrong <= 0.05 + 2.5 * error, (world, wrong)


def test_without_turns_a_drift_is_taken_for_a_difference() -> None:
    """Why the order matters: the same drift, A first and then B."""
    source, wrong = random.Random(1), 0
    for run in range(100):
        figures = [math.exp(value) for value in straight_drift(source, 16)]
        apart = Sample.separate(THROUGHPUT, figures[:8], figures[8:])
        wrong += reference(apart.blocks, up_to=250, drawn=199, seed=run).p_differs() <= 0.05
    assert wrong > 90


def test_a_drift_that_is_cancelled_leaves_the_ratio_alone() -> None:
    found = compare(tried([-0.3 * at / 15 for at in range(16)], ratio=1.04), margin=0.02)
    assert found.ratio == pytest.approx(1.04, abs=1e-3)


def test_verdicts_err_in_five_per_cent_and_hardly_ever_in_direction() -> None:
    source = random.Random(2)
    same = [compare(tried(lognormal(source, 12), metric=STEP), margin=0.005).verdict for _ in range(600)]
    assert sum(verdict in (Verdict.FASTER, Verdict.SLOWER) for verdict in same) / 600 <= 0.05 + 0.022
    slower = [compare(tried(lognormal(source, 12), ratio=1.01, metric=STEP), margin=0.005).verdict for _ in range(600)]
    assert slower.count(Verdict.FASTER) / 600 <= 0.005
    assert slower.count(Verdict.EQUIVALENT) / 600 <= 0.05, "it differs by more than the margin"


def test_a_family_errs_in_five_per_cent_as_a_whole() -> None:
    source, families, alone, together = random.Random(3), 200, 0, 0
    for _ in range(families):
        members = [compare(tried(heavy_tail(source, 16)), margin=0.001) for _ in range(8)]
        alone += any(member.verdict in (Verdict.FASTER, Verdict.SLOWER) for member in members)
        together += any(member.verdict in (Verdict.FASTER, Verdict.SLOWER) for member in judge_together(members))
    assert alone / families > 0.2, "eight looks at nothing find something"
    assert together / families <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / families)


def test_drops_at_random_keep_the_level() -> None:
    source, wrong, runs = random.Random(4), 0, 600
    for run in range(runs):
        whole = tried(lognormal(source, 16))
        lost = set(source.sample(range(16), 2))
        kept = tuple(launch for launch in whole.launches if launch.place not in lost)
        blocks = Sample(metric=THROUGHPUT, launches=kept).blocks
        wrong += reference(blocks, up_to=250, drawn=199, seed=run).p_differs() <= 0.05
    assert wrong / runs <= 0.05 + 0.022
    assert Side.B.other is Side.A
