"""How cells are decided, on a small index and a complete small resolver in the place of uv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.cell import Axis, Cell, Deviation, OpenAxis, Pin, Platform
from matrix.errors import ToolError
from matrix.resolve.case import Case
from matrix.resolve.decide import Decider
from matrix.resolve.lock import LockFolder, parse_lock
from matrix.resolve.outcome import DecidedBy, Decision
from matrix.resolve.sdists import load_sdists
from matrix.resolve.solver import Answer, Problem, Refused, Solved
from matrix.tier import Outcome
from tests.unit.fakes import FakeIndex, FakeRelease
from tests.unit.resolve_fakes import FakeSolver


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


def release(*requires: str, on: int = 1, **more: object) -> FakeRelease:
    return FakeRelease(requires=requires, uploaded=day(on), **more)  # type: ignore[arg-type]


PACKAGES: Mapping[str, Mapping[str, FakeRelease]] = {
    "verl": {
        "0.4": release("numpy", "torch", on=1),
        "0.7": release("numpy<2", "torch", on=5),
        "0.8": release("numpy<2", "torch", on=8),
        "0.9": release("numpy>=2", "torch", "ray", on=20),
        "1.0rc1": release("numpy>=2", "torch", on=9),
    },
    "vllm": {
        "0.1": release("torch==2.4", "cv>=4", on=2),
        "0.1.post1": release("torch==2.4", "cv>=4", on=3),
        "0.2": release("torch==2.6", "cv>=4.13", on=10),
        "0.2.1": release("torch==2.6", "cv>=4.13", on=11),
        "0.3": release("torch==2.6", "numpy>=2", on=12),
        "0.4": release("missing>=1", on=13),
    },
    "torch": {"2.4": release(), "2.6": release()},
    "numpy": {"1.26": release(), "2.1": release()},
    "cv": {"4.0": release("numpy<2"), "4.13": release("numpy>=2")},
    "ray": {"2.0": release(), "2.1": release("vllm>=0.2")},
    "flash-attn": {"2.6.3": release(sdist_only=True)},
    "einops": {"1.0": release()},
}


class Bench:
    """A decider over the packages, with its index and solver at hand."""

    def __init__(self, folder: Path, packages: Mapping[str, Mapping[str, FakeRelease]] = PACKAGES) -> None:
        self.index = FakeIndex(packages)
        self.solver = FakeSolver(self.index)
        self.locks = LockFolder(folder)
        self.decider = Decider(index=self.index, solver=self.solver, sdists=load_sdists(), locks=self.locks)

    def decide(self, cell: Cell) -> Decision:
        return self.decider.decide(cell)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def cell(
    pins: Mapping[str, str], *, open_axes: Mapping[str, str] | None = None, deviation: Deviation | None = None
) -> Cell:
    return Cell(
        pins=tuple(Pin(axis=Axis(name), version=Version(version)) for name, version in pins.items()),
        open_axes=tuple(
            OpenAxis(axis=Axis(name), specifier=SpecifierSet(text)) for name, text in (open_axes or {}).items()
        ),
        deviation=deviation,
    )


def texts(decision: Decision) -> list[str]:
    return [fact.text for fact in decision.chain]


def test_a_cell_that_fits_has_a_lock_and_the_versions_of_all_axes(bench: Bench) -> None:
    decision = bench.decide(cell({"verl": "0.7", "vllm": "0.1"}))
    assert (decision.outcome, decision.by) == (Outcome.OK, DecidedBy.UV)
    assert decision.versions == {"verl": "0.7", "vllm": "0.1", "torch": "2.4"}
    detail = decision.detail()
    assert detail["packages"] == 5
    assert detail["to_build"] == []
    lock = parse_lock(bench.locks.read(str(detail["lock"])))
    assert {name: str(version) for name, version in lock.versions.items()} == {
        "cv": "4.0", "numpy": "1.26", "torch": "2.4", "verl": "0.7", "vllm": "0.1",
    }  # fmt: skip


def test_direct_requirements_that_contradict_are_refuted_without_uv(bench: Bench) -> None:
    decision = bench.decide(cell({"verl": "0.7", "vllm": "0.3"}))
    assert (decision.outcome, decision.by) == (Outcome.CONFLICT, DecidedBy.REQUIREMENTS)
    assert texts(decision) == [
        "verl 0.7 requires numpy<2",
        "vllm 0.3 requires numpy>=2",
        "no release of numpy meets both",
    ]
    assert decision.detail()["volatile"] is True
    assert bench.solver.asked == []


def test_a_pin_that_another_pin_excludes_is_refuted_for_good(bench: Bench) -> None:
    decision = bench.decide(cell({"vllm": "0.1", "torch": "2.6"}))
    assert texts(decision) == ["vllm 0.1 requires torch==2.4", "the cell pins torch 2.6"]
    assert decision.detail()["volatile"] is False
    assert decision.reason == "vllm 0.1 requires torch==2.4; the cell pins torch 2.6"


def test_a_core_that_uv_refuted_decides_other_cells_with_their_own_facts(bench: Bench) -> None:
    first = bench.decide(cell({"verl": "0.7", "vllm": "0.2"}))
    assert (first.outcome, first.by) == (Outcome.CONFLICT, DecidedBy.UV)
    assert texts(first)[:2] == ["verl 0.7 requires numpy<2", "vllm 0.2 requires cv>=4.13"]
    assert first.raw.startswith("error: No solution found")
    asked = len(bench.solver.asked)
    second = bench.decide(cell({"verl": "0.8", "vllm": "0.2.1"}))
    assert (second.outcome, second.by) == (Outcome.CONFLICT, DecidedBy.CORE)
    assert texts(second)[:2] == ["verl 0.8 requires numpy<2", "vllm 0.2.1 requires cv>=4.13"]
    assert len(bench.solver.asked) == asked


def test_a_core_holds_on_its_own_platform_only(bench: Bench) -> None:
    one = cell({"verl": "0.7", "vllm": "0.2"})
    bench.decide(one)
    other = bench.decide(replace(one, platform=Platform(python="3.11")))
    assert other.by is DecidedBy.UV


class _Words(FakeSolver):
    """Refuses one problem in given words, and finds a solution for every other."""

    def solve(self, problem: Problem) -> Answer:
        if problem.requirements == ("verl==0.7", "vllm==0.2"):
            text = (
                "error: No solution found when resolving dependencies\n  cause: Because vllm>=0.2 depends on cv>=4.13 "
                "and verl<=0.7 depends on numpy<2 and zeta depends on eta, we can conclude that no."
            )
            return Refused(text=text, hints=("try another",))
        return Solved(lock="", dependants=None)


def test_a_conflict_without_a_core_keeps_uvs_own_facts_with_the_pins_put_back(bench: Bench, tmp_path: Path) -> None:
    decider = Decider(index=bench.index, solver=_Words(bench.index), sdists=load_sdists(), locks=LockFolder(tmp_path))
    decision = decider.decide(cell({"verl": "0.7", "vllm": "0.2"}))
    assert (decision.outcome, decision.by) == (Outcome.CONFLICT, DecidedBy.UV)
    assert [(fact.text, fact.source) for fact in decision.chain] == [
        ("vllm==0.2 depends on cv>=4.13", "vllm-0.2-py3-none-any.whl"),
        ("verl==0.7 depends on numpy<2", "verl-0.7-py3-none-any.whl"),
        ("zeta depends on eta", "uv"),
    ]
    assert decision.detail()["hints"] == ["try another"]


def test_cells_of_the_same_requirements_share_one_answer_under_their_own_names(bench: Bench) -> None:
    bench.decide(cell({"verl": "0.7", "vllm": "0.1"}))
    shared = bench.decide(cell({"verl": "0.8", "vllm": "0.1.post1"}))
    assert (shared.outcome, shared.by) == (Outcome.OK, DecidedBy.SHARED)
    assert shared.versions == {"verl": "0.8", "vllm": "0.1.post1", "torch": "2.4"}
    alone = bench.decider.decide(cell({"verl": "0.8", "vllm": "0.1.post1"}), shortcuts=False)
    assert alone.by is DecidedBy.UV
    assert alone.digest == shared.digest


def test_nothing_is_shared_where_something_depends_on_a_pin(bench: Bench) -> None:
    # ray 2.1 needs vllm >= 0.2, so that which vllm is pinned matters beyond its own requirements.
    packages = {**PACKAGES, "verl": {"0.9": release("ray"), "0.9.post1": release("ray")}}
    other = Bench(bench.locks.path("sha256:00").parent, packages)
    assert other.decide(cell({"verl": "0.9", "vllm": "0.1"})).by is DecidedBy.UV
    assert other.decide(cell({"verl": "0.9", "vllm": "0.1.post1"})).by is DecidedBy.UV


def test_nothing_is_shared_where_uvs_log_says_nothing(bench: Bench) -> None:
    bench.solver.logs = False
    bench.decide(cell({"verl": "0.7", "vllm": "0.1"}))
    assert bench.decide(cell({"verl": "0.8", "vllm": "0.1"})).by is DecidedBy.UV


def test_a_release_that_uv_finds_for_one_cell_and_not_for_its_lock_is_an_error(bench: Bench) -> None:
    bench.decide(cell({"verl": "0.7", "vllm": "0.1"}))
    bench.solver.builds = {("verl==0.8",): "verl==0.8"}
    with pytest.raises(ToolError, match=r"does not find verl==0\.8"):
        bench.decide(cell({"verl": "0.8", "vllm": "0.1"}))


def test_an_open_axis_below_its_floor_fell_back(bench: Bench) -> None:
    decision = bench.decide(cell({"vllm": "0.2"}, open_axes={"verl": "<0.9"}))
    assert decision.outcome is Outcome.BACKTRACKED
    assert decision.versions["verl"] == "0.4"
    assert texts(decision)[:3] == [
        "verl 0.8 was current when vllm 0.2 appeared on 2026-01-10",
        "verl 0.8 requires numpy<2",
        "vllm 0.2 requires cv>=4.13",
    ]
    assert decision.reason.startswith("verl fell back to 0.4: verl 0.8 was current when vllm 0.2 appeared")
    assert parse_lock(bench.locks.read(decision.digest)).versions["verl"] == Version("0.4")


@pytest.mark.parametrize(
    ("pins", "open_axes", "version"),
    [
        ({"vllm": "0.2"}, {"verl": ""}, "1.0rc1"),
        ({"vllm": "0.1"}, {"verl": "<1"}, "0.9"),
        ({"vllm": "0.1"}, {"verl": "<0.4"}, None),
        ({}, {"verl": "<0.5"}, "0.4"),
    ],
)
def test_an_open_axis_at_or_above_its_floor_is_fine(
    bench: Bench, pins: dict[str, str], open_axes: dict[str, str], version: str | None
) -> None:
    decision = bench.decide(cell(pins, open_axes=open_axes))
    assert decision.outcome is (Outcome.OK if version else Outcome.CONFLICT)
    assert decision.versions.get("verl") == version


def test_a_sdist_that_must_be_built_is_its_own_reason(bench: Bench) -> None:
    bench.solver.builds = {("verl==0.7", "vllm==0.1"): "old==1"}
    decision = bench.decide(cell({"verl": "0.7", "vllm": "0.1"}))
    assert decision.outcome is Outcome.UNAVAILABLE
    assert decision.reason.startswith("needs a build of old==1")
    assert decision.reason.endswith("(it was needed)")


def test_an_open_axis_is_kept_at_its_floor_where_uv_alone_would_go_down_to_old_sdists(bench: Bench) -> None:
    asked = cell({"vllm": "0.2"}, open_axes={"verl": "<0.9"})
    floored = (*asked.requirements, "verl>=0.8")
    bench.solver.builds = {asked.requirements: "old==1"}
    decision = bench.decide(asked)
    assert (decision.outcome, decision.lock) == (Outcome.BACKTRACKED, None)
    assert decision.reason.startswith("nothing fits with verl>=0.8, current when the newest pin appeared: ")
    bench.solver.builds = {asked.requirements: "old==1", floored: "old==2"}
    assert bench.decide(asked).reason.startswith("needs a build of old==2")
    bench.solver.builds = {floored: "old==2"}
    fallen = bench.decide(asked)
    assert (fallen.outcome, fallen.versions["verl"]) == (Outcome.BACKTRACKED, "0.4")
    fine = cell({"vllm": "0.1"}, open_axes={"verl": "<1"})
    bench.solver.builds = {fine.requirements: "old==1"}
    assert bench.decide(fine).versions["verl"] == "0.9"


def test_an_open_axis_is_asked_for_at_its_floor_first(bench: Bench) -> None:
    decision = bench.decide(cell({"ray": "2.0"}, open_axes={"torch": ""}))
    assert (decision.outcome, decision.versions["torch"]) == (Outcome.OK, "2.6")
    assert [problem.requirements for problem in bench.solver.asked] == [("ray==2.0", "torch", "torch>=2.6")]


def test_two_open_axes_that_exclude_each_other_at_their_floors(bench: Bench) -> None:
    """verl 0.8 fits some vllm and vllm 0.2.1 some verl, but not each other."""
    packages = {**PACKAGES, "flash-attn": {"1.0": release(on=15)}}
    other = Bench(bench.locks.path("sha256:00").parent, packages)
    decision = other.decide(cell({"flash-attn": "1.0"}, open_axes={"verl": "<0.9", "vllm": "<0.3"}))
    assert decision.outcome is Outcome.BACKTRACKED
    assert decision.reason.startswith("vllm fell back to 0.1.post1: vllm 0.2.1 was current when flash-attn 1.0 ")
    assert "verl 0.8 requires numpy<2; vllm 0.2.1 requires cv>=4.13" in decision.reason


def test_overrides_are_shown_and_a_pin_they_move_is_not_green(bench: Bench) -> None:
    held = bench.decide(cell({"vllm": "0.1", "torch": "2.6"}, deviation=Deviation(overrides=("torch==2.6",))))
    assert (held.outcome, held.versions["torch"]) == (Outcome.OK, "2.6")
    assert held.notes == (
        "deviates: override torch==2.6",
        "the metadata forbid it: vllm 0.1 requires torch==2.4; the cell pins torch 2.6",
    )
    allowed = bench.decide(cell({"vllm": "0.1", "torch": "2.4"}, deviation=Deviation(overrides=("torch==2.4",))))
    assert allowed.notes == ("deviates: override torch==2.4",)
    moved = bench.decide(cell({"vllm": "0.1", "torch": "2.6"}, deviation=Deviation(overrides=("torch==2.4",))))
    assert moved.outcome is Outcome.BACKTRACKED
    assert moved.reason == "torch is 2.4, not 2.6 as pinned"
    assert texts(moved) == ["an override says so: torch==2.4"]


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        ({"verl": "0.7", "vllm": "0.3"}, "the metadata forbid it: verl 0.7 requires numpy<2; vllm 0.3 requires"),
        ({"verl": "0.7", "vllm": "0.1"}, "their direct requirements do not contradict"),
    ],
)
def test_without_dependencies_only_the_pins_count_and_a_note_says_the_rest(
    bench: Bench, pins: dict[str, str], said: str
) -> None:
    decision = bench.decide(cell(pins, deviation=Deviation(no_deps=True)))
    assert decision.outcome is Outcome.OK
    assert decision.versions == pins
    assert decision.notes[0] == "deviates: dependencies are ignored"
    assert decision.notes[1].startswith(said)


def test_without_dependencies_a_pin_must_still_be_there(bench: Bench) -> None:
    no_deps = Deviation(no_deps=True)
    missing = bench.decide(cell({"verl": "0.7", "vllm": "9"}, deviation=no_deps))
    assert (missing.outcome, missing.by) == (Outcome.UNAVAILABLE, DecidedBy.INDEX)
    assert missing.detail()["near"] == ["0.4", "0.3", "0.2.1", "0.2"]
    bench.solver.blind = {"vllm": "0.1"}
    asked = cell({"verl": "0.7", "vllm": "0.1"}, deviation=no_deps)
    assert bench.decide(asked).outcome is Outcome.CONFLICT
    bench.solver.builds = {asked.requirements: "vllm==0.1"}
    assert bench.decide(asked).reason.startswith("needs a build of vllm==0.1")


def test_a_pin_without_a_wheel_is_resolved_and_says_so(bench: Bench) -> None:
    decision = bench.decide(cell({"torch": "2.4", "flash-attn": "2.6.3"}))
    assert decision.outcome is Outcome.OK
    assert decision.notes == ("flash-attn 2.6.3 has no wheel on the index: it must be built from its sdist",)
    assert decision.detail()["to_build"] == ["flash-attn==2.6.3"]


def test_a_release_newer_than_uvs_page_is_looked_for_again(bench: Bench) -> None:
    bench.solver.blind = {"vllm": "0.1"}
    decision = bench.decide(cell({"verl": "0.7", "vllm": "0.1"}))
    assert decision.outcome is Outcome.OK
    assert [problem.refresh for problem in bench.solver.asked] == [(), ("vllm",)]


def test_a_transitive_package_that_is_not_there_is_a_conflict(bench: Bench) -> None:
    decision = bench.decide(cell({"vllm": "0.4"}))
    assert decision.outcome is Outcome.CONFLICT
    assert texts(decision)[0] == "vllm 0.4 requires missing>=1"


def test_reading_twice_asks_the_index_once(bench: Bench) -> None:
    one = cell({"verl": "0.7"})
    assert isinstance(bench.decider.read(one), Case)
    bench.decider.read(one)
    assert bench.index.asked["metadata:verl-0.7-py3-none-any.whl"] == 1


# --- the shortcuts against the complete resolver, on random small worlds ---

SPECS = st.sampled_from(["", "<2", ">=2", "==1.0", "==2.0", "<1", "!=2.0"])
LEAVES = ("a", "b", "c")


@st.composite
def worlds(draw: st.DrawFn) -> Mapping[str, Mapping[str, FakeRelease]]:
    def requires(names: tuple[str, ...]) -> FakeRelease:
        chosen = draw(st.lists(st.tuples(st.sampled_from(names), SPECS).map("".join), max_size=3))
        return release(*chosen)

    world: dict[str, dict[str, FakeRelease]] = {
        "c": {"1.0": release(), "2.0": release()},
        "b": {version: requires(("c",)) for version in ("1.0", "2.0")},
        "a": {version: requires(("b", "c", "vllm")) for version in ("1.0", "2.0")},
    }
    few = [requires(LEAVES) for _ in range(2)]
    for axis in ("verl", "vllm"):
        world[axis] = {version: draw(st.sampled_from(few)) for version in ("1.0", "1.5", "2.0")}
    return world


@settings(max_examples=20, deadline=None)
@given(worlds())
def test_shortcuts_say_what_the_resolver_says(tmp_path_factory: pytest.TempPathFactory, world: object) -> None:
    bench = Bench(tmp_path_factory.mktemp("locks"), world)  # type: ignore[arg-type]
    for verl in ("1.0", "1.5", "2.0"):
        for vllm in ("1.0", "1.5", "2.0"):
            asked = cell({"verl": verl, "vllm": vllm})
            quick = bench.decider.decide(asked)
            full = bench.decider.decide(asked, shortcuts=False)
            assert (quick.outcome, quick.digest) == (full.outcome, full.digest), (verl, vllm, quick.by)
