"""The GPUs of a machine: what may be used, what a need lacks, what is left after a probe, what a fingerprint holds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.gpus import inventory as inventories
from matrix.gpus import nvml, warming
from matrix.gpus.fingerprint import digest, fingerprint
from matrix.gpus.inventory import Inventory, take_inventory
from matrix.gpus.need import Need, eligible, lacking, read_capability
from matrix.gpus.nvml import GIB, MIB, Driver, NoDriverError, Nvml
from matrix.gpus.settling import Settling
from tests.unit.gpu_fakes import H200, T4, FakeClock, FakeDriver, gpu, inventory

BOTH = [H200, T4]


@pytest.mark.parametrize(
    ("environ", "names", "why"),
    [
        ({}, ["NVIDIA H200", "NVIDIA T4"], ""),
        ({"CUDA_VISIBLE_DEVICES": ""}, [], "CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES shows none of 2 GPUs"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["NVIDIA T4"], ""),
        ({"CUDA_VISIBLE_DEVICES": "1, 0"}, ["NVIDIA T4", "NVIDIA H200"], ""),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, ["NVIDIA T4"], ""),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, [], "CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES shows none of 2 GPUs"),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, ["NVIDIA H200"], ""),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, ["NVIDIA H200"], ""),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, ["NVIDIA H200"], ""),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, [], "CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES shows none of 2 GPUs"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, ["NVIDIA H200", "NVIDIA T4"], ""),
        ({"NVIDIA_VISIBLE_DEVICES": "3"}, ["NVIDIA H200", "NVIDIA T4"], ""),
        (
            {"NVIDIA_VISIBLE_DEVICES": "void"},
            [],
            "CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES shows none of 2 GPUs",
        ),
        ({"NVIDIA_VISIBLE_DEVICES": "none", "CUDA_VISIBLE_DEVICES": "0"}, [], None),
    ],
)
def test_what_the_callers_environment_shows(environ: Mapping[str, str], names: list[str], why: str | None) -> None:
    found = take_inventory(FakeDriver(told=BOTH), environ)
    assert list(found.names) == names
    assert why is None or found.why == why


def test_a_sliced_gpu_is_left_out_and_named() -> None:
    found = take_inventory(FakeDriver(told=[H200, replace(T4, sliced=True)]), {})
    assert found.names == ("NVIDIA H200",)
    assert found.why == "MIG is on, so it is not whole: NVIDIA T4"


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        (FakeDriver(silent="NVML says: Driver Not Loaded"), "no NVIDIA driver answers: NVML says: Driver Not Loaded"),
        (FakeDriver(told=[]), "the NVIDIA driver tells of no GPU"),
    ],
)
def test_why_there_is_none(driver: FakeDriver, why: str) -> None:
    assert take_inventory(driver, {}) == Inventory(why=why)


def test_without_a_device_file_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventories, "driver", lambda: FakeDriver())
    assert take_inventory(environ={}, devices=tmp_path) == Inventory()
    (tmp_path / "nvidia0").touch()
    assert take_inventory(environ={}, devices=tmp_path).names == ("NVIDIA H200",)


@pytest.mark.parametrize(
    ("need", "held", "reason"),
    [
        (Need(), inventory(H200), ""),
        (Need(gpus=2), inventory(H200), "needs 2 GPUs; this machine has 1 GPU"),
        (Need(gpus=3), inventory(H200, T4), "needs 3 GPUs; this machine has 2 GPUs"),
        (Need(gpus=2), inventory(H200, why="MIG is on"), "needs 2 GPUs; this machine has 1 GPU (MIG is on)"),
        (Need(), inventory(), "needs 1 GPU; this machine has no GPU"),
        (Need(gpus=2), inventory(why="no NVIDIA driver answers: x"),
         "needs 2 GPUs; this machine has no GPU: no NVIDIA driver answers: x"),
        (Need(capability=(9, 0)), inventory(T4), "needs compute capability 9.0; NVIDIA T4 has 7.5"),
        (Need(memory_gib=40), inventory(T4), "needs 40 GiB; NVIDIA T4 has 15 GiB"),
        (Need(memory_gib=40), inventory(T4, H200), ""),
        (Need(gpus=2, memory_gib=40), inventory(T4, H200),
         "needs 2 GPUs, each of which needs 40 GiB; NVIDIA T4 has 15 GiB"),
    ],
)  # fmt: skip
def test_what_a_need_lacks(need: Need, held: Inventory, reason: str) -> None:
    assert lacking(need, held) == reason


@given(
    need=st.builds(
        Need,
        gpus=st.integers(1, 4),
        capability=st.sampled_from([(0, 0), (7, 5), (8, 0), (9, 0), (10, 0)]),
        memory_gib=st.sampled_from([0.0, 15.0, 16.0, 100.0, 200.0]),
    ),
    told=st.lists(st.sampled_from(BOTH), max_size=4),
)
def test_a_need_lacks_nothing_exactly_where_enough_are_eligible(need: Need, told: list[nvml.Told]) -> None:
    held = inventory(*told)
    assert (lacking(need, held) == "") == (len(eligible(need, held)) >= need.gpus)


@pytest.mark.parametrize(("text", "pair"), [("", (0, 0)), ("9.0", (9, 0)), ("8", (8, 0)), ("10.3", (10, 3))])
def test_a_capability_is_read(text: str, pair: tuple[int, int]) -> None:
    assert read_capability(text) == pair


def _settling(used: dict[int, int], clock: FakeClock, **more: Any) -> Settling:
    driver = FakeDriver(held=lambda index: used[index])
    return Settling(driver=driver, gpus=[gpu(H200)], clock=clock, sleep=clock.sleep, **more)


def test_what_comes_back_at_once_is_settled_at_once() -> None:
    used, clock = {0: 4 * MIB}, FakeClock()
    watched = _settling(used, clock)
    watched.begin()
    used[0] = 9000 * MIB
    watched.look()
    used[0] = 4 * MIB
    clock.now += 2
    settled = watched.settle()
    assert (settled.left_mib, settled.peak_mib, settled.base_mib) == (0, 9000, 4)
    assert (settled.settle_s, settled.held_s, settled.ended) == (0, 2, ())
    assert settled.to_json()["gpu_peak_mib"] == 9000
    assert "gpu_ended" not in settled.to_json()


@pytest.mark.parametrize(
    ("back_after", "ends", "left", "seconds"),
    [
        (1.0, 0, 0, 1.0),  # the driver takes a moment
        (2.5, 2, 0, 2.5),  # nothing is ended meanwhile
        (None, 0, 1000, 15.0),
        (None, 2, 1000, 3.0 + 3.0 + 15.0),
    ],
)
def test_how_long_is_waited(back_after: float | None, ends: int, left: int, seconds: float) -> None:
    used, clock = {0: 4 * MIB}, FakeClock()
    watched = _settling(used, clock, ends=[lambda: ["python"]] * ends)
    watched.begin()
    used[0] = 1004 * MIB
    if back_after is not None:
        clock.events[clock.now + back_after] = lambda: used.update({0: 4 * MIB})
    settled = watched.settle()
    assert settled.left_mib == left
    assert settled.settle_s == pytest.approx(seconds, abs=0.2)
    assert settled.ended == (("python",) if left and ends else ())


def test_as_long_as_some_comes_back_nothing_is_ended() -> None:
    used, clock = {0: 0}, FakeClock()
    watched = _settling(used, clock, ends=[lambda: pytest.fail("ended"), list])
    watched.begin()
    used[0] = 100 * MIB
    for second in range(1, 11):
        clock.events[clock.now + second] = lambda: used.update({0: used[0] - 10 * MIB})
    assert watched.settle().left_mib == 0


def test_each_end_is_tried_until_one_helps() -> None:
    used, clock = {0: 0}, FakeClock()
    called: list[str] = []

    def helps() -> list[str]:
        used[0] = 0
        called.append("second")
        return ["raylet", "raylet"]

    def in_vain() -> list[str]:
        called.append("first")
        return []

    watched = _settling(used, clock, ends=[in_vain, helps, lambda: pytest.fail("third")])
    watched.begin()
    used[0] = 1
    settled = watched.settle()
    assert (settled.left_mib, settled.ended, called) == (0, ("raylet",), ["first", "second"])
    assert settled.to_json()["gpu_ended"] == ["raylet"]


@pytest.mark.parametrize(
    ("more", "tolerance", "left"), [(1, 0, 1), (MIB, 0, 1), (MIB + 1, 0, 2), (2 * MIB, 2, 0), (3 * MIB, 2, 3)]
)
def test_a_byte_that_is_left_is_not_nothing(more: int, tolerance: int, left: int) -> None:
    used, clock = {0: 7 * MIB}, FakeClock()
    watched = _settling(used, clock, tolerance_mib=tolerance)
    watched.begin()
    used[0] += more
    assert watched.settle().left_mib == left


@pytest.mark.parametrize(("used", "others"), [(4, 0), (256, 0), (257, 257), (30000, 30000)])
def test_what_others_hold_before_is_told_above_what_an_idle_card_takes(used: int, others: int) -> None:
    assert _settling({0: used * MIB}, FakeClock()).others_mib() == others


class FakeNvml:
    """The module `pynvml`, as far as it is used, over one GPU; what is in `lacks` raises that it is not supported."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_NVLINK_MAX_LINKS, NVML_P2P_STATUS_OK = 1, 2, 3, 0
    NVML_P2P_CAPS_INDEX_READ, NVML_P2P_CAPS_INDEX_NVLINK = 0, 2
    nvmlMemory_v2 = 33  # noqa: N815 - its name there

    class NVMLError(Exception):
        pass

    def __init__(self, *lacks: str, broken: bool = False) -> None:
        self.lacks, self.broken, self.opened = lacks, broken, 0

    def nvmlInit(self) -> None:  # noqa: N802 - its name there
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")
        self.opened += 1

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> SimpleNamespace:  # noqa: N802
        if version is not None and "memory v2" in self.lacks:
            raise self.NVMLError("Function Not Found")
        return SimpleNamespace(total=141 * GIB, used=(4 if version else 600) * MIB)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers = {
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": 7,
            "nvmlDeviceGetUUID": b"GPU-aaaa-1",
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetCudaComputeCapability": [9, 0],
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=5, usedGpuMemory=None)],
            "nvmlDeviceGetGraphicsRunningProcesses": [SimpleNamespace(pid=5, usedGpuMemory=3 * MIB)],
            "nvmlSystemGetCudaDriverVersion_v2": 13010,
            "nvmlSystemGetDriverVersion": "580.1",
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetApplicationsClock": 1830,
            "nvmlDeviceGetEnforcedPowerLimit": 700000,
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetComputeMode": 0,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetNvLinkState": 1,
            "nvmlDeviceGetTopologyCommonAncestor": 50,
            "nvmlDeviceGetP2PStatus": 0,
        }

        def call(*words: object) -> Any:
            if name in self.lacks:
                raise self.NVMLError("Not Supported")
            return answers[name]

        return call


def test_nvml_is_asked_for_what_there_is() -> None:
    module = FakeNvml()
    asked = Nvml(load=lambda: module)
    assert asked.gpus() == [H200]
    assert asked.used(0) == 4 * MIB
    assert [(item.pid, item.used) for item in asked.holders(0)] == [(5, 3 * MIB)]
    assert asked.versions() == {"driver": "580.1", "cuda": "13.1"}
    assert asked.links(0, 1) == {"ancestor": "system", "p2p": True, "nvlink": True}
    assert asked.facts(0) == {
        "clock_max_mhz": {"sm": 1980, "memory": 1980},
        "clock_application_mhz": {"sm": 1830, "memory": 1830},
        "power_limit_w": 700.0,
        "persistence": True,
        "ecc": True,
        "mig": False,
        "compute_mode": "default",
        "pcie_generation": 5,
        "pcie_width": 16,
        "nvlinks": 3,
    }
    assert module.opened == 1


def test_what_a_card_does_not_have_is_none() -> None:
    settings = (
        "nvmlDeviceGetApplicationsClock", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetEccMode",
        "nvmlDeviceGetMigMode", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus", "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses", "memory v2",
    )  # fmt: skip
    asked = Nvml(load=lambda: FakeNvml(*settings))
    facts = asked.facts(0)
    assert facts["power_limit_w"] is facts["ecc"] is facts["mig"] is facts["compute_mode"] is None
    assert facts["persistence"] is None
    assert facts["clock_application_mhz"] == {"sm": None, "memory": None}
    assert facts["nvlinks"] == 0
    assert asked.links(0, 1) == {"ancestor": None, "p2p": None, "nvlink": None}
    assert (asked.used(0), asked.holders(0), asked.gpus()) == (600 * MIB, [], [H200])


def _missing() -> Any:
    raise ModuleNotFoundError("No module named 'pynvml'", name="pynvml")


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (_missing, "nvidia-ml-py is not installed .pynvml."),
        (lambda: FakeNvml(broken=True), "NVML says: Driver Not Loaded"),
        (lambda: FakeNvml("nvmlDeviceGetCount"), "Not Supported"),
    ],
)
def test_a_driver_that_does_not_answer_says_why(load: Callable[[], Any], said: str) -> None:
    with pytest.raises(NoDriverError, match=said):
        Nvml(load=load).gpus()


def test_the_real_library_is_there_whether_it_finds_a_driver_or_not() -> None:
    asked: Driver = nvml.driver()
    assert asked is nvml.driver()
    found = take_inventory(asked, {})
    assert found.gpus or "NVML says" in found.why or "MIG" in found.why or "tells of no GPU" in found.why


def _system(folder: Path, vendor: str = "", *, virtual: bool = True) -> dict[str, Path]:
    proc, sys = folder / "proc", folder / "sys"
    proc.mkdir(parents=True)
    flags = "fpu hypervisor lm" if virtual else "fpu lm"
    (proc / "cpuinfo").write_text(f"model name\t: Intel(R) Xeon\nflags\t\t: {flags}\n")
    (proc / "meminfo").write_text("MemTotal:       134217728 kB\n")
    (sys / "class" / "dmi" / "id").mkdir(parents=True)
    (sys / "class" / "dmi" / "id" / "sys_vendor").write_text(f"{vendor}\n")
    return {"proc": proc, "sys": sys}


SECRETS = {"HF_TOKEN": "hf_secret", "USER": "alice", "NCCL_TOPO_FILE": "/home/alice/topo.xml"}


def test_a_fingerprint_holds_what_numbers_depend_on_and_names_nobody(tmp_path: Path) -> None:
    environ = {"NCCL_NVLS_ENABLE": "0", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **SECRETS}
    environ["NCCL_SOCKET_IFNAME"] = "/home/alice"
    installed = {"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.9", "nvidia-cuda-runtime": "13.0.96"}
    found = fingerprint(
        FakeDriver(told=BOTH), inventory(*BOTH), python="3.12.3", installed=installed, environ=environ,
        **_system(tmp_path, "QEMU KVM"),
    )  # fmt: skip
    assert found["gpus"][0] == {"name": "NVIDIA H200", "memory_mib": 141 * 1024, "capability": "9.0", **FACTS_SEEN}
    assert (found["count"], found["driver"], found["cuda_driver"]) == (2, "580.159.04", "13.0")
    assert found["links"] == [{"between": [0, 1], "ancestor": "system", "p2p": True, "nvlink": True}]
    assert (found["nccl"], found["cuda_runtime"], found["cudnn"]) == ("2.28.9", "13.0.96", None)
    assert found["environment"] == {
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_SOCKET_IFNAME": "set",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    assert (found["hypervisor"], found["memory_gib"], found["cpu"]["model"]) == ("KVM", 128, "Intel(R) Xeon")
    text = json.dumps(found)
    for secret in ("GPU-aaaa", "GPU-bbbb", "alice", "hf_secret", os.uname().nodename):
        assert secret not in text
    assert digest(found) == digest(json.loads(text)) != digest({**found, "driver": "1"})


FACTS_SEEN = {"clock_max_mhz": {"sm": 1980, "memory": 3201}, "power_limit_w": 700.0, "mig": False}


@pytest.mark.parametrize(
    ("vendor", "virtual", "said"),
    [("Dell", False, None), ("Nobody", True, "unknown"), ("VMware, Inc.", True, "VMware")],
)
def test_what_it_runs_under(tmp_path: Path, vendor: str, virtual: bool, said: str | None) -> None:
    where = _system(tmp_path, vendor, virtual=virtual)
    found = fingerprint(FakeDriver(), inventory(H200), python="3", installed={}, environ={}, **where)
    assert (found["hypervisor"], found["links"]) == (said, [])


def test_of_a_machine_that_tells_nothing_nothing_is_said(tmp_path: Path) -> None:
    class Unlinked(FakeDriver):
        def links(self, first: int, second: int) -> Mapping[str, Any]:
            raise NoDriverError("Not Supported")

    where = {"proc": tmp_path / "none", "sys": tmp_path / "none"}
    found = fingerprint(Unlinked(), inventory(*BOTH), python="3", installed={}, environ={}, **where)
    assert (found["cpu"]["model"], found["memory_gib"], found["hypervisor"]) == (None, 0, None)
    assert found["links"][0]["p2p"] is None


def test_a_gpu_that_cannot_be_warmed_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    warming.warm("0")
    monkeypatch.setattr("matrix.gpus.warming.sys.executable", str(tmp_path / "gone"))
    warming.warm("0")
