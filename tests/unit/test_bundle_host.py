"""A bundle on its host: checked as a whole, made aside, and used only when it is complete."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.bundle import Bundle
from matrix.bundle.host import fit, linking
from matrix.bundle.host.arrival import Stopped
from matrix.provision import here
from matrix.provision.environment import read_manifest
from tests.unit.bundle_stack import (
    NAME,
    OTHER,
    PLATFORM,
    SERVER,
    Stack,
    cell,
    lock,
    stack,
    swapped,
    two,
    unbundle,
)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    return stack(tmp_path, monkeypatch)


def test_a_bundle_becomes_environments_that_are_the_cells(made: Stack, tmp_path: Path) -> None:
    bundle = two(made)
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
    two(made)
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
    two(made)
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
    bundle = two(made, 1 << 16)
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
    bundle = two(made, 1 << 16)
    unbundle(tmp_path / "host", *(made.out / name for name in _names(bundle)))
    assert (tmp_path / "host" / "cells" / NAME).is_dir()


def test_only_looking_and_only_unpacking(made: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two(made)
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
    two(made, have=have)
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
