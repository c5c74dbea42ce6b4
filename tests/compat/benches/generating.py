"""The inside of a rollout side: vLLM's engine, started by verl's own server class, asked for whole batches.

Run by `rollout.py`. The engine has the arguments that verl's server gives it of the composed configuration, and the
weights of the model's folder, as they would be after a sync. While the other side works it sleeps (level 1: its KV
cache is given back, its weights lie in the host's memory); where it cannot, it stays awake and idle.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import sys
import time
from array import array
from pathlib import Path
from typing import Any

COMPAT = Path(__file__).resolve().parent.parent
for _folder in (COMPAT, COMPAT / "subjects"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))
# Without this, asking torch whether there is a GPU would initialise the driver, and no fork could use it after that.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

from benches import obey, sketches, switches  # noqa: E402

FIRST, LAST = 1000, 30_000
"""Tokens of prompts are drawn from here to there: none of them is special."""
START_S = 400.0
SETTLE = (8, 4)
"""So many prompts and new tokens are generated after waking up, before anything is timed."""
SKETCH = (16, 16)
_ROLLOUT = "actor_rollout_ref.rollout."
_AROUND = ("agent.", "checkpoint_engine.", "log_prob_", "multi_turn.", "prometheus.", "trace.", "val_kwargs.")
_OUTSIDE = frozenset({"free_cache_engine", "n", "mode"})
"""What differs in these concerns what is around an engine: between two rollouts, or who asks it."""
_TOLD = (
    "dtype", "load_format", "max_model_len", "max_num_seqs", "enable_chunked_prefill", "max_num_batched_tokens",
    "enable_prefix_caching", "enable_sleep_mode", "enforce_eager", "gpu_memory_utilization", "disable_log_stats",
    "tensor_parallel_size", "seed", "logprobs_mode", "compilation_config", "optimization_level",
)  # fmt: skip


class Generating:
    """One engine and what is ordered of it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.plan = spec["plan"]
        self.cuda = spec["device"] == "cuda"
        self.rollout: Any = None
        self.asleep = False
        # Now, while the other side is built: what a fork of this process then need not import.
        with _without_context(self.cuda):
            import engine_server
            import vllm.v1.worker.gpu_worker  # noqa: F401

        self._made = engine_server.Rollout.configured

    def log(self) -> str:
        """Return the end of what the side wrote: the engine's own processes say there what they died of."""
        path = Path(self.spec["log"])
        return path.read_text(encoding="utf-8", errors="replace")[-20_000:] if path.is_file() else ""

    def do_judge(self) -> dict[str, Any]:
        """Return what differs between the variants; an engine that is built is never switched."""
        from importlib.metadata import version

        from trials import trainer

        configs = [trainer.composed(words) for words in self.spec["words"].values()]
        changed = switches.differing(configs)
        live = {key: value for key, value in changed.items() if is_run(key)}
        idle = {key: value for key, value in changed.items() if key not in live}
        return {"release": version("verl"), "changed": live, "idle": idle, "blocking": sorted(live)}

    def do_build(self, variant: str) -> dict[str, Any]:
        """Start the engine, as verl's server does, and return its arguments and the size of its KV cache."""
        from trials import trainer

        config = trainer.composed(self.spec["words"][variant])
        from trials.rollout import forks
        from verl.utils.config import omega_conf_to_dataclass

        method = "fork" if not self.cuda or forks() else "spawn"
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = method
        given, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
        rollout, described = omega_conf_to_dataclass(given), omega_conf_to_dataclass(model)
        self.rollout = self._made(rollout, described, gpus=int(self.plan["gpus"]))
        parsed = _kept(self.rollout.server)
        start = time.monotonic()
        self.rollout.do(self.rollout.server.launch_server(), START_S)
        return {
            "seconds": round(time.monotonic() - start, 2),
            "engine_by": method,
            "arguments": {name: str(getattr(parsed[0], name)) for name in _TOLD if hasattr(parsed[0], name)},
            "kv_tokens": self.rollout.kv_tokens(),
            "can_sleep": self._can_sleep(),
            "memory": self.rollout.ask("stage_peaks"),
            "facts": self.rollout.ask("stage_facts"),
        }

    def do_repeat(self, seed: int) -> dict[str, Any]:
        """Return the seconds, tokens and memory of generating the batch once; no prompt of it is cached before."""
        rollout = self.rollout
        prompts = self._prompts(int(self.plan["batch"]), seed)
        rollout.do(rollout.server.clear_kv_cache())
        rollout.ask("stage_peaks")
        start = time.perf_counter()
        answers = self._generate(prompts, int(self.plan["response"]))
        seconds = time.perf_counter() - start
        made = sum(len(one.tokens) for one in answers)
        wanted = len(prompts) * int(self.plan["response"])
        if made != wanted:
            raise RuntimeError(f"{made} tokens came, not {wanted}")
        logprobs = [value for one in answers for value in one.logprobs]
        mean = math.fsum(logprobs) / len(logprobs) if logprobs else None
        finite = all(map(math.isfinite, logprobs))
        asked = sum(map(len, prompts))
        preempted = self._preempted(asked + made, len(prompts))
        return {
            "seconds": seconds,
            "tokens": made,
            "rows": len(prompts),
            "memory": rollout.ask("stage_peaks"),
            "numerics": {"log_prob_mean": mean, "finite": finite} if logprobs else {},
            "more": {
                "prompt_tokens": asked,
                "kv_tokens": rollout.kv_tokens(),
                "squares": sum((len(prompt) + int(self.plan["response"])) ** 2 for prompt in prompts),
                **preempted,
            },
        }

    def do_sketch(self, folder: str) -> dict[str, Any]:
        """Write the log-probabilities of greedy answers to a few prompts, and return where; the same for every side."""
        rows, length = SKETCH
        prompts = self._prompts(min(rows, int(self.plan["batch"])), 0)
        self.rollout.do(self.rollout.server.clear_kv_cache())
        answers = self._generate(prompts, min(length, int(self.plan["response"])), temperature=0.0)
        path = Path(folder) / "gen.0"
        figures = array("f", [value for one in answers for value in one.logprobs])
        head = {"names": ["gen"], "counts": [len(figures)], "tokens": [one.tokens for one in answers]}
        sketches.write(path, head, figures)
        return {"gen": {"path": str(path)}}

    def do_rest(self) -> dict[str, Any]:
        """Let the engine sleep, where it can, and return how long that took."""
        if not self._can_sleep() or self.asleep:
            return {}
        start = time.perf_counter()
        self.rollout.do(self.rollout.engine.sleep(level=1))
        self.asleep = True
        return {"seconds": time.perf_counter() - start}

    def do_rouse(self) -> dict[str, Any]:
        """Wake the engine up, and return how long that took; what the first tokens after it cost is paid here, too."""
        if not self.asleep:
            return {}
        start = time.perf_counter()
        self.rollout.do(self.rollout.engine.wake_up())
        seconds = time.perf_counter() - start
        self.asleep = False
        rows, length = SETTLE
        self._generate(self._prompts(min(rows, int(self.plan["batch"])), 1), min(length, int(self.plan["response"])))
        return {"seconds": seconds}

    def _can_sleep(self) -> bool:
        return self.cuda and bool(self.rollout.config.enable_sleep_mode)

    def _generate(self, prompts: list[list[int]], length: int, temperature: float | None = None) -> list[Any]:
        """Return the answers to prompts, drawn as the configuration says; with a temperature always with log-probs."""
        config = self.rollout.config
        drawn = {"temperature": float(config.temperature) if temperature is None else temperature}
        drawn |= {"top_p": float(config.top_p), "top_k": int(config.top_k)}
        told = bool(config.calculate_log_probs) or temperature is not None
        found: list[Any] = self.rollout.generate(
            prompts, START_S, **drawn, logprobs=told, max_tokens=length, ignore_eos=True
        )  # fmt: skip
        return found

    def _prompts(self, rows: int, seed: int) -> list[list[int]]:
        given = self.spec.get("prompts") or [int(self.plan["prompt"])]
        draw = random.Random(seed)
        last = min(LAST, self.rollout.vocabulary)
        first = min(FIRST, last // 2)
        return [[draw.randrange(first, last) for _ in range(given[at % len(given)])] for at in range(rows)]

    def _preempted(self, tokens: int, rows: int) -> dict[str, Any]:
        """Return how many sequences were thrown out and begun anew: none where the KV cache holds them all at once.

        vLLM tells it only with `disable_log_stats=False`, which verl does not set: elsewhere it is not known.
        """
        # Each sequence may leave most of its last block empty.
        block = int(self.rollout.engine.vllm_config.cache_config.block_size)
        if tokens + rows * block <= self.rollout.kv_tokens():
            return {"preemptions": 0, "preemptions_by": "the KV cache holds every sequence at once"}
        if self.rollout.config.disable_log_stats:
            return {"preemptions": None, "preemptions_by": "not told: disable_log_stats"}
        from prometheus_client import REGISTRY  # type: ignore[import-not-found,unused-ignore]

        total = sum(
            sample.value
            for family in REGISTRY.collect()
            if family.name == "vllm:num_preemptions"
            for sample in family.samples
            if sample.name.endswith("_total")
        )
        return {"preemptions_so_far": total, "preemptions_by": "vllm:num_preemptions_total"}


def is_run(key: str) -> bool:
    """Return whether an engine that only generates reads a key: those of the rollout, but for what is around it."""
    name = key.removeprefix(_ROLLOUT)
    return key.startswith(_ROLLOUT) and not name.startswith(_AROUND) and name not in _OUTSIDE


def _without_context(cuda: bool) -> Any:
    """Return what keeps imports from making a context on a GPU: no engine could be forked from here after that."""
    if not cuda:
        return contextlib.nullcontext()
    import engine_gpu

    return engine_gpu.answered_by_nvml()


def _kept(server: Any) -> list[Any]:
    """Return the list in which the engine's arguments will lie once the server starts with them."""
    found: list[Any] = []
    given = server.run_server

    async def run_server(parsed: Any) -> Any:
        found.append(parsed)
        return await given(parsed)

    server.run_server = run_server
    return found


if __name__ == "__main__":
    sys.exit(obey.main(Generating))
