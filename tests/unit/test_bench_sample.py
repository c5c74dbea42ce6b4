"""Launches in order: pairs, blocks, drops, and which steps of a launch are warm-up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.sample import Better, Design, Launch, Metric, Sample, Side, Steps, WarmUp, order

METRIC = Metric(name="throughput", unit="tokens/s/GPU", better=Better.HIGHER)


def sample(words: str, *, failed: dict[int, str] | None = None, missing: tuple[int, ...] = ()) -> Sample:
    """Return the sample that ran the sides of `words` in this order, the figure of each its place plus one."""
    launches = []
    for place, word in enumerate(words):
        if place in missing:
            continue
        fault = (failed or {}).get(place, "")
        launches.append(Launch(place=place, side=Side(word), value=None if fault else place + 1.0, fault=fault))
    return Sample(metric=METRIC, launches=tuple(launches))


def shape(of: Sample) -> list[tuple[list[int], list[int]]]:
    """Return the figures of A and of B by block."""
    return [([round(math.exp(x)) for x in block.a], [round(math.exp(x)) for x in block.b]) for block in of.blocks]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [(1, "AB"), (2, "ABBA"), (3, "ABBABA"), (4, "ABBABAAB"), (5, "ABBABAABAB"), (8, "ABBABAABABBABAAB")],
)
def test_the_order_begins_a_b_b_a_and_turns_each_second_block_round(pairs: int, expected: str) -> None:
    assert "".join(order(pairs)) == expected


def test_an_order_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        order(0)


@given(st.integers(1, 8), st.floats(-1, 1), st.floats(-1, 1))
def test_straight_and_bent_drifts_add_the_same_to_both_sides(eights: int, slope: float, bend: float) -> None:
    sides = order(4 * eights)
    for block in range(0, len(sides), 8):
        sums = dict.fromkeys(Side, 0.0)
        for at in range(block, block + 8):
            sums[sides[at]] += slope * at + bend * (at - block) ** 2
        assert sums[Side.A] == pytest.approx(sums[Side.B], abs=1e-6)


@pytest.mark.parametrize(
    ("words", "failed", "missing", "expected"),
    [
        ("ABBABAAB", {}, (), [([1, 4, 6, 7], [2, 3, 5, 8])]),
        ("ABBABAABAB", {}, (), [([1, 4], [2, 3]), ([6, 7], [5, 8]), ([9], [10])]),
        # one pair of a block is left, where the rest has ways enough
        ("ABBABAABABBA", {3: "OOM"}, (), [([1], [2]), ([6, 7], [5, 8]), ([9, 12], [10, 11])]),
        ("ABBABAABABBA", {}, (3,), [([1], [2]), ([6, 7], [5, 8]), ([9, 12], [10, 11])]),
        # four pairs in two blocks and less: one block
        ("ABBABAABAB", {0: "OOM"}, (), [([4, 6, 7, 9], [3, 5, 8, 10])]),
        ("ABBA", {}, (), [([1, 4], [2, 3])]),
        # five pairs in five blocks have 32 ways: one block
        (
            "ABBABAABABBABAABABBA",
            dict.fromkeys((0, 4, 8, 12, 16), "OOM"),
            (),
            [([4, 7, 12, 15, 20], [3, 8, 11, 16, 19])],
        ),
        ("AB", {0: "OOM"}, (), []),
        ("", {}, (), []),
    ],
)
def test_blocks(
    words: str, failed: dict[int, str], missing: tuple[int, ...], expected: list[tuple[list[int], list[int]]]
) -> None:
    assert shape(sample(words, failed=failed, missing=missing)) == expected


def test_a_failed_launch_takes_its_pair_with_it_and_the_reason_is_kept() -> None:
    ran = sample("ABBABAAB", failed={1: "out of memory in update_actor", 7: "killed"}, missing=(4,))
    assert [(drop.places, drop.reason) for drop in ran.drops] == [
        ((0, 1), "B: out of memory in update_actor"),
        ((5,), "B: did not run"),
        ((6, 7), "B: killed"),
    ]
    assert [launch.place for launch in ran.used] == [2, 3]
    assert ran.values(Side.A) == (4.0,)
    assert ran.values(Side.B) == (3.0,)
    assert len(ran.launches) == 7, "what was tried is kept"


def test_both_faults_of_a_pair_are_told() -> None:
    assert sample("AB", failed={0: "hung", 1: "killed"}).drops[0].reason == "A: hung; B: killed"


def test_runs_apart_in_time_are_one_block_and_lose_single_launches() -> None:
    apart = Sample.separate(METRIC, [1.0, 2.0, math.nan], [3.0, 4.0])
    assert apart.design is Design.SEPARATE
    assert shape(apart) == [([1, 2], [3, 4])]
    assert [(drop.places, drop.reason) for drop in apart.drops] == [((2,), "A: the figure is nan")]


def test_launches_are_put_in_order() -> None:
    launches = tuple(Launch(place=place, side=side, value=1.0) for place, side in [(1, Side.B), (0, Side.A)])
    assert [launch.place for launch in Sample(metric=METRIC, launches=launches).launches] == [0, 1]


@pytest.mark.parametrize(
    ("launches", "message"),
    [([(0, "A"), (0, "B")], "same place"), ([(0, "A"), (1, "A")], "ran A twice"), ([(4, "B"), (5, "B")], "4 and 5")],
)
def test_samples_that_cannot_be(launches: list[tuple[int, str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sample(
            metric=METRIC,
            launches=tuple(Launch(place=place, side=Side(side), value=1.0) for place, side in launches),
        )


@pytest.mark.parametrize(
    ("place", "value", "fault", "message"),
    [
        (-1, 1.0, "", "a place is"),
        (0, None, "", "a figure or a reason"),
        (0, 1.0, "hung", "a figure or a reason"),
        (0, 0.0, "", "positive and finite"),
        (0, -1.0, "", "positive and finite"),
        (0, math.nan, "", "positive and finite"),
        (0, math.inf, "", "positive and finite"),
    ],
)
def test_launches_that_cannot_be(place: int, value: float | None, fault: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Launch(place=place, side=Side.A, value=value, fault=fault)


@pytest.mark.parametrize(
    ("value", "fault", "expected"),
    [(2.0, "", (2.0, "")), (math.nan, "", (None, "the figure is nan")), (0.0, "", (None, "the figure is 0.0")),
     (2.0, "throttled", (None, "throttled"))],
)  # fmt: skip
def test_a_figure_that_is_none_becomes_the_fault(value: float, fault: str, expected: tuple[float | None, str]) -> None:
    launch = Launch.of(0, Side.A, value, fault=fault)
    assert (launch.value, launch.fault) == expected


@pytest.mark.parametrize(
    ("rule", "values", "seconds", "kept"),
    [
        (WarmUp(), [9, 1, 2, 3], None, (1, 2, 3)),
        (WarmUp(steps=0), [9, 1], None, (9, 1)),
        (WarmUp(steps=5), [9, 1], None, ()),
        (WarmUp(steps=1, seconds=30), [9, 1, 2, 3], [20, 5, 5, 5], (3,)),
        (WarmUp(steps=0, seconds=30), [9, 1], [30, 5], (1,)),
        (WarmUp(steps=2, seconds=1), [9, 1, 2], [20, 5, 5], (2,)),
        (WarmUp(seconds=1000), [9, 1, 2], [20, 5, 5], ()),
    ],
)
def test_warm_up(rule: WarmUp, values: list[float], seconds: list[float] | None, kept: tuple[float, ...]) -> None:
    steps = rule.apply(values, seconds)
    assert steps.kept == kept
    assert steps.raw == tuple(values), "raw samples are kept"


@pytest.mark.parametrize(
    ("rule", "message"),
    [({"steps": -1}, "warm-up rule"), ({"seconds": math.nan}, "warm-up rule"), ({"least": 0}, "warm-up rule")],
)
def test_rules_that_cannot_be(rule: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WarmUp(**rule)


def test_a_rule_in_seconds_needs_seconds() -> None:
    with pytest.raises(ValueError, match="seconds of each step"):
        WarmUp(seconds=3).apply([1.0])
    with pytest.raises(ValueError, match="1 steps and 2 durations"):
        WarmUp().apply([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("steps", "figure", "fault", "trend"),
    [
        (Steps(raw=(9, 1, 2, 30), dropped=1), 2, "", None),
        (Steps(raw=(9, 1, 1, 2, 2), dropped=1), 1.5, "", 2.0),
        (Steps(raw=(9, 2, 2, 7, 1, 1), dropped=1), 2, "", 0.5),
        (Steps(raw=(9,), dropped=1), None, "0 of 1 steps are left after warm-up; 1 are needed", None),
        (Steps(raw=(9, 1, 2), dropped=1, least=3), None, "2 of 3 steps are left after warm-up; 3 are needed", None),
        (Steps(raw=(math.nan, 1.0), dropped=1), 1, "", None),
        (Steps(raw=(1, 1, math.nan), dropped=1), None, "step 2 is nan", None),
        (Steps(raw=(0, 0, 1, 1), dropped=0), 0.5, "", None),
    ],
)
def test_steps(steps: Steps, figure: float | None, fault: str, trend: float | None) -> None:
    assert (steps.figure, steps.fault, steps.trend) == (figure, fault, trend)
