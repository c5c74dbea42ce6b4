"""What a nightly keeps in the home: its nights, its copy of the axes, its turn; each whole or not at all."""

from __future__ import annotations

import json
import multiprocessing
import resource
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from matrix.axes import load_axes
from matrix.cell import Axis
from matrix.errors import BusyError, CorruptFileError, DataError, NewerSchemaError, NoSpaceError
from matrix.nightly import archive as archives
from matrix.nightly.archive import Archive, read_night
from matrix.nightly.lattice import bring_up, recorded, since
from matrix.nightly.record import CellRecord, Night, Slot
from matrix.nightly.turn import turn
from matrix.tier import Outcome, Status, Tier
from tests.unit.cli_stack import axes_text
from tests.unit.fakes import FakeIndex, FakeRelease
from tests.unit.nightly_fakes import DAY, FIRST, axes, night, record, slot

WORDS = st.text(max_size=8)
SLOTS = st.builds(
    Slot,
    tier=st.sampled_from(Tier),
    probe=st.text(min_size=1, max_size=8),
    outcome=st.sampled_from(Outcome),
    reason=WORDS,
    tool=WORDS,
    reads=st.dictionaries(WORDS, WORDS, max_size=2),
    machine=WORDS,
    fingerprint=WORDS,
    lock=WORDS,
    volatile=st.booleans(),
    known=WORDS,
    shipped=WORDS,
    at=WORDS,
    tries=st.lists(st.sampled_from(Outcome), max_size=2).map(tuple),
)
CELLS = st.builds(
    CellRecord,
    name=WORDS,
    cell=WORDS,
    status=st.sampled_from(Status),
    reasons=st.lists(WORDS, max_size=2).map(tuple),
    expected=WORDS,
    slots=st.lists(SLOTS, max_size=2).map(tuple),
    carried=st.lists(SLOTS, max_size=2).map(tuple),
    new=WORDS,
)


@given(cells=st.lists(CELLS, max_size=2).map(tuple))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_a_night_holds_reads_back(cells: tuple[CellRecord, ...]) -> None:
    held = night(*cells, locks={"sha256:a": {"numpy": "1 aa"}})
    assert Night.from_json(json.loads(json.dumps(held.to_json()))) == held


def test_nights_are_kept_in_their_order_and_the_oldest_are_removed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "KEPT", 3)
    archive = Archive(tmp_path / "nightly")
    assert archive.latest() == (None, ())
    for number in range(5):
        archive.keep(night(at=FIRST + DAY * number))
    assert [path.name for path in archive.files] == [
        "night-20261203T003000.000Z.json", "night-20261204T003000.000Z.json", "night-20261205T003000.000Z.json",
    ]  # fmt: skip
    assert [item.stamp[:8] for item in archive.recent(2)] == ["20261205", "20261204"]
    last, notes = archive.latest()
    assert last is not None
    assert (last.at, notes) == (FIRST + DAY * 4, ())


def test_a_night_that_cannot_be_read_is_passed_over_and_said_so(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.keep(night())
    for number, text in enumerate(["", "[]", '{"schema": 1}', '{"schema": 0}', "{"], start=1):
        (tmp_path / f"night-2026120{number + 1}T000000Z.json").write_text(text)
    last, notes = archive.latest()
    assert last is not None
    assert last.at == FIRST
    assert len(notes) == 5
    assert all("is not the record of a night" in note for note in notes)
    assert len(list(archive.recent(9))) == 1
    with pytest.raises(CorruptFileError, match="Move it away"):
        read_night(archive.files[-1])


def test_a_night_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    path = archive.keep(night())
    path.write_text(path.read_text().replace('"schema":1', '"schema":2'))
    with pytest.raises(NewerSchemaError, match="schema 2; this release reads up to 1"):
        archive.latest()


def test_a_night_of_an_older_schema_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There was no schema before 1, so the next one is played: in it, `duration` has become `seconds`."""
    archive = Archive(tmp_path)
    path = archive.keep(night(record(slot())))
    path.write_text(path.read_text().replace('"seconds":12.0', '"duration":12.0'))
    with pytest.raises(CorruptFileError, match="seconds"):
        read_night(path)

    def renamed(old: dict[str, object]) -> dict[str, object]:
        return {"seconds": old["duration"], **old, "schema": 2}

    monkeypatch.setattr(archives, "MIGRATIONS", (renamed,))
    monkeypatch.setattr(archives, "SCHEMA", 2)
    assert read_night(path).seconds == 12.0


def test_a_disk_that_is_full_in_mid_write_leaves_no_half_of_a_night(tmp_path: Path) -> None:
    """The kernel cuts the write: no file of this process may be larger than a kibibyte."""
    archive = Archive(tmp_path)
    archive.keep(night())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    big = night(*(record(slot(reason="x" * 100), name=f"cell{number}") for number in range(50)), at=FIRST + DAY)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(NoSpaceError, match="record of this night"):
            archive.keep(big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        Archive(tmp_path / "file" / "nightly").keep(night())


# The turn.


def _hold(folder: Path, held: object, release: object) -> None:
    with turn(folder):
        held.set()  # type: ignore[attr-defined]
        release.wait(20)  # type: ignore[attr-defined]


def test_a_second_nightly_is_refused_and_told_who_has_the_turn(tmp_path: Path) -> None:
    with turn(tmp_path / "nightly"), pytest.raises(BusyError) as refused, turn(tmp_path / "nightly"):
        pass
    assert refused.value.exit_code == 9
    assert "(process " in refused.value.what
    assert "--wait SECONDS" in refused.value.then
    (tmp_path / "nightly" / "turn.json").write_text("{")
    with turn(tmp_path / "nightly"):
        pass
    assert not (tmp_path / "nightly" / "turn.json").exists()


def test_who_has_the_turn_is_left_out_where_it_does_not_say(tmp_path: Path) -> None:
    with turn(tmp_path):
        (tmp_path / "turn.json").write_text("{}")
        with pytest.raises(BusyError) as refused, turn(tmp_path):
            pass
    assert "process" not in refused.value.what


def test_a_nightly_waits_for_its_turn_as_long_as_it_is_told(tmp_path: Path) -> None:
    done = threading.Event()

    def first() -> None:
        with turn(tmp_path):
            done.set()
            time.sleep(0.4)

    thread = threading.Thread(target=first)
    thread.start()
    done.wait(10)
    with pytest.raises(BusyError, match=r"did not end within 0 s"), turn(tmp_path, wait_s=0.05):
        pass
    with turn(tmp_path, wait_s=10):
        pass
    thread.join()


def test_the_turn_of_a_nightly_that_was_killed_is_free(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, held, release))
    process.start()
    assert held.wait(30)
    with pytest.raises(BusyError), turn(tmp_path):
        pass
    process.kill()
    process.join()
    with turn(tmp_path, wait_s=5):
        pass


# The lattice.


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    path = tmp_path / "shipped.toml"
    path.write_text(axes_text({axis.value: ("1.0",) for axis in Axis}), encoding="utf-8")
    return path


def offered(*vllm: str, yanked: str | None = None) -> FakeIndex:
    packages = {axis.value: {"1.0": FakeRelease()} for axis in Axis}
    packages["vllm"] = {version: FakeRelease(yanked=yanked if version == "1.0" else None) for version in vllm}
    return FakeIndex(packages)


def test_the_home_has_its_own_copy_of_the_axes_and_the_shipped_file_stays(tmp_path: Path, shipped: Path) -> None:
    before = shipped.read_bytes()
    first = bring_up(offered("1.0"), tmp_path / "nightly", shipped=shipped)
    second = bring_up(offered("1.0", "1.1"), tmp_path / "nightly", shipped=shipped)
    assert shipped.read_bytes() == before
    assert [str(version) for version in second[Axis.VLLM].releases] == ["1.0", "1.1"]
    assert load_axes(tmp_path / "nightly" / "axes.toml").rules == second.rules
    assert [line.split()[:3] for line in since(recorded(first), second)] == [["+", "vllm", "1.1"]]


def test_the_rules_of_the_home_are_those_that_are_shipped_now(tmp_path: Path, shipped: Path) -> None:
    bring_up(offered("1.0", "1.1"), tmp_path, shipped=shipped)
    head, vllm, rest = shipped.read_text().partition("[axis.vllm]")
    rest = rest.replace('within = ">=0"', 'within = ">1.0"', 1)
    rest = rest.replace('  { version = "1.0", uploaded = 2026-01-01T00:00:00Z },\n', "", 1)
    shipped.write_text(f"{head}# newer rules\n{vllm}{rest}")
    made = bring_up(offered("1.0", "1.1"), tmp_path, shipped=shipped)
    assert [str(version) for version in made[Axis.VLLM].releases] == ["1.1"]
    assert "# newer rules" in (tmp_path / "axes.toml").read_text()


def test_a_file_of_one_s_own_is_kept_up_to_date_in_place(tmp_path: Path, shipped: Path) -> None:
    bring_up(offered("1.0", "1.1"), tmp_path / "nightly", given=shipped)
    assert '"1.1"' in shipped.read_text()
    assert not (tmp_path / "nightly").exists()


@pytest.mark.parametrize(
    ("before", "now", "as_of", "lines"),
    [
        (None, axes(vllm=("1", "2")), None, ()),
        (axes(vllm=("1",)), axes(vllm=("1", "2")), None, ("+ vllm 2 2026-11-01",)),
        (axes(vllm=("1", "2")), axes(vllm=("1",)), None, ("- vllm 2 2026-11-01 gone from the index",)),
        (axes(vllm=("1", "2")), axes(vllm=("1",)), FIRST - timedelta(days=60), ()),
    ],
)
def test_what_became_of_releases_is_told_by_what_the_night_before_recorded(
    before: object, now: object, as_of: object, lines: tuple[str, ...]
) -> None:
    held = recorded(before) if before is not None else None  # type: ignore[arg-type]
    assert since(held, now, as_of=as_of) == lines  # type: ignore[arg-type]


def test_a_yank_is_told_with_its_reason(tmp_path: Path, shipped: Path) -> None:
    first = bring_up(offered("1.0", "1.1"), tmp_path, shipped=shipped)
    second = bring_up(offered("1.0", "1.1", yanked="bad wheels"), tmp_path, shipped=shipped)
    assert since(recorded(first), second) == ("- vllm 1.0 2026-01-01 yanked: bad wheels",)


@pytest.mark.parametrize(("number", "error"), [(28, NoSpaceError), (13, DataError)])
def test_a_lattice_that_cannot_be_written_is_told(
    tmp_path: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def refuse(path: Path, content: bytes) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr("matrix.nightly.lattice.replace_file", refuse)
    with pytest.raises(error, match="cannot be written"):
        bring_up(offered("1.0"), tmp_path / "nightly", shipped=shipped)
