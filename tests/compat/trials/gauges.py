"""The gauges: what a trial's process holds on its device, and the cap that it must stay below.

On a GPU the cap is the caching allocator's own (`set_per_process_memory_fraction`), set so that the allocator together
with everything else on the device (this process's context and libraries, whoever else is there) stays below the card
that is asked about. A CPU has no such allocator: there the bytes of all living tensors are counted as they are made,
and the same error is raised, which shows that the way of a trial holds, and nothing of any card.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves


class CudaGauge:
    """The memory of this process on the current GPU; one process, one GPU."""

    def __init__(self, cap: int | None, beside: int) -> None:
        """Take the cap in bytes (None: the card as it is), `beside` of which belong to somebody else."""
        self.cap = cap
        self.beside = beside
        self.total = torch.cuda.get_device_properties(0).total_memory
        if cap is not None and cap > 1.02 * self.total:
            raise ValueError(f"the card has {self.total} bytes, less than the {cap} that are asked about")
        self._limit = 0
        torch.cuda.init()
        torch.empty(1, device="cuda")

    def __enter__(self) -> CudaGauge:
        return self

    def __exit__(self, *_: object) -> None:
        """The allocator keeps its cap."""

    @property
    def overhead(self) -> int:
        """Return what is taken on the device outside of this process's allocator, in bytes."""
        free, total = torch.cuda.mem_get_info()
        return int(max(0, total - free - torch.cuda.memory_reserved()))

    def enforce(self) -> dict[str, int]:
        """Set the cap anew, against what is taken outside of the allocator by now; return the figures."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        overhead = self.overhead
        whole = self.total if self.cap is None else self.cap
        self._limit = whole - overhead - self.beside
        if self.cap is not None or self.beside:
            if self._limit <= 0:
                raise torch.OutOfMemoryError(f"CUDA out of memory: {overhead} bytes outside of the allocator alone")
            torch.cuda.set_per_process_memory_fraction(min(1.0, self._limit / self.total))
        return {"overhead": overhead, "allocator_limit": self._limit, "device_total": self.total}

    def reset(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> dict[str, int]:
        stats = torch.cuda.memory_stats()
        return {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "held": torch.cuda.memory_allocated(),
            "retries": int(stats.get("num_alloc_retries", 0)),
            "overhead": self.overhead,
        }


class CpuGauge(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes of all living tensors that were made while it is on, and refuses more than the cap."""

    def __init__(self, cap: int | None, beside: int) -> None:
        super().__init__()
        self.cap = cap
        self.beside = beside
        self.total = cap or 0
        self._seen: dict[int, int] = {}
        self._now = self._peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        if self.cap is not None and self._now > self.cap - self.beside:
            raise torch.OutOfMemoryError(f"CUDA out of memory (simulated): {self._now} of {self.cap} bytes")
        return out

    def _count(self, tensor: torch.Tensor) -> None:
        if is_traceable_wrapper_subclass(tensor):
            names, _ = tensor.__tensor_flatten__()
            for name in names:
                self._count(getattr(tensor, name))
            return
        if tensor.device.type != "cpu":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._seen:
            self._seen[key] = storage.nbytes()
            self._now += storage.nbytes()
            self._peak = max(self._peak, self._now)
            weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self._now -= self._seen.pop(key, 0)

    def enforce(self) -> dict[str, int]:
        return {"overhead": 0, "allocator_limit": (self.cap or 0) - self.beside, "device_total": self.total}

    def reset(self) -> None:
        self._peak = self._now

    def peaks(self) -> dict[str, int]:
        return {"allocated": self._peak, "held": self._now}
