"""The command line as real processes: killed, interrupted, two at once, with nobody to read what it prints."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from matrix.store import Store
from tests.unit.cli_stack import CELLS, ROOT, process, stocked
from tests.unit.http_server import Site, metadata

FOREVER = 60.0
ASCII = (
    {"LANG": "C", "PYTHONIOENCODING": "ascii"},
    {"PYTHONUTF8": "0", "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0"},
)
WHEEL = "/files/vllm-0.27.0-cp38-abi3-manylinux_2_31_x86_64.whl"
MANY = """\
schema = 1

[[cell]]
verl = ["0.8.0", "0.9.1"]
vllm = ["0.24.0", "0.25.0", "0.26.0", "0.28.0", "0.27.0"]
reason = "Enough for worker processes."
source = "a test"
date = 2026-01-01
"""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Serve a stack in which the metadata of vllm 0.27.0 come at once, and its wheel never."""
    monkeypatch.setattr("tests.unit.http_server.SLOW", FOREVER)
    with stocked() as site:
        told = metadata("vllm", "0.27.0", ["torch==2.11.0"])
        (row,) = (row for row in site.rows["vllm"] if row["url"] == WHEEL)
        row["core-metadata"] = {"sha256": hashlib.sha256(told).hexdigest()}
        site.files[f"{WHEEL}.metadata"] = told
        site.faults[WHEEL] = ["slow*"]
        yield site


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "cells.toml").write_text(CELLS, encoding="utf-8")
    return tmp_path


def _argv(home: Path, site: Site, *more: str) -> list[str]:
    places = ("--home", str(home / "kept"), "--index-url", site.url)
    out = ("--cells-file", str(home / "cells.toml"), "--out", str(home / "out"))
    return process("run", *places, *out, *more)


def _start(home: Path, site: Site, *more: str) -> subprocess.Popen[bytes]:
    with (home / "said").open("wb") as said:
        return subprocess.Popen(_argv(home, site, *more), stdout=said, stderr=said, cwd=ROOT)


def _run(home: Path, site: Site, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_argv(home, site, *more), capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 40
    while not true():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.02)


def _kept(home: Path) -> list[tuple[str, str]]:
    """Return the cell and tier of every stored observation."""
    return [(item.question.cell, item.question.tier.value) for item in Store(home / "kept" / "store")]


def _children(pid: int) -> set[int]:
    """Return the processes that descend from this one."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found: set[int] = set()
    while new := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= new
    return found


def _gone(pid: int) -> bool:
    """Return whether the process has ended; a zombie has, whoever should have asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_finished_and_writes_the_report(
    home: Path, site: Site, how: signal.Signals
) -> None:
    running = _start(home, site)
    _until(lambda: len(_kept(home)) == 7)
    running.send_signal(how)
    assert running.wait(timeout=20) == 130
    kept = _kept(home)
    assert [tier for _, tier in kept].count("resolve") == 5
    assert [cell for cell, tier in kept if tier == "surface"] == ["verl0.9.1-vllm0.24.0", "verl0.9.1-vllm0.26.0"]
    report = json.loads((home / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["interrupted"] is True
    assert "interrupted; what was finished is kept" in (home / "said").read_text(encoding="utf-8")
    site.faults.clear()
    again = _run(home, site)
    assert again.returncode == 0
    assert again.stderr.count("(stored)") == 7
    assert len(_kept(home)) == 10


def test_an_interrupt_while_uv_runs_stops_it_too(home: Path, site: Site) -> None:
    site.faults["/simple/tensordict/"] = ["slow*"]
    running = _start(home, site, "--cells", "verl0.9.1-vllm0.24.0")
    _until(lambda: any(b"compile" in _command(pid) for pid in _children(running.pid)))
    children = _children(running.pid)
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=20) == 130
    _until(lambda: all(_gone(pid) for pid in children))


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_kill_loses_nothing_that_was_finished_and_the_next_run_goes_on(home: Path, site: Site) -> None:
    running = _start(home, site)
    _until(lambda: len(_kept(home)) == 7)
    running.kill()
    assert running.wait(timeout=20) == -signal.SIGKILL
    before = _kept(home)
    # As if it had hit in the middle of a line.
    with (home / "kept" / "store" / "observations.jsonl").open("ab") as file:
        file.write(b'{"schema": 1, "key": "00')
    site.faults.clear()
    again = _run(home, site)
    assert again.returncode == 0
    assert again.stderr.count("(stored)") == 7
    assert _kept(home)[:7] == before
    assert len(_kept(home)) == 10


def test_a_kill_takes_the_worker_processes_along(home: Path, site: Site) -> None:
    (home / "cells.toml").write_text(MANY, encoding="utf-8")
    running = _start(home, site, "--tiers", "surface", "--workers", "2")
    _until(lambda: len(_kept(home)) == 8)
    workers = _children(running.pid)
    assert len(workers) >= 2
    running.kill()
    running.wait(timeout=20)
    _until(lambda: all(_gone(pid) for pid in workers))
    site.faults.clear()
    again = _run(home, site, "--tiers", "surface", "--workers", "2")
    assert again.returncode == 0
    assert again.stderr.count("(stored)") == 8


def test_two_runs_at_once_both_end_well_and_keep_everything(home: Path, site: Site) -> None:
    site.faults.clear()
    other = home / "other"
    other.mkdir()
    shutil.copy(home / "cells.toml", other)
    (home / "kept").mkdir()
    (other / "kept").symlink_to(home / "kept")
    running = [_start(folder, site, "--again") for folder in (home, other)]
    assert [one.wait(timeout=60) for one in running] == [0, 0]
    kept = _kept(home)
    assert len(set(kept)) == 10
    assert len(kept) == 20
    store = Store(home / "kept" / "store")
    assert store.damage == []
    for folder in (home, other):
        assert json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))["ran"] == 5


def test_a_reader_that_has_gone_is_no_error(home: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    # argparse itself keeps quiet about help that nobody reads.
    for words, codes in ((("run", "--list"), {141}), (("check", "--help"), {0, 141})):
        command = process(*words)
        ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=30, cwd=ROOT, check=False)
        assert ended.returncode in codes
        assert ended.stderr == b""
    os.close(writing)


def test_output_that_finds_no_room_is_told(home: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            process("run", "--list"), stdout=full, stderr=subprocess.PIPE, timeout=30, cwd=ROOT, check=False
        )
    assert ended.returncode == 8
    assert ended.stderr == b"error: The output cannot be written: no room is left.\nFree some space.\n"


@pytest.mark.parametrize(
    ("words", "closed", "code", "told"),
    [
        (("failures", "list"), (1,), 0, b""),
        (("failures", "list"), (1, 2), 0, b""),
        (("failures", "show", "nope"), (2,), 2, b""),
        (("doctor", "--log", "-"), (0,), 2, b"error: There is no standard input: it is closed."),
        (("health", "-"), (0,), 2, b"error: There is no standard input: it is closed."),
    ],
)
def test_streams_that_are_closed(
    home: Path, words: tuple[str, ...], closed: tuple[int, ...], code: int, told: bytes
) -> None:
    shut = " ".join({0: "<&-", 1: ">&-", 2: "2>&-"}[number] for number in closed)
    line = f"exec {shlex.join(process(*words))} {shut}"
    ended = subprocess.run(["sh", "-c", line], capture_output=True, timeout=30, cwd=ROOT, check=False)
    assert ended.returncode == code
    assert ended.stderr.startswith(told)
    assert b"Traceback" not in ended.stderr


@pytest.mark.parametrize("locale", ASCII)
def test_a_terminal_that_knows_ascii_only_is_shown_the_verdict_without_the_marks(
    home: Path, locale: dict[str, str]
) -> None:
    with stocked() as site:
        words = ("check", "verl==0.9.1", "vllm==0.29.0", "--home", str(home / "kept"), "--index-url", site.url)
        ended = subprocess.run(
            process(*words), capture_output=True, timeout=60, cwd=ROOT, check=False, env={**os.environ, **locale}
        )
    assert (ended.returncode, ended.stderr) == (1, b"")
    assert ended.stdout.startswith(b"verl0.9.1-vllm0.29.0: ! conflict\n")
