"""The deep step: which cells are visited, what stops one and no other, what is known already, what the verdicts say."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from matrix.cell import Cell
from matrix.deep import deep_tiers
from matrix.errors import IndexUnreachableError, MatrixError, NoSpaceError, NothingRanError, ProvisionError, ToolError
from matrix.executors.local import Local
from matrix.executors.protocol import Executor
from matrix.gpus.fingerprint import PROBE as MACHINE
from matrix.job import Job, Probed, Tell
from matrix.observe import INSTALL, Observation
from matrix.probing.visit import Stay
from matrix.probing.visit import Visitor as RealVisitor
from matrix.provision.environment import Environment
from matrix.run import recall, run
from matrix.store import Store
from matrix.tier import Outcome, Status, Tier
from tests.unit.probing_stack import PLAIN, environment, folder_of, prober
from tests.unit.run_fakes import AT, FakeChecker, FakeResolver, Heard, cell, observation

GOOD = cell(verl="0.9.1", vllm="0.24.0")
BAD = cell(verl="0.8.0", vllm="0.33.0")
ALL = frozenset(Tier) - {Tier.GPU, Tier.BENCH}
ROOM = NoSpaceError("/ has 3 GB free; the cell needs 10 GB.")


@dataclass
class FakeVisitor:
    """Answers from `found` by cell name; an error there is raised. `visited` counts."""

    found: Mapping[str, Probed | BaseException]
    visited: list[str] = field(default_factory=list)
    width: int = 1
    stopped: threading.Event = field(default_factory=threading.Event)
    closed: bool = False

    def stop(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        assert not self.closed
        self.closed = True

    def visit(self, cell: Cell, resolved: Observation | None, tell: Tell) -> Probed:
        self.visited.append(cell.name)
        tell("begins")
        answer = self.found[cell.name]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _seen(of: Cell, *outcomes: tuple[Tier, Outcome], reused: int = 0) -> Probed:
    return Probed(
        observations=tuple(
            observation(of.name, tier, outcome, probe=f"compat/{number}", machine="x86_64", reads={"lock": "sha256:1"})
            for number, (tier, outcome) in enumerate(outcomes)
        ),
        reused=reused,
    )


def _job(folder: Path, visitor: Executor | MatrixError, **more: object) -> Job:
    def make() -> Executor:
        if isinstance(visitor, MatrixError):
            raise visitor
        return visitor

    checker = FakeChecker()
    values: dict[str, object] = {
        "cells": (GOOD, BAD),
        "resolver": FakeResolver(),
        "checker": lambda: checker,
        "store": Store(folder, clock=lambda: AT),
        "clock": lambda: AT,
        "tiers": ALL,
        "deep": frozenset({GOOD.name, BAD.name}),
        "visitor": make,
        **more,
    }
    return Job(**values)  # type: ignore[arg-type]


OK = _seen(GOOD, (Tier.IMPORT, Outcome.OK), (Tier.BEHAVE, Outcome.OK))


def test_cells_that_go_deep_are_judged_by_their_probes_too(tmp_path: Path) -> None:
    heard = Heard()
    broken = _seen(BAD, (Tier.IMPORT, Outcome.BROKEN), (Tier.BEHAVE, Outcome.UNTESTED))
    result = run(_job(tmp_path, FakeVisitor({GOOD.name: OK, BAD.name: broken}), progress=heard))
    assert [(v.status, v.deepest) for v in result.verdicts] == [
        (Status.WORKS, Tier.BEHAVE),
        (Status.BROKEN, Tier.IMPORT),
    ]
    assert [(t.tier, t.planned, t.new, t.untested) for t in result.tallies[2:]] == [
        (Tier.IMPORT, 2, 2, 0),
        (Tier.BEHAVE, 2, 1, 1),
    ]
    at = heard.lines.index(f"note {GOOD.name}")
    assert heard.lines[at + 1] == "note   begins"
    assert f"behave {BAD.name} broken" in heard.lines


def test_a_cell_that_was_not_to_go_deep_has_no_line_about_it(tmp_path: Path) -> None:
    visitor = FakeVisitor({GOOD.name: OK})
    result = run(_job(tmp_path, visitor, deep=frozenset({GOOD.name})))
    assert visitor.visited == [GOOD.name]
    assert [item.question.tier for item in result.verdicts[1].evidence] == [Tier.RESOLVE, Tier.SURFACE]
    assert not any("untested" in reason for reason in result.verdicts[1].reasons)


@pytest.mark.parametrize(
    "error",
    [ROOM, ToolError("uv was stopped."), IndexUnreachableError("It did not answer.")],
    ids=lambda e: type(e).__name__,
)
def test_what_stops_one_cell_stops_no_other(tmp_path: Path, error: MatrixError) -> None:
    visitor = FakeVisitor({GOOD.name: error, BAD.name: _seen(BAD, (Tier.IMPORT, Outcome.OK))})
    first, second = run(_job(tmp_path, visitor)).verdicts
    assert visitor.visited == [GOOD.name, BAD.name]
    assert (first.status, first.deepest) == (Status.WORKS, Tier.SURFACE)
    assert f"import untested: {error.what}" in first.reasons
    assert f"behave untested: {error.what}" in first.reasons
    assert second.deepest is Tier.IMPORT
    assert "behave untested: no probe of this tier was chosen" in second.reasons


@pytest.mark.parametrize(
    ("reused", "asked", "known"), [(2, 0, True), (1, 1, False), (0, 2, False), (0, 0, False), (1, 0, True)]
)
def test_a_cell_is_from_the_store_where_nothing_had_to_run(
    tmp_path: Path, reused: int, asked: int, known: bool
) -> None:
    heard, probed = Heard(), replace(OK, reused=reused, asked=asked)
    run(_job(tmp_path, FakeVisitor({GOOD.name: probed}), cells=(GOOD,), progress=heard))
    assert (f"behave {GOOD.name} ok reused" in heard.lines) is known


def test_where_there_can_be_no_visitor_every_cell_says_why(tmp_path: Path) -> None:
    result = run(_job(tmp_path, ToolError("uv was not found.")))
    assert all("import untested: uv was not found." in verdict.reasons for verdict in result.verdicts)
    assert [verdict.status for verdict in result.verdicts] == [Status.WORKS] * 2


def test_an_interrupt_leaves_what_is_finished(tmp_path: Path) -> None:
    result = run(_job(tmp_path, FakeVisitor({GOOD.name: OK, BAD.name: KeyboardInterrupt()})))
    assert result.interrupted
    assert [verdict.deepest for verdict in result.verdicts] == [Tier.BEHAVE, Tier.SURFACE]
    assert "import untested: interrupted before it was asked" in result.verdicts[1].reasons
    assert result.tallies[-1].planned == 2
    assert result.tallies[-1].untested == 0


def test_what_had_ended_in_a_cell_before_an_interrupt_is_part_of_the_result(tmp_path: Path) -> None:
    class Stopped(FakeVisitor):
        def visit(self, cell: Cell, resolved: Observation | None, tell: Tell) -> Probed:
            job.store.add(*OK.observations[:1])
            raise KeyboardInterrupt

    job = _job(tmp_path, Stopped({}), cells=(GOOD,))
    result = run(job)
    assert result.interrupted
    assert result.verdicts[0].deepest is OK.observations[0].question.tier
    assert "behave untested: interrupted before it was asked" in result.verdicts[0].reasons


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, (Tier.IMPORT, Tier.BEHAVE)),
        ({"deep": frozenset()}, ()),
        ({"visitor": None}, ()),
        ({"tiers": frozenset({Tier.RESOLVE})}, ()),
    ],
)
def test_the_tiers_that_need_an_installation(
    tmp_path: Path, more: dict[str, object], expected: tuple[Tier, ...]
) -> None:
    assert deep_tiers(replace(_job(tmp_path, FakeVisitor({})), **more)) == expected  # type: ignore[arg-type]


def test_deep_tiers_alone_are_a_job_and_none_is_not(tmp_path: Path) -> None:
    visitor = FakeVisitor({GOOD.name: OK, BAD.name: OK})
    assert run(_job(tmp_path, visitor, tiers=frozenset({Tier.IMPORT, Tier.BEHAVE}))).ran == 2
    with pytest.raises(NothingRanError):
        run(_job(tmp_path, visitor, tiers=frozenset({Tier.IMPORT}), deep=frozenset()))


def test_recall_takes_the_probes_of_the_lock_that_the_cell_has_now(tmp_path: Path) -> None:
    job = _job(tmp_path, FakeVisitor({}), cells=(GOOD,))
    resolved = observation(GOOD.name, Tier.RESOLVE, detail={"lock": "sha256:2", "versions": {}})
    old, new = (
        observation(GOOD.name, Tier.IMPORT, outcome, probe="compat/a", reads={"lock": lock})
        for outcome, lock in ((Outcome.BROKEN, "sha256:1"), (Outcome.OK, "sha256:2"))
    )
    job.store.add(resolved, new, old)
    result = recall(job)
    assert [item.outcome for item in result.verdicts[0].evidence] == [Outcome.OK, Outcome.OK]
    assert [(t.tier, t.planned, t.reused) for t in result.tallies if t.tier.is_deep] == [(Tier.IMPORT, 2, 1)]


@pytest.mark.parametrize(("outcome", "deepest"), [(Outcome.OK, Tier.SURFACE), (Outcome.BROKEN, Tier.IMPORT)])
def test_that_a_cell_could_be_installed_says_nothing_of_whether_it_works(
    tmp_path: Path, outcome: Outcome, deepest: Tier
) -> None:
    install = observation(GOOD.name, Tier.IMPORT, outcome, probe=INSTALL)
    skipped = observation(GOOD.name, Tier.IMPORT, Outcome.UNTESTED, "no GPU", probe="compat/a")
    job = _job(tmp_path, FakeVisitor({GOOD.name: Probed(observations=(install, skipped))}), cells=(GOOD,))
    assert run(job).verdicts[0].deepest is deepest


@pytest.mark.parametrize("outcome", [Outcome.BROKEN, Outcome.UNTESTED])
def test_a_cell_that_was_not_installed_says_so_at_every_tier(tmp_path: Path, outcome: Outcome) -> None:
    install = observation(GOOD.name, Tier.IMPORT, outcome, "cannot be installed: no wheel", probe=INSTALL)
    job = _job(tmp_path, FakeVisitor({GOOD.name: Probed(observations=(install,))}), cells=(GOOD,))
    (verdict,) = run(job).verdicts
    deeper = [item.reason for item in verdict.evidence if item.question.tier is Tier.BEHAVE]
    assert deeper == ["cannot be installed: no wheel"]


@dataclass
class FakeProvisioner:
    """Gives the environment of the tests, or raises; says what was asked of it."""

    error: MatrixError | None = None
    reused: bool = False
    asked: list[str] = field(default_factory=list)

    def provision(self, cell: Cell, lock_text: str) -> Environment:
        self.asked.append(f"provision {lock_text}")
        if self.error is not None:
            raise self.error
        return replace(environment(), reused=self.reused, added_bytes=1_500_000_000, seconds=3.0)

    def release(self, environment: Environment) -> None:
        self.asked.append("release")

    def stop(self) -> None:
        self.asked.append("stop")


def _visitor(home: Path, provisioner: FakeProvisioner, **more: object) -> RealVisitor:
    folder = folder_of(home / "probes", test_plain=PLAIN)
    made = prober(home, folder, patterns=("test_passes",), **more)
    return RealVisitor(prober=made, provisioner=provisioner, lock=lambda resolved: f"text of {resolved.detail['lock']}")


RESOLVED = observation(
    GOOD.name, Tier.RESOLVE, detail={"lock": "sha256:1", "versions": {"thing": "2.0", "pytest": "8.0"}}
)


def test_a_visit_installs_runs_and_lets_go_and_the_next_one_needs_nothing(tmp_path: Path) -> None:
    provisioner, told = FakeProvisioner(), list[str]()
    first = _visitor(tmp_path, provisioner).visit(GOOD, RESOLVED, told.append)
    assert [item.question.probe for item in first.observations] == [INSTALL, "compat/test_plain.py::test_passes"]
    assert first.observations[0].detail["added_bytes"] == 1_500_000_000
    assert provisioner.asked == ["provision text of sha256:1", "release"]
    assert told[0] == "2 packages installed in 3 s, 1.50 GB more on disk"
    # The lock need not name all that is installed: an alias of a build under another name is not in it.
    less = observation(GOOD.name, Tier.RESOLVE, detail={"lock": "sha256:1", "versions": {"thing": "2.0"}})
    for resolved in (RESOLVED, less):
        second = _visitor(tmp_path, provisioner).visit(GOOD, resolved, told.append)
        assert (second.reused, len(provisioner.asked)) == (1, 2)


def test_a_cell_that_cannot_be_installed_is_a_verdict(tmp_path: Path) -> None:
    error = ProvisionError("flash-attn 2.8.3 has no wheel.", why="It would be built.")
    visitor = _visitor(tmp_path, FakeProvisioner(error=error))
    (seen,) = visitor.visit(GOOD, RESOLVED, lambda text: None).observations
    assert (seen.outcome, seen.question.probe) == (Outcome.BROKEN, INSTALL)
    assert seen.reason == "cannot be installed: flash-attn 2.8.3 has no wheel. It would be built."
    assert list(Store(tmp_path / "store").find(probe=INSTALL))


def test_a_cell_for_which_a_wheel_has_to_be_built_first_is_untested(tmp_path: Path) -> None:
    error = ProvisionError("flash-attn 2.8.3 has no wheel.", then="Build one.", wheel_missing=True)
    (seen,) = _visitor(tmp_path, FakeProvisioner(error=error)).visit(GOOD, RESOLVED, lambda text: None).observations
    assert (seen.outcome, seen.question.probe) == (Outcome.UNTESTED, INSTALL)
    assert seen.reason == "cannot be installed: flash-attn 2.8.3 has no wheel. Build one."


def test_the_environment_is_let_go_whatever_happens(tmp_path: Path) -> None:
    def refuse(environment: Environment) -> None:
        raise ToolError("pytest could not be added.")

    provisioner = FakeProvisioner(reused=True)
    with pytest.raises(ToolError):
        _visitor(tmp_path, provisioner, equip=refuse).visit(GOOD, RESOLVED, lambda text: None)
    assert provisioner.asked[-1] == "release"


@pytest.mark.parametrize("resolved", [None, observation(GOOD.name, Tier.RESOLVE, Outcome.CONFLICT, "a and b clash")])
def test_without_a_lock_nothing_is_installed(tmp_path: Path, resolved: Observation | None) -> None:
    provisioner = FakeProvisioner()
    with pytest.raises(NothingRanError, match="no lock to install"):
        _visitor(tmp_path, provisioner).visit(GOOD, resolved, lambda text: None)
    assert provisioner.asked == []


def test_the_environment_one_stands_in_is_probed_as_it_is(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "probes", test_plain=PLAIN)
    make = functools.partial(
        Stay, environment=environment(), prober=prober(tmp_path, folder, patterns=("test_passes",))
    )
    first = make().visit(GOOD, None, lambda text: None)
    assert [item.question.probe for item in first.observations] == [INSTALL, "compat/test_plain.py::test_passes"]
    assert ({item.outcome for item in first.observations}, first.reused) == ({Outcome.OK}, 0)
    assert make().visit(GOOD, None, lambda text: None).reused == 1


WITH_GPU = frozenset({Tier.RESOLVE, Tier.IMPORT, Tier.GPU})


@dataclass
class Meeting(FakeVisitor):
    """A visitor whose visits only go on once all have begun; where they run is kept."""

    width: int = 2
    threads: set[int] = field(default_factory=set)
    begun: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=20))

    def visit(self, cell: Cell, resolved: Observation | None, tell: Tell) -> Probed:
        self.threads.add(threading.get_ident())
        if self.width > 1:
            self.begun.wait()
        answer = FakeVisitor.visit(self, cell, resolved, tell)
        if cell.name == BAD.name and self.width > 1 and isinstance(self.found[GOOD.name], KeyboardInterrupt):
            assert self.stopped.wait(20)
            raise ToolError("uv was ended.")
        return answer


GPU_OK = {name: _seen(cell, (Tier.IMPORT, Outcome.OK), (Tier.GPU, Outcome.OK)) for name, cell in
          ((GOOD.name, GOOD), (BAD.name, BAD))}  # fmt: skip


def test_with_several_gpus_cells_are_visited_side_by_side(tmp_path: Path) -> None:
    heard, visitor = Heard(), Meeting(GPU_OK)
    result = run(_job(tmp_path, visitor, tiers=WITH_GPU, progress=heard))
    assert len(visitor.threads) == 2
    assert threading.get_ident() not in visitor.threads
    assert [verdict.deepest for verdict in result.verdicts] == [Tier.GPU, Tier.GPU]
    # What is said of a cell names it, since lines of several come mixed.
    assert {f"note {GOOD.name}: begins", f"note {BAD.name}: begins"} < set(heard.lines)
    assert [(tally.tier, tally.new) for tally in result.tallies[1:]] == [(Tier.IMPORT, 2), (Tier.GPU, 2)]


@pytest.mark.parametrize(("width", "tiers"), [(1, WITH_GPU), (4, WITH_GPU - {Tier.GPU})])
def test_without_several_gpus_one_comes_after_the_other(tmp_path: Path, width: int, tiers: frozenset[Tier]) -> None:
    visitor = FakeVisitor({GOOD.name: OK, BAD.name: OK}, width=width)
    heard = Heard()
    run(_job(tmp_path, Local(visitor=visitor, tiers=tiers), tiers=tiers, progress=heard))
    assert visitor.visited == [GOOD.name, BAD.name]
    assert "note   begins" in heard.lines


def test_an_interrupt_ends_what_runs_beside_it_and_blames_nobody(tmp_path: Path) -> None:
    visitor = Meeting({**GPU_OK, GOOD.name: KeyboardInterrupt()})
    result = run(_job(tmp_path, visitor, tiers=WITH_GPU))
    assert result.interrupted
    assert visitor.stopped.is_set()
    assert result.failures == ()
    assert all("interrupted before it was asked" in verdict.reasons[0] for verdict in result.verdicts)


def test_a_fault_of_one_visit_ends_the_others(tmp_path: Path) -> None:
    visitor = Meeting({**GPU_OK, GOOD.name: ValueError("a fault of the tool")})
    with pytest.raises(ValueError, match="a fault of the tool"):
        run(_job(tmp_path, visitor, tiers=WITH_GPU))
    assert visitor.stopped.is_set()


@pytest.mark.parametrize(("probe", "deepest"), [(Outcome.UNTESTED, Tier.IMPORT), (Outcome.OK, Tier.GPU)])
def test_what_the_machine_is_says_nothing_of_whether_a_cell_works(
    tmp_path: Path, probe: Outcome, deepest: Tier
) -> None:
    machine = observation(GOOD.name, Tier.GPU, Outcome.OK, probe=MACHINE)
    tried = observation(GOOD.name, Tier.GPU, probe, "skipped", probe="compat/a")
    imported = observation(GOOD.name, Tier.IMPORT, Outcome.OK, probe="compat/b")
    probed = Probed(observations=(imported, tried, machine))
    result = run(_job(tmp_path, FakeVisitor({GOOD.name: probed}), cells=(GOOD,), tiers=WITH_GPU))
    assert result.verdicts[0].deepest is deepest
    assert result.tallies[-1].new == (deepest is Tier.GPU)


def test_whoever_visits_can_be_stopped_from_another_thread(tmp_path: Path) -> None:
    provisioner = FakeProvisioner()
    visitor = _visitor(tmp_path, provisioner)
    assert visitor.width == 1
    visitor.stop()
    assert provisioner.asked == ["stop"]
    stay = Stay(prober=visitor.prober, environment=environment())
    stay.stop()
    assert stay.width == 1
    with pytest.raises(KeyboardInterrupt):
        stay.visit(GOOD, None, lambda text: None)
