"""The CUDA driver through ctypes: a child that holds memory of a GPU within a second, and then does what it is told.

`python driver_child.py WORD...`: `hold=MIB` (as cuMemAlloc has it; `vmm=`, `managed=`, `pinned=` for other kinds),
then any of `spin` (a kernel that never ends), `stray` (an illegal address), `trap` (what a device-side assertion does),
`fill` (until the card is full), `export=FILE` and `import=FILE` (CUDA IPC), `daemon` and `lost` (the same words again
in a grandchild of its own session; `lost` empties its environment and leaves its parent), and last `segfault`, `abort`,
`exit=CODE` or `wait`. Says `holding` once it holds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MIB = 2**20
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 flag) {
  .reg .u64 %rd<2>;
  .reg .u32 %r<2>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [flag];
AGAIN:
  ld.volatile.global.u32 %r1, [%rd1];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra AGAIN;
  ret;
}
.visible .entry stray(.param .u64 flag) {
  .reg .u64 %rd<2>;
  .reg .u32 %r<2>;
  mov.u64 %rd1, 16;
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
.visible .entry trapped(.param .u64 flag) {
  trap;
  ret;
}
"""
EXPECTED = {"stray": (700, 719), "trap": (710, 715, 719)}
"""CUDA_ERROR_ILLEGAL_ADDRESS, _LAUNCH_FAILED; _ASSERT, _ILLEGAL_INSTRUCTION, _LAUNCH_FAILED: cuda.h."""


class Location(ctypes.Structure):
    """`CUmemLocation`: where memory is; type 1 is a device."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Allocation(ctypes.Structure):
    """`CUmemAllocationProp`: what kind of memory; type 1 is pinned to its device."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    """`CUmemAccessDesc`: who may use it; flags 3 is reading and writing."""

    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Handle(ctypes.Structure):
    """`CUipcMemHandle`: 64 bytes that name an allocation to another process."""

    _fields_ = [("reserved", ctypes.c_char * 64)]


class Cuda:
    """The driver, with a context on the one GPU that is visible; every call that fails raises OSError with its code."""

    def __init__(self) -> None:
        """Make the context."""
        self._lib = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *words: object) -> None:
        """Call a function of the driver."""
        code = int(getattr(self._lib, name)(*words))
        if code:
            raise OSError(code, f"{name} returned {code}")

    def hold(self, size: int) -> int:
        """Return the address of so many bytes, all of which are there (they are written)."""
        found = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(found), ctypes.c_size_t(size))
        self("cuMemsetD8_v2", found, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        self("cuCtxSynchronize")
        return found.value

    def managed(self, size: int) -> None:
        """Hold managed memory that lies on the GPU."""
        found = ctypes.c_uint64()
        self("cuMemAllocManaged", ctypes.byref(found), ctypes.c_size_t(size), ctypes.c_uint(1))
        self("cuMemsetD8_v2", found, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        self("cuCtxSynchronize")

    def pinned(self, size: int) -> None:
        """Hold memory of the host that is pinned for the GPU."""
        found = ctypes.c_void_p()
        self("cuMemHostAlloc", ctypes.byref(found), ctypes.c_size_t(size), ctypes.c_uint(0))

    def vmm(self, size: int) -> None:
        """Hold memory as expandable segments and vLLM's sleep mode do: physical pages, mapped by hand."""
        prop = Allocation(type=1, location=Location(type=1, id=0))
        step, handle, address = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_uint64()
        self("cuMemGetAllocationGranularity", ctypes.byref(step), ctypes.byref(prop), 0)
        whole = ctypes.c_size_t(-(-size // max(step.value, 1)) * max(step.value, 1))
        self("cuMemCreate", ctypes.byref(handle), whole, ctypes.byref(prop), ctypes.c_uint64(0))
        nowhere = ctypes.c_uint64(0)
        self("cuMemAddressReserve", ctypes.byref(address), whole, ctypes.c_size_t(0), nowhere, ctypes.c_uint64(0))
        self("cuMemMap", address, whole, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        access = Access(location=Location(type=1, id=0), flags=3)
        self("cuMemSetAccess", address, whole, ctypes.byref(access), ctypes.c_size_t(1))

    def fill(self) -> None:
        """Take all there is, in ever smaller pieces; raises OSError (2, out of memory) when the card is full."""
        size = 8192 * MIB
        while True:
            try:
                self.hold(size)
            except OSError as error:
                if error.errno != 2 or size <= 2 * MIB:
                    raise
                size //= 2

    def launch(self, kernel: str, flag: int) -> None:
        """Start a kernel of `PTX`; it reads `flag`."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
        self("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(kernel.encode()))
        value = ctypes.c_uint64(flag)
        words = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(value), ctypes.c_void_p))
        self("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, ctypes.c_void_p(), words, ctypes.c_void_p())

    def export(self, address: int, path: Path) -> None:
        """Write a handle by which another process may open the memory."""
        handle = Handle()
        self("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        path.with_suffix(".part").write_bytes(bytes(handle))
        path.with_suffix(".part").rename(path)

    def opened(self, path: Path) -> None:
        """Open the memory of another process, once it has written its handle."""
        deadline = time.monotonic() + 20
        while not path.is_file() and time.monotonic() < deadline:
            time.sleep(0.02)
        handle, found = Handle.from_buffer_copy(path.read_bytes()), ctypes.c_uint64()
        self("cuIpcOpenMemHandle_v2", ctypes.byref(found), handle, ctypes.c_uint(1))


def main(words: list[str]) -> None:
    """Do what the words say, one after the other."""
    for word in ("daemon", "lost"):
        if word in words:
            _grandchild([item for item in words if item != word], lost=word == "lost")
            return
    cuda, address = Cuda(), 0
    for word, _, value in (item.partition("=") for item in words):
        if word == "hold":
            address = cuda.hold(int(value) * MIB)
        elif word in ("vmm", "managed", "pinned"):
            getattr(cuda, word)(int(value) * MIB)
        elif word == "export":
            cuda.export(address, Path(value))
        elif word == "import":
            cuda.opened(Path(value))
        elif word == "spin":
            cuda.launch("spin", address)
        elif word in EXPECTED:
            _faulting(cuda, word, address)
        elif word == "fill":
            _say("holding")
            time.sleep(0.3)
            cuda.fill()
        else:
            _end(cuda, word, value, words)


def _faulting(cuda: Cuda, word: str, address: int) -> None:
    """Run a kernel that faults; any other end than that is an error of its own."""
    cuda.launch({"stray": "stray", "trap": "trapped"}[word], address)
    try:
        cuda("cuCtxSynchronize")
    except OSError as error:
        if error.errno not in EXPECTED[word]:
            raise
        _say(f"faulted with {error.errno}")
        return
    raise SystemExit(f"{word} did not fault")


def _end(cuda: Cuda, word: str, value: str, words: list[str]) -> None:
    _say("holding")
    time.sleep(0.3)
    if word == "segfault":
        ctypes.string_at(0)
    elif word == "abort":
        os.abort()
    elif word == "exit":
        os._exit(int(value))
    elif word == "wait":
        if "spin" in words:
            cuda("cuCtxSynchronize")
        time.sleep(600)
    raise SystemExit(f"no such word: {word}")


def _grandchild(words: list[str], *, lost: bool) -> None:
    """Start the same program in a session of its own; one that is lost has no environment and soon no parent."""
    shown = {
        name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "PATH") if name in os.environ
    }
    child = subprocess.Popen(
        [sys.executable, __file__, *words],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=shown if lost else None,
    )
    _say(f"grandchild {child.pid}")
    if lost:
        time.sleep(3)
        os._exit(0)
    signal.pause()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
