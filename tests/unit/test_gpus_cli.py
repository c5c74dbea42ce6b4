"""The command `gpus`: what it prints of GPUs and of forced failures, and its exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from matrix.gpus.inventory import Inventory
from matrix.gpus.nvml import MIB, Holder
from matrix.gpus.pool import LEASES, Pool
from matrix.probing.forced import Forced
from tests.unit.cli_stack import said
from tests.unit.gpu_fakes import H200, FakeDriver, inventory


@pytest.fixture
def _one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = FakeDriver(named=[Holder(pid=7, used=2048 * MIB)])
    monkeypatch.setattr("matrix.gpus.inventory.take_inventory", lambda: inventory(H200, why="MIG is on"))
    monkeypatch.setattr("matrix.gpus.nvml.driver", lambda: driver)
    monkeypatch.setattr(Pool, "granted", lambda pool: frozenset({0}))


@pytest.mark.usefixtures("_one")
def test_gpus_are_listed_with_who_has_them() -> None:
    heard = said("gpus")
    assert heard.code == 0
    first, note, last = heard.out.splitlines()
    assert first == "0  NVIDIA H200  9.0  4 of 144384 MiB in use by pid 7 (2048 MiB)  granted to a run"
    assert note == "note: MIG is on"
    assert last.startswith("driver 580.159.04, CUDA up to 13.0; fingerprint sha256:")


@pytest.mark.usefixtures("_one")
def test_the_same_as_json_with_the_fingerprint() -> None:
    data = json.loads(said("gpus", "--json").out)
    assert data["gpus"][0]["holders"] == [{"pid": 7, "used_mib": 2048}]
    assert data["facts"]["gpus"][0]["name"] == "NVIDIA H200"
    assert "GPU-aaaa" not in json.dumps(data)


def test_without_a_gpu_nothing_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Inventory(why="no NVIDIA driver answers: x")
    monkeypatch.setattr("matrix.gpus.inventory.take_inventory", lambda: found)
    heard = said("gpus")
    assert (heard.code, "no NVIDIA driver answers: x" in heard.err) == (10, True)


def _force(*found: Forced) -> Callable[..., list[Forced]]:
    def force(python: Path, *, patterns: object, tell: Callable[[Forced], None], **more: Any) -> list[Forced]:
        assert python == Path(sys.executable)
        for item in found:
            tell(item)
        return list(found)

    return force


GOOD = Forced(name="test_killed[a]", told="passed", as_meant=True, left_mib=0, settle_s=0.31, peak_mib=1534)
LEFT = Forced(name="test_b", told="passed", as_meant=True, left_mib=3, settle_s=15, peak_mib=99, detail={"left": ["x"]})
WRONG = Forced(name="test_c", told="failed", reason="it did not die", left_mib=0)
SILENT = Forced(name="test_d", told="killed", as_meant=True)
UNTRIED = Forced(name="test_e", told="untested", reason="ray is not installed in this cell")
LINES = {
    "good": "ok        test_killed[a]: passed, 0 MiB left after 0.31 s, peak 1534 MiB",
    "left": "NOT OK    test_b: passed, 3 MiB left after 15.00 s, peak 99 MiB; had to be ended: x",
    "wrong": "NOT OK    test_c: failed, 0 MiB left after 0.00 s, peak 0 MiB; it did not die",
    "silent": "ok        test_d: killed, ? MiB left after 0.00 s, peak 0 MiB",
    "untried": "untested  test_e: ray is not installed in this cell",
}


@pytest.mark.parametrize(
    ("found", "code", "line"),
    [
        ((GOOD,), 0, LINES["good"]),
        ((GOOD, UNTRIED), 0, LINES["untried"]),
        ((GOOD, LEFT), 1, LINES["left"]),
        ((GOOD, WRONG), 1, LINES["wrong"]),
        ((SILENT,), 1, LINES["silent"]),
        ((UNTRIED,), 1, LINES["untried"]),
    ],
)
def test_forced_failures_are_told_one_by_one_and_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: tuple[Forced, ...], code: int, line: str
) -> None:
    monkeypatch.setattr("matrix.probing.forced.force", _force(*found))
    out = tmp_path / "forced.jsonl"
    heard = said("gpus", "forced", "--out", str(out))
    assert heard.code == code
    assert line in heard.out.splitlines()
    ran = sum(item.told != "untested" for item in found)
    assert heard.out.splitlines()[-1].startswith(f"{ran} of {len(found)} failures forced, ")
    assert [json.loads(text)["name"] for text in out.read_text().splitlines()] == [item.name for item in found]


def test_forced_failures_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matrix.probing.forced.force", _force(GOOD))
    assert json.loads(said("gpus", "forced", "--json").out)[0]["peak_mib"] == 1534


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("gpus", "--only", "x"), "go with `gpus forced`"),
        (("gpus", "list", "--out", "x"), "go with `gpus forced`"),
        (("gpus", "forced", "--python", "/nowhere/python"), "There is no interpreter /nowhere/python"),
    ],
)
def test_words_that_make_no_sense(words: tuple[str, ...], complaint: str) -> None:
    heard = said(*words)
    assert (heard.code, complaint in heard.err) == (2, True)


def test_every_user_of_a_machine_finds_the_same_folder() -> None:
    assert LEASES.is_absolute()
    assert Pool(inventory=Inventory()).folder == LEASES


def test_a_machine_without_a_device_says_why_and_what_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matrix.gpus.inventory.take_inventory", Inventory)
    found = said("gpus")
    assert found.code == 10
    assert "/dev has no device of an NVIDIA driver" in found.err
    assert "`memory` and `thresholds --plan` answer without one" in found.err
