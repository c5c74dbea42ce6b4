"""Cells over a cluster: what is sent where, what comes back, what a lost machine costs, and when a cell is given up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from matrix.cell import Cell
from matrix.errors import (
    IndexUnreachableError,
    MatrixError,
    NoSpaceError,
    NothingRanError,
    ProvisionError,
    ToolError,
)
from matrix.executors import errand as wire
from matrix.executors.demand import GIB, Machine
from matrix.executors.journal import unfinished
from matrix.executors.spread import TRIES, Given, Spread, _names
from matrix.job import Probed
from matrix.observe import Observation
from matrix.store import Store
from matrix.tier import Outcome, Tier
from tests.unit.executor_fakes import (
    BEGUN,
    H200,
    OTHER,
    PLAIN,
    SMALL,
    T4,
    THIRD,
    FakeCluster,
    Script,
    begun,
    ended,
    lost,
    spread,
    whole,
)
from tests.unit.run_fakes import AT, cell, observation

GOOD = cell(verl="0.9.1", vllm="0.24.0")
RESOLVED = observation(GOOD.name, Tier.RESOLVE, detail={"lock": "sha256:1", "versions": {"torch": "2.11.0"}})


def seen(number: int, outcome: Outcome = Outcome.OK, of: Cell = GOOD, **more: Any) -> Observation:
    values: dict[str, Any] = {"reads": {"lock": "sha256:1", "machine": "x86_64, no GPU"}, "machine": "x86_64", **more}
    return observation(of.name, Tier.IMPORT, outcome, probe=f"compat/test_x.py::test_{number}", **values)


def visited(made: Spread, told: list[str] | None = None) -> Probed:
    return made.visit(GOOD, RESOLVED, ([] if told is None else told).append)


def keys(store: Store) -> list[str]:
    return [item.question.probe[-1] for item in store]


def test_what_a_machine_observes_is_stored_as_it_comes(tmp_path: Path) -> None:
    cluster = FakeCluster([SMALL])
    made, told = spread(tmp_path, cluster), list[str]()
    counts: list[int] = []
    look = lambda: counts.append(len(made.store))  # noqa: E731
    first, second = wire.observed(seen(1)), wire.observed(seen(2))
    done = wire.done(Probed(observations=(seen(1), seen(2)), asked=2))
    cluster.scripts = [[begun(SMALL), first, look, second, look, done, ended()]]
    probed = visited(made, told)
    assert (probed.observations, probed.asked) == ((seen(1), seen(2)), 2)
    assert counts == [1, 2]
    assert told == [f"begins on machine {'a' * 8}"]
    (sent, demand, kind, machine), *more = cluster.sent
    assert (sent.cell, sent.lock, sent.resolved, sent.known) == (GOOD.name, "text of sha256:1", RESOLVED, ())
    assert (demand.gpus, demand.cpus, demand.memory, kind, machine, more) == (0, 2, 16 * GIB, "", "", [])
    made.close()
    assert cluster.closed


def test_a_lost_machine_costs_what_had_not_ended_and_the_rest_is_done_elsewhere(tmp_path: Path) -> None:
    cluster = FakeCluster([SMALL, OTHER])
    made, told = spread(tmp_path, cluster), list[str]()
    cluster.scripts = [[begun(SMALL), wire.observed(seen(1)), lost()], whole(OTHER, seen(1), seen(2), reused=1)]
    assert visited(made, told).reused == 1
    # What the first machine had told goes along, and the second is another one.
    assert [errand.known for errand, *_ in cluster.sent] == [(), (seen(1),)]
    assert [machine for *_, machine in cluster.sent] == ["", OTHER.id]
    assert "lost (1 of 3): its machine was lost" in told
    assert unfinished(tmp_path).losses == {GOOD.name: ["its machine was lost"]}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([lost("Ray killed it because the memory of the machine ran out")], "the memory of the machine ran out"),
        ([begun(SMALL), ended(-9)], "its process ended with -9"),
        ([begun(SMALL), ended(1, "Traceback\n  x\nImportError: no uv\n\n")], "its process ended with 1: ImportError"),
        ([begun(SMALL), ended(None, "it is aarch64")], "it could not be run there: it is aarch64"),
        ([begun(SMALL)], "it ended without a word"),
        (["{"], "a line from there makes no sense"),
        (['{"event": "observed"}'], "a line from there makes no sense (KeyError"),
        (["[1]"], "a line from there makes no sense"),
    ],
)
def test_a_cell_that_is_lost_wherever_it_goes_is_given_up(tmp_path: Path, script: Any, reason: str) -> None:
    cluster = FakeCluster([SMALL, OTHER, THIRD], [script] * TRIES)
    with pytest.raises(NothingRanError, match="lost 3 times with its machine") as caught:
        visited(spread(tmp_path, cluster))
    assert reason in caught.value.what
    assert len(cluster.sent) == TRIES
    assert all(item.cancelled.is_set() for item in cluster.under_way)


def test_what_was_seen_to_be_wrong_stays_where_the_rest_is_given_up(tmp_path: Path) -> None:
    script: Script = [begun(SMALL), wire.observed(seen(1)), wire.observed(seen(2, Outcome.BROKEN)), lost()]
    made = spread(tmp_path, FakeCluster([SMALL], [script, [lost()], [lost()]]))
    probed = visited(made)
    assert [(item.outcome, item.question.tier) for item in probed.observations] == [
        (Outcome.BROKEN, Tier.IMPORT),
        (Outcome.UNTESTED, Tier.IMPORT),
        (Outcome.UNTESTED, Tier.BEHAVE),
    ]
    assert keys(made.store) == ["1", "2"], "what passed is kept, and what is untested is only shown"


def test_losses_of_a_run_that_was_cut_short_count(tmp_path: Path) -> None:
    cluster = FakeCluster([SMALL], [[lost()]])
    made = spread(tmp_path, cluster)
    made.journal.losses[GOOD.name] = ["its machine was lost"] * 2
    with pytest.raises(NothingRanError):
        visited(made)
    assert len(cluster.sent) == 1
    with pytest.raises(NothingRanError):
        visited(made)
    assert len(cluster.sent) == 1


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (NoSpaceError("/ has 3 GB free."), 2),
        (IndexUnreachableError("It did not answer."), 2),
        (ToolError("uv was not found."), 2),
        (ProvisionError("torch has no wheel."), 1),
        (NothingRanError("There is no lock to install"), 1),
    ],
)
def test_the_trouble_of_one_machine_is_not_that_of_the_cell(tmp_path: Path, error: MatrixError, sent: int) -> None:
    refused = [begun(SMALL), wire.refused(error), ended()]
    cluster = FakeCluster([SMALL, OTHER], [refused, whole(OTHER, seen(1))])
    made = spread(tmp_path, cluster)
    if sent == 2:
        assert visited(made).observations == (seen(1),)
    else:
        with pytest.raises(type(error), match=error.what):
            visited(made)
    assert len(cluster.sent) == sent
    assert made.journal.losses == {}


def test_the_trouble_of_every_machine_is_told(tmp_path: Path) -> None:
    error = NoSpaceError("/ has 3 GB free.")
    cluster = FakeCluster([SMALL, OTHER], [[begun(one), wire.refused(error)] for one in (SMALL, OTHER)])
    with pytest.raises(NoSpaceError, match="3 GB free"):
        visited(spread(tmp_path, cluster))


def test_a_full_disk_of_this_machine_is_not_tried_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster([SMALL, OTHER], [whole(SMALL, seen(1))])
    made = spread(tmp_path, cluster)

    def full(*items: Observation) -> None:
        raise NoSpaceError("No space left.")

    monkeypatch.setattr(made.store, "add", full)
    with pytest.raises(NoSpaceError):
        visited(made)
    assert cluster.under_way[0].cancelled.is_set()


@pytest.mark.parametrize(
    ("there", "given", "what"),
    [
        ([], Given(), "has 2 cores, 16 GiB (there are: none)"),
        ([SMALL], Given(gpus=1, cpus=8), "has 8 cores, 16 GiB"),
        ([SMALL], Given(memory=64 * GIB), "has 2 cores, 64 GiB (there are: 0 GPUs, 4 cores, 16.0 GiB)"),
    ],
)
def test_a_cell_that_no_machine_can_take_is_not_sent(
    tmp_path: Path, there: list[Machine], given: Given, what: str
) -> None:
    cluster = FakeCluster(there)
    with pytest.raises(NothingRanError) as caught:
        visited(spread(tmp_path, cluster, given=given))
    assert what in f"{caught.value.what} {caught.value.why}"
    assert cluster.sent == []


def _after(made: Spread, *seconds: float) -> list[Callable[[], object]]:
    """Return functions each of which lets so much time pass."""
    now = [0.0]
    made.clock = lambda: now[0]
    return [lambda s=s: now.__setitem__(0, now[0] + s) for s in seconds]  # type: ignore[misc]


def test_a_cell_waits_for_a_machine_of_a_cluster_that_grows(tmp_path: Path) -> None:
    cluster = FakeCluster([])
    made = spread(tmp_path, cluster, given=Given(patience_s=600))
    assert made.width > 1
    arrives = lambda: cluster.there.append(SMALL)  # noqa: E731
    cluster.scripts = [[*_after(made, 1, 300, 290), arrives, *whole(SMALL, seen(1))]]
    assert visited(made).observations == (seen(1),)
    cluster.there, made = [], spread(tmp_path / "2", cluster, given=Given(patience_s=600))
    cluster.scripts = [_after(made, 300, 301)]
    with pytest.raises(NothingRanError, match="No machine"):
        visited(made)


def test_a_queue_that_no_machine_is_left_for_ends(tmp_path: Path) -> None:
    cluster = FakeCluster([SMALL])
    made = spread(tmp_path, cluster)
    leaves = cluster.there.clear
    cluster.scripts = [[*_after(made, 6, 6), leaves, *_after(made, 30, 40), *whole(SMALL, seen(1))]]
    with pytest.raises(NothingRanError, match="No machine of the cluster"):
        visited(made)
    assert cluster.under_way[0].cancelled.is_set()
    # One that has begun runs on, whatever the list of machines says: Ray tells when it is lost.
    cluster.there, made = [SMALL], spread(tmp_path / "2", cluster)
    cluster.scripts = [[begun(SMALL), cluster.there.clear, *_after(made, 100, 100), *whole(SMALL, seen(1))[1:]]]
    assert visited(made).observations == (seen(1),)


def test_what_is_stopped_is_cancelled_and_nothing_more_is_sent(tmp_path: Path) -> None:
    cluster, going = FakeCluster([SMALL]), threading.Event()
    made = spread(tmp_path, cluster)

    def wait() -> None:
        going.set()
        assert cluster.under_way[0].cancelled.wait(20)

    cluster.scripts = [[begun(SMALL), wait, *whole(SMALL, seen(1))], whole(SMALL, seen(1))]
    raised: list[BaseException] = []

    def visit() -> None:
        try:
            visited(made)
        except KeyboardInterrupt as error:
            raised.append(error)

    thread = threading.Thread(target=visit)
    thread.start()
    assert going.wait(20)
    made.stop()
    thread.join(20)
    assert raised
    with pytest.raises(KeyboardInterrupt):
        visited(made)
    assert keys(made.store) == []


@pytest.mark.parametrize(
    ("again", "since", "known"),
    [(False, None, ["1", "2"]), (True, None, ["2"]), (True, BEGUN - timedelta(hours=9), ["1", "2"])],
)
def test_with_again_only_what_the_run_itself_answered_goes_along(
    tmp_path: Path, again: bool, since: Any, known: list[str]
) -> None:
    cluster = FakeCluster([SMALL], [whole(SMALL, seen(3))])
    made = spread(tmp_path, cluster, again=again, since=since)
    made.store.add(seen(1, at=BEGUN - timedelta(hours=1)), seen(2, at=AT))
    visited(made)
    ((errand, *_),) = cluster.sent
    assert [item.question.probe[-1] for item in errand.known] == known
    assert not errand.manner.again, "what counts is decided here"


def test_an_environment_that_is_there_needs_no_lock(tmp_path: Path) -> None:
    cluster = FakeCluster([SMALL], [whole(SMALL, seen(1))])
    made = spread(tmp_path, cluster, here=Path("/opt/env/bin/python"))
    assert made.visit(GOOD, None, lambda text: None).observations == (seen(1),)
    ((errand, *_),) = cluster.sent
    assert (errand.lock, errand.resolved, errand.manner.here) == ("", None, Path("/opt/env/bin/python"))
    with pytest.raises(NothingRanError, match="no lock to install"):
        spread(tmp_path, cluster).visit(GOOD, None, lambda text: None)


@pytest.mark.parametrize(
    ("there", "given", "tier", "expected"),
    [
        # (GPUs, cores, GiB, kinds)
        ([SMALL], Given(), Tier.IMPORT, (0, 2, 16, ())),
        ([replace(SMALL, cpus=1, memory=4 * GIB)], Given(), Tier.IMPORT, (0, 1, 4, ())),
        ([SMALL], Given(cpus=3, memory=2 * GIB), Tier.IMPORT, (0, 3, 2, ())),
        # As many as its most demanding probe asks for, as far as one machine has them.
        ([H200], Given(), Tier.GPU, (2, 2, 16, ())),
        ([T4, SMALL], Given(), Tier.GPU, (1, 2, 16, ())),
        ([H200], Given(gpus=4), Tier.GPU, (4, 2, 16, ())),
        # Without any it goes all the same, unless some may come.
        ([SMALL], Given(), Tier.GPU, (0, 2, 16, ())),
        ([SMALL], Given(patience_s=60), Tier.GPU, (1, 2, 16, ())),
        # On a T4 most probes have too little; of a card that Ray has no name for nobody knows.
        ([T4, H200, SMALL], Given(), Tier.GPU, (2, 2, 16, ("H200",))),
        ([PLAIN, H200], Given(), Tier.GPU, (2, 2, 16, ("H200",))),
        ([PLAIN], Given(), Tier.GPU, (2, 2, 16, ())),
        ([T4, H200], Given(kinds=("T4",), gpus=1), Tier.GPU, (1, 2, 16, ("T4",))),
    ],
)
def test_what_a_cell_is_given(
    tmp_path: Path, there: list[Machine], given: Given, tier: Tier, expected: tuple[Any, ...]
) -> None:
    made = spread(tmp_path, FakeCluster(there), given=given)
    made.manner = replace(made.manner, tiers=frozenset({tier}))
    demand = made.demand(there)
    assert (demand.gpus, demand.cpus, demand.memory // GIB, demand.kinds) == expected


def test_a_cell_goes_on_with_the_kind_of_gpu_it_was_begun_on_and_others_where_there_is_room(tmp_path: Path) -> None:
    h100 = replace(H200, id="9" * 56, gpus=4, kinds=frozenset({"H100"}))
    cluster = FakeCluster([H200, h100, T4], [[lost()], whole(H200, seen(1)), whole(H200, seen(1))])
    made = spread(tmp_path, cluster)
    made.manner = replace(made.manner, tiers=frozenset({Tier.IMPORT, Tier.GPU}))
    visited(made)
    # Nothing is under way, so by name; a loss does not change the kind, only the machine.
    assert [(kind, machine) for *_, kind, machine in cluster.sent] == [("H100", ""), ("H100", "")]
    made.store.add(seen(4, machine="x86_64, 16 cores, 128 GiB, 1 x NVIDIA H200"))
    visited(made)
    assert cluster.sent[-1][2] == "H200"


def test_how_many_go_at_once(tmp_path: Path) -> None:
    given = Given(cpus=2, memory=4 * GIB)
    made = spread(tmp_path, FakeCluster([SMALL, replace(OTHER, memory=6 * GIB)]), given=given)
    assert made.width == 2 + 1 + 1
    made.manner = replace(made.manner, tiers=frozenset({Tier.GPU}))
    made.cluster = FakeCluster([H200, SMALL])
    assert made.width == 8 // 2 + 1
    assert spread(tmp_path, FakeCluster([])).width == 1


@pytest.mark.parametrize(
    ("kind", "words", "named"),
    [
        ("H200", "x86_64, 8 cores, 1 x NVIDIA H200", True),
        ("H20", "x86_64, 8 cores, 1 x NVIDIA H200", False),
        ("A100", "x86_64, 1 x NVIDIA A100-SXM4-80GB", True),
        ("RTX-PRO-6000", "1 x NVIDIA RTX PRO 6000 Blackwell Server Edition", True),
        ("L4", "1 x NVIDIA L40S", False),
    ],
)
def test_kinds_and_machines_in_words(kind: str, words: str, named: bool) -> None:
    assert _names(kind, words) is named
