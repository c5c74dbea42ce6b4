"""Makes vLLM's sleep-mode allocator; nothing of it touches a GPU before memory is asked for.

Its compiled half needs the library of a GPU's driver. Where there is none it is made to look absent, as on a platform
for which vLLM does not build it: the class that looks at the settings is the same.
"""

import importlib
import sys

try:
    importlib.import_module("vllm.cumem_allocator")
except ModuleNotFoundError:
    pass
except ImportError as error:
    if "libcuda.so" not in str(error):
        raise
    sys.modules["vllm.cumem_allocator"] = None  # type: ignore[assignment]

from vllm.device_allocator.cumem import CuMemAllocator

print("READY", flush=True)
CuMemAllocator()
