"""The warden: a launch is over when its end of a pipe is closed, and its exit code is told as a shell tells it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from bench import warden
from bench.warden import Watch, keep, main
from matrix.probing import processes


def watch(folder: Path, code: str, grace_s: float = 5.0) -> Watch:
    """Return a watch over a little program."""
    scratch = folder / "scratch"
    scratch.mkdir()
    token = processes.new_token()
    return Watch(
        argv=[sys.executable, "-c", code],
        env={processes.TAG: token, "PATH": os.defpath, "FOLDER": str(folder)},
        work=folder,
        log=folder / "log.txt",
        token=token,
        scratch=scratch,
        grace_s=grace_s,
    )


@pytest.fixture
def pipe() -> tuple[int, int]:
    """Return both ends of a pipe, the one to read first."""
    return os.pipe()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('hello')", 0),
        ("import sys; sys.exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
def test_the_exit_code_is_the_launchs(tmp_path: Path, pipe: tuple[int, int], code: str, expected: int) -> None:
    read, write = pipe
    assert keep(watch(tmp_path, code), read) == expected
    assert (tmp_path / "scratch").is_dir()
    assert (tmp_path / "log.txt").read_text() == ("hello\n" if expected == 0 else "")
    os.close(read)
    os.close(write)


STAYS = """
import os, signal, subprocess, time
from pathlib import Path
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
folder = Path(os.environ["FOLDER"])
if {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
(folder / "pid.part").write_text(str(child.pid))
(folder / "pid.part").rename(folder / "pid")
time.sleep(300)
"""


def close_when_begun(folder: Path, write: int) -> threading.Thread:
    """Return a thread that closes the pipe once the launch has begun."""

    def wait() -> None:
        deadline = time.monotonic() + 30
        while not (folder / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.close(write)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize(("deaf", "code"), [(False, 128 + signal.SIGTERM), (True, 128 + signal.SIGKILL)])
def test_a_closed_pipe_ends_the_launch_and_all_it_started(
    tmp_path: Path, pipe: tuple[int, int], deaf: bool, code: int
) -> None:
    read, write = pipe
    thread = close_when_begun(tmp_path, write)
    made = watch(tmp_path, STAYS.format(deaf=deaf), grace_s=0.5)
    assert keep(made, read) == code
    thread.join()
    os.close(read)
    assert processes.tagged(made.token) == []
    # Whoever closed the pipe is still there, and removes its files itself.
    assert (tmp_path / "scratch").is_dir()


def test_files_are_removed_where_the_tool_is_gone(
    tmp_path: Path, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warden, "_PARENT", 0)
    read, write = pipe
    thread = close_when_begun(tmp_path, write)
    keep(watch(tmp_path, STAYS.format(deaf=False)), read)
    thread.join()
    os.close(read)
    assert not (tmp_path / "scratch").exists()


def test_a_byte_on_the_pipe_is_no_end(tmp_path: Path, pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.write(write, b"x")
    assert keep(watch(tmp_path, "import time; time.sleep(0.3)"), read) == 0
    os.close(read)
    os.close(write)


def test_a_watch_travels_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = watch(tmp_path, "import sys; sys.exit(3)")
    path = tmp_path / "watch.json"
    path.write_text(json.dumps(made.to_json()), encoding="utf-8")
    assert Watch.from_json(json.loads(path.read_text(encoding="utf-8"))) == made
    asked: list[Watch] = []

    def kept(found: Watch) -> int:
        asked.append(found)
        return 3

    monkeypatch.setattr(warden, "keep", kept)
    adopting: list[bool] = []
    monkeypatch.setattr(warden, "_adopt_orphans", lambda: adopting.append(True))
    before = signal.getsignal(signal.SIGINT)
    try:
        assert main([str(path)]) == 3
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert (asked, adopting) == ([made], [True])
    with pytest.raises(TypeError):
        Watch.from_json({**made.to_json(), "argv": "x"})
