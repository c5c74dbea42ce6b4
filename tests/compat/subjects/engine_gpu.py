"""The GPU as the stage of the rollout engine sees it: memory by NVML, ballast held by a process of its own.

Nothing here makes a CUDA context in the process that asks: a process that has one cannot fork engines any more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MIB = 1 << 20
GIB = 1 << 30


def pynvml() -> Any:
    """Return the bindings of NVML: the package, else the copy that vLLM carries."""
    try:
        import pynvml as found  # type: ignore[import-untyped]
    except ImportError:
        from vllm.third_party import pynvml as found
    return found


def handle() -> Any:
    """Return NVML's handle of the first GPU that this process may use."""
    nvml = pynvml()
    nvml.nvmlInit()
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
    if first.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(first))
    try:
        return nvml.nvmlDeviceGetHandleByUUID(first)
    except TypeError:
        return nvml.nvmlDeviceGetHandleByUUID(first.encode())


def used() -> int:
    """Return the bytes in use on the whole GPU, by whomever."""
    return int(pynvml().nvmlDeviceGetMemoryInfo(handle()).used)


def total() -> int:
    """Return the bytes that the GPU has."""
    return int(pynvml().nvmlDeviceGetMemoryInfo(handle()).total)


def settled(below: int, within: float) -> tuple[int, float]:
    """Return the bytes in use once they are below a number, or after so many seconds, and how long that took."""
    start = time.monotonic()
    while True:
        now, spent = used(), time.monotonic() - start
        if now < below or spent > within:
            return now, round(spent, 2)
        time.sleep(0.1)


def fork_may_use_cuda() -> bool:
    """Return whether a fork of this process can use the GPU: nothing that was imported has touched the driver."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            import torch

            torch.zeros(1, device="cuda").sum().item()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@contextlib.contextmanager
def ballast(size: int) -> Iterator[int]:
    """Hold so many bytes of the GPU in a fork, and give how many are in use then."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            import torch

            held = torch.empty(size, dtype=torch.uint8, device="cuda")
            os.write(writing, b"1" if held.numel() == size else b"0")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    try:
        if os.read(reading, 1) != b"1":
            raise RuntimeError(f"{size} bytes could not be taken as ballast")
        yield used()
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def descendants(of: int) -> list[int]:
    """Return the processes below one, its own not among them."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name, in brackets, may hold blanks and brackets.
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, level = [], [of]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        found += level
    return found


def end_descendants(of: int, within: float = 20.0) -> int:
    """End every process below one and return how many there were."""
    gone = 0
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        left = descendants(of)
        if not left:
            break
        gone = max(gone, len(left))
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.05)
    return gone
