"""Warming: the first use of a GPU, after which the driver keeps what it keeps, so that nothing of it is a probe's."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from matrix.gpus.inventory import VISIBLE

TIMEOUT_S = 60.0
_CODE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for number in range(count.value):
    device, context, held = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuDeviceGet(ctypes.byref(device), number) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(held), ctypes.c_size_t(64 << 20)) == 0
    assert cuda.cuMemFree_v2(held) == 0
    assert cuda.cuDevicePrimaryCtxRelease_v2(device) == 0
"""


def warm(visible: str) -> None:
    """Make a context on each of the GPUs that `visible` names, in a process that ends; a fault of it is passed over.

    Where a GPU cannot be used at all the first probe says so, and better.
    """
    # Where the driver's library lies elsewhere (containers on some clouds), only this variable leads to it.
    found = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    env = {**found, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE: visible, "PATH": "/usr/bin:/bin"}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-I", "-c", _CODE],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            start_new_session=True,
            check=False,
        )
