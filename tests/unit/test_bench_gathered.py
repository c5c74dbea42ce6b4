"""What is gathered of launches that are kept: samples, dropped pairs, and what makes a comparison none."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bench.comparison import Verdict, compare
from bench.conditions import conditions, differing, digest, other_workload, workload
from bench.figures import MAIN, Figure, metric_named, rank, steady
from bench.gathered import Gathered, gathered, launches_of
from bench.launched import Fault, Launched, Measured, Repeat, Trouble
from bench.recipes import Kind
from bench.sample import Better, Side, WarmUp
from matrix.observe import Observation
from matrix.store import Store
from tests.unit.bench_launches import CELL, CONDITIONS, OOM, kept
from tests.unit.gpu_samples import FACTS, machine, probe
from tests.unit.run_fakes import AT


def one(*items: Observation) -> Gathered:
    """Return the only thing that is gathered."""
    (found,) = gathered(items)
    return found


def test_launches_become_a_sample() -> None:
    found = one(*(kept(at, 100.0 + at) for at in range(4)))
    assert [(item.place, item.side.value, item.value) for item in found.sample.launches] == [
        (0, "A", 100.0), (1, "B", 101.0), (2, "B", 102.0), (3, "A", 103.0),
    ]  # fmt: skip
    assert found.raw[1] == (1.0, 101.0, 101.0)
    assert found.dropped == 1
    assert (found.metric.name, found.metric.unit, found.metric.better) == ("throughput", "tokens/s/GPU", Better.HIGHER)
    assert (found.series, found.pairing, found.recipe, found.kind) == ("s", "toggle", "ppo-short", Kind.PPO)
    assert (found.device, found.replicate, found.planned) == ("cuda", "launch", 2)
    assert found.numerics == {side: {"entropy": (3.0, 3.0)} for side in Side}
    assert found.cells == {Side.A: CELL, Side.B: CELL}
    assert found.says == {Side.A: "toggle=A", Side.B: "toggle=B"}
    assert (found.seconds, found.gpu_seconds, found.startup) == (400.0, 400.0, 0.8)
    assert found.at == (AT, AT + timedelta(seconds=300))
    assert found.reasons == found.notes == ()


def test_what_is_no_launch_is_passed_over(tmp_path: Path) -> None:
    items = [machine(), probe("test_x.py::test_y"), *(kept(at) for at in range(4))]
    store = Store(tmp_path)
    store.add(*items)
    assert one(*items) == one(*store)
    assert gathered([machine()]) == ()
    with pytest.raises(ValueError, match="is no launch"):
        Launched.of(machine())


def test_order_of_what_is_gathered() -> None:
    items = [
        *(kept(at, name=name, series=series) for series in ("t", "s") for name in ("b", "a") for at in range(2)),
        *(kept(at, device="cpu") for at in range(2)),
    ]
    found = [(item.series, item.device, item.pairing) for item in gathered(items)]
    assert found == [("s", "cpu", "toggle"), ("s", "cuda", "a"), ("s", "cuda", "b"), ("t", "cuda", "a"),
                     ("t", "cuda", "b")]  # fmt: skip


def test_the_later_of_two_answers_counts() -> None:
    items = [kept(0, 1.0, at=AT + timedelta(days=1)), kept(0, 2.0, at=AT), kept(1, 5.0)]
    assert [item.value for item in one(*items).sample.launches] == [1.0, 5.0]


def test_a_launch_that_only_warmed_counts_in_what_it_cost() -> None:
    found = one(kept(0, warms=True), kept(0), kept(1))
    assert found.gpu_seconds == 300.0
    assert len(found.sample.launches) == 2
    assert gathered([kept(0, warms=True)]) == ()


def test_a_fault_drops_its_pair_with_the_reason() -> None:
    found = one(kept(0), kept(1), kept(2, None, fault=OOM), kept(3))
    assert [drop.reason for drop in found.sample.drops] == ["B: out of memory: CUDA out of memory"]
    assert found.sample.values(Side.A) == (100.0,)
    assert found.reasons == ()


def test_a_nan_is_told_with_the_numbers_of_training() -> None:
    fault = Fault(trouble=Trouble.NOT_FINITE, text="step 2: actor/grad_norm")
    numbers = {Side.B: {"actor_grad_norm": (1.0, math.nan, 1.0)}}
    broken = kept(1, measured=Measured(numerics=numbers, dropped=1, fault=fault))
    found = one(kept(0), broken)
    assert math.isnan(found.numerics[Side.B]["actor_grad_norm"][0])
    assert found.sample.used == ()


def test_a_figure_that_one_launch_lacks() -> None:
    more = {"throughput": Figure.once("throughput", 5.0), "power": Figure.once("power", 400.0)}
    items = [kept(0, measured=Measured(figures=more)), kept(1, 4.0)]
    first, second = gathered(items)
    assert (first.metric.name, second.metric.name) == ("throughput", "power")
    assert [item.fault for item in second.sample.launches] == ["", "it has no such figure"]


def changed(**more: Any) -> dict[str, Any]:
    """Return the conditions with some that are other ones."""
    return {**CONDITIONS, **more}


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (changed(driver="590.0"), "driver: 580.1 at 0, 1, 2; 590.0 at 3"),
        (changed(cuda_driver="13.1"), "cuda_driver: 13.0 at 0, 1, 2; 13.1 at 3"),
        (changed(gpus=[{"name": "NVIDIA H20"}]), "gpus: "),
    ],
)
def test_another_machine_makes_it_incomparable(other: dict[str, Any], reason: str) -> None:
    found = one(*(kept(at) for at in range(3)), kept(3, conditions=other))
    assert any(line.startswith(reason) for line in found.reasons), found.reasons
    assert compare(found.sample, margin=0.02, reasons=found.reasons).verdict is Verdict.INCOMPARABLE


def test_another_host_from_pair_to_pair_is_only_told() -> None:
    other = changed(kernel="6.9")
    found = one(kept(0), kept(1), kept(2, conditions=other), kept(3, conditions=other))
    assert found.reasons == ()
    assert found.notes == ("kernel: 6.8 at 0, 1; 6.9 at 2, 3",)
    split = one(kept(0), kept(1), kept(2), kept(3, conditions=other))
    assert split.reasons == ()
    reason = "its pair ran on two hosts (kernel: 6.8 at 0; 6.9 at 1)"
    assert [drop.reason for drop in split.sample.drops] == [f"B: {reason}; A: {reason}"]
    cpu = one(*(kept(at, device="cpu", conditions=CONDITIONS if at < 2 else other) for at in range(4)))
    assert cpu.reasons == ("kernel: 6.8 at 0, 1; 6.9 at 2, 3",)


def test_a_failed_launch_on_another_machine_changes_nothing() -> None:
    found = one(kept(0), kept(1), kept(2), kept(3, None, fault=OOM, conditions=changed(driver="1")))
    assert found.reasons == ()


def test_another_workload_makes_it_incomparable() -> None:
    found = one(kept(0), kept(1, workload={"kind": "ppo", "batch": 64}))
    assert found.reasons == ("workload: batch: 128 at 0; 64 at 1",)


def test_a_disturbed_launch_makes_it_incomparable_until_it_is_replaced() -> None:
    hot = "throttled: thermal, by hardware, 12.0% of the time"
    items = [kept(0), kept(1, disturbed=[hot]), kept(2), kept(3)]
    assert one(*items).reasons == (f"launch 1: {hot}",)
    found = one(*items, kept(4), kept(5))
    assert found.reasons == ()
    assert [(drop.places, drop.reason) for drop in found.sample.drops] == [((0, 1), f"B: {hot}")]
    assert len(found.sample.used) == 4
    # A pair that failed is no replacement.
    failed = one(*items[:2], kept(2, None, fault=OOM), kept(3))
    assert failed.reasons == (f"launch 1: {hot}",)
    assert one(kept(0, disturbed=["x"]), kept(1, disturbed=["x"]), planned_one(0)).reasons == ("launch 1: x",)


def planned_one(number: int) -> Observation:
    """Return a launch of a series that wanted one pair, without a disturbance."""
    return kept(number, planned=1, at=AT + timedelta(days=1))


def test_notes() -> None:
    late = AT + timedelta(hours=2)
    found = one(kept(0, notes=["launch 0: at its power cap 30% of the time"]), kept(1, at=late, scripts="sha256:9"))
    assert found.notes == (
        "launched by 2 versions of the scripts",
        "launch 0: at its power cap 30% of the time",
        "118 min lie between the launches 0 and 1, which are a pair",
    )


def repeated(number: int, repeats: int, *, fault: Fault | None = None, **more: Any) -> Observation:
    """Return a launch that holds both sides, in the order of repeats."""
    sides = [Side.A, Side.B, Side.B, Side.A, Side.B, Side.A, Side.A, Side.B]
    items = tuple(Repeat(place=at, side=sides[at % 8], value=10.0 + at) for at in range(2 * repeats))
    if fault is not None:
        items = (*items[:-1], Repeat(place=len(items) - 1, side=items[-1].side, fault=str(fault)))
    numerics = {side: {"actor_grad_norm": (1.0,) * repeats} for side in Side}
    measured = Measured(repeats={"throughput/update_actor": items}, numerics=numerics, within=True, fault=fault)
    return kept(number, kind=Kind.UPDATE, measured=measured, planned=1, **more)


def test_repeats_of_several_launches_add_up() -> None:
    found = one(repeated(0, 3), repeated(1, 2))
    assert found.replicate == "repeat"
    assert [item.place for item in found.sample.launches] == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]
    assert found.within is True
    assert len(found.numerics[Side.A]["actor_grad_norm"]) == 5
    assert [len(block.a) + len(block.b) for block in found.sample.blocks] == [4, 2, 4]
    assert found.says == {Side.A: "off", Side.B: "on"}


def test_repeats_before_a_fault_count() -> None:
    found = one(repeated(0, 3, fault=OOM))
    assert [drop.reason for drop in found.sample.drops] == ["A: out of memory: CUDA out of memory"]
    assert len(found.sample.used) == 4
    assert found.reasons == ()
    hot = one(repeated(0, 3, disturbed=["throttled: power brake, 5.0% of the time"]))
    assert hot.reasons == ("launch 0: throttled: power brake, 5.0% of the time",)
    replaced = one(repeated(0, 3, disturbed=["throttled"]), repeated(1, 3))
    assert replaced.reasons == ()
    assert len(replaced.sample.used) == 6


@pytest.mark.parametrize(
    "measured",
    [
        Measured(),
        Measured(
            figures={"throughput": Figure.of_steps("throughput", [1.0, 2.0], WarmUp(steps=1))},
            numerics={Side.A: {"entropy": (1.0, 2.0)}},
            dropped=1,
            fault=OOM,
            window=(1.5, 2.5),
        ),
        Measured(repeats={"seconds/gen": (Repeat(place=0, side=Side.B, fault="x"),)}, within=False),
    ],
)
def test_what_is_kept_reads_back_as_it_was(measured: Measured) -> None:
    assert Measured.from_json(measured.to_json()) == measured


@pytest.mark.parametrize("damage", [{"figures": 1}, {"numerics": {"A": {"entropy": 1}}}])
def test_what_is_damaged_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        Measured.from_json({**Measured().to_json(), **damage})
    with pytest.raises(TypeError):
        Figure.from_json("power", {"raw": 1.0, "dropped": 0, "value": None, "fault": ""})


FIGURES = [
    ([1.0, 3.0, 5.0], 4.0, ""),
    ([1.0], None, "0 of 1 steps are left after warm-up; 1 are needed"),
    ([1.0, math.nan], None, "step 1 is nan"),
    ([1.0, 0.0], None, "the figure is 0.0"),
]


@pytest.mark.parametrize(("raw", "value", "fault"), FIGURES)
def test_a_figure_of_steps(raw: list[float], value: float | None, fault: str) -> None:
    found = Figure.of_steps("throughput", raw, WarmUp(steps=1))
    assert (found.value, found.fault, found.dropped) == (value, fault, 1)
    back = Figure.from_json("throughput", found.to_json())
    assert (back.value, back.fault) == (value, fault)


def test_figures_that_there_is_one_of() -> None:
    assert Figure.once("power", 400.0).value == 400.0
    assert Figure.once("power", math.inf).fault == "the figure is inf"
    assert steady([1.0, 2.0, 4.0], 1) == 3.0
    assert steady([1.0], 1) is None


def test_metrics_have_units_and_an_order() -> None:
    names = ["memory/gpu", "seconds/gen", "seconds/step", "throughput/gen", "mfu/gen", "throughput"]
    assert sorted(names, key=lambda name: rank(name, "ppo")) == [
        "throughput", "throughput/gen", "seconds/step", "seconds/gen", "mfu/gen", "memory/gpu",
    ]  # fmt: skip
    assert min(names, key=lambda name: rank(name, "rollout")) == MAIN["rollout"]
    assert metric_named("seconds/gen").better is Better.LOWER
    with pytest.raises(KeyError):
        metric_named("speed")


def test_conditions_are_of_the_granted_cards() -> None:
    facts = {**FACTS, "gpus": [*FACTS["gpus"], {"name": "NVIDIA L4"}]}
    found = conditions(facts, (0,))
    assert [gpu["name"] for gpu in found["gpus"]] == ["NVIDIA H200"]
    assert "pcie_width" not in found["gpus"][0]
    assert "installed" not in found
    assert conditions({}, ())["driver"] is None
    assert digest(found) == digest(dict(reversed(found.items())))


def test_a_workload_is_what_is_computed_and_not_how() -> None:
    assert workload("ppo", {"batch": 8, "graphs": "few", "more": ["a=1"], "tokens": 5}) == {"kind": "ppo", "batch": 8}
    told = {"schema": 1, "batch": 8, "off": ["a=1"], "on": [], "python": {"off": "/p"}, "repeats": 20, "limit": 600}
    assert workload("update", told) == {"kind": "update", "batch": 8}
    assert other_workload([(0, {"batch": 8}), (1, {"batch": 8})]) == ()
    assert differing([(at, {"driver": str(at)}) for at in range(8)], "cuda")[0] == (
        "driver: 0 at 0; 1 at 1; 2 at 2; 3 at 3; 4 at 4; 5 at 5; 6 at 6; 7 at 7",
    )


def test_launches_in_order() -> None:
    found = launches_of([kept(1), kept(0), kept(0, name="a")])
    assert [(item.pairing, item.place) for item in found] == [("a", 0), ("toggle", 0), ("toggle", 1)]
    assert str(Fault(trouble=Trouble.HUNG, text="")) == "hung"
