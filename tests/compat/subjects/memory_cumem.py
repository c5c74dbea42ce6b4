"""Makes vLLM's sleep-mode allocator; nothing of it touches a GPU before memory is asked for."""

from vllm.device_allocator.cumem import CuMemAllocator

print("READY", flush=True)
CuMemAllocator()
