"""The store: what is added is there, whatever happens in between."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from datetime import timedelta
from pathlib import Path

import filelock
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import matrix.store
from matrix.errors import BusyError, CorruptFileError, DataError, NewerSchemaError, NoSpaceError
from matrix.finding import Finding
from matrix.store import Store, upgrade
from matrix.tier import Outcome, Tier
from tests.unit.run_fakes import AT, finding, observation

LOCK = {"versions": {"torch": "2.11.0"}, "lock": "x" * 9000}
ROOT = Path(__file__).parents[2]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(
    detail=st.dictionaries(st.text(max_size=8), json_values, max_size=4), reason=st.text(), seconds=st.integers(0, 9999)
)
def test_what_is_added_comes_back_equal(
    tmp_path_factory: pytest.TempPathFactory, detail: dict[str, object], reason: str, seconds: int
) -> None:
    from dataclasses import replace

    folder = tmp_path_factory.mktemp("store")
    given_one = replace(
        observation("c", Tier.SURFACE, Outcome.BROKEN, reason or "r", detail=detail), seconds=seconds / 10
    )
    Store(folder).add(given_one)
    assert tuple(Store(folder)) == (given_one,)


def test_a_large_detail_lies_beside_the_line_and_is_kept_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(observation("a", Tier.RESOLVE, detail=LOCK))
    store.add(observation("b", Tier.RESOLVE, detail=LOCK))
    assert len(store.path.read_bytes().splitlines()[0]) < 1000
    assert len(list(tmp_path.rglob("*.json.gz"))) == 1
    detail = store.for_cell("b")[0].detail
    assert dict(detail) == LOCK
    assert (list(detail), len(detail), "lock" in detail, "other" in detail) == (["lock", "versions"], 2, True, False)


def test_every_line_names_its_schema_and_the_tool(tmp_path: Path) -> None:
    Store(tmp_path).add(observation("a", Tier.RESOLVE))
    line = json.loads((tmp_path / "observations.jsonl").read_text())
    assert (line["schema"], line["tool"], line["key"]) == (1, "0.1.0", observation("a", Tier.RESOLVE).question.key)


def test_findings_survive_the_round_trip(tmp_path: Path) -> None:
    found = [finding(symbol=f"vllm.s{n}", moved_to=("vllm.z",)) for n in range(30)]
    store = Store(tmp_path)
    store.add(observation("a", Tier.SURFACE, Outcome.BROKEN, findings=found))
    back = store.for_cell("a")[0].detail["findings"]
    assert isinstance(back, list)
    assert [Finding.from_json(item) for item in back] == found


def test_the_latest_answer_counts_and_ages(tmp_path: Path) -> None:
    clock = [AT]
    store = Store(tmp_path, clock=lambda: clock[0])
    store.add(observation("a", Tier.RESOLVE, Outcome.CONFLICT), observation("a", Tier.RESOLVE, Outcome.OK))
    key = observation("a", Tier.RESOLVE).question.key
    clock[0] = AT + timedelta(hours=5)
    young, old = store.get(key, timedelta(hours=6)), store.get(key, timedelta(hours=4))
    assert young is not None
    assert (young.outcome, old, store.get("other")) == (Outcome.OK, None, None)
    assert len(store) == 2
    assert [item.outcome for item in store.for_cell("a")] == [Outcome.CONFLICT, Outcome.OK]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, 4),
        ({"cell": "verl0.9*"}, 2),
        ({"tier": Tier.SURFACE}, 2),
        ({"outcome": Outcome.BROKEN}, 1),
        ({"probe": "res*", "cell": "verl0.8*"}, 1),
        ({"cell": "VERL*"}, 0),
    ],
)
def test_find(tmp_path: Path, wanted: dict[str, object], expected: int) -> None:
    store = Store(tmp_path)
    for name, worst in (("verl0.9.1-vllm0.24.0", Outcome.OK), ("verl0.8.0-vllm0.33.0", Outcome.BROKEN)):
        store.add(observation(name, Tier.RESOLVE), observation(name, Tier.SURFACE, worst))
    assert len(list(store.find(**wanted))) == expected  # type: ignore[arg-type]


HALVES = [
    (b'{"schema": 1, "key": "abc", "ce', 0, 1),
    (b"\xff\xfe\x00garbage", 0, 1),
    (b"x" * 200_000, 0, 1),
]


@pytest.mark.parametrize(("half", "damaged", "aside"), HALVES)
def test_a_half_line_left_by_a_kill_is_set_aside(tmp_path: Path, half: bytes, damaged: int, aside: int) -> None:
    Store(tmp_path).add(observation("a", Tier.RESOLVE))
    with (tmp_path / "observations.jsonl").open("ab") as file:
        file.write(half)
    store = Store(tmp_path)
    assert len(store) == 1
    store.add(observation("b", Tier.RESOLVE))
    again = Store(tmp_path)
    assert [item.question.cell for item in again] == ["a", "b"]
    assert len(again.damage) == damaged
    assert (tmp_path / "set-aside.jsonl").read_bytes().splitlines() == [half] * aside


def test_a_line_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(observation("a", Tier.RESOLVE))
    store.path.write_bytes(store.path.read_bytes()[:-1])
    Store(tmp_path).add(observation("b", Tier.RESOLVE))
    assert [item.question.cell for item in Store(tmp_path)] == ["a", "b"]
    assert not (tmp_path / "set-aside.jsonl").exists()


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(1, 900))
def test_a_kill_at_any_byte_loses_no_finished_observation(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("cut")
    store = Store(folder)
    store.add(observation("a", Tier.RESOLVE))
    finished = store.path.stat().st_size
    store.add(observation("b", Tier.RESOLVE))
    whole = store.path.read_bytes()
    os.truncate(store.path, max(finished, len(whole) - cut))
    Store(folder).add(observation("c", Tier.RESOLVE))
    cells = [item.question.cell for item in Store(folder)]
    assert cells[0] == "a"
    assert cells[-1] == "c"
    assert not Store(folder).damage


DAMAGED = [
    b"[1, 2]",
    b'{"schema": 1}',
    b'{"schema": 0, "key": "k", "cell": "c"}',
    b'{"schema": "1"}',
    b"not json",
    b'{"schema":1,"key":"k","cell":"c","probe":"p","tier":"nowhere","tool":"t","reads":{},"outcome":"ok"}',
    b'{"schema":1,"key":"k","cell":"c","probe":"p","tier":"gpu","tool":"t","reads":[],"outcome":"ok"}',
]


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_in_the_middle_is_passed_over_and_told(tmp_path: Path, line: bytes) -> None:
    store = Store(tmp_path)
    store.add(observation("a", Tier.RESOLVE))
    with store.path.open("ab") as file:
        file.write(line + b"\n\n")
    store.add(observation("b", Tier.RESOLVE))
    again = Store(tmp_path)
    assert [item.question.cell for item in again] == ["a", "b"]
    assert [damage.line for damage in again.damage] == [2]


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "observations.jsonl").write_text('{"schema": 2}\n')
    with pytest.raises(NewerSchemaError, match=r"observations.jsonl:1: written with schema 2"):
        Store(tmp_path)


def test_older_schemas_go_through_every_migration_in_turn() -> None:
    steps = (lambda r: r | {"schema": 2, "b": r["a"]}, lambda r: r | {"schema": 3, "c": r["b"]})
    assert upgrade({"schema": 1, "a": 7}, steps, 3) == {"schema": 3, "a": 7, "b": 7, "c": 7}
    assert upgrade({"schema": 2, "b": 8}, steps, 3) == {"schema": 3, "b": 8, "c": 8}
    assert upgrade({"schema": 3}, steps, 3) == {"schema": 3}


@pytest.mark.parametrize("how", ["gone", "short", "content", "bits"])
def test_a_broken_large_detail_is_asked_again_or_told(tmp_path: Path, how: str) -> None:
    store = Store(tmp_path)
    store.add(observation("a", Tier.RESOLVE, detail=LOCK))
    key = observation("a", Tier.RESOLVE).question.key
    (path,) = tmp_path.rglob("*.json.gz")
    whole = path.read_bytes()
    match how:
        case "gone":
            path.unlink()
        case "short":
            path.write_bytes(whole[:-3])
        case "content":
            path.write_bytes(gzip.compress(b'"other"'))
        case _:
            path.write_bytes(whole[:-8] + bytes(byte ^ 255 for byte in whole[-8:]))
    assert (store.get(key) is None) == (how != "bits")
    with pytest.raises(CorruptFileError, match="run again"):
        _ = store.for_cell("a")[0].detail["lock"]
    assert store.get(key) is None
    store.add(observation("a", Tier.RESOLVE, detail=LOCK))
    mended = store.get(key)
    assert mended is not None
    assert mended.detail["lock"] == LOCK["lock"]


def _refuse(number: int) -> object:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, NoSpaceError), (errno.EDQUOT, NoSpaceError), (errno.EACCES, DataError)]
)
def test_what_the_disk_refuses_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    store = Store(tmp_path)
    store.add(observation("a", Tier.RESOLVE))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", _refuse(number))
        with pytest.raises(error):
            store.add(observation("b", Tier.RESOLVE))
    store.add(observation("c", Tier.RESOLVE))
    assert [item.question.cell for item in Store(tmp_path)] == ["a", "c"]


def test_a_write_that_the_disk_takes_only_in_part_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.add(observation("a", Tier.RESOLVE))
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, block: real(fd, block[: len(block) // 2]))
        with pytest.raises(NoSpaceError, match="no answer is asked for twice"):
            store.add(observation("b", Tier.RESOLVE))
    assert store.path.read_bytes().endswith(b"}\n")
    assert [item.question.cell for item in Store(tmp_path)] == ["a"]


@pytest.mark.parametrize(("share", "kept"), [(1.0, ["a", "b"]), (0.5, ["a"])])
def test_an_interrupt_in_the_middle_of_a_write_keeps_what_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, kept: list[str]
) -> None:
    store = Store(tmp_path)
    store.add(observation("a", Tier.RESOLVE))
    real = os.write

    def interrupted(fd: int, block: bytes) -> int:
        real(fd, block[: int(len(block) * share)])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.add(observation("b", Tier.RESOLVE))
    store.add(observation("c", Tier.RESOLVE))
    assert [item.question.cell for item in Store(tmp_path)] == [*kept, "c"]


def test_a_full_disk_while_a_detail_is_written_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", _refuse(errno.ENOSPC))
    with pytest.raises(NoSpaceError):
        Store(tmp_path).add(observation("a", Tier.RESOLVE, detail=LOCK))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"observations\.jsonl"):
        Store(tmp_path / "file" / "store")


def test_a_lock_that_is_never_let_go_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix.store, "LOCK_TIMEOUT_S", 0.05)
    store = Store(tmp_path)
    store.add(observation("a", Tier.RESOLVE))
    with filelock.FileLock(tmp_path / "observations.lock"), pytest.raises(BusyError, match="another run"):
        store.add(observation("b", Tier.RESOLVE))


def test_what_another_process_adds_is_seen(tmp_path: Path) -> None:
    ours, theirs = Store(tmp_path), Store(tmp_path)
    theirs.add(observation("a", Tier.RESOLVE))
    assert ours.get(observation("a", Tier.RESOLVE).question.key) is not None


def test_a_store_put_in_the_place_of_this_one_is_read_anew(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(observation("a", Tier.RESOLVE), observation("b", Tier.RESOLVE))
    store.path.unlink()
    Store(tmp_path).add(observation("c", Tier.RESOLVE))
    store.refresh()
    assert [item.question.cell for item in store] == ["c"]


def test_adding_nothing_makes_no_file(tmp_path: Path) -> None:
    Store(tmp_path).add()
    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from matrix.store import Store
from matrix.tier import Tier
from tests.unit.run_fakes import observation
store, word = Store(Path(sys.argv[1])), sys.argv[2]
for n in range(int(sys.argv[3])):
    store.add(observation(f"{word}{n}", Tier.RESOLVE, detail={"lock": word * 3000, "n": n}))
    print(n, flush=True)
"""


def _writer(folder: Path, word: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(folder), word, str(count)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
    )


def test_two_runs_at_once_both_keep_all_their_lines(tmp_path: Path) -> None:
    writers = [_writer(tmp_path, word, 60) for word in "pq"]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    store = Store(tmp_path)
    assert sorted(item.question.cell for item in store) == sorted(f"{word}{n}" for word in "pq" for n in range(60))
    assert store.damage == []


def test_a_killed_run_keeps_what_it_said_was_finished(tmp_path: Path) -> None:
    writer = _writer(tmp_path, "p", 100_000)
    assert writer.stdout is not None
    with writer.stdout:
        for _ in range(25):
            last = int(writer.stdout.readline())
        time.sleep(0.05)
        os.kill(writer.pid, signal.SIGKILL)
        last = max([last, *(int(line) for line in writer.stdout.read().splitlines() if line)])
    writer.wait(timeout=30)
    Store(tmp_path).add(observation("after", Tier.RESOLVE))
    store = Store(tmp_path)
    cells = {item.question.cell for item in store}
    assert cells >= {f"p{n}" for n in range(last + 1)} | {"after"}
    assert store.damage == []
    assert all(item.detail["n"] == n for n, item in enumerate(store) if item.question.cell != "after")
