"""Plans: what launches cost and could show, of recorded launches where there are some, else assumed and said so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from packaging.version import Version

from bench.plans import (
    ASSUMED_SECONDS,
    NOISE_RESTS_ON,
    SECONDS_REST_ON,
    Past,
    least_launches,
    past,
    planned,
)  # fmt: skip
from bench.power import Noise
from bench.recipes import RECIPES, recipe_named
from bench.toggle import Judged, Standing, toggle_named
from bench.variant import Pairing, of_settings
from bench.verdicts import judge
from matrix.errors import UsageError
from tests.unit.bench_gathered import some
from tests.unit.bench_launches import OOM, kept


def pairing(name: str = "chunked-prefill", recipe: str = "ppo-short", standing: Standing | None = None) -> Pairing:
    made = of_settings(name, recipe_named(recipe), "verl0.9.1", ("a=1",), ("a=2",))
    if standing is None:
        return made
    judged = Judged(toggle=toggle_named(name), release=Version("0.9.1"), standing=standing, why="nobody reads it")
    return replace(made, standing=judged)


def test_a_plan_says_what_it_costs_and_what_it_could_show() -> None:
    made = planned([pairing()], 6)
    (row,) = made.rows
    assert (row.n, row.launches, row.gpus) == (6, 12, 1)
    assert row.minutes == pytest.approx(12 * ASSUMED_SECONDS["ppo-short"] / 60)
    assert (row.noise_from, row.seconds_from) == (NOISE_RESTS_ON, SECONDS_REST_ON)
    assert row.could is not None
    assert row.could.detectable is not None
    assert 1.02 < row.could.detectable < 1.05
    assert made.minutes == made.gpu_minutes == row.minutes
    assert any("assumed" in note for note in made.notes)


def test_two_gpus_cost_twice_and_a_launch_of_both_sides_once() -> None:
    both = replace(pairing("ulysses"), a=replace(pairing().a, plan={"devices": 2}))
    made = planned([both, pairing(recipe="update-short")], 6, repeats=20)
    assert made.rows[0].gpu_minutes == 2 * made.rows[0].minutes
    update = made.rows[1:]
    assert [(row.metric, row.launches, row.n) for row in update] == [
        ("throughput/update_actor", 1, 20), ("throughput/update_critic", 1, 20),
    ]  # fmt: skip
    # Both metrics are of one launch, which is counted once.
    assert made.minutes == made.rows[0].minutes + update[0].minutes
    assert made.family == 3
    assert any("within one launch" in note for note in made.notes)


def test_five_launches_show_nothing_where_three_are_judged_together() -> None:
    three = [pairing(name) for name in ("ulysses", "chunked-prefill", "checkpointing")]
    few = planned(three, 5)
    assert all(row.could is not None and row.could.detectable is None for row in few.rows)
    assert any("take 6 or more" in note for note in few.notes)
    assert not any("can show no difference among" in note for note in planned(three, 6).notes)
    assert [least_launches(family) for family in (1, 2, 3, 12)] == [4, 6, 6, 8]


def test_inert_and_refused_toggles_cost_nothing_and_say_why() -> None:
    made = planned([pairing(standing=Standing.INERT), pairing("checkpointing", standing=Standing.LIVE)], 6)
    idle, live = made.rows
    assert (idle.standing, idle.why, idle.minutes, idle.could) == ("inert", "nobody reads it", 0.0, None)
    assert live.could is not None
    assert made.family == 1
    (note,) = planned([pairing(standing=Standing.REFUSED)], 6).notes
    assert "nothing would be run" in note


def test_recorded_launches_give_noise_and_seconds() -> None:
    paired = judge([some(noise=0.02, n=8), some("other", noise=0.02, n=4), some("equal", noise=0.0, n=3)])
    known = past([kept(0, seconds=90.0), kept(1, seconds=110.0), kept(0, 0.0, seconds=0.0)], paired)
    assert known.seconds == {"ppo-short": 100.0}
    died = kept(2, None, fault=OOM, seconds=7.0)
    assert past([died, kept(0, seconds=90.0)], []).seconds == {"ppo-short": 90.0}
    assert past([died], []).seconds == {}
    assert list(known.noise) == [("ppo-short", "throughput")]
    assert known.noise["ppo-short", "throughput"].degrees > 5
    (row,) = planned([pairing()], 6, known=known).rows
    assert row.minutes == 12 * 100 / 60
    assert row.noise == known.noise["ppo-short", "throughput"].high > known.noise["ppo-short", "throughput"].value
    assert row.noise_from.startswith("recorded: ")
    assert row.seconds_from == "recorded launches"
    given = planned([pairing()], 6, known=Past(noise={("ppo-short", "throughput"): Noise(value=1, degrees=1, high=1)}),
                    noise=0.003)  # fmt: skip
    assert (given.rows[0].noise, given.rows[0].noise_from) == (0.003, "as given")
    assert not any("noise is assumed" in note for note in given.notes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"launches": 0},
        {"launches": 65},
        {"launches": 6, "repeats": 0},
        {"launches": 6, "margin": 0.0},
        {"launches": 6, "noise": 1.0},
    ],
)
def test_plans_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        planned([pairing()], **wrong)  # type: ignore[arg-type]


def test_a_cpu_is_not_taken_for_a_gpu() -> None:
    made = planned([pairing(recipe="ppo-tiny")], 6)
    assert (made.rows[0].noise, made.rows[0].gpus, made.gpu_minutes) == (0.1, 0, 0)
    assert any("a CPU that others use" in note for note in made.notes)
    assert any("minutes are assumed: launches on two cores" in note for note in made.notes)
    assert not any("H200" in note for note in made.notes)


def test_every_recipe_has_seconds_that_are_assumed() -> None:
    assert {make().name for make in RECIPES} == set(ASSUMED_SECONDS)
    unknown = replace(pairing(), recipe=replace(recipe_named("ppo-short"), name="ppo-new"))
    assert planned([unknown], 6).rows[0].minutes > 0
