"""Verdicts of a series: families, numbers of training, tables, what follows for somebody who decides."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bench.comparison import About, Verdict
from bench.numerics import TOLERANCES, Kept, numbers, safe
from bench.sample import Side
from bench.verdicts import COLUMNS, advice, judge, note, row, table, values
from tests.unit.bench_gathered import held, some


def test_a_pairing_is_judged_in_its_main_metric_and_in_what_explains_it() -> None:
    (paired,) = judge([some("x", "seconds/gen", ratio=0.9), some("x", "throughput", ratio=1.1)])
    assert [(item.name, item.main) for item in paired.judgements] == [("throughput", True), ("seconds/gen", False)]
    assert [item.comparison.verdict for item in paired.judgements] == [Verdict.FASTER, Verdict.FASTER]
    assert paired.of("seconds/gen") is paired.judgements[1]
    assert paired.of("nothing") is None
    assert paired.gpu_seconds == 12 * 160
    assert advice(paired) == "take it"


def test_the_family_is_of_main_metrics_of_one_series_and_one_device() -> None:
    many = [some(f"t{at}", ratio=1.0, noise=0.01, seed=at) for at in range(4)]
    found = judge([*many, some("t0", "seconds/gen"), some("y", series="other"), some("z", device="cpu")])
    families = {(item.series, item.device, item.pairing): item.main[0].comparison.family for item in found}
    assert families == {
        **{("s", "cuda", f"t{at}"): 4 for at in range(4)},
        ("other", "cuda", "y"): 1,
        ("s", "cpu", "z"): 1,
    }
    assert all(item.comparison.family == 1 for one in found for item in one.judgements if not item.main)


def test_one_pairing_on_two_recipes_is_two() -> None:
    found = judge([some("x"), some("x", recipe="ppo-long", ratio=0.9)])
    assert [(item.recipe, item.main[0].comparison.verdict) for item in found] == [
        ("ppo-short", Verdict.FASTER),
        ("ppo-long", Verdict.SLOWER),
    ]


def test_repeats_of_one_launch_say_so() -> None:
    (paired,) = judge([some("x", "throughput/gen", recipe="rollout-short", n=20, notes=["cold caches"])])
    cautions = {caution.about: caution.text for caution in paired.main[0].comparison.cautions}
    assert "how launches differ" in cautions[About.ONE_LAUNCH]
    assert cautions[About.NOTE] == "cold caches"
    (paired,) = judge([some("x", "throughput/gen", recipe="rollout-short", n=20, reasons=["another GPU"])])
    assert About.ONE_LAUNCH not in {caution.about for caution in paired.main[0].comparison.cautions}


def test_a_table_has_a_row_a_main_metric_and_all_where_asked() -> None:
    paired = judge([some("x"), some("x", "seconds/gen", ratio=0.9), some("y", ratio=1.0, faults={3: "hung"})])
    found = table(paired)
    assert list(found.columns) == list(COLUMNS)
    assert list(found["pairing"]) == ["x", "y"]
    assert found["verdict"][0] == "faster"
    assert found["n"][1] == "5+5"
    assert "hung" in found["note"][1]
    assert list(table(paired, whole=True)["metric"]) == ["throughput", "seconds/gen", "throughput"]
    assert found["ratio"][0] == pytest.approx(1.1, rel=0.02)
    assert found["low"][0] < found["ratio"][0] < found["high"][0]


def test_numbers_of_a_cpu_and_a_gpu_are_in_no_table_together() -> None:
    paired = judge([some("x"), some("x", device="cpu")])
    with pytest.raises(ValueError, match="do not stand in one table"):
        table(paired)
    assert len(table(paired[:1])) == 1


ADVICE = [
    (judge([some("x", reasons=["another driver"])])[0], "not comparable"),
    (judge([some("x", numerics=held(6, 2.0))])[0], "leave it: gap_k3 moved"),
    (judge([some("x", ratio=0.9)])[0], "leave it: slower"),
    (judge([some("x", numerics={})])[0], "faster; that its numerics hold is not shown"),
    (judge([some("x", ratio=1.0, noise=0.002, n=10)])[0], "no difference that matters"),
    (judge([some("x", ratio=1.005, noise=0.03, seed=5)])[0], "nothing is shown"),
    (
        judge(
            [
                some("x", "throughput/update_actor", recipe="update-short", ratio=1.1),
                some("x", "throughput/update_critic", recipe="update-short", ratio=0.9),
            ]
        )[0],
        "gains in one part",
    ),
]


@pytest.mark.parametrize(("paired", "said"), ADVICE)
def test_what_follows_from_a_pairing(paired: object, said: str) -> None:
    assert said in advice(paired)  # type: ignore[arg-type]


def test_a_pairing_that_is_incomparable_has_no_ratio_and_says_why() -> None:
    (paired,) = judge([some("x", reasons=["launch 3: throttled"])])
    shown = row(paired, paired.main[0])
    assert (shown["ratio"], shown["low"], shown["verdict"]) == (None, None, "incomparable")
    assert note(paired.main[0].comparison).startswith("launch 3: throttled")
    assert set(values(paired.main[0])) == set(Side)
    assert len(values(paired.main[0])[Side.A]) == 6


NUMBERS = [
    ("gap_k3", [2e-3] * 6, [2e-3] * 6, Kept.HELD),
    ("gap_k3", [2e-3, 2.01e-3] * 3, [1e-3, 1.01e-3] * 3, Kept.HELD),  # a gap that falls is none that hurts
    ("gap_k3", [2e-3, 2.01e-3] * 3, [4e-3, 4.01e-3] * 3, Kept.MOVED),
    ("gap_k3", [1e-6, 2e-6] * 3, [9e-5, 1e-5] * 3, Kept.HELD),  # all of it rounding
    ("gap_k3", [2e-3, 2.01e-3], [2e-3, 2.01e-3], Kept.UNCLEAR),  # too few to show anything
    ("gap_k3", [2e-3, 4e-3] * 3, [2e-3, 4.1e-3] * 3, Kept.UNCLEAR),
    ("actor_grad_norm", [1.0, 1.01] * 3, [0.5, 0.51] * 3, Kept.MOVED),
    ("actor_grad_norm", [1.0, 1.01] * 3, [1.02, 1.0] * 3, Kept.HELD),
    ("entropy", [1.0, 1.001] * 3, [1.1, 1.101] * 3, Kept.MOVED),
    ("entropy", [1.0] * 6, [1.0] * 5 + [math.nan], Kept.MOVED),
]


@pytest.mark.parametrize(("name", "a", "b", "kept"), NUMBERS)
def test_a_number_of_training(name: str, a: list[float], b: list[float], kept: Kept) -> None:
    (found,) = numbers({Side.A: {name: tuple(a)}, Side.B: {name: tuple(b)}})
    assert (found.name, found.kept) == (name, kept)
    assert safe([found]) is {Kept.HELD: True, Kept.MOVED: False, Kept.UNCLEAR: None}[kept]


@pytest.mark.parametrize(
    ("within", "numerics", "is_safe"),
    [(True, {}, True), (False, held(6), False), (None, {}, None), (True, held(6, 2.0), False), (None, held(6), True)],
)
def test_the_same_weights_and_data_on_both_sides_decide_first(
    within: bool | None, numerics: dict[Side, dict[str, tuple[float, ...]]], is_safe: bool | None
) -> None:
    (paired,) = judge([replace(some("x", numerics=numerics), within=within)])
    assert paired.safe is is_safe
    if within is False:
        assert advice(paired) == "leave it: what it computes moved"


def test_numbers_that_one_side_lacks_are_not_there() -> None:
    assert numbers({Side.A: {"gap_k3": (1.0,)}, Side.B: {}}) == ()
    assert numbers({}) == ()
    assert safe(()) is None
    assert len({tolerance.name for tolerance in TOLERANCES}) == len(TOLERANCES)
    assert all(tolerance.why for tolerance in TOLERANCES)
