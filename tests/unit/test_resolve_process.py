"""Programs that are run: what they get, what is captured, and that none outlives its time."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from matrix.resolve.process import Children, surroundings

PYTHON = sys.executable


def test_what_a_program_says_is_captured(tmp_path: Path) -> None:
    code = "import sys; print(sys.stdin.read().upper()); print('no', file=sys.stderr); sys.exit(3)"
    ended = Children().run([PYTHON, "-c", code], folder=tmp_path, env={}, timeout_s=30, stdin="yes")
    assert (ended.code, ended.stdout, ended.stderr) == (3, "YES\n", "no\n")


def test_a_program_runs_in_its_folder_with_its_environment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_SECRET", "x")
    monkeypatch.setenv("SSL_CERT_FILE", "/certs")
    code = "import os; print(os.getcwd(), os.environ.get('VERL_SECRET'), os.environ.get('SSL_CERT_FILE'))"
    ended = Children().run([PYTHON, "-c", code], folder=tmp_path, env=surroundings(), timeout_s=30)
    assert ended.stdout.split() == [str(tmp_path), "None", "/certs"]


# Starts a grandchild that would write a file half a second later, then waits for ever.
HANGS = (
    "import subprocess, sys, time; print('began', flush=True); "
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(0.5); open(\"late\", \"w\")']); time.sleep(60)"
)


def test_at_its_time_limit_the_whole_group_is_killed_and_what_it_said_is_kept(tmp_path: Path) -> None:
    start = time.monotonic()
    ended = Children().run([PYTHON, "-c", HANGS], folder=tmp_path, env={}, timeout_s=0.3)
    assert time.monotonic() - start < 10
    assert (ended.code, ended.stdout) == (None, "began\n")
    time.sleep(0.6)
    assert not (tmp_path / "late").exists()


def test_stop_kills_what_runs_and_nothing_later(tmp_path: Path) -> None:
    children = Children()
    codes: list[int | None] = []

    def hang() -> None:
        codes.append(children.run([PYTHON, "-c", HANGS], folder=tmp_path, env={}, timeout_s=60).code)

    thread = threading.Thread(target=hang)
    thread.start()
    while not (tmp_path / "stdout").exists() or not (tmp_path / "stdout").read_text():
        time.sleep(0.01)
    children.stop()
    thread.join(10)
    assert codes == [None]
    other = tmp_path / "other"
    other.mkdir()
    assert children.run([PYTHON, "-c", "print(1)"], folder=other, env={}, timeout_s=30).code == 0


def test_a_program_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Children().run([str(tmp_path / "none")], folder=tmp_path, env=dict(os.environ), timeout_s=1)
