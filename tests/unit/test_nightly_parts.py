"""The parts of a nightly: candidates for new releases, the snapshot, the boundary, the machine, comparisons."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.cell import Axis, Cell, Platform
from matrix.errors import IndexUnreachableError
from matrix.gpus.inventory import Inventory
from matrix.index import Project
from matrix.job import RunResult
from matrix.nightly.boundary import between, boundary
from matrix.nightly.candidates import candidates, release_of
from matrix.nightly.comparison import Comparison, Kind, compare, dropped, suspects
from matrix.nightly.look import gone
from matrix.nightly.machine import is_other_gpu, machine_facts
from matrix.nightly.record import record_cell
from matrix.nightly.retry import try_again
from matrix.nightly.snapshot import Snapshot, data_digest, packages_of, pages_of, releases_of
from matrix.plan import Planned
from matrix.store import Store
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict, judge
from tests.unit.fakes import FakeIndex, FakeRelease
from tests.unit.gpu_fakes import H200, T4, FakeDriver
from tests.unit.gpu_fakes import inventory as gpu_inventory
from tests.unit.nightly_fakes import FIRST, NAME, axes, night, record, slot
from tests.unit.run_fakes import cell, finding, observation

LATTICE = axes(verl=("0.9.0", "0.9.1"), vllm=("0.24.0", "0.26.0", "0.27.0"), torch=("2.11.0", "2.12.0"))


@pytest.mark.parametrize(
    ("planned", "newest", "expected"),
    [
        ([], 0, []),
        ([], 1, [
            "verl0.9.1-vllm0.27.0", "verl0.9.1-torch2.12.0", "verl0.9.1-tf1.0", "verl0.9.1-fa1.0", "verl0.9.1-ray1.0",
            "verl0.9.1-td1.0",
        ]),
        ([cell(verl="0.9.1", vllm="0.27.0")], 2, [
            "verl0.9.0-vllm0.27.0", "verl0.9.1-vllm0.26.0", "verl0.9.1-torch2.12.0", "verl0.9.1-torch2.11.0",
            "verl0.9.1-tf1.0", "verl0.9.1-fa1.0", "verl0.9.1-ray1.0", "verl0.9.1-td1.0",
        ]),
    ],
)  # fmt: skip
def test_the_newest_releases_that_no_cell_pins_have_a_cell_each(
    planned: list[object], newest: int, expected: list[str]
) -> None:
    held = [Planned(cell=one) for one in planned]  # type: ignore[arg-type]
    found = candidates(LATTICE, held, newest=newest)
    # The newest verl and the newest vLLM are one cell, planned for both.
    assert list(dict.fromkeys(item.cell.name for item in found)) == expected
    assert all(item.groups == ("candidate",) for item in found)


def test_a_candidate_says_for_which_release_it_is_there_and_is_targeted_as_the_rest() -> None:
    as_of = datetime.fromisoformat("2026-11-20T00:00:00+00:00")
    found = candidates(LATTICE, [], newest=1, platform=Platform(python="3.11"), as_of=as_of)
    torch = next(item for item in found if item.cell.pin(Axis.TORCH))
    assert torch.cell.name == "verl0.9.1-torch2.12.0-py3.11-asof20261120T000000Z"
    assert release_of(torch) == "torch 2.12.0"
    assert torch.cell.reason == "torch 2.12.0 is among the newest; tried with verl 0.9.1."
    assert release_of(Planned(cell=torch.cell)) == ""


def test_without_a_verl_there_are_no_candidates() -> None:
    assert candidates(axes(verl=()), []) == ()


# The snapshot.


def test_pages_have_a_digest_that_changes_with_any_file() -> None:
    index = FakeIndex({"verl": {"0.9.1": FakeRelease()}, "vllm": {"0.24.0": FakeRelease()}})
    first = pages_of(index, ["vllm", "verl", "nothing"])
    assert list(first) == ["nothing", "verl", "vllm"]
    assert first["nothing"] == "absent"
    for changed in (FakeRelease(files={"a": "b"}), FakeRelease(yanked=""), FakeRelease(tags=("py3-none-any", "x"))):
        other = FakeIndex({"verl": {"0.9.1": FakeRelease()}, "vllm": {"0.24.0": changed}})
        second = pages_of(other, ["vllm", "verl"])
        assert second["verl"] == first["verl"]
        assert second["vllm"] != first["vllm"]


def test_the_files_of_pinned_releases_are_recorded() -> None:
    index = FakeIndex({"vllm": {"0.24.0": FakeRelease(yanked="bad")}})
    planned = [Planned(cell=cell(verl="0.9.1", vllm="0.24.0")), Planned(cell=cell(vllm="0.25.0"))]
    held = releases_of(index, planned)
    assert list(held) == ["verl 0.9.1", "vllm 0.24.0", "vllm 0.25.0"]
    assert held["verl 0.9.1"] is held["vllm 0.25.0"] is None
    release = held["vllm 0.24.0"]
    assert release is not None
    assert release["yanked"] == "bad"
    (digest,) = release["files"].values()
    assert digest.endswith(" yanked")
    assert len(digest.partition(" ")[0]) == 16
    assert packages_of(planned)[:2] == ("verl", "vllm")


def test_a_snapshot_names_its_index_and_its_date() -> None:
    made = Snapshot(
        at=FIRST,
        as_of=FIRST,
        index="https://i",
        pages={"a": "1"},
        releases={"a 1": None},
        lattice={},
        data={},
        tools={},
    )
    data = made.to_json()
    assert (data["as_of"], data["index"], data["releases"]) == (FIRST.isoformat(), "https://i", {"a 1": None})
    assert data["digest"] == made.digest


def test_our_own_data_have_a_digest_by_content_and_name(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("1")
    (tmp_path / "notes.md").write_text("1")
    first = data_digest(tmp_path)
    assert data_digest(tmp_path / "a.toml") == first
    (tmp_path / "notes.md").write_text("2")
    assert data_digest(tmp_path) == first
    (tmp_path / "a.toml").write_text("2")
    assert data_digest(tmp_path) != first
    assert data_digest() == ""


# The look at the index.


class _Down(FakeIndex):
    def project(self, name: str) -> Project:
        raise IndexUnreachableError("down")


def test_releases_of_a_set_are_looked_up_one_by_one() -> None:
    index = FakeIndex({"a": {"1": FakeRelease()}, "b": {"1": FakeRelease(yanked="")}, "c": {"2": FakeRelease()}})
    told = [fact.what for fact in gone(index, {"a": "1 x", "b": "1", "c": "1", "d": "1", "e": "what?"})]
    assert told == [
        "b 1, which it resolved to, was yanked",
        "c 1, which it resolved to, is gone from the index",
        "d 1, which it resolved to, is gone from the index",
        "e what?, which it resolved to, is gone from the index",
    ]
    assert gone(_Down({}), {"a": "1"}) == ()
    assert gone(index, {}) == ()


# The boundary.

AMONG = "the first bad release of vllm is one of 0.26.0, 0.27.0; 0.27.0 is bad"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    held = Store(tmp_path)
    for vllm, outcome in (("0.24.0", Outcome.OK), ("0.26.0", Outcome.UNTESTED), ("0.27.0", Outcome.BROKEN)):
        held.add(observation(f"verl0.9.1-vllm{vllm}", Tier.SURFACE, outcome))
    return held


@pytest.mark.parametrize(
    ("vllm", "tier", "axis", "line"),
    [
        ("0.27.0", Tier.SURFACE, Axis.VLLM, AMONG),
        ("0.26.0", Tier.SURFACE, Axis.VLLM, ""),
        ("0.27.0", Tier.RESOLVE, Axis.VLLM, ""),
        ("0.27.0", Tier.IMPORT, Axis.VLLM, ""),
        ("0.27.0", Tier.SURFACE, Axis.TORCH, ""),
        ("0.29.0", Tier.SURFACE, Axis.VLLM, ""),
    ],
)
def test_the_boundary_is_told_from_what_is_stored(store: Store, vllm: str, tier: Tier, axis: Axis, line: str) -> None:
    found = boundary(cell(verl="0.9.1", vllm=vllm), tier, axis, LATTICE, store)
    assert found.partition(" (last good")[0] == line


def test_a_bad_release_that_left_the_lattice_has_no_boundary(store: Store) -> None:
    left = axes(vllm=("0.24.0", "0.26.0"))
    assert boundary(cell(verl="0.9.1", vllm="0.27.0"), Tier.SURFACE, Axis.VLLM, left, store) == ""


@pytest.mark.parametrize(
    ("good", "bad", "line"),
    [
        ("0.26.0", "0.27.0", "vllm 0.27.0 is the first bad release (last good: 0.26.0; by the two nights)"),
        (
            "0.24.0",
            "0.27.0",
            f"{AMONG} (last good: 0.24.0; by the two nights)",
        ),
        ("0.27.0", "0.24.0", ""),
        ("0.1", "0.24.0", ""),
    ],
)
def test_between_two_nights_an_axis_turned_bad(good: str, bad: str, line: str) -> None:
    assert between(Axis.VLLM, Version(good), Version(bad), LATTICE) == line


def test_of_many_candidates_the_ends_are_named() -> None:
    many = axes(vllm=[f"0.{number}" for number in range(10)])
    found = between(Axis.VLLM, Version("0.1"), Version("0.9"), many)
    assert found.startswith("the first bad release of vllm is one of 8, 0.2 to 0.9 (last good: 0.1")


# The machine.


def test_a_machine_without_a_gpu_has_its_words_and_its_kernel() -> None:
    facts = machine_facts(object(), Inventory(gpus=(), why="none"), "x86_64, 2 cores")  # type: ignore[arg-type]
    assert facts["machine"] == "x86_64, 2 cores"
    assert set(facts) == {"machine", "kernel"}


@pytest.mark.parametrize(
    ("before", "now", "other"),
    [
        ({}, {}, False),
        ({"gpus": ["H200"], "driver": "1"}, {"gpus": ["H200"], "driver": "1"}, False),
        ({"gpus": ["H200"], "driver": "1"}, {"gpus": ["H200"], "driver": "2"}, True),
        ({"gpus": ["H200"]}, {"gpus": ["H100"]}, True),
        ({"gpus": ["H200"], "driver": "1"}, {}, False),
    ],
)
def test_another_driver_is_another_gpu(before: dict[str, object], now: dict[str, object], other: bool) -> None:
    assert is_other_gpu(before, now) is other


# Records and comparisons.


def test_a_record_keeps_what_decides_and_what_it_rests_on() -> None:
    broken = observation(
        NAME, Tier.SURFACE, Outcome.BROKEN, findings=[finding(certain=False)], reads={"a.whl": "sha256:1"}
    )
    known = observation(NAME, Tier.IMPORT, Outcome.BROKEN, detail={"failure": "f-1", "seen": "reproduced"}, probe="p")
    measured = observation(NAME, Tier.GPU, detail={}, probe="threshold/x")
    kept = record_cell(judge(cell(verl="0.9.1", vllm="0.24.0"), [broken, known, measured]), NAME, expected="broken")
    assert [(item.probe, item.outcome, item.known) for item in kept.slots] == [
        ("surface", Outcome.OK, ""),
        ("p", Outcome.BROKEN, "f-1"),
    ]
    assert kept.slots[0].reads == {"a.whl": "sha256:1"}


PROBE = "compat/test_a.py::test_a"
OK, BAD = (slot(Tier.IMPORT, outcome, probe=PROBE) for outcome in (Outcome.OK, Outcome.BROKEN))
RESOLVED = slot(Tier.RESOLVE)
POORER = slot(Tier.SURFACE, Outcome.DEGRADED)
CONFLICT = slot(Tier.RESOLVE, Outcome.CONFLICT)
THERE = slot(Tier.IMPORT, Outcome.BROKEN, probe=PROBE, shipped="h200")
POOR = record(RESOLVED, POORER, status=Status.DEGRADED)
UNTRIED = slot(Tier.IMPORT, Outcome.UNTESTED, probe=PROBE, reason="no GPU")


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        (record(RESOLVED, OK), record(RESOLVED, OK), Kind.UNCHANGED),
        (record(RESOLVED, OK), record(RESOLVED, BAD, status=Status.BROKEN), Kind.NEW_FAILURE),
        (record(RESOLVED, BAD, status=Status.BROKEN), record(RESOLVED, OK), Kind.FIXED),
        (record(RESOLVED, BAD, status=Status.BROKEN), record(RESOLVED, BAD, status=Status.BROKEN), Kind.STILL_FAILING),
        (record(RESOLVED, OK), record(RESOLVED, UNTRIED), Kind.NOT_RUN),
        (record(RESOLVED, OK), record(RESOLVED), Kind.NOT_RUN),
        (record(RESOLVED), record(RESOLVED, UNTRIED), Kind.UNCHANGED),
        (record(RESOLVED, carried=(BAD,)), record(RESOLVED, BAD, status=Status.BROKEN), Kind.STILL_FAILING),
        (record(RESOLVED, carried=(BAD,)), record(RESOLVED, OK), Kind.FIXED),
        (record(RESOLVED), record(RESOLVED, BAD, status=Status.BROKEN), Kind.NEW_FAILURE),
        (record(RESOLVED), record(UNTRIED, status=Status.UNTESTED), Kind.NOT_RUN),
        (None, record(RESOLVED, BAD, status=Status.BROKEN), Kind.NEW_FAILURE),
        (record(CONFLICT, status=Status.CONFLICT), record(RESOLVED, BAD, status=Status.BROKEN), Kind.STILL_FAILING),
        (record(CONFLICT, status=Status.CONFLICT), record(RESOLVED, POORER, status=Status.DEGRADED), Kind.FIXED),
        (
            record(RESOLVED, POORER, status=Status.DEGRADED),
            record(RESOLVED, BAD, status=Status.BROKEN),
            Kind.NEW_FAILURE,
        ),
        (record(RESOLVED), record(RESOLVED, THERE, status=Status.BROKEN), Kind.STILL_FAILING),
        (None, record(RESOLVED), Kind.UNCHANGED),
        (
            record(RESOLVED),
            record(RESOLVED, slot(Tier.IMPORT, Outcome.BROKEN, probe=PROBE, known="f-1"), status=Status.BROKEN),
            Kind.STILL_FAILING,
        ),
    ],
)
def test_what_became_of_a_cell(before: object, now: object, kind: Kind) -> None:
    other = record(RESOLVED, name="other")
    was = night(*([before] if before else []), other)  # type: ignore[arg-type]
    (shift,) = compare(was, night(now))  # type: ignore[arg-type]
    assert shift.kind is kind


def test_a_probe_that_is_tried_for_the_first_time_and_fails_is_our_doing() -> None:
    (shift,) = compare(night(record(RESOLVED)), night(record(RESOLVED, BAD, status=Status.BROKEN)))
    assert shift.cause is not None
    assert shift.cause.line == f"ours: import {PROBE} is tried for the first time"
    assert shift.turns[0].line == f"import {PROBE}: broken"


def test_a_cell_that_is_bad_by_evidence_of_another_machine_is_told_as_ours() -> None:
    (shift,) = compare(night(record(RESOLVED)), night(record(RESOLVED, THERE, status=Status.BROKEN)))
    assert shift.cause is not None
    assert shift.cause.line == "ours: the evidence that is shipped"


def test_a_tier_that_was_tried_before_and_is_not_now_says_why() -> None:
    (shift,) = compare(night(record(RESOLVED, OK)), night(record(RESOLVED, UNTRIED)))
    assert shift.why == ("import was tried before and is not now: no GPU",)
    (shift,) = compare(night(record(RESOLVED, OK)), night(record(RESOLVED)))
    assert shift.why == ("import was tried before and is not now: it was not asked for",)


def test_on_a_first_night_what_never_ran_is_not_run() -> None:
    cells = (record(UNTRIED, status=Status.UNTESTED, reasons=("why",)), record(name="a"), record(RESOLVED, name="b"))
    assert [shift.kind for shift in compare(None, night(*cells))] == [Kind.NOT_RUN, Kind.NOT_RUN, Kind.UNCHANGED]


def test_only_what_would_be_new_is_tried_again() -> None:
    was = night(record(RESOLVED, OK), record(RESOLVED, BAD, name="b", status=Status.BROKEN))
    now = [
        record(RESOLVED, BAD, status=Status.BROKEN),
        record(RESOLVED, BAD, name="b", status=Status.BROKEN),
        record(RESOLVED, slot(Tier.IMPORT, Outcome.BROKEN, probe=PROBE, shipped="h200"), name="c"),
        record(BAD, name="d", status=Status.BROKEN, expected="broken"),
    ]
    assert [(held.name, [item.probe for item in slots]) for held, slots in suspects(was, now)] == [(NAME, [PROBE])]
    assert suspects(None, now) == ()


def test_a_comparison_counts_every_kind_and_lists_what_changed() -> None:
    was, now = night(record(RESOLVED, OK), record(name="gone")), night(record(RESOLVED, BAD, status=Status.BROKEN))
    made = Comparison(before=was, shifts=compare(was, now), dropped=dropped(was, now))
    data = made.to_json()
    assert data["counts"] == {
        "new failure": 1, "flaky": 0, "not run": 0, "fixed": 0, "still failing": 0, "unchanged": 0,
    }  # fmt: skip
    assert (data["dropped"], data["before"]) == (["gone"], was.stamp)
    assert [item["kind"] for item in data["shifts"]] == ["new failure"]
    assert dropped(None, now) == ()


def test_of_several_probes_that_got_worse_it_is_told_how_many_were_tried_twice() -> None:
    twice = slot(Tier.IMPORT, Outcome.BROKEN, probe="x", tries=(Outcome.BROKEN, Outcome.BROKEN))
    once = slot(Tier.IMPORT, Outcome.BROKEN, probe="y")
    was = night(record(RESOLVED))
    (shift,) = compare(was, night(record(RESOLVED, twice, once, status=Status.BROKEN)))
    assert shift.retry == "tried twice at 1 of 2 probes, bad both times"


def test_a_machine_with_gpus_has_their_names_and_the_driver() -> None:
    facts = machine_facts(FakeDriver(), gpu_inventory(H200, T4), "x86_64, 2 x GPU")
    assert facts["gpus"] == ["NVIDIA H200 144384 MiB", "NVIDIA T4 15360 MiB"]
    assert (facts["driver"], facts["cuda_driver"]) == ("580.159.04", "13.0")
    # A driver that stopped answering leaves what the system tells.
    assert "driver" not in machine_facts(FakeDriver(silent="gone"), gpu_inventory(H200), "x86_64")


# The second try.


def _verdict() -> Verdict:
    return judge(cell(verl="0.9.1", vllm="0.24.0"), [observation(NAME, Tier.SURFACE, Outcome.BROKEN)])


def _run(*verdicts: Verdict, interrupted: bool = False) -> RunResult:
    return RunResult(verdicts=verdicts, tallies=(), at=FIRST, interrupted=interrupted)


def test_a_second_try_without_an_answer_says_nothing() -> None:
    silent = judge(cell(verl="0.9.1", vllm="0.24.0"), [observation(NAME, Tier.SURFACE, Outcome.UNTESTED, "no room")])
    bad = (slot(Tier.SURFACE, Outcome.BROKEN),)
    for answer, refused in ((_run(silent), "surface: no room"), (_run(), "nothing was answered")):
        held = try_again(_verdict(), bad, lambda *asked, answer=answer: answer, None)
        assert (held.verdict.status, held.tries, held.refused) == (Status.BROKEN, {}, refused)


def test_an_interrupt_during_the_second_try_is_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        try_again(_verdict(), (slot(Tier.SURFACE, Outcome.BROKEN),), lambda *asked: _run(interrupted=True), None)


def test_the_second_try_asks_for_the_failing_probes_of_installed_tiers_only() -> None:
    asked: list[object] = []

    def again(one: Cell, tiers: frozenset[Tier], probes: tuple[str, ...]) -> RunResult:
        asked.extend([one.name, sorted(tiers), probes])
        return _run()

    try_again(_verdict(), (slot(Tier.SURFACE), slot(Tier.IMPORT, probe="compat/test_a.py::test_b")), again, None)
    assert asked == [NAME, [Tier.IMPORT, Tier.SURFACE], ("test_a.py::test_b",)]
