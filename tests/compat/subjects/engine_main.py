"""The main scene: verl's rollout from its start on dummy weights to the death of its engine, section by section."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import signal
import time
from typing import Any

import engine_gpu
import engine_server
import torch
from engine_gap import Answer, Trainer
from engine_server import Rollout
from kit.sections import section

SETTINGS: dict[str, Any] = {
    "prompt_length": 3072,
    "response_length": 512,
    "max_model_len": 4096,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "gpu_memory_utilization": 0.3,
    "enforce_eager": True,
    "free_cache_engine": True,
    "calculate_log_probs": True,
    "dtype": "bfloat16",
}
ON_CPU: dict[str, Any] = {
    "max_num_seqs": 16,
    "dtype": "float32",
    "free_cache_engine": False,
    "enable_sleep_mode": False,
    "engine_kwargs": {"kv_cache_memory_bytes": 256 << 20},
}
MOVE = 0.3
"""How far the weights move, in their own spread: enough that an answer of the old ones is told from one of the new."""


def prompts_of(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Return prompts of random tokens, none of them special."""
    draw = random.Random(seed)
    return [[draw.randrange(vocabulary - 64) for _ in range(length)] for _ in range(count)]


class Scene:
    """The rollout and the trainer of the scene, and the numbers of the machine it runs on."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.cuda = asked.device == "cuda"
        # Sizes that a GPU and a CPU can both get through in a second.
        self.many, self.long = (64, 128) if self.cuda else (4, 8)
        self.folder = asked.work / "model"
        if os.environ.get("VERL_MATRIX_MODEL"):
            self.folder = os.environ["VERL_MATRIX_MODEL"]
        self.rollout: Any = None
        self.trainer: Any = None
        self.seen: list[Answer] = []

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return verl's settings here."""
        return {**SETTINGS, **({} if self.cuda else ON_CPU), **more}

    def memory(self) -> dict[str, Any]:
        """Return the memory of the GPU as the engine's worker sees it, in bytes."""
        found: dict[str, Any] = self.rollout.ask("stage_memory")
        return found

    def prompts(self, count: int, length: int, seed: int = 0) -> list[list[int]]:
        """Return prompts that the model's tokenizer could have made."""
        return prompts_of(count, length, self.rollout.vocabulary, seed)

    def sampled(self, prompts: list[list[int]], length: int, temperature: float = 1.0) -> list[Answer]:
        """Return answers as a training step draws them."""
        found: list[Answer] = self.rollout.generate(
            prompts, temperature=temperature, top_p=1.0, top_k=-1, logprobs=True, max_tokens=length, ignore_eos=True
        )
        return found

    def greedy(self) -> list[Answer]:
        """Return the answers without chance to eight prompts that stay the same."""
        found: list[Answer] = self.rollout.generate(
            self.prompts(8, 96, seed=5), temperature=0.0, logprobs=True, max_tokens=32, ignore_eos=True
        )
        return found

    def gap(self, answers: list[Answer], temperature: float = 1.0) -> dict[str, float]:
        """Return how far engine and trainer are apart."""
        found: dict[str, float] = self.trainer.gap(answers, temperature)
        return found


def agree(first: list[Answer], second: list[Answer]) -> float:
    """Return the share of tokens that are the same, those after an answer's first difference not counted.

    After a tie that went the other way two answers have nothing in common, and nothing follows from it.
    """
    same = apart = 0
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one.tokens, other.tokens, strict=True):
            if a != b:
                apart += 1
                break
            same += 1
    return round(same / (same + apart), 4)


def start(scene: Scene) -> None:
    """Start the engine as verl does, on dummy weights."""
    with section("start", stop=True) as out:
        scene.rollout = Rollout(scene.folder, bucket_mib=300 if scene.cuda else 600, **scene.settings())
        out["seconds"] = scene.rollout.start()
        out["load_format"] = scene.rollout.config.load_format
        out["logprobs_mode"] = scene.rollout.config.logprobs_mode
        out["left_out"] = scene.rollout.left_out
        out["kv_tokens"] = scene.rollout.kv_tokens()
        out["releases"] = engine_server.releases()
        out["facts"] = scene.rollout.ask("stage_facts")
        out["attention"] = scene.rollout.ask("stage_attention")
        out["memory"] = scene.memory()


def sync(scene: Scene) -> None:
    """Send the trainer's weights in several buckets."""
    with section("sync", stop=True) as out:
        scene.rollout.ask("stage_count_processing")
        dtype = "bfloat16" if scene.cuda else "float32"
        scene.trainer = Trainer(scene.folder, "cuda" if scene.cuda else "cpu", dtype, scene.rollout.vocabulary)
        before = scene.sampled(scene.prompts(4, 64), 8)
        out["gap_of_dummy_weights"] = scene.gap(before)
        weights = scene.trainer.weights()
        out["seconds"] = scene.rollout.sync(weights.items())
        out["bytes"] = sum(weight.nbytes for weight in weights.values())
        out["bucket_bytes"] = scene.rollout.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        out["processed"] = scene.rollout.ask("stage_counts")
        out["gap"] = scene.gap(scene.sampled(scene.prompts(4, 64), 8))
        out["attention_of_trainer"] = scene.trainer.attention


def answers(scene: Scene) -> None:
    """Measure what a training step needs of a rollout."""
    with section("throughput") as out:
        prompts = scene.prompts(scene.many, 256)
        scene.sampled(prompts[:4], 4)
        begun = time.monotonic()
        found = scene.sampled(prompts, scene.long)
        out["seconds"] = round(time.monotonic() - begun, 3)
        out["tokens"] = sum(len(one.tokens) for one in found)
        out["asked"] = len(prompts) * scene.long
        out["tokens_per_s"] = round(out["tokens"] / out["seconds"], 1)
        scene.seen = found[:16]
    with section("gap") as out:
        out.update(scene.gap(scene.seen))
    with section("greedy") as out:
        first, second = scene.greedy(), scene.greedy()
        out["agree"] = agree(first, second)
        out["distinct"] = len({token for one in first for token in one.tokens})
        alone = [scene.rollout.generate([one.prompt], temperature=0.0, logprobs=True, max_tokens=32, ignore_eos=True)[0]
                 for one in first[:2]]  # fmt: skip
        out["agree_alone"] = agree(first[:2], alone)
        out["gap"] = scene.gap(first)
    with section("temperature") as out:
        found = scene.sampled(scene.prompts(8, 64, seed=2), 32, temperature=0.7)
        out["gap"] = scene.gap(found, 0.7)
        out["gap_without_temperature"] = scene.gap(found, 1.0)
    with section("chunked") as out:
        length = 3000 if scene.cuda else 2100
        out["prompt_tokens"] = length
        out["max_num_batched_tokens"] = scene.rollout.config.max_num_batched_tokens
        out["chunked_prefill"] = bool(scene.rollout.engine.vllm_config.scheduler_config.enable_chunked_prefill)
        out["gap"] = scene.gap(scene.sampled(scene.prompts(3 if scene.cuda else 1, length, seed=3), 8))
    with section("cascade") as out:
        cascade(scene, out)


def cascade(scene: Scene, out: dict[str, Any]) -> None:
    """Many samples of one long prompt: the case that cascade attention is for."""
    count, length = (128, 2048) if scene.cuda else (4, 128)
    shared = scene.prompts(1, length, seed=4)[0]
    scene.sampled([shared], 1)
    found = scene.sampled([shared] * count, 64 if scene.cuda else 4)
    out["samples"], out["prompt_tokens"] = count, length
    out["gap"] = scene.gap(found[:8])
    config = scene.rollout.engine.vllm_config
    out["disabled"] = bool(config.model_config.disable_cascade_attn)
    if scene.cuda:
        out["chosen"] = _cascade_is_chosen(config, length, count)


def _cascade_is_chosen(config: Any, prefix: int, count: int) -> Any:
    """Return what vLLM's own heuristic says of a step that decodes so many requests behind one prefix."""
    import inspect

    import numpy as np
    from vllm.v1.attention.backends import flash_attn

    rule = flash_attn.use_cascade_attention
    parallel = config.parallel_config
    known = {
        "common_prefix_len": prefix,
        "query_lens": np.ones(count, dtype=np.int32),
        "num_query_heads": config.model_config.get_num_attention_heads(parallel),
        "num_kv_heads": config.model_config.get_num_kv_heads(parallel),
        "use_alibi": False,
        "use_sliding_window": False,
        "use_local_attention": False,
        "num_sms": torch.cuda.get_device_properties(0).multi_processor_count,
        "dcp_world_size": 1,
    }
    return bool(rule(**{name: known[name] for name in inspect.signature(rule).parameters}))


def stale(scene: Scene) -> None:
    """Move the weights under an engine that stays awake, with verl's resets and without any."""
    with section("stale") as out:
        prompts = scene.prompts(8, 256, seed=6)
        scene.sampled(prompts, 16)
        scene.trainer.move(MOVE, seed=1)
        scene.rollout.sync_only(scene.trainer.weights().items())
        out["gap_without_reset"] = scene.gap(scene.sampled(prompts, 16))
        scene.rollout.do(scene.rollout.server.clear_kv_cache())
        out["gap_after_reset"] = scene.gap(scene.sampled(prompts, 16))
        scene.trainer.move(MOVE, seed=2)
        out["resets"] = scene.rollout.count_resets()
        scene.rollout.sync(scene.trainer.weights().items())
        out["gap"] = scene.gap(scene.sampled(prompts, 16))


def poisoned(scene: Scene) -> None:
    """Plant one NaN in the weights, see what is said, and mend it by a sync."""
    with section("nan") as out:
        out["weight"] = scene.rollout.ask("stage_poison", "model.norm.weight")
        found = scene.sampled(scene.prompts(4, 32, seed=7), 8)
        out["tokens"] = sorted({token for one in found for token in one.tokens})
        out["first_token_share"] = sum(token == 0 for one in found for token in one.tokens) / sum(
            len(one.tokens) for one in found
        )
        out["logprobs"] = sorted({str(value) for one in found for value in one.logprobs})[:4]
        scene.rollout.sync(scene.trainer.weights().items())
        out["gap_once_mended"] = scene.gap(scene.sampled(scene.prompts(4, 32, seed=7), 8))


def buffers(scene: Scene) -> None:
    """Send a buffer with a value that training has changed."""
    with section("buffer") as out:
        out.update(scene.rollout.ask("stage_buffer"))


def sleeps(scene: Scene) -> None:
    """Let the engine sleep as verl does, level 2 and weights sent anew; then level 1, weights kept in main memory."""
    with section("sleep2") as out:
        before = scene.greedy()
        out["awake"] = scene.memory()
        scene.rollout.sleep()
        out["asleep"] = scene.memory()
        begun = time.monotonic()
        scene.rollout.wake(["weights"])
        out["weights_awake"] = scene.memory()
        out["seconds_to_wake_weights"] = round(time.monotonic() - begun, 3)
        scene.rollout.sync(scene.trainer.weights().items())
        begun = time.monotonic()
        scene.rollout.wake(["kv_cache"])
        out["seconds_to_wake_kv_cache"] = round(time.monotonic() - begun, 3)
        out["awake_again"] = scene.memory()
        after = scene.greedy()
        out["agree"] = agree(before, after)
        out["gap"] = scene.gap(after)
    with section("sleep1") as out:
        before = scene.greedy()
        out["awake"] = scene.memory()
        scene.rollout.do(scene.rollout.engine.sleep(level=1))
        out["asleep"] = scene.memory()
        scene.rollout.do(scene.rollout.engine.wake_up())
        scene.rollout.do(scene.rollout.engine.reset_prefix_cache())
        out["awake_again"] = scene.memory()
        after = scene.greedy()
        out["agree"] = agree(before, after)
        out["gap"] = scene.gap(after)


def crowded_wake(scene: Scene) -> None:
    """Wake up as verl does while the trainer holds what the KV cache will need: weights, sync, free, KV cache."""
    with section("staged_wake") as out:
        from verl.utils.memory_utils import aggressive_empty_cache

        scene.rollout.sleep()
        asleep = scene.memory()
        out["asleep"] = asleep
        pool = {name: size for name, size in asleep.items() if name.startswith("pool_")}
        spare = pool["pool_weights"] + 2 * engine_gpu.GIB
        held = torch.empty(asleep["free"] - spare, dtype=torch.uint8, device="cuda")
        out["ballast"] = held.numel()
        out["free_beside_ballast"] = scene.memory()["free"]
        out["kv_cache"] = pool["pool_kv_cache"]
        scene.rollout.wake(["weights"])
        scene.rollout.sync(scene.trainer.weights().items())
        del held
        out["cached"] = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        out["free_with_cached_blocks"] = scene.memory()["free"]
        aggressive_empty_cache(force_sync=True)
        out["cached_after"] = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        out["free_after"] = scene.memory()["free"]
        scene.rollout.wake(["kv_cache"])
        out["gap"] = scene.gap(scene.greedy())


def death(scene: Scene) -> None:
    """Kill the engine's core while it works, and see how the front learns of it and when the memory is back."""
    with section("death") as out:
        cores = [child for child in multiprocessing.active_children() if "EngineCore" in child.name]
        out["cores"] = [child.name for child in cores]
        assert cores, f"no engine core among {[child.name for child in multiprocessing.active_children()]}"
        held = engine_gpu.used() if scene.cuda else 0
        mine = torch.cuda.memory_reserved() if scene.cuda else 0

        async def asked() -> Any:
            return await scene.rollout.server.generate(
                scene.prompts(1, 64)[0], {"temperature": 1.0, "max_tokens": 2000, "ignore_eos": True}, "doomed"
            )

        pending = asyncio.run_coroutine_threadsafe(asked(), scene.rollout._loop)
        time.sleep(0.5)
        assert cores[0].pid is not None
        os.kill(cores[0].pid, signal.SIGKILL)
        begun = time.monotonic()
        out["pending"] = _raised(lambda: pending.result(30))
        out["pending_seconds"] = round(time.monotonic() - begun, 2)
        begun = time.monotonic()
        out["next"] = _raised(lambda: scene.rollout.generate(scene.prompts(1, 16), 30, max_tokens=4))
        out["next_seconds"] = round(time.monotonic() - begun, 2)
        out["errored"] = bool(scene.rollout.engine.errored)
        if scene.cuda:
            out["held_bytes"] = held - mine
            now, out["seconds_until_free"] = engine_gpu.settled(mine + 2 * engine_gpu.GIB, 15.0)
            out["left_bytes"] = now - mine


def arguments(scene: Scene) -> None:
    """Ask verl for what it must refuse or pass on; no engine starts."""
    with section("data_parallel") as out:
        scene.rollout = Rollout(scene.folder, gpus=2, **scene.settings(data_parallel_size=2))
        given = scene.rollout.arguments()
        out["data_parallel_size"] = given.data_parallel_size
        out["data_parallel_size_local"] = given.data_parallel_size_local
    with section("router_replay") as out:
        from importlib.metadata import version

        from packaging.version import Version
        from vllm import __version__ as vllm_version

        out["tried"] = Version(version("verl")) >= Version("0.9") and Version(vllm_version) < Version("0.22")
        out["why"] = (
            "takes a mixture-of-experts model with several kinds of KV cache, where verl does not refuse before"
        )
        if out["tried"]:
            scene.rollout = Rollout(scene.folder, **scene.settings(enable_rollout_routing_replay=True))
            scene.rollout.start()


def _raised(call: Any) -> dict[str, str]:
    """Return the class and the text of what a call raises, {} where it returns."""
    try:
        call()
    except BaseException as error:
        return {"exception": type(error).__name__, "text": str(error)[:600]}
    return {}


def run(name: str, asked: argparse.Namespace) -> None:
    """Run the scene."""
    del name
    scene = Scene(asked)
    try:
        start(scene)
        sync(scene)
        answers(scene)
        stale(scene)
        poisoned(scene)
        buffers(scene)
        if scene.cuda:
            sleeps(scene)
            crowded_wake(scene)
        death(scene)
    finally:
        if scene.rollout is not None:
            with contextlib.suppress(Exception):
                scene.rollout.close()
        arguments(Scene(asked))
