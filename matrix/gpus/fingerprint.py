"""The fingerprint: what of a machine and a cell a number measured on a GPU depends on, and nothing that names anyone.

An allow-list: model names, versions, settings. No UUID, serial, host name or user name, and of the environment only the
variables that are listed here, without the paths in them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matrix.gpus.inventory import Inventory
from matrix.gpus.nvml import GIB, MIB, Driver, NoDriverError
from matrix.observe import MACHINE

PROBE = MACHINE
"""The probe under whose name the fingerprint of a visit is kept."""
TOOL = "gpus 1"
PROC, SYS = Path("/proc"), Path("/sys")
VARIABLES = (
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
    "NCCL_ALGO", "NCCL_CUMEM_ENABLE", "NCCL_CUMEM_HOST_ENABLE", "NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_NET",
    "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_PROTO", "NCCL_SHM_DISABLE", "NCCL_SOCKET_IFNAME",
    "NVIDIA_DRIVER_CAPABILITIES", "NVSHMEM_DISABLE_NVLS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "VERL_LOGGING_LEVEL", "VLLM_ALLREDUCE_USE_SYMM_MEM", "VLLM_ATTENTION_BACKEND", "VLLM_USE_V1",
    "VLLM_WORKER_MULTIPROC_METHOD",
)  # fmt: skip
_RUNTIMES = {
    "cuda_runtime": r"nvidia-cuda-runtime(-cu\d+)?",
    "nccl": r"nvidia-nccl(-cu\d+)?",
    "cudnn": r"nvidia-cudnn(-cu\d+)?",
}
_HYPERVISORS = ("KVM", "VMware", "VirtualBox", "Xen", "HVM domU", "Virtual Machine", "Google Compute Engine",
                "Amazon EC2", "BHYVE", "OpenStack")  # fmt: skip


def fingerprint(
    driver: Driver,
    inventory: Inventory,
    *,
    python: str,
    installed: Mapping[str, str],
    environ: Mapping[str, str],
    proc: Path = PROC,
    sys: Path = SYS,
) -> dict[str, Any]:
    """Return the fingerprint as plain JSON data; what a driver, or the system, does not say is None.

    Memory in MiB (GPU) and GiB (host), clocks in MHz, power in W.

    Raises:
        NoDriverError: the driver has stopped answering.
    """
    versions = driver.versions()
    return {
        "schema": 1,
        "gpus": [
            {
                "name": gpu.name,
                "memory_mib": gpu.memory // MIB,
                "capability": gpu.capability_text,
                **driver.facts(gpu.index),
            }
            for gpu in inventory.gpus
        ],
        "count": len(inventory.gpus),
        "driver": versions.get("driver"),
        "cuda_driver": versions.get("cuda"),
        "links": _links(driver, inventory),
        "cpu": {"model": _cpu_model(proc), "cores": len(os.sched_getaffinity(0))},
        "memory_gib": round(_total_bytes(proc) / GIB),
        "kernel": _kernel(),
        "hypervisor": _hypervisor(proc, sys),
        "python": python,
        **{word: _installed(pattern, installed) for word, pattern in _RUNTIMES.items()},
        "environment": {name: _harmless(environ[name]) for name in VARIABLES if environ.get(name)},
        "installed": dict(sorted(installed.items())),
    }


def digest(facts: Mapping[str, Any]) -> str:
    """Return `sha256:` and 16 hex digits of a fingerprint: equal where all of it is."""
    return "sha256:" + hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _links(driver: Driver, inventory: Inventory) -> list[dict[str, Any]]:
    """Return how each two GPUs are connected, by their places in the list of GPUs."""
    found = []
    for (first, one), (second, two) in itertools.combinations(enumerate(inventory.gpus), 2):
        try:
            told = driver.links(one.index, two.index)
        except NoDriverError:
            told = {"ancestor": None, "p2p": None, "nvlink": None}
        found.append({"between": [first, second], **told})
    return found


def _installed(pattern: str, installed: Mapping[str, str]) -> str | None:
    """Return the version of the distribution whose name matches; of several, as a stack with two CUDAs has, all."""
    found = sorted(version for name, version in installed.items() if re.fullmatch(pattern, name))
    return ", ".join(found) or None


def _harmless(value: str) -> str:
    """Return a value that holds no path and no address, "set" for one that may."""
    return value if re.fullmatch(r"[\w.,:=^\-\[\] ]{1,100}", value) else "set"


def _cpu_model(proc: Path) -> str | None:
    match = re.search(r"^model name\s*:\s*(.+)$", _text(proc / "cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else None


def _total_bytes(proc: Path) -> int:
    match = re.search(r"^MemTotal:\s*(\d+) kB", _text(proc / "meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _kernel() -> str:
    """Return the kernel's release up to what somebody may have put behind it."""
    match = re.match(r"[\d.]+(-\d+)?", platform.release())
    return match[0] if match else ""


def _hypervisor(proc: Path, sys: Path) -> str | None:
    """Return which hypervisor this runs under, "unknown" for one without a known name, None for none."""
    if not re.search(r"^flags\s*:.*\bhypervisor\b", _text(proc / "cpuinfo"), re.MULTILINE):
        return None
    told = " ".join(_text(sys / "class" / "dmi" / "id" / name) for name in ("sys_vendor", "product_name"))
    return next((name for name in _HYPERVISORS if name.lower() in told.lower()), "unknown")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
