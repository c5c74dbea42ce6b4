"""The CPU as a platform of verl: what `verl.plugin.platform` asks of one, answered for the processor of this machine.

Registered under the name `cpu`; verl takes it where `VERL_PLATFORM=cpu`. Memory, where verl asks a device for it, is
that of the process (resident) and of the machine. Ray counts it as one GPU, because verl places its workers so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def machine_memory() -> tuple[int, int]:
    """Return the machine's available and total memory, in bytes, as `torch.cuda.mem_get_info` does for a GPU."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return sizes["MemAvailable"], sizes["MemTotal"]


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: a CPU has no such cache, fraction or handle."""


def device_module() -> ModuleType:
    """Return `torch.cpu` with the names that verl takes from a device's module and a CPU lacks."""
    module = ModuleType("verl_matrix_cpu_device")
    module.__dict__.update({name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("_")})
    for name in ("empty_cache", "ipc_collect", "set_per_process_memory_fraction", "reset_peak_memory_stats"):
        setattr(module, name, _nothing)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, lambda *_: resident())
    module.__dict__["mem_get_info"] = lambda *_: machine_memory()
    module.__dict__["get_device_name"] = lambda *_: "cpu"
    module.__dict__["manual_seed"] = torch.manual_seed
    module.__dict__["manual_seed_all"] = torch.manual_seed
    module.__dict__["get_rng_state"] = lambda *_: torch.get_rng_state()
    module.__dict__["set_rng_state"] = lambda state, *_: torch.set_rng_state(state)
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]
    """The processor as verl's device: gloo between processes, weights by shared memory, one "GPU" for Ray."""

    def __init__(self) -> None:
        self._module = device_module()

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return self._module

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        # verl moves tensors by `.to(get_device_id())`, where a number would mean an accelerator.
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one; nothing to choose."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing is in flight."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """There is no such allocator."""

    def empty_cache(self) -> None:
        """There is no such cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """There is no such profiler."""

    def profiler_stop(self) -> None:
        """There is no such profiler."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None
