"""The stage of two shards: one engine over two GPUs, data parallel, that sleeps and wakes in parts.

    engine_pair.py WORK [--device cuda|cpu]

The model is a small mixture of experts with dummy weights: vLLM runs the shards of others as engines that know nothing
of each other. Each section asks vLLM's AsyncLLM as verl's server does.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")

from kit.sections import section

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 1024,
    "hidden_size": 512,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def used() -> list[int]:
    """Return the bytes in use on each of the GPUs that this process may use."""
    import engine_gpu

    nvml = engine_gpu.pynvml()
    nvml.nvmlInit()
    found = []
    for name in os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(","):
        handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.strip().isdigit() else None
        handle = handle or nvml.nvmlDeviceGetHandleByUUID(name.strip())
        found.append(int(nvml.nvmlDeviceGetMemoryInfo(handle).used))
    return found


async def said(engine: Any, count: int) -> int:
    """Return how many tokens the engine answers to so many prompts, asked at once."""
    from vllm import SamplingParams

    async def one(number: int) -> int:
        sampling = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True, detokenize=False)
        prompt = {"prompt_token_ids": [number + 2] * 32}
        last: Any = None
        async for answer in engine.generate(prompt, sampling, f"{number}-{time.monotonic()}"):
            last = answer
        return len(last.outputs[0].token_ids)

    return sum(await asyncio.wait_for(asyncio.gather(*(one(number) for number in range(count))), 60))


def way_of_verl() -> str:
    """Return how the installed verl puts an engine to sleep: `collective_rpc` or `engine`."""
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    text = "".join(inspect.getsource(getattr(vLLMHttpServer, name)) for name in ("sleep", "_sleep_hybrid")
                   if hasattr(vLLMHttpServer, name))  # fmt: skip
    return "collective_rpc" if 'collective_rpc("sleep"' in text else "engine"


async def run(folder: Path, cuda: bool) -> None:
    """Start the engine and put it through its sections."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    with section("pair_start", stop=True) as out:
        out["way_of_verl"] = way_of_verl()
        out["before"] = used() if cuda else []
        more: dict[str, Any] = {"gpu_memory_utilization": 0.2, "enable_sleep_mode": True} if cuda else {
            "kv_cache_memory_bytes": 64 << 20
        }  # fmt: skip
        arguments = AsyncEngineArgs(
            model=str(folder), load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=1024,
            max_num_seqs=16, data_parallel_size=2, distributed_executor_backend="mp", **more,
        )  # fmt: skip
        begun = time.monotonic()
        engine = AsyncLLM.from_engine_args(arguments)
        out["tokens"] = await said(engine, 8)
        out["seconds"] = round(time.monotonic() - begun, 2)
        out["awake"] = used() if cuda else []
    if cuda:
        with section("pair_sleep") as out:
            out["awake"] = used()
            await engine.collective_rpc("sleep", kwargs={"level": 1})
            out["asleep_by_collective_rpc"] = used()
            await engine.collective_rpc("wake_up")
            out["awake_again"] = used()
            await engine.sleep(level=1)
            out["asleep_by_engine"] = used()
        with section("pair_wake") as out:
            await engine.wake_up(tags=["weights"])
            await asyncio.sleep(6)
            await asyncio.wait_for(engine.wake_up(tags=["kv_cache"]), 30)
            out["tokens"] = await said(engine, 8)
    engine.shutdown()


def main() -> None:
    """Write the model's configuration and run."""
    made = argparse.ArgumentParser()
    made.add_argument("work", type=Path)
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    asked = made.parse_args()
    folder = asked.work / "pair"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    try:
        asyncio.run(run(folder, asked.device == "cuda"))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
