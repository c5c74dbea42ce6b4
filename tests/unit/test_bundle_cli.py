"""The words of `bundle`, over a small stack on a server of 127.0.0.1; `run --here --python`; `env cell`."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from matrix.cell import Cell
from matrix.cli import bundle as words
from matrix.cli import wiring
from matrix.cli.commands import _plan
from matrix.cli.parser import build_parser
from matrix.errors import UsageError
from matrix.job import Probed
from matrix.probing.cellfile import CellFacts
from matrix.probing.prober import Subject
from matrix.provision.environment import Bundled, Manifest, read_manifest
from matrix.provision.standing import here, manifest_of
from matrix.tier import Outcome, Tier
from tests.unit.bundle_stack import PYTHON, Stack, cell, lock, stack, unbundle
from tests.unit.cli_stack import record_axes, said, stocked

NAME = "ray1.0" if PYTHON == "3.12" else f"ray1.0-py{PYTHON}"


def _args(text: str) -> argparse.Namespace:
    return build_parser("0").parse_args(text.split())


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    return stack(tmp_path, monkeypatch)


def _names(text: str) -> list[str]:
    return [cell.name for cell in words._cells(_args(f"bundle {text}"))]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("verl==0.9.1 vllm==0.24.0 --override numpy>=2", ["verl0.9.1-vllm0.24.0-ov.numpy.ge.2"]),
        ("verl0.9.1-vllm0.1.0", ["verl0.9.1-vllm0.1.0"]),
        ("verl0.9.1-vllm0.1.0 verl0.8.0 verl0.9.1-vllm0.1.0", ["verl0.9.1-vllm0.1.0", "verl0.8.0"]),
    ],
)
def test_cells_are_named_as_everywhere(text: str, names: list[str]) -> None:
    assert _names(text) == names


def test_globs_and_groups_choose_among_the_shipped() -> None:
    group = _names("group:gpu")
    assert "verl0.9.1+verl_core-vllm0.24.0-torch2.11.0-tf5.9.0-fa2.8.3.post2" in group
    assert set(_names("verl0.9.1+verl_core-vllm0.2*-fa*")) <= set(group)
    first = group[-1]
    assert _names(f"{first} group:gpu")[0] == first, "the one that is named first is carried first"


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        ("", 2, "`bundle` takes cells, or --tool-only."),
        ("verl0.9.1 --tool-only", 2, "`bundle` takes cells, or --tool-only."),
        ("verl0.9.1 --part-size huge", 2, "`huge` is no size of a part."),
        ("verl0.9.1 --build flash-attn", 2, "--build takes NAME=WHEEL, not `flash-attn`."),
        ("verl0.9.1 --no-deps", 2, "The name of a cell says its deviations"),
        ("verl0.9.1 --have /nowhere/freeze.txt", 3, "cannot be read"),
        ("verl9.*", 2, "`verl9.*` matches no cell."),
    ],
)
def test_words_that_make_no_sense_are_refused(tmp_path: Path, text: str, code: int, what: str) -> None:
    heard = said("bundle", *text.split(), "--home", str(tmp_path), "--index-url", "http://127.0.0.1:1")
    assert (heard.code, what in heard.err) == (code, True), heard.err


def test_what_the_words_come_to(tmp_path: Path, made: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    text = lock(made.shelf.add("ray", "1.0"), made.shelf.add("left", "1.0"), made.shelf.add("host", "1.0"))
    monkeypatch.setattr(wiring, "lock_of", lambda *_: text)
    monkeypatch.setattr(words, "_maker", lambda _: made.maker)
    freeze = tmp_path / "freeze.txt"
    freeze.write_text("host==1.0+cpu\nx @ file:///x\n")
    asked = ["bundle", "ray==1.0", "--python", PYTHON, "--have", str(freeze), "--leave-out", "Left"]
    heard = said(*asked, "--out", str(tmp_path / "out"), "--home", str(tmp_path))
    assert heard.code == 0, heard.err
    *lines, last = heard.out.splitlines()
    assert lines == [
        f"{NAME}: 3 wheels; complete with the first part",
        "  from the host, at the locked version: 1 package",
        "  not carried (a deviation): left 1.0",
        f"for CPython {PYTHON} on x86_64, glibc 2.35 or newer",
    ]
    assert re.fullmatch(rf"1 part, \d+ kB, and bundle\.json and unbundle\.py in {tmp_path / 'out'}", last)
    assert "passed over, no version: x @ file:///x" in heard.err
    heard = said(*asked, "--out", str(tmp_path / "out"), "--home", str(tmp_path), "--json")
    assert json.loads(heard.out)["cells"][0]["left_out"] == {"left": "1.0"}
    heard = said("bundle", "--tool-only", "--python", PYTHON, "--out", str(tmp_path / "tool"), "--home", str(tmp_path))
    assert heard.code == 0
    assert (tmp_path / "tool" / "bundle.json").is_file()


def test_a_cell_without_a_lock_is_not_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_axes(monkeypatch, tmp_path / "axes.toml")
    with stocked() as site:
        url = ["--index-url", site.url, "--home", str(tmp_path), "--out", str(tmp_path / "out")]
        heard = said("bundle", "verl==0.9.1", "vllm==0.28.0", *url)
    assert heard.code == 12, heard.err
    assert "has no lock to install: conflict." in heard.err
    assert not (tmp_path / "out").exists()


def test_the_real_parts_make_a_maker(tmp_path: Path) -> None:
    args = _args(f"bundle ray==1.0 --home {tmp_path} --index-url http://127.0.0.1:1/simple --offline")
    house = words._maker(args).wheelhouse
    assert (house.root, house.offline) == (tmp_path / "cache" / "wheels", True)
    assert house.index_url == "http://127.0.0.1:1/simple"


# ---- the environment that came in a bundle ----


@pytest.fixture
def root(made: Stack, tmp_path: Path) -> Path:
    """Return the folder of an unpacked bundle whose cell has `left` left out and a ray that imports."""
    entries = made.shelf.add("ray", "1.0"), made.shelf.add("left", "1.0")
    made.make((cell("1.0"), lock(*entries)), leave_out=("left",))
    unbundle(tmp_path / "host", made.out)
    return tmp_path / "host"


def test_it_is_the_cell_as_planned(root: Path, tmp_path: Path) -> None:
    python = root / "cells" / NAME / "bin" / "python"
    args = _args(f"run --here --python {python} --home {tmp_path}")
    (planned,) = _plan(args).planned
    assert planned.cell.name == NAME
    assert planned.cell.reason.endswith("It came in a bundle without left 1.0, which its lock holds.")
    assert Tier.SURFACE not in wiring.tiers(args), "what was made from a lock has no index at hand"
    assert {Tier.IMPORT, Tier.BEHAVE} <= wiring.tiers(args)
    assert wiring.stand(args).lock == here(python).lock


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("run --here PYTHON --python PYTHON", "--here and --python both name an interpreter."),
        ("run --here --python PYTHON --cell ray9.9", f"is the environment of {NAME}, not of ray9.9."),
    ],
)
def test_words_that_contradict_are_refused(root: Path, tmp_path: Path, text: str, what: str) -> None:
    python = root / "cells" / NAME / "bin" / "python"
    with pytest.raises(UsageError) as caught:
        _plan(_args(text.replace("PYTHON", str(python))))
    assert what in str(caught.value)


def test_what_it_is_not_any_more_is_red(root: Path, made: Stack, tmp_path: Path) -> None:
    from matrix.probing.visit import Stay
    from matrix.store import Store

    python = root / "cells" / NAME / "bin" / "python"

    def kept() -> tuple[Outcome, str, object]:
        heard: list[str] = []
        stay = Stay(prober=_Prober(Store(tmp_path / "store")), environment=here(python))  # type: ignore[arg-type]
        found = stay.visit(cell("1.0"), None, heard.append).observations[0]
        assert found.question.reads["lock"] == here(python).lock
        assert heard[0] == "3 packages; not carried, a deviation: left 1.0"
        return found.outcome, found.reason, found.detail["left_out"]

    assert kept() == (Outcome.OK, "3 packages; not carried, a deviation: left 1.0", {"left": "1.0"})
    info = next(root.glob(f"cells/{NAME}/lib/python*/site-packages/ray-1.0.dist-info"))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 1.5\n")
    assert kept()[:2] == (Outcome.BROKEN, "it is not what its lock says: ray is 1.5, the lock says 1.0")


class _Prober:
    """A prober with nothing to run."""

    def __init__(self, store: object) -> None:
        from matrix.job import now
        from matrix.probing.machine import Machine

        self.store, self.clock, self.machine = store, now, Machine(architecture="x86_64")

    def subject(self, asked: Cell, lock_digest: str, installed: Mapping[str, str]) -> Subject:
        facts = CellFacts(cell=asked.name, python=PYTHON, installed=installed, failures={})
        return Subject(cell=asked, lock=lock_digest, facts=facts)

    def recall(self, subject: Subject) -> Probed:
        return Probed(observations=())


def test_a_container_that_people_have_is_named_by_them_or_by_what_it_holds(root: Path) -> None:
    python = root / "cells" / NAME / "bin" / "python"
    (root / "cells" / NAME / "verl-matrix.json").unlink()
    assert manifest_of(python) is None
    assert (here(python).cell, here(python).lock) == (NAME, "")
    assert here(python, NAME).cell == NAME
    with pytest.raises(UsageError, match=r"ray is 1\.0, the name says 9\.9"):
        here(python, "ray9.9")
    with pytest.raises(UsageError, match="vllm is not there"):
        here(python, "vllm0.24.0")


def test_an_environment_off_the_shelf_is_the_cell_of_its_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    made = Manifest(
        cell="ray2.0",
        lock="sha256:1+ray:2",
        python_version="3.11.0",
        installed={"ray": "2.0"},
        made=datetime.now(UTC),
        uv="uv 1",
        seconds=1.0,
        added_bytes=1,
    )
    made.write(folder)
    found = here(folder / "bin" / "python")
    assert (found.cell, found.lock, found.differing) == ("ray2.0", "sha256:1", ("ray 2.0 is missing",))
    came = Bundled(lock="sha256:1", host={"a": "1"}, left_out={"b": "2"}, needs={})
    replace(made, bundled=came).write(folder)
    again = read_manifest(folder)
    assert again is not None
    assert again.bundled == came


def test_env_cell_tells_pytest_of_an_environment(root: Path) -> None:
    python = root / "cells" / NAME / "bin" / "python"
    heard = said("env", "cell", str(python))
    data = json.loads(heard.out)
    assert (heard.code, data["cell"], data["installed"]["ray"]) == (0, NAME, "1.0")
    assert Path(data["scratch"]).is_dir()
    assert data["records"]
    Path(data["scratch"]).rmdir()
    assert said("env", "cell", "a", "b").code == 2
    assert said("env", "cell", sys.executable).code == 10
