"""The main job: what is asked, what is not asked again, and what is left when something goes wrong."""

from __future__ import annotations

import functools
import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from packaging.version import Version

import matrix.workers
from matrix.asking import GIVE_UP_AFTER, Refusal
from matrix.cell import Axis, Cell
from matrix.errors import (
    CorruptFileError,
    DataError,
    IndexUnreachableError,
    MatrixError,
    NoSpaceError,
    NothingRanError,
    ToolError,
)
from matrix.job import Job, Silent, Versions
from matrix.observe import Observation, Question
from matrix.run import recall, run, versions_of
from matrix.store import Store
from matrix.tier import Outcome, Status, Tier
from matrix.workers import Errand, grouped
from tests.unit.run_fakes import AT, FakeChecker, FakeResolver, Heard, cell, observation

GOOD = cell(verl="0.9.1", vllm="0.24.0")
BAD = cell(verl="0.8.0", vllm="0.33.0")
CLASH = cell(verl="0.7.1", vllm="0.24.0")
CELLS = (GOOD, BAD, CLASH)
UNREACHED = IndexUnreachableError("The index did not answer.", why="Connection refused.", then="Check the network.")


def _job(folder: Path, cells: tuple[Cell, ...] = CELLS, **more: object) -> Job:
    checker = FakeChecker(outcomes={"0.33.0": Outcome.BROKEN})
    values: dict[str, object] = {
        "cells": cells,
        "resolver": FakeResolver(outcomes={CLASH.name: Outcome.CONFLICT}),
        "checker": lambda: checker,
        "store": Store(folder, clock=lambda: AT),
        "clock": lambda: AT,
        **more,
    }
    return Job(**values)  # type: ignore[arg-type]


def _asked(job: Job) -> tuple[list[str], list[str]]:
    resolver, checker = job.resolver, job.checker()
    assert isinstance(resolver, FakeResolver)
    assert isinstance(checker, FakeChecker)
    return resolver.asked, checker.asked


def test_every_cell_gets_its_verdict_in_the_order_of_the_plan(tmp_path: Path) -> None:
    result = run(_job(tmp_path, tools={"uv": "0.13.9"}))
    assert [verdict.status for verdict in result.verdicts] == [Status.WORKS, Status.BROKEN, Status.CONFLICT]
    assert (result.ran, result.planned, result.at, result.interrupted) == (3, 3, AT, False)
    assert result.counts == {
        Status.WORKS: 1,
        Status.DEGRADED: 0,
        Status.BROKEN: 1,
        Status.CONFLICT: 1,
        Status.UNTESTED: 0,
    }
    assert [(tally.tier, tally.planned, tally.new, tally.reused) for tally in result.tallies] == [
        (Tier.RESOLVE, 3, 3, 0),
        (Tier.SURFACE, 3, 3, 0),
    ]
    assert set(result.tools) == {"verl-matrix", "python", "uv"}
    # The conflict does not hide what the surface check says.
    assert result.verdicts[2].works is Outcome.OK


def test_a_second_run_asks_nothing_and_again_asks_all(tmp_path: Path) -> None:
    run(_job(tmp_path))
    second = _job(tmp_path)
    result = run(second)
    assert _asked(second) == ([], [])
    assert [tally.reused for tally in result.tallies] == [3, 3]
    forced = _job(tmp_path, again=True)
    run(forced)
    assert [len(names) for names in _asked(forced)] == [3, 3]


def test_only_a_new_cell_is_asked(tmp_path: Path) -> None:
    run(_job(tmp_path, (GOOD, BAD)))
    job = _job(tmp_path)
    run(job)
    assert _asked(job) == ([CLASH.name], [CLASH.name])


@pytest.mark.parametrize(("hours", "as_of", "asked"), [(1, False, True), (48, False, False), (1, True, False)])
def test_an_answer_of_the_resolver_ages_but_not_as_of_a_date(
    tmp_path: Path, hours: int, as_of: bool, asked: bool
) -> None:
    cells = (replace(GOOD, as_of=AT) if as_of else GOOD,)
    run(_job(tmp_path, cells))
    later = Store(tmp_path, clock=lambda: AT + timedelta(hours=24))
    job = _job(tmp_path, cells, max_age=timedelta(hours=hours), store=later)
    run(job)
    assert _asked(job) == ([cells[0].name] if asked else [], [])


def test_an_answer_that_nothing_can_change_does_not_age(tmp_path: Path) -> None:
    Store(tmp_path).add(replace(FakeResolver().resolve(GOOD), detail={"volatile": False}))
    job = _job(
        tmp_path, (GOOD,), max_age=timedelta(hours=1), store=Store(tmp_path, clock=lambda: AT + timedelta(days=9))
    )
    run(job)
    assert _asked(job)[0] == []


def test_untested_is_no_answer_and_is_asked_again(tmp_path: Path) -> None:
    first = _job(tmp_path, (GOOD,), resolver=FakeResolver(outcomes={GOOD.name: Outcome.UNTESTED}))
    result = run(first)
    assert (result.tallies[0].untested, result.tallies[0].new) == (1, 0)
    second = _job(tmp_path, (GOOD,))
    assert run(second).verdicts[0].resolvable is Outcome.OK
    assert _asked(second) == ([GOOD.name], [])


@pytest.mark.parametrize(
    "error", [UNREACHED, ToolError("uv timed out"), CorruptFileError("cut short"), DataError("f", "g", "h")]
)
def test_a_probe_that_raises_makes_its_cell_untested_and_the_run_goes_on(tmp_path: Path, error: MatrixError) -> None:
    job = _job(tmp_path, resolver=FakeResolver(outcomes={BAD.name: error}))
    result = run(job)
    assert [verdict.resolvable for verdict in result.verdicts] == [Outcome.OK, Outcome.UNTESTED, Outcome.OK]
    assert f"resolve untested: {Refusal.of(error).line}" in result.verdicts[1].reasons
    assert result.tallies[0].untested == 1
    # What could not be answered is not stored.
    assert [item.outcome for item in Store(tmp_path).find(tier=Tier.RESOLVE)] == [Outcome.OK, Outcome.OK]


def test_an_error_in_a_question_is_a_refusal_too(tmp_path: Path) -> None:
    class Unknown(FakeResolver):
        def question(self, cell: Cell) -> Question:
            if cell is BAD:
                raise ToolError("no such release")
            return super().question(cell)

    result = run(_job(tmp_path, resolver=Unknown()))
    assert [verdict.resolvable for verdict in result.verdicts] == [Outcome.OK, Outcome.UNTESTED, Outcome.OK]


def test_an_index_that_nobody_reaches_is_raised_once_and_not_asked_for_ever(tmp_path: Path) -> None:
    cells = tuple(cell(verl=f"0.{n}", vllm="0.24.0") for n in range(30))
    resolver = FakeResolver(outcomes={one.name: UNREACHED for one in cells})
    checker = FakeChecker(errors={"0.24.0": UNREACHED})
    job = _job(tmp_path, cells, resolver=resolver, checker=lambda: checker)
    with pytest.raises(IndexUnreachableError, match="Connection refused") as caught:
        run(job)
    assert caught.value.then == "Check the network."
    # One more than the limit: the first is asked twice, in the bundle and then alone.
    assert len(resolver.asked) == GIVE_UP_AFTER + 1
    assert len(checker.asked) == GIVE_UP_AFTER


def test_an_unreachable_index_keeps_what_is_stored(tmp_path: Path) -> None:
    run(_job(tmp_path, (GOOD,)))
    resolver = FakeResolver(outcomes={BAD.name: UNREACHED, CLASH.name: UNREACHED})
    result = run(_job(tmp_path, resolver=resolver))
    assert [verdict.resolvable for verdict in result.verdicts] == [Outcome.OK, Outcome.UNTESTED, Outcome.UNTESTED]


def test_a_full_disk_ends_the_run_at_once(tmp_path: Path) -> None:
    resolver = FakeResolver(outcomes={BAD.name: NoSpaceError("disk full")})
    with pytest.raises(NoSpaceError):
        run(_job(tmp_path, resolver=resolver))
    assert [item.question.cell for item in Store(tmp_path)] == [GOOD.name]


@pytest.mark.parametrize(("error", "asked"), [(NoSpaceError("disk full"), 1), (UNREACHED, GIVE_UP_AFTER)])
def test_a_question_that_cannot_be_put_ends_the_run_or_soon_stops_it(
    tmp_path: Path, error: MatrixError, asked: int
) -> None:
    put = []

    class Mute(FakeResolver):
        def question(self, cell: Cell) -> Question:
            put.append(cell)
            raise error

    cells = tuple(cell(verl=f"0.{n}", vllm="0.24.0") for n in range(9))
    with pytest.raises(type(error)):
        run(_job(tmp_path, cells, resolver=Mute(), tiers=frozenset({Tier.RESOLVE})))
    assert len(put) == asked


@pytest.mark.parametrize(
    "more", [{"cells": ()}, {"tiers": frozenset({Tier.GPU})}, {"tiers": frozenset()}], ids=["cells", "tier", "tiers"]
)
def test_nothing_to_run_is_an_error(tmp_path: Path, more: dict[str, object]) -> None:
    with pytest.raises(NothingRanError):
        run(replace(_job(tmp_path), **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tiers", "resolvable", "works"),
    [
        ({Tier.RESOLVE}, Outcome.CONFLICT, Outcome.UNTESTED),
        ({Tier.SURFACE}, Outcome.UNTESTED, Outcome.OK),
    ],
)
def test_one_tier_alone(tmp_path: Path, tiers: set[Tier], resolvable: Outcome, works: Outcome) -> None:
    result = run(_job(tmp_path, (CLASH,), tiers=frozenset(tiers)))
    assert [tally.tier for tally in result.tallies] == list(tiers)
    assert (result.verdicts[0].resolvable, result.verdicts[0].works) == (resolvable, works)


def test_progress_hears_everything_once(tmp_path: Path) -> None:
    run(_job(tmp_path, (GOOD,)))
    heard = Heard()
    run(_job(tmp_path, (GOOD, BAD), progress=heard))
    assert heard.lines == [
        "start resolve 2",
        f"resolve {GOOD.name} ok reused",
        f"resolve {BAD.name} ok",
        "end resolve",
        "start surface 2",
        f"surface {GOOD.name} ok reused",
        f"surface {BAD.name} broken",
        "end surface",
    ]


@pytest.mark.parametrize(("lines", "stored", "statuses"), [(1, 1, 1), (2, 2, 2), (6, 4, 3)])
def test_ctrl_c_keeps_what_is_finished_and_tells_the_rest(
    tmp_path: Path, lines: int, stored: int, statuses: int
) -> None:
    result = run(_job(tmp_path, progress=Heard(interrupt_at=lines)))
    assert result.interrupted
    assert len(Store(tmp_path)) == stored
    assert sum(verdict.deepest is not None for verdict in result.verdicts) == statuses == result.ran
    untold = [verdict for verdict in result.verdicts if verdict.deepest is None]
    assert all("interrupted before it was asked" in verdict.reasons[0] for verdict in untold)
    finished = run(_job(tmp_path))
    assert (finished.interrupted, finished.ran) == (False, 3)


@pytest.mark.parametrize(
    ("outcome", "versions", "expected"),
    [
        (
            Outcome.OK,
            {"torch": "2.11.0", "Flash_Attn": "2.8.3", "numpy": "1"},
            {"torch": "2.11.0", "flash-attn": "2.8.3"},
        ),
        (Outcome.OK, {"vllm": "0.1", "torch": "not a version"}, {}),
        (Outcome.OK, None, {}),
        (Outcome.CONFLICT, {"torch": "2.11.0"}, {}),
    ],
)
def test_the_surface_tier_reads_the_lock_for_what_is_not_pinned(
    outcome: Outcome, versions: object, expected: dict[str, str]
) -> None:
    resolved = observation(GOOD.name, Tier.RESOLVE, outcome, detail={"versions": versions})
    found = {axis.value: str(version) for axis, version in versions_of(GOOD, resolved).items()}
    assert found == {"verl": "0.9.1", "vllm": "0.24.0"} | expected
    assert set(versions_of(GOOD, None)) == {Axis.VERL, Axis.VLLM}


@pytest.mark.parametrize(
    ("of", "locked", "from_lock", "reason"),
    [
        (cell(torch="2.6.0", vllm="0.6.3"), {}, True, "no release of verl"),
        (cell(verl="0.9.1"), {}, True, "only verl is pinned"),
        (cell(verl="0.9.1"), {"vllm": "0.24.0"}, True, ""),
        (cell(verl="0.9.1"), {"vllm": "0.24.0"}, False, "only verl is pinned"),
    ],
)
def test_a_cell_with_nothing_to_compare_says_so(
    tmp_path: Path, of: Cell, locked: dict[str, str], from_lock: bool, reason: str
) -> None:
    result = run(_job(tmp_path, (of,), resolver=FakeResolver(versions=locked), from_lock=from_lock))
    (verdict,) = result.verdicts
    assert verdict.status is (Status.UNTESTED if reason else Status.WORKS)
    assert (verdict.deepest is Tier.RESOLVE) == bool(reason)
    assert reason in " ".join(verdict.reasons)


def test_recall_builds_the_verdicts_from_the_store_and_asks_nothing(tmp_path: Path) -> None:
    before = run(_job(tmp_path, (GOOD, BAD)))
    job = _job(tmp_path)
    result = recall(job)
    assert _asked(job) == ([], [])
    assert [verdict.to_json() for verdict in result.verdicts[:2]] == [verdict.to_json() for verdict in before.verdicts]
    assert result.verdicts[2].status is Status.UNTESTED
    assert [(tally.ran, tally.untested) for tally in result.tallies] == [(2, 1), (2, 1)]
    assert "nothing was asked" in result.notes[0]


def test_recall_takes_the_check_at_the_lock_and_not_a_later_one_at_the_pins_alone(tmp_path: Path) -> None:
    resolver = FakeResolver(versions={"torch": "2.11.0"})
    run(_job(tmp_path, (BAD,), resolver=resolver))
    later = FakeChecker(at=lambda: AT + timedelta(hours=1))
    run(_job(tmp_path, (BAD,), resolver=resolver, from_lock=False, checker=lambda: later))
    assert len(list(Store(tmp_path).find(tier=Tier.SURFACE))) == 2
    assert recall(_job(tmp_path, (BAD,))).verdicts[0].works is Outcome.BROKEN
    # Where only the narrow check is there, it is what is known.
    Store(tmp_path).add(observation(GOOD.name, Tier.SURFACE, Outcome.DEGRADED, detail={"versions": {"verl": "0.9.1"}}))
    assert recall(_job(tmp_path, (GOOD,))).verdicts[0].works is Outcome.DEGRADED


def test_damage_in_the_store_is_told(tmp_path: Path) -> None:
    (tmp_path / "observations.jsonl").write_text("rubbish\n")
    assert "1 line of observations.jsonl passed over" in run(_job(tmp_path)).notes[0]


def test_the_silent_progress_says_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(_job(tmp_path, progress=Silent()))
    assert capsys.readouterr() == ("", "")


LATTICE = tuple(cell(verl=f"0.{v}.0", vllm=f"0.{w}.0") for v in range(4) for w in range(20, 25))


class DyingChecker(FakeChecker):
    """A checker whose process dies at one release."""

    def observe(self, cell: Cell, versions: Versions) -> Observation:
        if cell.name.startswith("verl0.2.0") and self.log is not None:
            os._exit(9)
        return super().observe(cell, versions)


def _apart(folder: Path, kind: type[FakeChecker] = FakeChecker, **more: object) -> Job:
    log = folder / "log"
    log.touch()
    checker = functools.partial(
        kind,
        log=log,
        outcomes={"0.23.0": Outcome.BROKEN},
        errors={"0.24.0": ToolError("no")},
        **more,  # type: ignore[arg-type]
    )
    return _job(folder, LATTICE, checker=checker, workers=2)


def test_worker_processes_answer_all_and_store_each_once(tmp_path: Path) -> None:
    heard = Heard()
    result = run(replace(_apart(tmp_path), progress=heard))
    asked = (tmp_path / "log").read_text().splitlines()
    assert sorted(asked) == sorted(one.name for one in LATTICE)
    assert {verdict.cell.name for verdict in result.verdicts if verdict.works is Outcome.BROKEN} == {
        one.name for one in LATTICE if one.name.endswith("0.23.0")
    }
    tally = result.tallies[1]
    assert (tally.new, tally.untested, tally.reused) == (16, 4, 0)
    assert len([line for line in heard.lines if line.startswith("surface ")]) == 20
    (tmp_path / "log").write_text("")
    assert run(_apart(tmp_path)).tallies[1].reused == 16
    assert len((tmp_path / "log").read_text().splitlines()) == 4


def test_worker_processes_ask_again_when_told(tmp_path: Path) -> None:
    run(_apart(tmp_path))
    again = replace(_apart(tmp_path, at=functools.partial(max, AT + timedelta(hours=1), AT)), again=True)
    assert run(again).tallies[1].new == 16


class DriftingChecker(FakeChecker):
    """A checker for which a file changes between the question and the answer."""

    def observe(self, cell: Cell, versions: Versions) -> Observation:
        answer = super().observe(cell, versions)
        return replace(answer, question=replace(answer.question, reads={"changed": "meanwhile"}))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_answer_under_another_key_still_counts(tmp_path: Path, workers: int) -> None:
    result = run(replace(_apart(tmp_path, DriftingChecker), workers=workers))
    assert (result.tallies[1].new, result.tallies[1].untested) == (16, 4)


def test_a_worker_that_dies_costs_no_finished_answer(tmp_path: Path) -> None:
    result = run(_apart(tmp_path, DyingChecker))
    stored = {item.question.cell for item in Store(tmp_path).find(tier=Tier.SURFACE)}
    told = {
        verdict.cell.name
        for verdict in result.verdicts
        if "the code fits was not tried (a worker process died" in " ".join(verdict.reasons)
    }
    assert told
    assert stored == {verdict.cell.name for verdict in result.verdicts if verdict.works is not Outcome.UNTESTED}
    assert not told & stored


def test_ctrl_c_stops_the_workers_after_what_they_have_in_hand(tmp_path: Path) -> None:
    started = time.monotonic()
    result = run(replace(_apart(tmp_path, pause_s=0.15), progress=Heard(interrupt_at=len(LATTICE) + 4)))
    assert time.monotonic() - started < 10
    assert result.interrupted
    stored = {item.question.cell for item in Store(tmp_path).find(tier=Tier.SURFACE)}
    assert 0 < len(stored) < len(LATTICE)
    assert stored == {verdict.cell.name for verdict in result.verdicts if verdict.works is not Outcome.UNTESTED}


def test_a_full_disk_in_a_worker_ends_the_run(tmp_path: Path) -> None:
    job = _apart(tmp_path)
    checker = functools.partial(FakeChecker, errors={"0.22.0": NoSpaceError("disk full")})
    with pytest.raises(NoSpaceError, match="disk full"):
        run(replace(job, checker=checker))


@pytest.mark.parametrize(
    ("releases", "workers", "expected"),
    [
        ("a bbb", 1, "bbb a"),
        ("a bbb", 2, "bbb a"),
        # A release that is more than a worker's share is split, into parts worth a process.
        ("a bbbbbbbbbbbb", 2, "bbbbbbb bbbbb a"),
        ("cccccccccccc", 3, "cccc cccc cccc"),
        ("cccccccc", 8, "cccc cccc"),
    ],
)
def test_errands_go_by_release_of_verl_the_most_first(releases: str, workers: int, expected: str) -> None:
    minors = {"a": "0.7.0", "b": "0.8.0", "c": "0.9.1"}
    words = [(letter, at) for word in releases.split() for at, letter in enumerate(word)]
    cells = [cell(verl=minors[letter], vllm=f"0.{at}.0") for letter, at in words]
    errands = [Errand(cell=one, versions=versions_of(one, None), key=one.name) for one in cells]
    letters = {Version(minor): letter for letter, minor in minors.items()}
    groups = grouped(errands, workers)
    assert [[letters[errand.versions[Axis.VERL]] for errand in group] for group in groups] == [
        list(word) for word in expected.split()
    ]
    assert sorted(errand.key for group in groups for errand in group) == sorted(one.name for one in cells)


def test_a_worker_function_outside_a_worker_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no worker"):
        matrix.workers._work([])
