"""Imports verl's rollout server, as the process does that starts the engine, and says what that took of the GPU.

Prints one JSON line: `context` whether torch has a CUDA context then, `bytes` by how much the GPU's memory in use grew.
"""

from __future__ import annotations

import json

import engine_gpu


def main() -> None:
    """Import and measure; the process that holds the engine's workers is another one."""
    before = engine_gpu.used()
    import torch
    import verl.workers.rollout.vllm_rollout.vllm_async_server  # noqa: F401

    print("READY", flush=True)
    print(json.dumps({"context": torch.cuda.is_initialized(), "bytes": engine_gpu.used() - before}))


if __name__ == "__main__":
    main()
