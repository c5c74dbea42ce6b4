"""What the driver tells of GPUs: the questions as a protocol, and their answers through NVML (nvidia-ml-py).

NVML is loaded when it is asked first, and stays open from then on: where nobody holds it open the driver may unload a
GPU's state, and what it holds for itself would come and go between two looks.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

MIB = 2**20
GIB = 2**30
T = TypeVar("T")


class NoDriverError(Exception):
    """NVML is not there or refuses; the text says which. Never leaves `matrix.gpus`, which tells it as a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the driver tells of one GPU that does not change while it is in use: `memory` in bytes.

    `sliced` says that MIG is on, so that no process sees the whole of it.
    """

    index: int
    uuid: str
    name: str
    memory: int
    capability: tuple[int, int]
    sliced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that holds memory of a GPU, as the driver names it; in a container the id may be that of the host."""

    pid: int
    used: int


class Driver(Protocol):
    """What is asked of a driver; `Nvml` is the real one. All raise NoDriverError where it does not answer."""

    def gpus(self) -> list[Told]:
        """Return the GPUs in the driver's order."""

    def used(self, index: int) -> int:
        """Return the bytes of the GPU that are in use now, without what the driver keeps back for itself."""

    def holders(self, index: int) -> list[Holder]:
        """Return the processes that the driver names as holding memory; may be empty though memory is held."""

    def facts(self, index: int) -> Mapping[str, Any]:
        """Return what else there is to know of a GPU, plain JSON data; None where the driver does not say."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the driver (`driver`) and of the newest CUDA that it can run (`cuda`)."""

    def links(self, first: int, second: int) -> Mapping[str, Any]:
        """Return how two GPUs are connected, plain JSON data; None where the driver does not say."""


@dataclass(slots=True)
class Nvml:
    """The driver through NVML; thread-safe. `load` gives the module `pynvml`, and is there to be replaced in tests."""

    load: Callable[[], Any] = field(default_factory=lambda: _pynvml)
    _module: Any = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def gpus(self) -> list[Told]:
        """Return the GPUs in the driver's order, which is that of the PCI bus."""
        return self._asked(lambda nv: [_told(nv, index) for index in range(nv.nvmlDeviceGetCount())])

    def used(self, index: int) -> int:
        """Return the bytes in use; of a driver without the second form of this question with what it keeps back."""

        def ask(nv: Any) -> int:
            handle = nv.nvmlDeviceGetHandleByIndex(index)
            try:
                return int(nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2).used)
            except nv.NVMLError:
                # A driver older than that form of the question (510) has not the function, or takes it for malformed.
                return int(nv.nvmlDeviceGetMemoryInfo(handle).used)

        return self._asked(ask)

    def holders(self, index: int) -> list[Holder]:
        """Return the processes that compute on the GPU or draw with it."""

        def ask(nv: Any) -> list[Holder]:
            handle = nv.nvmlDeviceGetHandleByIndex(index)
            found: dict[int, int] = {}
            for question in (nv.nvmlDeviceGetComputeRunningProcesses, nv.nvmlDeviceGetGraphicsRunningProcesses):
                for item in _maybe(nv, question, handle) or ():
                    found[int(item.pid)] = max(found.get(int(item.pid), 0), int(item.usedGpuMemory or 0))
            return [Holder(pid=pid, used=used) for pid, used in sorted(found.items())]

        return self._asked(ask)

    def facts(self, index: int) -> Mapping[str, Any]:
        """Return clocks (MHz), power limit (W), modes and the PCIe link; a setting the GPU does not have is None."""
        return self._asked(lambda nv: _facts(nv, nv.nvmlDeviceGetHandleByIndex(index)))

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the driver and of its CUDA, e.g. `13.0`."""

        def ask(nv: Any) -> dict[str, str]:
            number = int(nv.nvmlSystemGetCudaDriverVersion_v2())
            return {
                "driver": _text(nv.nvmlSystemGetDriverVersion()),
                "cuda": f"{number // 1000}.{number % 1000 // 10}",
            }

        return self._asked(ask)

    def links(self, first: int, second: int) -> Mapping[str, Any]:
        """Return the common ancestor on the bus, whether each can read the other, and whether that is by NVLink."""

        def ask(nv: Any) -> dict[str, Any]:
            one, two = nv.nvmlDeviceGetHandleByIndex(first), nv.nvmlDeviceGetHandleByIndex(second)
            level = _maybe(nv, nv.nvmlDeviceGetTopologyCommonAncestor, one, two)
            able = {
                word: _maybe(nv, nv.nvmlDeviceGetP2PStatus, one, two, getattr(nv, f"NVML_P2P_CAPS_INDEX_{word}"))
                for word in ("READ", "NVLINK")
            }
            return {
                "ancestor": _ANCESTORS.get(level, None if level is None else str(level)),
                "p2p": None if able["READ"] is None else able["READ"] == nv.NVML_P2P_STATUS_OK,
                "nvlink": None if able["NVLINK"] is None else able["NVLINK"] == nv.NVML_P2P_STATUS_OK,
            }

        return self._asked(ask)

    def _asked(self, ask: Callable[[Any], T]) -> T:
        """Return the answer; one call at a time, since the first must have opened the library."""
        with self._lock:
            nv = self._opened()
            try:
                return ask(nv)
            except nv.NVMLError as error:
                raise NoDriverError(str(error)) from error

    def _opened(self) -> Any:
        if self._module is None:
            try:
                module = self.load()
            except ImportError as error:
                raise NoDriverError(f"nvidia-ml-py is not installed ({error.name or error})") from error
            try:
                module.nvmlInit()
            except module.NVMLError as error:
                raise NoDriverError(f"NVML says: {error}") from error
            self._module = module
        return self._module


def _pynvml() -> Any:
    import pynvml  # type: ignore[import-untyped]

    return pynvml


@functools.cache
def driver() -> Driver:
    """Return the driver of this machine, one for the whole process."""
    return Nvml()


_ANCESTORS = {0: "internal", 10: "single switch", 20: "several switches", 30: "host bridge", 40: "node", 50: "system"}
"""`nvmlGpuTopologyLevel_t`, nvml.h."""
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
"""`nvmlComputeMode_t`, nvml.h."""


def _told(nv: Any, index: int) -> Told:
    handle = nv.nvmlDeviceGetHandleByIndex(index)
    mig = _maybe(nv, nv.nvmlDeviceGetMigMode, handle)
    return Told(
        index=index,
        uuid=_text(nv.nvmlDeviceGetUUID(handle)),
        name=_text(nv.nvmlDeviceGetName(handle)),
        memory=int(nv.nvmlDeviceGetMemoryInfo(handle).total),
        capability=_pair(nv.nvmlDeviceGetCudaComputeCapability(handle)),
        sliced=bool(mig and mig[0]),
    )


def _facts(nv: Any, handle: Any) -> dict[str, Any]:
    """Return the settings of a GPU that numbers depend on; temperature and present clocks are no settings."""
    clocks = {"sm": nv.NVML_CLOCK_SM, "memory": nv.NVML_CLOCK_MEM}
    power = _maybe(nv, nv.nvmlDeviceGetEnforcedPowerLimit, handle)
    ecc, mig = _maybe(nv, nv.nvmlDeviceGetEccMode, handle), _maybe(nv, nv.nvmlDeviceGetMigMode, handle)
    persistence = _maybe(nv, nv.nvmlDeviceGetPersistenceMode, handle)
    mode = _maybe(nv, nv.nvmlDeviceGetComputeMode, handle)
    return {
        "clock_max_mhz": {
            name: _maybe(nv, nv.nvmlDeviceGetMaxClockInfo, handle, kind) for name, kind in clocks.items()
        },
        "clock_application_mhz": {
            name: _maybe(nv, nv.nvmlDeviceGetApplicationsClock, handle, kind) for name, kind in clocks.items()
        },
        "power_limit_w": None if power is None else power / 1000,
        "persistence": None if persistence is None else bool(persistence),
        "ecc": None if ecc is None else bool(ecc[0]),
        "mig": None if mig is None else bool(mig[0]),
        "compute_mode": _COMPUTE_MODES.get(mode, None if mode is None else str(mode)),
        "pcie_generation": _maybe(nv, nv.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "pcie_width": _maybe(nv, nv.nvmlDeviceGetMaxPcieLinkWidth, handle),
        "nvlinks": _nvlinks(nv, handle),
    }


def _nvlinks(nv: Any, handle: Any) -> int:
    """Return how many NVLinks of a GPU are up, to whatever they lead."""
    return sum(_maybe(nv, nv.nvmlDeviceGetNvLinkState, handle, link) == 1 for link in range(nv.NVML_NVLINK_MAX_LINKS))


def _maybe(nv: Any, question: Callable[..., Any], *words: Any) -> Any:
    """Return the answer, None where this GPU or this driver has none: not every model has every setting."""
    with contextlib.suppress(nv.NVMLError):
        return question(*words)
    return None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _pair(value: Any) -> tuple[int, int]:
    major, minor = value
    return int(major), int(minor)
