"""A home for the tests of what the command line refuses, with a bare interpreter in it and nothing else."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import matrix.evidence
from matrix.cli import wiring
from matrix.gpus.inventory import Inventory
from matrix.index.fetch import Limits
from tests.unit.cli_stack import CELLS, Said, record_axes, said, stocked
from tests.unit.http_server import Site

ONE = "verl==0.9.1 vllm==0.24.0"
WHEEL = "/files/vllm-0.24.0-cp38-abi3-manylinux_2_31_x86_64.whl"


def served() -> Iterator[Site]:
    """Serve a stack; a test that spoils it makes it a fixture of its own, others one of their module."""
    with stocked() as site:
        yield site


def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a bare interpreter, to be made once a module."""
    return bare_interpreter(tmp_path_factory.mktemp("bare"))


def home(tmp_path: Path, bare: Path) -> Path:
    """Return a fresh home of one test."""
    return fresh_home(tmp_path, bare)


def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settle one test."""
    settle(monkeypatch, tmp_path)


def bare_interpreter(folder: Path) -> Path:
    """Return the folder of the bare interpreter that uv is given, which takes the longest of a first run."""
    with stocked() as site:
        told("check vllm==0.24.0 --tiers resolve", folder, site.url)
    return folder / "kept" / "cache" / "resolve"


def fresh_home(folder: Path, bare: Path) -> Path:
    """Return `folder` with a cells file and, in `kept`, a home that holds nothing but a bare interpreter."""
    (folder / "cells.toml").write_text(CELLS, encoding="utf-8")
    for inner in bare.glob("bare-*"):
        shutil.copytree(inner, folder / "kept" / "cache" / "resolve" / inner.name, symlinks=True)
    return folder


def settle(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the axes be small, the patience short, and nothing be known of other machines or of a GPU of this one."""
    record_axes(monkeypatch, folder / "axes.toml")
    monkeypatch.setattr(wiring, "Limits", functools.partial(Limits, tries=2, backoff=0.01))
    monkeypatch.setattr(matrix.evidence, "SHIPPED", folder / "evidence")
    monkeypatch.setattr(wiring, "gpus", Inventory)


def told(words: str, home: Path, url: str) -> Said:
    """Return what the command line says to the words, with the home and the index put to them."""
    command, *rest = words.replace("HOME", str(home)).split()
    index = () if command == "report" else ("--index-url", url)
    return said(command, "--home", str(home / "kept"), *index, *rest)
