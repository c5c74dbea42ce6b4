"""The figures of the tier gpu: what counts as what, and how far a prediction is from a measurement."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.figures import Limit, Probes, by_cell, gpu_probes, limits, machines, median, start_ups, surprise
from matrix.observe import Observation
from matrix.tier import Outcome, Tier
from tests.unit import gpu_samples
from tests.unit.gpu_samples import CELL, machine, probe, threshold, trial_of, visit
from tests.unit.run_fakes import observation

YES = probe("a.py::yes", Outcome.DEGRADED, "known", detail=trial_of("x", "yes", "reproduced"))
NO = probe("a.py::no", detail=trial_of("x", "no", "absent"))
OPEN = probe("a.py::open", Outcome.BROKEN, "known", detail=trial_of("x", "unknown", "reproduced"))
WRONG = probe("a.py::wrong", detail=trial_of("x", "yes", "absent", "predicted and not seen"))
PLAIN = probe("a.py::plain")
FAILS = probe("a.py::fails", Outcome.BROKEN, "it dies")
LEFT = probe("a.py::left", left_mib=12)
SKIPPED = probe("a.py::two", Outcome.UNTESTED, "needs 2 GPUs; this machine has 1 GPU")
OTHER_TIER = probe("a.py::cpu", tier=Tier.BEHAVE)
CPU = {OTHER_TIER.question.probe}
PLACE = observation(CELL, Tier.GPU, Outcome.UNTESTED, "this machine has no GPU")


@pytest.mark.parametrize(
    ("item", "counted"),
    [
        (YES, {"planned": 1, "ran": 1, "reproduced": ("x",), "seconds": 20.0}),
        (NO, {"planned": 1, "ran": 1, "absent": ("x",), "seconds": 20.0}),
        (OPEN, {"planned": 1, "ran": 1, "reproduced": ("x",), "seconds": 20.0}),
        (PLAIN, {"planned": 1, "ran": 1, "passed": 1, "seconds": 20.0}),
        (SKIPPED, {"planned": 1, "untested": (("compat/a.py::two", SKIPPED.reason),)}),
        (OTHER_TIER, {}),
        (PLACE, {}),
        (machine(), {}),
        (threshold(), {}),
        (gpu_samples.trial(1, 1), {}),
        (WRONG, {"planned": 1, "ran": 1, "seconds": 20.0, "surprises": (surprise(WRONG),)}),
        (FAILS, {"planned": 1, "ran": 1, "seconds": 20.0, "surprises": (surprise(FAILS),)}),
        (LEFT, {"planned": 1, "ran": 1, "seconds": 20.0, "left_mib": 12, "surprises": (surprise(LEFT),)}),
    ],
    ids=lambda value: value.question.probe if isinstance(value, Observation) else "",
)
def test_what_a_probe_counts_as(item: Observation, counted: dict[str, object]) -> None:
    assert gpu_probes([item]) == Probes(**counted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (WRONG, f"{CELL}: a.py::wrong: x: predicted and not seen"),
        (FAILS, f"{CELL}: a.py::fails: it dies"),
        (LEFT, f"{CELL}: a.py::left: left 12 MiB on the GPU"),
        (SKIPPED, ""),
        (YES, ""),
        (PLAIN, ""),
    ],
)
def test_what_is_a_surprise(item: Observation, told: str) -> None:
    assert surprise(item) == told


@given(st.lists(st.sampled_from([YES, NO, OPEN, PLAIN, SKIPPED, WRONG, FAILS, LEFT, OTHER_TIER, machine()])))
def test_nothing_is_counted_twice_or_lost(items: list[Observation]) -> None:
    found = gpu_probes(items)
    assert found.planned == len({item.question.probe for item in items if "a.py" in item.question.probe} - CPU)
    assert found.ran == found.trials + found.passed + len(found.surprises)
    assert found.planned == found.ran + len(found.untested)


@pytest.mark.parametrize("order", [1, -1])
def test_an_answer_of_one_machine_goes_before_none_of_another(order: int) -> None:
    later = replace(SKIPPED, at=SKIPPED.at + timedelta(hours=1))
    answer = probe("a.py::two")
    found = gpu_probes([answer, later][::order])
    assert (found.planned, found.ran, found.untested) == (1, 1, ())
    mended = replace(FAILS, at=FAILS.at + timedelta(hours=1), outcome=Outcome.OK)
    assert gpu_probes([FAILS, mended][::order]).surprises == ()


def test_two_gpus_held_are_twice_the_seconds() -> None:
    both = replace(PLAIN, detail={**PLAIN.detail, "gpu": ["NVIDIA H200", "NVIDIA H200"]})
    assert gpu_probes([both]).seconds == 40.0


@pytest.mark.parametrize(
    ("largest", "smallest", "predicted", "error"),
    [
        (8, 9, 8, 0.0),
        (8, 9, 8.5, 0.0),
        (8, 9, 9, 0.125),
        (8, 9, 4, -0.5),
        (8, None, 8, 0.0),
        (8, None, 100, 0.0),
        (8, None, 4, -0.5),
        (None, 1, None, None),
        (8, 9, None, None),
        (None, 1, 4, None),
        (0, 1, 4, None),
    ],
)
def test_how_far_a_prediction_is_off(
    largest: float | None, smallest: float | None, predicted: float | None, error: float | None
) -> None:
    (found,) = limits([threshold(largest=largest, smallest=smallest, predicted=predicted)])
    assert found.error == error


def test_a_threshold_tells_its_neighbourhood() -> None:
    (found,) = limits([*visit(), threshold()])
    assert (found.workload, found.cap) == ("qwen2.5-0.5b:512+512", "A100-80GB")
    assert (found.part, found.how, found.repeats, found.seconds) == ("rollout init", "no KV cache", (2, 2), 120.5)
    assert found.peaks == (70 * 2**30, 70 * 2**30)
    assert found.answered
    assert found.to_json()["error"] == -0.0222


@pytest.mark.parametrize("detail", [{}, {"cap": None, "pass": None, "fail": None, "flaky": None, "predicted": True}])
def test_a_threshold_that_says_little_is_no_fault(detail: dict[str, object]) -> None:
    (found,) = limits([replace(threshold(), detail=detail, outcome=Outcome.UNTESTED)])
    assert isinstance(found, Limit)
    assert (found.cap, found.largest_pass, found.answered, found.peaks) == ("whole card", None, False, (None, None))


def test_starts_machines_and_cells() -> None:
    start = probe("test_ppo_gpu.py::test_start_up_is_told", detail={"reached": {"fit": 70.5}, "prepared": 2.0})
    odd = probe(
        "test_ppo_gpu.py::test_start_up_is_told", cell="a", detail={"reached": {"ray": 1}, "prepared": {"m": 1}}
    )
    found = start_ups([start, odd, PLAIN, replace(start, detail={})])
    assert [(item.cell, item.first_step, item.prepared) for item in found] == [("a", None, 1.0), (CELL, 70.5, 2.0)]
    assert list(machines([machine(), machine(), PLAIN])) == [gpu_samples.DIGEST]
    assert list(by_cell([start, odd])) == ["a", CELL]
    assert (median([]), median([3, 1, 2]), median([1, 2])) == (0.0, 2, 1.5)
