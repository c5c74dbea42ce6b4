"""Measuring in a child: a subject imports what it is about, says `READY`, and prints its numbers as a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kit.cell import Cell
from kit.child import Ended, run_python
from kit.stage import Part, Stage, stage

READY = "READY"
SUBJECTS = Path(__file__).resolve().parent.parent / "subjects"


def run_subject(name: str, *argv: str, timeout: float = 150.0, env: Mapping[str, str] | None = None) -> Ended:
    """Return how `subjects/<name>.py *argv` ended; where its imports fail the probe is skipped, with the reason.

    That a package does not import is the matter of other probes; here it only means that nothing could be tried.
    """
    ended = run_python(str(SUBJECTS / f"{name}.py"), *argv, timeout=timeout, env=env)
    if READY not in ended.stdout:
        why = ended.last_line or f"ended with {ended.code}"
        pytest.skip(f"what {name} {' '.join(argv)} is about does not import here: {why[:300]}")
    return ended


def measure(name: str, *argv: str, timeout: float = 150.0, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the numbers of a subject that ends well; raises AssertionError where it does not."""
    ended = run_subject(name, *argv, timeout=timeout, env=env)
    assert ended.fault is None, ended.last_line or ended.fault
    found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return found


def started(name: str, *argv: str, timeout: float = 250.0, env: Mapping[str, str] | None = None) -> Ended:
    """Return how `subjects/<name>.py *argv` ended; a release that has nothing to try (`UNTESTED why`) is a skip."""
    ended = run_python(str(SUBJECTS / f"{name}.py"), *argv, timeout=timeout, env=env)
    if ended.last_line.startswith("UNTESTED "):
        pytest.skip(ended.last_line.removeprefix("UNTESTED "))
    return ended


def reached(found: Stage, name: str) -> Part:
    """Return the section of a stage; a skip where the stage died before it, which is the matter of another probe."""
    part = found.part(name)
    if not part.reached:
        pytest.skip(f"{found.script} ended before {name}: {part.last_line}")
    return part


def data(found: Stage, name: str) -> dict[str, Any]:
    """Return what the section measured; raises AssertionError where it failed."""
    part = reached(found, name)
    assert part.fault is None, part.last_line
    return part.data


def on_both(gpus: int = 1) -> list[Any]:
    """Return the devices of a probe that means the same over gloo on a CPU and on so many GPUs."""
    gpu = [pytest.mark.tier("gpu"), pytest.mark.gpus(gpus)]
    cpu = [pytest.mark.tier("behave"), pytest.mark.loopback]
    return [pytest.param("cpu", marks=cpu), pytest.param("cuda", marks=gpu)]


def raw_gpu(cell: Cell) -> Stage:
    """Return the stage of torch and transformers alone, on the GPU."""
    return stage(cell, "trainer_raw_gpu.py", "cuda", limit=300)


def engine(cell: Cell, device: str) -> Stage:
    """Return the stage of verl's training engine on `cuda`, or over gloo on `cpu`."""
    return stage(cell, "trainer_engine_gpu.py", device, limit=400, env=_where(cell, device))


def pair(cell: Cell, device: str) -> Stage:
    """Return the stage of verl's training engine over two ranks, on two GPUs or over gloo."""
    return stage(cell, "trainer_pair_gpu.py", device, limit=300, env=_where(cell, device))


def _where(cell: Cell, device: str) -> dict[str, str]:
    """Return the variables with which verl finds the device; 0.9 has to be told that a CPU is a platform."""
    if device == "cuda":
        return {}
    env = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    if tuple(map(int, str(cell.version("verl")).split(".")[:2])) >= (0, 9):
        env |= {"VERL_USE_EXTERNAL_MODULES": "ppo.cpu_platform", "VERL_PLATFORM": "cpu"}
    return env
