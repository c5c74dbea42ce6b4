"""Cheap benches against `ppo`: agreement shown within a margin, difference shown, or neither."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.agreement import COLUMNS, Agrees, agreements, table
from bench.sample import Side
from bench.verdicts import judge
from tests.unit.bench_gathered import some

GEN = "throughput/gen"
CHEAP = {"recipe": "rollout-short", "n": 20, "series": "r"}
CASES = [
    (1.10, 1.10, 0.005, Agrees.AGREES),
    (1.10, 1.30, 0.005, Agrees.DIFFERS),
    (1.30, 1.10, 0.005, Agrees.DIFFERS),
    (1.10, 1.10, 0.100, Agrees.UNCLEAR),
]


@pytest.mark.parametrize(("cheap", "truth", "noise", "agrees"), CASES)
def test_a_phase_of_both(cheap: float, truth: float, noise: float, agrees: Agrees) -> None:
    paired = judge(
        [
            some("x", GEN, ratio=cheap, noise=noise, **CHEAP),  # type: ignore[arg-type]
            some("x", GEN, ratio=truth, noise=noise),
            some("x", ratio=truth, noise=noise),
        ]
    )
    (found,) = agreements(paired)
    assert found.agrees is agrees
    assert (found.cheap, found.ppo, found.metric) == ("rollout-short", "ppo-short", GEN)
    assert found.interval is not None
    assert found.interval[0] < found.ratio < found.interval[1]
    assert found.ratio == pytest.approx(found.cheap_ratio / found.ppo_ratio)
    assert list(table([found]).columns) == list(COLUMNS)


def test_only_the_same_question_is_compared() -> None:
    cheap = some("x", GEN, **CHEAP)  # type: ignore[arg-type]
    other_cell = replace(some("x", GEN), cells=dict.fromkeys(Side, "verl0.8.0"))
    for truth in (
        some("y", GEN),
        some("x", GEN, recipe="ppo-long"),
        some("x", GEN, recipe="ppo-unknown"),
        some("x", GEN, device="cpu"),
        other_cell,
        some("x"),
        some("x", GEN, reasons=["throttled"]),
    ):
        assert agreements(judge([cheap, truth])) == ()
    (found,) = agreements(judge([cheap, some("x", GEN, n=2)]))
    assert (found.interval, found.agrees) == (None, Agrees.UNCLEAR)
