"""The sandbox of the Ray probes: what is started in it ends with it, and an installed file is never touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

COMPAT = Path(__file__).parents[1] / "compat"


@pytest.fixture(autouse=True)
def _kit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(COMPAT))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name == "kit" or name.startswith("kit."):
            del sys.modules[name]


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


def test_the_ends_of_ray_s_logs_follow_standard_error() -> None:
    from kit.ray_sandbox import ray_sandbox

    with ray_sandbox() as sandbox:
        logs = sandbox.folder / "session_2026-11-30_1" / "logs"
        logs.mkdir(parents=True)
        (logs / "raylet.out").write_text("".join(f"line {number}\n" for number in range(100)))
        (logs / "dashboard.log").write_text("not asked for\n")
        ended = sandbox.run("-c", "raise SystemExit('gone')", timeout=30)
    assert ended.code == 1
    assert ended.stderr.startswith("gone")
    assert "(raylet.out) line 99" in ended.stderr
    assert "line 1\n" not in ended.stderr
    assert "not asked for" not in ended.stderr


def test_an_overlay_changes_its_own_copy_only(tmp_path: Path) -> None:
    from kit.ray_sandbox import overlay

    package = tmp_path / "installed" / "ray"
    binary = package / "core" / "src" / "raylet"
    binary.parent.mkdir(parents=True)
    binary.write_text("daemon")
    binary.chmod(0o755)
    (package / "__init__.py").write_text("")
    copy = overlay(tmp_path / "o", package, "core/src/raylet")
    copy.chmod(0o644)
    copy.write_text("changed")
    assert copy == tmp_path / "o" / "ray" / "core" / "src" / "raylet"
    assert binary.read_text() == "daemon"
    assert os.access(binary, os.X_OK)
    assert (tmp_path / "o" / "ray" / "__init__.py").is_symlink()


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
