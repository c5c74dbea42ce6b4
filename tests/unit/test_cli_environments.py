from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from matrix.cli.main import main
from matrix.home import Home
from matrix.provision.latch import attempt
from matrix.provision.shelf import Shelf
from reports.front import TerminalFront
from tests.unit import provision_stack as stack
from tests.unit.http_server import Site, serving, wheel
from tests.unit.test_provision_shelf import shelved

WHEEL = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    monkeypatch.setenv("VERL_MATRIX_HOME", str(tmp_path / "home"))
    return Home.find(None)


@pytest.fixture
def shelf(home: Home) -> Shelf:
    return Shelf(root=home.cache / "environments")


class Said:
    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        self.code = main(["env", *words], TerminalFront)
        self.out, self.err = capsys.readouterr()


def add(site: Site, name: str, version: str, requires: tuple[str, ...] = ()) -> None:
    info = f"{name}-{version}.dist-info"
    members = {f"{name}/__init__.py": b"", f"{info}/WHEEL": WHEEL, f"{info}/RECORD": b""}
    filename = f"{name}-{version}-py3-none-any.whl"
    site.add(name, filename, wheel(name, version, members, requires=requires))


def test_build_list_and_remove(capsys: pytest.CaptureFixture[str], home: Home) -> None:
    with serving() as site:
        add(site, "ray", "2.60.0", ("click",))
        add(site, "click", "8.0")
        words = ("build", "ray==2.60.0", "--python", stack.PYTHON, "--index-url", site.url)
        first, second = Said(capsys, *words), Said(capsys, *words, "--json")
        conflict = Said(capsys, *words, "--override", "click==9")
    assert first.code == 0, first.err
    name = f"ray2.60.0-py{stack.PYTHON}"
    python = home.cache / "environments" / name / "bin" / "python"
    assert re.fullmatch(rf"{name}: 2 packages; \d+\.\d s, \d+ kB more on disk\n{python}\n", first.out)
    assert "installing 2 packages" in first.err
    data = json.loads(second.out)
    assert (data["cell"], data["reused"], data["python"]) == (name, True, str(python))
    assert data["installed"] == {"click": "8.0", "ray": "2.60.0"}
    assert conflict.code == 12
    assert "has no lock to install: conflict" in conflict.err
    listed = Said(capsys, "list")
    assert re.search(rf"^{name} +\d+ kB +\d+ kB +\d+ s +\d+ s  kept$", listed.out, re.MULTILINE)
    (row,) = json.loads(Said(capsys, "list", "--json").out)
    assert (row["cell"], row["complete"], row["in_use"], row["kept"]) == (name, True, False, True)
    assert row["added_bytes"] > 0


def test_offline_a_stored_lock_is_enough(capsys: pytest.CaptureFixture[str], home: Home) -> None:
    with serving() as site:
        add(site, "ray", "2.60.0")
        words = ("build", f"ray2.60.0-py{stack.PYTHON}", "--index-url", site.url)
        assert Said(capsys, *words).code == 0
        taken = Said(capsys, *words, "--offline")
    assert taken.code == 0, taken.err
    assert "was there already" in taken.out


def test_removing(capsys: pytest.CaptureFixture[str], shelf: Shelf) -> None:
    for cell in ("ray1.0", "ray1.1", "ray1.2"):
        shelved(shelf, cell, whole=cell != "ray1.2")
    assert re.fullmatch(
        r"removed ray1\.0: \d+ kB freed, 0 kB shared with others\n", Said(capsys, "remove", "ray1.0").out
    )
    missing = Said(capsys, "remove", "ray1.0")
    for word in ("nope", "x"):
        assert Said(capsys, "remove", word).err.startswith(f"error: There is no environment of {word}.")
    assert missing.code == 10
    assert "Closest: ray1." in missing.err
    held = attempt(shelf.latch(shelf.folder("ray1.1")), shared=True)
    assert held is not None
    busy = Said(capsys, "remove", "ray1.1")
    assert busy.code == 9
    assert re.fullmatch(
        r"removed ray1\.2: \d+ kB freed, 0 kB shared with others\nleft ray1\.1: it is in use\n",
        Said(capsys, "remove", "--all").out,
    )
    held.drop()
    assert Said(capsys, "remove", "ray==1.1", "--python", "3.12").out.startswith("removed ray1.1")
    assert Said(capsys, "remove", "--all").out == f"no environments in {shelf.root}\n"
    assert Said(capsys, "list").out == f"no environments in {shelf.root}\n"


def test_the_states_of_a_list(capsys: pytest.CaptureFixture[str], shelf: Shelf) -> None:
    for cell in ("ray1.0", "ray1.1", "ray1.2", "ray1.3"):
        shelved(shelf, cell, whole=cell not in ("ray1.2", "ray1.3"))
    held = [attempt(shelf.latch(shelf.folder(cell)), shared=True) for cell in ("ray1.1", "ray1.3")]
    lines = Said(capsys, "list").out.splitlines()
    states = {line.split()[0]: re.split(r"\s{2,}", line)[-1] for line in lines[1:5]}
    assert states == {"ray1.0": "complete", "ray1.1": "in use", "ray1.2": "half-finished", "ray1.3": "being built"}
    assert re.search(r"ray1\.0 .* \d+ d +\d+ s", lines[1])
    assert re.search(r"ray1\.2 .* \? +\d+ s", lines[3])
    assert lines[5].startswith("4 in ")
    for latch in held:
        assert latch is not None
        latch.drop()


WRONG = {
    ("build",): "takes a cell",
    ("build", "ray==2.60.0", "--all"): "--all goes with `env remove`",
    ("build", "ray2.60.0", "--no-deps"): "options do not change them",
    ("build", "nothing2.60.0"): "does not name a cell",
    ("list", "ray2.60.0"): "takes no cell; it got `ray2.60.0`",
    ("remove",): "the name of a cell, or --all",
    ("remove", "ray2.60.0", "--all"): "the name of a cell, or --all",
    ("build", "ray==2.60.0", "--find-links", "/nowhere"): "/nowhere is not a folder of wheels",
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
@pytest.mark.usefixtures("home")
def test_words_that_make_no_sense(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    said = Said(capsys, *words)
    assert (said.code, said.out) == (2, "")
    assert WRONG[words] in said.err
