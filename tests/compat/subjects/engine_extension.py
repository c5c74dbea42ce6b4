"""verl's worker extension with eyes: what only the worker of the engine knows, and faults that are planted there.

vLLM mixes it into its worker (`worker_extension_cls`); every method is called over the engine's own RPC and returns
plain numbers and words.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

NAME = "engine_extension.SeeingExtension"
_FACTS = (
    "available_kv_cache_memory_bytes",
    "requested_memory",
    "non_torch_memory",
    "peak_activation_memory",
    "cudagraph_memory_estimate",
)


class SeeingExtension(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """The extension that verl gives its engine, and methods that begin with `stage_`."""

    def stage_facts(self) -> dict[str, Any]:
        """Return what the worker found when it measured itself at start, in bytes, and how it is built."""
        found: dict[str, Any] = {}
        for name in _FACTS:
            value = getattr(self, name, None)
            found[name] = int(value) if value is not None else None
        runner = self.model_runner
        found["weights_memory"] = int(getattr(runner, "model_memory_usage", 0))
        found["runner"] = f"{type(runner).__module__}.{type(runner).__name__}"
        found["model"] = type(runner.model).__name__
        found["cascade_attn_enabled"] = bool(getattr(runner, "cascade_attn_enabled", False))
        return found

    def stage_memory(self) -> dict[str, Any]:
        """Return the GPU's free memory, what torch holds, and what the sleeping pool has mapped by tag, in bytes."""
        if not torch.cuda.is_available():
            return {}
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        found: dict[str, Any] = {
            "free": free,
            "total": total,
            "allocated": torch.cuda.memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
        }
        found["expandable_segments"] = sum(bool(one.get("is_expandable")) for one in torch.cuda.memory_snapshot())
        from vllm.device_allocator.cumem import CuMemAllocator

        if CuMemAllocator.instance is not None:
            for data in CuMemAllocator.instance.pointer_to_data.values():
                tag = f"pool_{data.tag}"
                found[tag] = found.get(tag, 0) + int(data.handle[1])
        return found

    def stage_peaks(self) -> dict[str, int]:
        """Return the most that torch held since this was asked last, and what is in use on the whole GPU, in bytes."""
        if not torch.cuda.is_available():
            return {}
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        found = {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "device": total - free,
        }
        torch.cuda.reset_peak_memory_stats()
        return found

    def stage_poison(self, part: str) -> str:
        """Make one number of the first weight whose name holds `part` NaN, and return that name."""
        for name, weight in self.model_runner.model.named_parameters():
            if part in name:
                with torch.no_grad():
                    weight.view(-1)[0] = float("nan")
                return str(name)
        raise LookupError(f"no weight is called like {part}")

    def stage_buffer(self) -> dict[str, Any]:
        """Give the model a buffer of zeros, hand verl's own update a one for it, and return what is in it then."""
        model = self.model_runner.model
        first = next(iter(model.parameters()))
        model.register_buffer("stage_buffer", torch.zeros(1, device=first.device, dtype=first.dtype))
        sent = [("stage_buffer", torch.ones(1, device=first.device, dtype=first.dtype))]
        raised = ""
        try:
            self._update_weights(sent, peft_config=None, base_sync_done=False)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"[:400]
        value = float(model.stage_buffer.item())
        del model.stage_buffer
        return {"value": value, "raised": raised}

    def stage_count_processing(self) -> None:
        """Count from now on how often the weights are processed after loading."""
        import vllm.model_executor.model_loader.utils as loading

        given = loading.process_weights_after_loading
        self.stage_processed = 0

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.stage_processed += 1
            return given(*args, **kwargs)

        loading.process_weights_after_loading = counting

    def stage_counts(self) -> int:
        """Return how often that was since it is counted."""
        return int(getattr(self, "stage_processed", -1))

    def stage_attention(self) -> str:
        """Return the name of the attention backend that the first layer took."""
        for module in self.model_runner.model.modules():
            backend = getattr(module, "attn_backend", None)
            if backend is not None:
                return str(backend.get_name())
        return ""
