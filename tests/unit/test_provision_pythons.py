from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.errors import ToolError
from matrix.provision.pythons import Finder, downloads_allowed
from matrix.resolve.process import surroundings
from tests.unit.provision_stack import PYTHON


def interpreter(path: Path, says: str = f"verl-matrix:{PYTHON} cpython False", *, code: int = 0) -> Path:
    """Return a program that answers as an interpreter does."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\necho 'why not' >&2\nexit {code}\n")
    path.chmod(0o755)
    return path


def finder(tmp: Path, uv: str = "exit 1", *, download: bool = False) -> Finder:
    program = tmp / "uv"
    program.write_text(f"#!/bin/sh\n{uv}\n")
    program.chmod(0o755)
    return Finder(
        uv=program,
        env={"PATH": "/usr/bin:/bin"},
        managed=tmp / "managed",
        download=download,
        home=tmp,
        images=tmp / "images",
        own=tmp / "versions" / "3.1.1",
    )


PLACES = [
    f"managed/cpython-{PYTHON}.9-linux-x86_64-gnu/bin/python{PYTHON}",
    f".pyenv/versions/{PYTHON}.7/bin/python{PYTHON}",
    f"versions/3.1.1/bin/python{PYTHON}",
    f"versions/{PYTHON}.3/bin/python{PYTHON}",
    f"images/cp{PYTHON.replace('.', '')}-cp{PYTHON.replace('.', '')}/bin/python{PYTHON}",
]


@pytest.mark.parametrize("place", PLACES)
def test_the_places_that_are_looked_in(tmp_path: Path, place: str) -> None:
    path = interpreter(tmp_path / place)
    assert finder(tmp_path).find(PYTHON) == path


def test_what_uv_finds_is_taken(tmp_path: Path) -> None:
    path = interpreter(tmp_path / "opt" / "python")
    uv = f'case "$*" in "python find {PYTHON} "*) echo {path};; *) exit 9;; esac'
    assert finder(tmp_path, uv).find(PYTHON) == path


def test_the_newest_patch_release_of_pyenv_comes_first(tmp_path: Path) -> None:
    found = [interpreter(tmp_path / f".pyenv/versions/{PYTHON}.{patch}/bin/python{PYTHON}") for patch in (9, 10, 2)]
    assert finder(tmp_path).find(PYTHON) == found[1]


def test_pyenv_may_lie_elsewhere(tmp_path: Path) -> None:
    path = interpreter(tmp_path / f"root/versions/{PYTHON}.1/bin/python{PYTHON}")
    found = finder(tmp_path)
    elsewhere = replace(
        found, env={"PYENV_ROOT": str(tmp_path / "root"), "PATH": "/bin:/usr/bin"}, home=tmp_path / "none"
    )
    assert elsewhere.find(PYTHON) == path


UNFIT = {
    "of another version": ("verl-matrix:3.1 cpython False", 0, "it is Python 3.1"),
    "another implementation": (f"verl-matrix:{PYTHON} pypy False", 0, "it is pypy"),
    "free-threaded": (f"verl-matrix:{PYTHON} cpython True", 0, "it is free-threaded"),
    "without what the stack needs": ("", 1, "why not"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_an_interpreter_that_will_not_do(tmp_path: Path, name: str) -> None:
    says, code, why = UNFIT[name]
    interpreter(tmp_path / PLACES[0], says, code=code)
    good = interpreter(tmp_path / PLACES[1])
    assert finder(tmp_path).find(PYTHON) == good
    shutil.rmtree(tmp_path / ".pyenv")
    with pytest.raises(ToolError, match=rf"There is no CPython {PYTHON}") as caught:
        finder(tmp_path).find(PYTHON)
    assert f"{tmp_path / PLACES[0]}: {why}" in str(caught.value)


def test_a_file_that_cannot_be_started(tmp_path: Path) -> None:
    interpreter(tmp_path / PLACES[0]).chmod(0o644)
    with pytest.raises(ToolError, match="Permission denied"):
        finder(tmp_path).find(PYTHON)


def test_uv_downloads_where_it_may(tmp_path: Path) -> None:
    path = tmp_path / PLACES[0]
    uv = f"""
    case "$*" in "python install {PYTHON} "*"--install-dir {tmp_path}/managed") ;; *) exit 1;; esac
    mkdir -p {path.parent}
    printf '#!/bin/sh\\necho verl-matrix:{PYTHON} cpython False\\n' > {path}
    chmod +x {path}
    """
    with pytest.raises(ToolError, match="was not allowed"):
        finder(tmp_path, uv).find(PYTHON)
    assert finder(tmp_path, uv, download=True).find(PYTHON) == path


@pytest.mark.parametrize("what", ["exit 1", f"mkdir -p $6/cpython-{PYTHON}.1/bin; exit 0"])
def test_a_download_that_fails(tmp_path: Path, what: str) -> None:
    with pytest.raises(ToolError, match="could not download one"):
        finder(tmp_path, what, download=True).find(PYTHON)


def test_uv_that_cannot_be_started(tmp_path: Path) -> None:
    found = finder(tmp_path)
    found.uv.chmod(0o644)
    with pytest.raises(ToolError, match="uv could not be started"):
        found.find(PYTHON)


def test_the_real_interpreter_is_fit() -> None:
    from matrix.resolve.solver import find_uv

    found = Finder(uv=find_uv(), env=surroundings(), managed=Path("/nowhere"), download=False)
    assert found._unfit(Path(sys.executable), PYTHON) == ""


@pytest.mark.parametrize(
    ("setting", "offline", "allowed"),
    [(None, False, True), ("automatic", False, True), ("manual", False, True), ("never", False, False),
     (None, True, False)],
)  # fmt: skip
def test_when_a_download_is_allowed(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, offline: bool, allowed: bool
) -> None:
    monkeypatch.delenv("UV_PYTHON_DOWNLOADS", raising=False)
    if setting:
        monkeypatch.setenv("UV_PYTHON_DOWNLOADS", setting)
    assert downloads_allowed(offline=offline) is allowed
