"""The permutation test against brute force, against scipy, and against what is known of it."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from bench.sample import Block
from bench.stats import Reference, holm, least_p, reference, ways

FIGURES = st.floats(-1, 1, allow_nan=False).map(lambda value: round(value, 3))


def blocks(*sizes: int, seed: int = 1, shift: float = 0.0) -> list[Block]:
    source = random.Random(seed)
    return [
        Block(
            a=tuple(source.gauss() for _ in range(size // 2)),
            b=tuple(source.gauss() + shift for _ in range(size - size // 2)),
        )
        for size in sizes
    ]


def brute_force(these: list[Block], than: float) -> tuple[float, float]:
    """Return both one-sided p values as the definition has them: labels exchanged, weighted differences compared."""
    choices = []
    for block in these:
        pool = [*block.a, *(value - than for value in block.b)]
        weight = len(block.a) * len(block.b) / len(pool)
        some = []
        for picked in itertools.combinations(range(len(pool)), len(block.a)):
            a = [pool[at] for at in picked]
            b = [pool[at] for at in range(len(pool)) if at not in picked]
            some.append(weight * (statistics.fmean(b) - statistics.fmean(a)))
        choices.append(some)
    found = [math.fsum(choice) for choice in itertools.product(*choices)]
    above = sum(value >= found[0] - 1e-9 for value in found)
    below = sum(value <= found[0] + 1e-9 for value in found)
    return above / len(found), below / len(found)


@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 4), (4, 2), (4, 4, 2), (7,), (8,), (3, 4)])
@pytest.mark.parametrize("than", [0.0, -0.4, 0.3])
def test_p_is_what_the_definition_gives(sizes: tuple[int, ...], than: float) -> None:
    these = blocks(*sizes, shift=0.5)
    found = reference(these)
    assert found.exact
    assert found.ways == ways(these)
    assert (found.p_above(than), found.p_below(than)) == pytest.approx(brute_force(these, than))


def test_scipy_agrees_where_it_can_answer() -> None:
    def difference(left: np.ndarray, right: np.ndarray) -> float:
        return float(np.mean(left) - np.mean(right))

    pairs = blocks(*[2] * 7, shift=0.6)
    paired = scipy_stats.permutation_test(
        ([block.b[0] for block in pairs], [block.a[0] for block in pairs]),
        difference, permutation_type="samples", n_resamples=math.inf,
    )  # fmt: skip
    assert reference(pairs).p_differs() == pytest.approx(paired.pvalue)
    (one,) = blocks(10, shift=0.6)
    over_all = scipy_stats.permutation_test((one.b, one.a), difference, n_resamples=math.inf)
    assert reference([one]).p_differs() == pytest.approx(over_all.pvalue)


def test_pairs_give_the_means_of_all_their_subsets() -> None:
    found = reference([Block(a=(0.0,), b=(1.0,)), Block(a=(0.0,), b=(3.0,)), Block(a=(1.0,), b=(9.0,))])
    assert list(found.typical) == [1, 2, 3, 4, 4.5, 5.5, 8]
    assert found.estimate == 4
    assert found.ways == 8


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(FIGURES, min_size=2, max_size=2), st.lists(FIGURES, min_size=2, max_size=2)),
        min_size=2,
        max_size=3,
    ),
    st.floats(-2, 2),
    st.sampled_from((0.8, 0.9, 0.95)),
)
def test_algebra(figures: list[tuple[list[float], list[float]]], shift: float, confidence: float) -> None:
    these = [Block(a=tuple(a), b=tuple(b)) for a, b in figures]
    shifted = [Block(a=block.a, b=tuple(value + shift for value in block.b)) for block in these]
    swapped = [Block(a=block.b, b=block.a) for block in these]
    found = reference(these)
    assert reference(shifted).estimate == pytest.approx(found.estimate + shift, abs=1e-9)
    assert reference(swapped).estimate == pytest.approx(-found.estimate, abs=1e-9)
    assert reference(swapped).p_above(0.0) == pytest.approx(found.p_below(0.0))
    interval = found.interval(confidence)
    if interval is None:
        assert least_p(found.ways) > 1 - confidence
        return
    assert confidence - 1e-12 <= interval.confidence <= 1
    assert interval.low <= found.estimate <= interval.high
    # The interval holds what the test does not refute, and nothing else.
    for value in (interval.low, interval.high, found.estimate):
        assert found.p_differs(value) > 1 - confidence
    assert found.p_differs(interval.low - 1e-6) <= 1 - confidence + 1e-9
    assert found.p_differs(interval.high + 1e-6) <= 1 - confidence + 1e-9


@pytest.mark.parametrize(("a_side", "expected"), [(3, 0.1), (4, 2 / 70), (5, 2 / 252)])
def test_the_least_p(a_side: int, expected: float) -> None:
    far = [Block(a=tuple(range(a_side)), b=tuple(range(100, 100 + a_side)))]
    assert reference(far).p_differs() == pytest.approx(expected)
    assert least_p(ways(far)) == pytest.approx(expected)


def test_three_against_three_have_no_interval_at_95() -> None:
    found = reference(blocks(6))
    assert found.interval(0.95) is None
    ninety = found.interval(0.90)
    assert ninety is not None
    assert ninety.confidence == pytest.approx(0.9)


def test_equal_figures() -> None:
    found = reference([Block(a=(0.1 + 0.2, 0.3), b=(0.3, 0.1 + 0.2))] * 3)
    assert found.p_differs() == 1
    assert found.estimate == pytest.approx(0, abs=1e-15)
    assert found.p_equivalent(0.01) == pytest.approx(1 / 216)
    assert found.p_equivalent(0.0) == 1


@pytest.mark.parametrize("sizes", [(4,) * 6, (20,)])
def test_drawn_agrees_with_exact(sizes: tuple[int, ...]) -> None:
    these = blocks(*sizes, shift=0.6)
    exact, drawn = reference(these, up_to=200_000), reference(these, up_to=100)
    assert exact.exact
    assert not drawn.exact
    assert drawn.ways == 20_000
    error = 4 * math.sqrt(exact.p_above(0) / 20_000)
    assert drawn.p_above(0) == pytest.approx(exact.p_above(0), abs=error + 1 / 20_000)
    assert drawn.estimate == pytest.approx(exact.estimate, abs=0.02)
    assert reference(these, up_to=100).typical == drawn.typical, "the seed decides"
    assert reference(these, up_to=100, seed=2).typical != drawn.typical


def test_a_p_that_is_drawn_is_never_zero() -> None:
    far = [Block(a=(0.0, 0.1), b=(9.0, 9.1))] * 12
    assert reference(far, drawn=99).p_differs() >= 2 / 100


def test_two_large_runs_apart_are_drawn_without_listing_their_exchanges() -> None:
    (one,) = blocks(60, shift=1.0)
    found = reference([one])
    assert not found.exact
    assert found.p_differs() < 0.01
    assert found.estimate == pytest.approx(statistics.fmean(one.b) - statistics.fmean(one.a), abs=0.05)


def test_nothing_to_exchange() -> None:
    with pytest.raises(ValueError, match="no block"):
        reference([])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((), ()),
        ((0.04,), (0.04,)),
        ((0.01, 0.04, 0.03, 0.005), (0.03, 0.06, 0.06, 0.02)),  # p.adjust of R, method holm
        ((0.02, 0.02), (0.04, 0.04)),
        ((0.9, 0.8, 0.01), (1.0, 1.0, 0.03)),
    ],
)
def test_holm(values: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert holm(values) == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.2))
def test_holm_rejects_what_the_step_down_procedure_rejects(values: list[float], alpha: float) -> None:
    rejected = set()
    for rank, at in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        if values[at] * (len(values) - rank) > alpha:
            break
        rejected.add(at)
    assert {at for at, value in enumerate(holm(values)) if value <= alpha} == rejected


def test_a_reference_is_a_value() -> None:
    assert Reference(typical=(1.0,), ways=2, exact=True) == Reference(typical=(1.0,), ways=2, exact=True)
