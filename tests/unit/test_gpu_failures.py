"""The children that are forced to fail on a GPU, over a driver that only remembers what it was asked."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from matrix.probing.folder import probes_folder

FORCED = probes_folder() / "gpu_failures"


class FakeCuda:
    """libcuda: every call succeeds unless `codes` says otherwise; the names called are kept in order."""

    def __init__(self, **codes: int) -> None:
        self.codes, self.called = codes, []  # type: ignore[var-annotated]
        self.room = 20 * 2**30

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*words: Any) -> int:
            self.called.append(name)
            if name == "cuMemAlloc_v2":
                if words[1].value > self.room:
                    return 2
                self.room -= words[1].value
            return self.codes.get(name, 0)

        return call


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FORCED.parent))
    module = importlib.import_module("gpu_failures.driver_child")
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    return module


def _run(monkeypatch: pytest.MonkeyPatch, module: ModuleType, fake: FakeCuda, *words: str) -> list[str]:
    def ended(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: fake)
    monkeypatch.setattr(os, "_exit", ended)
    with pytest.raises(SystemExit) as raised:
        module.main(list(words))
    fake.called.append(f"exit {raised.value.code}")
    return [name for name in fake.called if name not in ("cuInit", "cuDeviceGet")][2:]


HOLD = ["cuMemAlloc_v2", "cuMemsetD8_v2", "cuCtxSynchronize"]
LAUNCH = ["cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"]
MAPPED = ["cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"]


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (("hold=64", "exit=3"), [*HOLD, "exit 3"]),
        (("vmm=64", "exit=3"), [*MAPPED, "exit 3"]),
        (("managed=1", "exit=3"), ["cuMemAllocManaged", "cuMemsetD8_v2", "cuCtxSynchronize", "exit 3"]),
        (("pinned=1", "exit=3"), ["cuMemHostAlloc", "exit 3"]),
        (("hold=1", "spin", "exit=3"), [*HOLD, *LAUNCH, "exit 3"]),
        (("hold=1", "spin", "wait"), [*HOLD, *LAUNCH, "cuCtxSynchronize", "exit no such word: wait"]),
        (("hold=1", "nonsense"), [*HOLD, "exit no such word: nonsense"]),
        (("hold=1", "stray"), [*HOLD, *LAUNCH, "cuCtxSynchronize", "exit stray did not fault"]),
    ],
)
def test_words_are_calls(
    monkeypatch: pytest.MonkeyPatch, cuda: ModuleType, words: tuple[str, ...], called: list[str]
) -> None:
    assert _run(monkeypatch, cuda, FakeCuda(), *words) == called


@pytest.mark.parametrize(("word", "code", "expected"), [("stray", 700, True), ("trap", 719, True), ("trap", 1, False)])
def test_a_fault_of_the_gpu_is_the_one_that_was_meant(
    monkeypatch: pytest.MonkeyPatch, cuda: ModuleType, word: str, code: int, expected: bool
) -> None:
    fake = FakeCuda(cuCtxSynchronize=code)
    if expected:
        assert _run(monkeypatch, cuda, fake, word, "exit=4")[-1] == "exit 4"
    else:
        with pytest.raises(OSError, match="cuCtxSynchronize returned 1"):
            _run(monkeypatch, cuda, fake, word, "exit=4")


def test_a_card_is_filled_to_the_end(monkeypatch: pytest.MonkeyPatch, cuda: ModuleType) -> None:
    fake = FakeCuda()
    with pytest.raises(OSError, match="cuMemAlloc_v2 returned 2"):
        _run(monkeypatch, cuda, fake, "fill")
    assert fake.room < 2 * 2**20


def test_memory_is_shared_through_a_file(monkeypatch: pytest.MonkeyPatch, cuda: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "handle"
    assert "cuIpcGetMemHandle" in _run(monkeypatch, cuda, FakeCuda(), "hold=1", f"export={path}", "exit=0")
    assert path.stat().st_size == 64
    assert "cuIpcOpenMemHandle_v2" in _run(monkeypatch, cuda, FakeCuda(), f"import={path}", "exit=0")


def test_a_grandchild_outlives_its_parent_in_a_session_of_its_own(tmp_path: Path) -> None:
    # There is no libcuda here, so the grandchild ends by itself at once; that it was started is what is seen.
    command = [sys.executable, str(FORCED / "driver_child.py"), "lost", "hold=1", "wait"]
    started = time.monotonic()
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith("grandchild ")
    assert time.monotonic() - started < 30


def test_every_forced_failure_is_named_and_some_fifty_there_are() -> None:
    command = [sys.executable, "-m", "pytest", "-c", str(FORCED.parent / "pytest.ini"), "--collect-only", "-q",
               str(FORCED / "forced_failures.py")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert sum("::" in line for line in done.stdout.splitlines()) >= 50


def test_a_cells_probes_do_not_hold_the_forced_failures() -> None:
    assert not any(path.name.startswith("test_") for path in FORCED.iterdir())
