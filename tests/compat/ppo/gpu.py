"""The GPU as the driver sees it: which one a variable names, and how much of its memory is used, through NVML.

By `ctypes` and nothing else: a cell need not have a binding, and the process that watches must not hold a context.
"""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
_LIBRARY = "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    """The second version of the answer: in the first, `used` counts what the driver keeps for itself."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


_MEMORY_VERSION = ctypes.sizeof(_Memory) | 2 << 24


@dataclass(frozen=True)
class Device:
    """One GPU: the driver's index of it, its UUID, its model."""

    index: int
    uuid: str
    name: str


class Driver:
    """NVML, opened; raises OSError where there is no driver or it will not start."""

    def __init__(self, library: Any = None) -> None:
        self._library = library if library is not None else ctypes.CDLL(_LIBRARY)
        self._check(self._library.nvmlInit_v2(), "start")

    @staticmethod
    def _check(code: int, what: str) -> None:
        if code != 0:
            raise OSError(code, f"NVML would not {what} (code {code})")

    def _handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._check(self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)), "find it")
        return handle

    def devices(self) -> list[Device]:
        """Return the GPUs of this machine, by the driver's index."""
        count = ctypes.c_uint()
        self._check(self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)), "count the GPUs")
        found = []
        for index in range(count.value):
            handle = self._handle(index)
            uuid, name = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
            self._check(self._library.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(96)), "name a GPU")
            self._check(self._library.nvmlDeviceGetName(handle, name, ctypes.c_uint(96)), "name a GPU")
            found.append(Device(index, uuid.value.decode(), name.value.decode()))
        return found

    def used(self, index: int) -> int:
        """Return the memory of a GPU that is used by anyone, in bytes, without what the driver reserves."""
        memory = _Memory(version=_MEMORY_VERSION)
        code = self._library.nvmlDeviceGetMemoryInfo_v2(self._handle(index), ctypes.byref(memory))
        self._check(code, "read its memory")
        return int(memory.used)


def visible(devices: list[Device], named: str | None) -> list[Device]:
    """Return the GPUs that a value of `CUDA_VISIBLE_DEVICES` names, all where it is not set; ends at one unknown.

    A word is an index or (the beginning of) a UUID, as CUDA reads it.
    """
    if named is None:
        return list(devices)
    found: list[Device] = []
    for word in (part.strip() for part in named.split(",")):
        match = next(
            (one for one in devices if word == str(one.index) or (len(word) > 4 and one.uuid.startswith(word))), None
        )
        if match is None or match in found:
            break
        found.append(match)
    return found


class GpuMeter(threading.Thread):
    """Watches the used memory of GPUs (their sum), in bytes: `before`, `peak`, and samples of (seconds, bytes)."""

    def __init__(self, driver: Driver, devices: list[Device], every: float = 0.25) -> None:
        super().__init__(daemon=True)
        self._driver, self._devices, self._every = driver, devices, every
        self._stop_asked = threading.Event()
        self._start = time.monotonic()
        self.before = self.peak = self.now()
        self.samples: list[tuple[float, int]] = [(0.0, self.before)]

    def now(self) -> int:
        """Return what is used at this moment."""
        return sum(self._driver.used(one.index) for one in self._devices)

    def run(self) -> None:
        while not self._stop_asked.wait(self._every):
            used = self.now()
            self.peak = max(self.peak, used)
            seconds = round(time.monotonic() - self._start, 2)
            # A second apart is enough to draw; in between only the peak counts.
            if seconds - self.samples[-1][0] >= 1.0:
                self.samples.append((seconds, used))

    def stop(self) -> None:
        """Stop watching; what was seen stays."""
        self._stop_asked.set()
        if self.is_alive():
            self.join()

    def returned(self, slack: int = 16 << 20, patience: float = 15.0) -> int:
        """Return how much more is used than before once that is at most `slack` bytes, or `patience` has run out."""
        deadline = time.monotonic() + patience
        while (more := self.now() - self.before) > slack and time.monotonic() < deadline:
            time.sleep(0.2)
        return max(0, more)
