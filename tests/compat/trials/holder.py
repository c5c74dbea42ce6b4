"""A process that holds GPU memory and nothing else: `python holder.py`, orders as JSON lines, answers likewise.

`{"leave": N}` takes what a card of N bytes would not have (the ballast that makes a large card a small one; what lay on
the device before lies on the small one too);
`{"hold": N}` holds N bytes in all, its own context included (what stands in for a trainer); `{"look": true}` takes
nothing. Each answer says what is held, how much of it is the context, and what is free. Plain `cuMemAlloc` of the
driver: never managed memory, which would be paged out from under a cap.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any, TextIO

PIECE = 2 * 2**20
"""The driver hands out memory in pieces of this size."""


class DriverError(Exception):
    """The driver refused; `code` is CUDA's (2: out of memory)."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: CUDA error {code}" + (": out of memory" if code == 2 else ""))
        self.code = code


class Device:
    """The first visible GPU through the driver's own library; makes a context, which takes memory too."""

    def __init__(self, driver: Any = None, nvml: Any = None) -> None:
        self._driver = driver or ctypes.CDLL("libcuda.so.1")
        self._nvml = nvml or ctypes.CDLL("libnvidia-ml.so.1")
        self._call("cuInit", 0)
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._handle = self._by_bus(device)
        before = self._used()
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self.context = max(0, self._used() - before)
        self._blocks: list[tuple[ctypes.c_uint64, int]] = []

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._driver, name)(*arguments))
        if code:
            raise DriverError(name, code)

    def _by_bus(self, device: ctypes.c_int) -> ctypes.c_void_p:
        """Return NVML's handle of the device; by its bus, because NVML does not know which GPUs are visible here."""
        bus = ctypes.create_string_buffer(32)
        self._call("cuDeviceGetPCIBusId", bus, 32, device)
        handle = ctypes.c_void_p()
        self._nvml.nvmlInit_v2()
        self._nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle))
        return handle

    def _used(self) -> int:
        """Return what is used on the device, as NVML counts it without a context."""
        figures = (ctypes.c_ulonglong * 3)()
        self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(figures))
        return int(figures[2])

    @property
    def held(self) -> int:
        """Return the bytes that this process holds, without its context."""
        return sum(size for _, size in self._blocks)

    def free(self) -> tuple[int, int]:
        """Return free and total bytes of the device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return int(free.value), int(total.value)

    def take(self, size: int) -> None:
        """Hold `size` bytes more, rounded down to the driver's pieces; raises DriverError."""
        size = size // PIECE * PIECE
        if size <= 0:
            return
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        self._blocks.append((pointer, size))

    def drop(self) -> None:
        """Hold nothing but the context."""
        while self._blocks:
            pointer, _ = self._blocks.pop()
            self._call("cuMemFree_v2", pointer)


def has_context(library: Any = None) -> bool:
    """Return whether this process has a context on the first visible GPU already, which takes half a GiB of it.

    Asked of the driver, without making one: an import may have.
    """
    try:
        driver = library or ctypes.CDLL("libcuda.so.1")
        device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        if driver.cuDeviceGet(ctypes.byref(device), 0):
            return False
        driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
    except OSError:
        return False
    return bool(active.value)


def obey(device: Device, order: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to an order; one that the driver refuses is answered with the error, and nothing is held."""
    error = ""
    try:
        if "leave" in order:
            device.drop()
            device.take(device.free()[1] - int(order["leave"]) - device.context)
        elif "hold" in order:
            device.drop()
            device.take(int(order["hold"]) - device.context)
    except DriverError as refused:
        error = str(refused)
    free, total = device.free()
    return {"held": device.held, "context": device.context, "free": free, "total": total, "error": error}


def serve(device: Device, orders: TextIO, answers: TextIO) -> None:
    """Obey until there are no more orders; what is held goes with the process."""
    for line in orders:
        if line.strip():
            answers.write(json.dumps(obey(device, json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    serve(Device(), sys.stdin, sys.stdout)
