"""The sandbox of the Ray probes: what is started in it ends with it, and an installed file is never touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.kit_import import fresh_kit

_kit = pytest.fixture(autouse=True)(fresh_kit)


def test_a_daemon_that_left_its_group_ends_with_the_sandbox() -> None:
    from kit.ray_sandbox import ray_sandbox

    with ray_sandbox() as sandbox:
        folder = sandbox.folder
        daemon = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            env={**os.environ, **sandbox.env},
            start_new_session=True,
        )
        time.sleep(0.2)
        assert daemon.poll() is None
    assert daemon.wait(10) == -9
    assert not folder.exists()


def test_a_daemon_that_wrote_over_its_environment_is_known_by_its_log() -> None:
    from kit.ray_sandbox import ray_sandbox

    with ray_sandbox() as sandbox:
        with (sandbox.folder / "daemon.log").open("w") as log:
            daemon = subprocess.Popen(
                [sys.executable, "-c", "import time; time.sleep(60)"], env={}, stdout=log, start_new_session=True
            )
        assert sandbox.is_alive()
    assert daemon.wait(10) == -9


def test_another_process_is_left_alone() -> None:
    from kit.ray_sandbox import ray_sandbox

    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        with ray_sandbox():
            pass
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(10)


def _log(folder: Path, name: str, text: str) -> None:
    logs = folder / "session_2026-11-30_1" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / name).write_text(text)


def test_the_ends_of_ray_s_logs_come_before_the_child_s_own_error() -> None:
    from kit.ray_sandbox import ray_sandbox

    with ray_sandbox() as sandbox:
        _log(sandbox.folder, "raylet.out", "".join(f"line {number}\n" for number in range(1000)))
        _log(sandbox.folder, "dashboard.log", "not asked for\n")
        ended = sandbox.run("-c", "raise SystemExit('gone')", timeout=30)
    assert ended.code == 1
    assert ended.last_line == "gone"
    assert "(raylet.out) line 999" in ended.stderr
    assert "line 1\n" not in ended.stderr
    assert "not asked for" not in ended.stderr


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("[2026-11-30 C 1 1] (raylet) node_manager.cc:3636: Check failed: x Timed out waiting for file y", True),
        ("Raylet: The raylet exited immediately because one Ray agent failed", True),
        ("/tmp/x/raylet(+0xff770a) [0x563b369b670a] ray::operator<<()", False),
        ("[state-dump] NodeManager.deadline_timer.record_metrics - 1 total", False),
        ("Queueing time: mean = 1.36ms, max = 2.64ms", False),
        ("   ", False),
    ],
)
def test_statistics_and_addresses_are_left_out_of_the_logs(line: str, kept: bool) -> None:
    from kit.ray_sandbox import ray_sandbox

    with ray_sandbox() as sandbox:
        _log(sandbox.folder, "raylet.out", f"first\n{line}\n")
        told = sandbox.logs()
    assert (f"(raylet.out) {line}" in told.splitlines()) is kept
    assert told.startswith("(raylet.out) first")


_WRITES = """
import pathlib, sys, time
time.sleep(0.3)
logs = pathlib.Path({folder!r}, "session_2026-11-30_1", "logs")
logs.mkdir(parents=True)
(logs / "raylet.out").write_text("it is this")
time.sleep({after})
"""


def test_a_child_that_goes_on_is_ended_once_the_logs_have_said_it() -> None:
    from kit.ray_sandbox import ray_sandbox

    with ray_sandbox() as sandbox:
        script = _WRITES.format(folder=str(sandbox.folder), after=60)
        ended = sandbox.run("-c", script, timeout=50, shows=lambda text: "it is this" in text, linger=0)
    assert (ended.code, ended.enough) == (None, True)
    assert ended.seconds < 30
    assert ended.fault is not None
    assert ended.fault.endswith("[still ran when enough was seen]")
    assert "(raylet.out) it is this" in ended.fault


def test_what_a_daemon_logs_after_the_child_s_end_is_waited_for() -> None:
    from kit.ray_sandbox import ray_sandbox

    with ray_sandbox() as sandbox:
        script = _WRITES.format(folder=str(sandbox.folder), after=60)
        start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {script!r}], start_new_session=True)"
        ended = sandbox.run("-c", start, timeout=30, shows=lambda text: "it is this" in text)
        assert ended.code == 0
        assert "it is this" in ended.stderr
        assert sandbox.is_alive()
        sandbox.clear()
        assert not sandbox.is_alive()


def test_logs_are_not_waited_for_when_nobody_is_left_to_write_them() -> None:
    from kit.ray_sandbox import ray_sandbox

    before = time.monotonic()
    with ray_sandbox() as sandbox:
        ended = sandbox.run("-c", "", timeout=30, shows=lambda text: False, linger=5)
    assert (ended.code, ended.enough) == (0, False)
    assert time.monotonic() - before < 30


def test_a_child_s_time_runs_out_all_the_same() -> None:
    from kit.ray_sandbox import ray_sandbox

    with ray_sandbox() as sandbox:
        ended = sandbox.run("-c", "import time; time.sleep(60)", timeout=1, shows=lambda text: False, linger=5)
    assert (ended.code, ended.enough) == (None, False)
    assert ended.fault is not None
    assert ended.fault.endswith("[killed when its time ran out]")


_LISTENS = """
import pathlib, socket, time
path = pathlib.Path({folder!r}, "ray", "session_2026-11-30_1", "sockets", "raylet")
path.parent.mkdir(parents=True)
time.sleep(0.3)
with socket.socket(socket.AF_UNIX) as taken:
    taken.bind(str(path))
    {listen}
    time.sleep({seconds})
"""


@pytest.mark.parametrize(("listen", "seconds", "found"), [("taken.listen()", 60, True), ("pass", 0.5, False)])
def test_a_raylet_is_ready_once_its_socket_answers(listen: str, seconds: float, found: bool) -> None:
    from kit.ray_sandbox import ray_sandbox

    with ray_sandbox() as sandbox:
        script = _LISTENS.format(folder=str(sandbox.folder), listen=listen, seconds=seconds)
        raylet = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, **sandbox.env})
        try:
            path = sandbox.raylet_socket()
        finally:
            sandbox.clear()
            raylet.wait(10)
    assert (path is not None) is found


def test_an_overlay_changes_its_own_copy_only(tmp_path: Path) -> None:
    from kit.ray_sandbox import overlay

    package = tmp_path / "installed" / "ray"
    binary = package / "core" / "src" / "raylet"
    binary.parent.mkdir(parents=True)
    binary.write_text("daemon")
    binary.chmod(0o755)
    (package / "__init__.py").write_text("")
    (binary.parent / "__pycache__").mkdir()
    copy = overlay(tmp_path / "o", package, "core/src/raylet")
    copy.chmod(0o644)
    copy.write_text("changed")
    assert copy == tmp_path / "o" / "ray" / "core" / "src" / "raylet"
    assert binary.read_text() == "daemon"
    assert os.access(binary, os.X_OK)
    assert (tmp_path / "o" / "ray" / "__init__.py").is_symlink()
    assert not (copy.parent / "__pycache__").exists()


def test_an_overlay_links_all_the_rest(tmp_path: Path) -> None:
    from kit.ray_sandbox import overlay

    package = tmp_path / "installed" / "ray"
    for relative in ("a/one", "a/two", "b/three"):
        path = package / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(relative)
    overlay(tmp_path / "o", package, "a/one").write_text("changed")
    assert (tmp_path / "o" / "ray" / "a" / "two").read_text() == "a/two"
    assert (tmp_path / "o" / "ray" / "b" / "three").read_text() == "b/three"
    assert (package / "a" / "one").read_text() == "a/one"
