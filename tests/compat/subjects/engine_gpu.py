"""The GPU as the stage of the rollout engine sees it: memory by NVML, ballast held by a process of its own.

Nothing here makes a CUDA context in the process that asks: a process that has one cannot fork engines any more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
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


@contextlib.contextmanager
def answered_by_nvml() -> Iterator[list[str]]:
    """Answer what imports ask of a GPU by NVML, and give the stacks of those that make a CUDA context all the same.

    vLLM's linear-attention kernels and FlashInfer ask torch for the device, its name and its compute capability when
    they are imported; a process that has a context then could start its engines by `spawn` only, and each would import
    everything again. Whoever keeps such a function (Triton's driver does) gets torch's own answers once it has one.
    """
    import torch

    touched: list[str] = []
    begin = torch.cuda._lazy_init
    without = {"current_device": lambda: 0, "get_device_name": _name, "get_device_capability": _capability}
    given = {name: getattr(torch.cuda, name) for name in without}

    def beginning() -> None:
        if not torch.cuda.is_initialized():
            touched.append("".join(traceback.format_stack(limit=12)[:-1]))
        begin()

    def answering(name: str) -> Any:
        def answer(*args: Any, **kwargs: Any) -> Any:
            return given[name](*args, **kwargs) if torch.cuda.is_initialized() else without[name]()

        return answer

    torch.cuda._lazy_init = beginning
    for name in without:
        setattr(torch.cuda, name, answering(name))
    try:
        yield touched
    finally:
        torch.cuda._lazy_init = begin
        for name, function in given.items():
            setattr(torch.cuda, name, function)


def _name() -> str:
    name = pynvml().nvmlDeviceGetName(handle())
    return name if isinstance(name, str) else str(name.decode())


def _capability() -> tuple[int, int]:
    major, minor = pynvml().nvmlDeviceGetCudaComputeCapability(handle())
    return int(major), int(minor)


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


_HOLDER = """
import sys, torch
held = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def ballast(size: int) -> Iterator[int]:
    """Hold so many bytes of the GPU in another process, and give how many are in use then."""
    argv = [sys.executable, "-c", _HOLDER, str(size)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline().strip() != b"held":
                raise RuntimeError(f"{size} bytes could not be taken as ballast")
            yield used()
        finally:
            holder.kill()


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
