"""The doctor on the machine: GPUs, room, limits, leftovers."""

from __future__ import annotations

import os
import socket
from collections import namedtuple
from pathlib import Path

import pytest
from packaging.version import Version

import matrix.doctor.devices as devices
import matrix.doctor.machine as machine
from matrix.doctor.checkup import Grade
from matrix.doctor.devices import check_devices, read_driver, torch_cuda
from matrix.doctor.machine import Machine, check_leftovers, check_limits, check_room
from tests.unit.doctor_case import environment, grades, only

ROWS = "0, NVIDIA H200, 580.65.06, 12, 143771, 9.0\n1, NVIDIA H200, 580.65.06, 90000, 143771, 9.0\nnonsense\n"
BANNER = "| NVIDIA-SMI 580.65.06   Driver Version: 580.65.06   CUDA Version: {} |"


@pytest.mark.parametrize(
    ("torch", "driver", "grade"),
    [
        ("13.0", "13.0", Grade.OK),
        ("13.0", "12.8", Grade.BAD),
        ("12.9", "12.4", Grade.WARN),
        (None, "13.0", Grade.UNKNOWN),
    ],
)
def test_torch_s_cuda_against_the_driver_s(tmp_path: Path, torch: str | None, driver: str, grade: Grade) -> None:
    held = environment(tmp_path, {"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.9"})
    (held.purelib / "torch").mkdir()
    (held.purelib / "torch" / "version.py").write_text(f"cuda: Optional[str] = {torch!r}\n")
    found = grades(check_devices(held, read_driver(ROWS, BANNER.format(driver))))
    assert found[0] == (Grade.OK, f"2 GPU(s): NVIDIA H200; driver 580.65.06, CUDA up to {driver}")
    assert found[1] == (Grade.WARN, "memory in use on GPU 1 (90000 of 143771 MiB)")
    assert found[2][0] is grade
    assert found[3] == (Grade.OK, "nvidia-nccl-cu13 2.28.9 (0 library file(s))")


def test_no_gpu_is_said(tmp_path: Path) -> None:
    held = environment(tmp_path, {"nvidia-nccl-cu12": "2.27", "nvidia-nccl-cu13": "2.28"})
    found = grades(check_devices(held, "there is no NVIDIA driver here"))
    assert found[0] == (Grade.UNKNOWN, "no GPU was looked at: there is no NVIDIA driver here")
    assert found[1][0] is Grade.BAD
    assert read_driver("", "") == "nvidia-smi shows no GPU"
    assert torch_cuda(held) is None
    with_torch = environment(tmp_path, {"torch": "2.11.0"})
    assert torch_cuda(with_torch) is None
    (with_torch.purelib / "torch").mkdir()
    (with_torch.purelib / "torch" / "version.py").write_text("cuda = '13.0'\n")
    assert [grade for grade, _ in grades(check_devices(with_torch, "none"))] == [Grade.UNKNOWN, Grade.UNKNOWN]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 9", "nvidia-smi failed: code 9"),
        ("echo No devices; exit 6", "nvidia-smi failed: No devices"),
        ('case "$1" in --q*) echo "0, GPU, 580.1, 1, 2, 9.0";; *) echo "CUDA Version: 13.0";; esac', ""),
        ("sleep 30", "nvidia-smi did not answer within 30 s: a GPU or the driver hangs"),
    ],
)
def test_nvidia_smi_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(devices, "TIMEOUT_S", 0.5 if "sleep" in script else 30.0)
    found = devices.ask_driver()
    if expected:
        assert found == expected
    else:
        assert isinstance(found, devices.Driver)
        assert found.cuda == Version("13.0")


def test_no_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(devices.ask_driver(), str)
    broken = tmp_path / "nvidia-smi"
    broken.write_text("no program")
    broken.chmod(0o755)
    assert str(devices.ask_driver()).startswith("nvidia-smi cannot be run")


Usage = namedtuple("Usage", "total used free")
GIB = 1 << 30


def fake_machine(tmp_path: Path, **variables: str) -> Machine:
    for name in ("proc", "cgroup", "tmp"):
        (tmp_path / name).mkdir(exist_ok=True)
    return Machine(
        proc=tmp_path / "proc",
        cgroup=tmp_path / "cgroup",
        shm=tmp_path / "shm",
        tmp=tmp_path / "tmp",
        variables=variables,
    )


@pytest.mark.parametrize(
    ("free", "total", "expected"),
    [
        (50, 100, [Grade.OK, Grade.OK, Grade.OK]),
        (4, 100, [Grade.BAD, Grade.BAD, Grade.OK]),
        (0, 0.06, None),
        (1, 4, None),
    ],
)
def test_disks_and_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, total: float, expected: list[Grade] | None
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(total * GIB, 0, free * GIB))
    found = [check.grade for check in check_room(fake_machine(tmp_path), tmp_path)]
    assert found[3] is Grade.UNKNOWN
    if expected is not None:
        assert found[:3] == expected
    else:
        assert found[2] is (Grade.BAD if total < 1 else Grade.WARN)


def test_memory_and_the_container_s_limit(tmp_path: Path) -> None:
    here = fake_machine(tmp_path)
    (here.proc / "meminfo").write_text(f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {32 * GIB // 1024} kB\n")
    found = list(check_room(here, tmp_path / "none"))
    assert found[0].grade is Grade.UNKNOWN
    assert found[2].what.startswith("there is no ")
    assert found[3].what == "32.0 GiB of 64.0 GiB of memory available"
    (here.cgroup / "memory.max").write_text(f"{16 * GIB}\n")
    (here.cgroup / "memory.current").write_text(f"{GIB}\n")
    limited = list(check_room(here, tmp_path))[3]
    assert limited.grade is Grade.WARN
    assert "this container may use 16.0 GiB and uses 1.0" in limited.what
    (here.cgroup / "memory.max").write_text("max\n")
    assert list(check_room(here, tmp_path))[3].grade is Grade.OK


@pytest.mark.parametrize(("soft", "grade"), [(-1, Grade.OK), (1 << 40, Grade.OK), (1024, Grade.WARN)])
def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soft: int, grade: Grade) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (soft, soft))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    here = fake_machine(tmp_path)
    found = list(check_limits(here))
    assert [check.grade for check in found] == [grade, grade, grade, Grade.OK]
    (here.cgroup / "pids.max").write_text("100\n")
    (here.cgroup / "cpu.max").write_text("400000 100000\n")
    found = list(check_limits(here))
    assert found[3].what == "this container may have 100 processes and threads"
    assert found[4].what == "64 processors are seen, 4 may be used"
    (here.cgroup / "cpu.max").write_text("max 100000\n")
    assert list(check_limits(here))[4].grade is Grade.OK


def test_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_taken", lambda port: False)
    here = fake_machine(tmp_path)
    assert only(check_leftovers(here)).grade is Grade.OK
    (here.tmp / "ray" / "session_2026-01-01").mkdir(parents=True)
    assert "1 old ray sessions" in only(check_leftovers(here)).what
    for pid, command in ((11, b"/x/raylet\0--a"), (12, b"VLLM::EngineCore\0"), (13, b"vim\0raylet.log"), (14, b"")):
        (here.proc / str(pid)).mkdir()
        (here.proc / str(pid) / "cmdline").write_bytes(command)
    (here.proc / "15").mkdir()
    (here.proc / str(os.getpid())).mkdir()
    (here.proc / str(os.getpid()) / "cmdline").write_bytes(b"main_ppo")
    found = [check.what for check in check_leftovers(here)]
    assert found == ["1 of `VLLM` run here (pid 12)", "1 of `raylet` run here (pid 11)"]
    monkeypatch.setattr(machine, "_taken", lambda port: port == 6379)
    assert "ports in use: 6379 (ray's head (GCS))" in [check.what for check in check_leftovers(here)]


def test_an_address_at_which_nothing_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_PORTS", {})
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert machine._taken(port)
        assert only(check_leftovers(fake_machine(tmp_path, RAY_ADDRESS=f"127.0.0.1:{port}"))).grade is Grade.OK
    dead = only(check_leftovers(fake_machine(tmp_path, RAY_ADDRESS=f"ray://127.0.0.1:{port}")))
    assert (dead.grade, dead.then) == (Grade.BAD, "unset RAY_ADDRESS")
    assert not machine._taken(port)
    assert only(check_leftovers(fake_machine(tmp_path, RAY_ADDRESS="auto"))).grade is Grade.OK
