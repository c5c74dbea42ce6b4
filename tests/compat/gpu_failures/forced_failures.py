"""Forced failures: each holds memory of the GPU, dies in its own way, and must leave nothing behind there.

`verl-matrix gpus forced` runs them.

Not among the probes of a cell: the name keeps pytest from collecting this file unless it is asked for. A test passes
where the failure happened as it was meant to; what it left is for the tool to see, through the driver.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from gpu_failures.holding_child import LATER_S, holding

pytestmark = [pytest.mark.gpus(1, memory_gib=12), pytest.mark.limit(40)]
LIGHT_S, TORCH_S, STACK_S = 20.0, 60.0, 150.0
MOST = ("hold=10240",)
KILLED = {
    "small": ("hold=64", "wait"),
    "1-gib": ("hold=1024", "wait"),
    "10-gib": (*MOST, "wait"),
    "mapped-by-hand": ("vmm=4096", "wait"),
    "managed": ("managed=2048", "wait"),
    "pinned-host": ("hold=512", "pinned=2048", "wait"),
    "many-pieces": (*["hold=128"] * 16, "wait"),
    "in-a-kernel": ("hold=1024", "spin", "wait"),
    "in-a-kernel-mapped-by-hand": ("hold=64", "vmm=2048", "spin", "wait"),
}
"""Children that are killed with signal 9 while they hold memory."""
FAULTS = {
    "segfault": (("hold=2048", "segfault"), -signal.SIGSEGV),
    "segfault-mapped-by-hand": (("vmm=2048", "segfault"), -signal.SIGSEGV),
    "segfault-in-a-kernel": (("hold=1024", "spin", "segfault"), -signal.SIGSEGV),
    "abort": (("hold=2048", "abort"), -signal.SIGABRT),
    "exit-without-cleaning-up": (("hold=2048", "exit=3"), 3),
    "exit-in-a-kernel": (("hold=1024", "spin", "exit=3"), 3),
    "illegal-address": (("hold=1024", "stray", "exit=4"), 4),
    "illegal-address-mapped-by-hand": (("hold=64", "vmm=2048", "stray", "exit=4"), 4),
    "device-trap": (("hold=1024", "trap", "exit=5"), 5),
    "out-of-memory": (("hold=64", "fill"), 1),
}
"""Children that end by themselves, with these words and this code."""


@pytest.mark.parametrize("kind", KILLED)
def test_killed(kind: str) -> None:
    with holding("driver_child.py", *KILLED[kind]) as child:
        child.await_line("holding", LIGHT_S)
        child.kill()
        assert child.code(20) == -signal.SIGKILL


@pytest.mark.parametrize("after", [0.1, 0.3, 0.6])
def test_killed_while_it_starts(after: float) -> None:
    with holding("driver_child.py", *KILLED["10-gib"]) as child:
        time.sleep(after)
        child.child.kill()
        assert child.code(20) == -signal.SIGKILL


@pytest.mark.parametrize("kind", FAULTS)
def test_faults(kind: str) -> None:
    words, code = FAULTS[kind]
    with holding("driver_child.py", *words) as child:
        child.await_line("holding", LIGHT_S)
        assert child.code(30) == code, child.text[-1500:]


@pytest.mark.parametrize("kind", ["fault-and-hang", "trap-and-hang"])
def test_killed_after_a_fault_of_the_gpu(kind: str) -> None:
    with holding("driver_child.py", "hold=1024", "stray" if kind.startswith("fault") else "trap", "wait") as child:
        child.await_line("holding", LIGHT_S)
        child.kill()
        assert child.code(20) == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["1-gib", "10-gib", "in-a-kernel", "mapped-by-hand"])
def test_grandchild_in_a_session_of_its_own_is_killed(kind: str) -> None:
    with holding("driver_child.py", "daemon", *KILLED[kind]) as child:
        pid = int(child.await_line("grandchild", LIGHT_S))
        child.await_line("holding", LIGHT_S)
        child.kill(pid)


@pytest.mark.parametrize("kind", ["1-gib", "10-gib", "in-a-kernel"])
def test_grandchild_in_a_session_of_its_own_is_left_behind(kind: str) -> None:
    with holding("driver_child.py", "daemon", *KILLED[kind]) as child:
        child.await_line("holding", LIGHT_S)
        child.kill()


@pytest.mark.parametrize("kind", ["1-gib", "in-a-kernel"])
def test_grandchild_without_environment_and_parent_is_left_behind(kind: str) -> None:
    with holding("driver_child.py", "lost", *KILLED[kind]) as child:
        child.await_line("grandchild", LIGHT_S)
        child.await_line("holding", LIGHT_S)
        assert child.code(20) == 0


@pytest.mark.parametrize("kind", ["1-gib", "in-a-kernel"])
@pytest.mark.limit(4)
def test_hangs_beyond_its_limit(kind: str) -> None:
    with holding("driver_child.py", *KILLED[kind]) as child:
        child.await_line("holding", LIGHT_S)
        time.sleep(600)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "SIGABRT"])
def test_takes_its_own_process_down(how: str) -> None:
    with holding("driver_child.py", *KILLED["1-gib"], end=False) as child:
        child.await_line("holding", LIGHT_S)
        time.sleep(LATER_S)
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(20)


@pytest.mark.parametrize("dies", ["owner", "reader", "both"])
def test_shared_between_processes(dies: str, tmp_path: Path) -> None:
    handle = str(tmp_path / "handle")
    with holding("driver_child.py", "hold=2048", f"export={handle}", "wait") as owner:
        owner.await_line("holding", LIGHT_S)
        with holding("driver_child.py", f"import={handle}", "hold=64", "wait") as reader:
            reader.await_line("holding", LIGHT_S)
            dead = {"owner": (owner,), "reader": (reader,), "both": (owner, reader)}[dies]
            for child in dead:
                child.kill()
            assert [child.code(20) for child in dead] == [-signal.SIGKILL] * len(dead)


@pytest.mark.limit(90)
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("assert", "device-side assert"),
        ("oom", "OutOfMemoryError"),
        ("expandable-oom", "OutOfMemoryError"),
        ("illegal", "illegal memory access"),
    ],
)
def test_torch_fails(kind: str, said: str) -> None:
    more = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    with holding("torch_child.py", kind, env=more if kind.startswith("expandable") else None) as child:
        child.await_line("holding", TORCH_S)
        assert child.code(30) != 0
        assert said in child.text, child.text[-1500:]


@pytest.mark.limit(90)
@pytest.mark.needs("torch")
@pytest.mark.parametrize("kind", ["nccl", "shared", "workers"])
def test_torch_is_killed(kind: str) -> None:
    with holding("torch_child.py", kind) as child:
        child.await_line("holding", TORCH_S)
        child.kill()
        assert child.code(20) == -signal.SIGKILL


@pytest.mark.limit(120)
@pytest.mark.needs("ray")
@pytest.mark.parametrize("dies", ["worker", "driver"])
def test_ray(dies: str) -> None:
    with holding("ray_child.py", end=False) as child:
        worker = int(child.await_line("holding", STACK_S))
        child.kill(worker if dies == "worker" else None)
        if dies == "worker":
            child.await_line("worker died", 30)
        assert child.code(60) == (0 if dies == "worker" else -signal.SIGKILL)


@pytest.mark.limit(180)
@pytest.mark.needs("vllm", "torch")
@pytest.mark.parametrize("dies", ["engine", "driver"])
def test_vllm(dies: str, tmp_path: Path) -> None:
    with holding("vllm_child.py", str(tmp_path), end=False) as child:
        engine = int(child.await_line("holding", STACK_S))
        child.kill(engine if dies == "engine" else None)
        if dies == "engine":
            # Whether its front notices is another question: some releases wait for ever for a core that was killed.
            time.sleep(1.0)
            child.kill()
        assert child.code(20) == -signal.SIGKILL


if __name__ == "__main__":
    sys.exit("run through `verl-matrix gpus forced`")
