"""Trials of the rollout: `python rollout.py --spec SPEC.json --out LINES.jsonl`, one errand on stdin, then the end.

The engine is vLLM's, with the arguments that verl gives it. Beside it a holder takes what the process that trains would
hold at that moment (`held` in the spec: at engine start, at wake-up, during generation), and another one what the card
has more than the cap. A value survives where the engine starts, generates at full concurrency, sleeps, wakes up beside
the trainer's memory as it is later in a run, and generates again.

Weights are kept in host memory while it sleeps (level 1), so that they are sound afterwards without a trainer to send
them; verl drops them (level 2). On the device both free the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMPAT = Path(__file__).resolve().parent.parent
if str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from trials import command  # noqa: E402
from trials.holder import has_context  # noqa: E402
from trials.telling import TEXT, Teller, how_of  # noqa: E402

NEW_TOKENS = 32
"""So many are generated a sequence: all that vLLM allocates is allocated before the first."""
MOST_PROMPTS = 2048
NUMBERS = {
    "kv_cache_bytes": (r"Available KV cache memory: ([\d.]+) GiB", 2**30),
    "kv_cache_tokens": (r"GPU KV cache size: ([\d,]+) tokens", 1),
    "model_bytes": (r"Model loading took ([\d.]+) GiB", 2**30),
    "graph_bytes": (r"Graph capturing finished in .* took ([\d.]+) GiB", 2**30),
    "graph_pool_bytes": (r"CUDA graph pool memory: ([\d.]+) GiB \(actual\)", 2**30),
    "graph_estimate_bytes": (r"CUDA graph pool memory: .*, ([\d.]+) GiB \(estimated\)", 2**30),
    "init_seconds": (r"init engine .* took ([\d.]+) s", 1),
}
"""What vLLM says of itself in its log, and the unit it says it in; the last that it said counts."""


class Holder:
    """A process that holds memory; see `holder.py`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("holder.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def order(self, **order: Any) -> dict[str, Any]:
        """Return the answer; raises RuntimeError where the holder is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the holder ended with {self._process.wait()}")
        return dict(json.loads(line))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Nobody:
    """In a holder's place where there is no GPU: it holds nothing, of a card without end."""

    def order(self, **_: Any) -> dict[str, Any]:
        return {"held": 0, "context": 0, "free": 1 << 50, "total": 1 << 50, "error": ""}

    def end(self) -> None:
        """There is nobody."""


class Gauge:
    """What is taken on the device, as the ballast's holder sees it: all processes together, without the ballast."""

    def __init__(self, ballast: Holder | Nobody) -> None:
        self._ballast = ballast

    def reset(self) -> None:
        """A driver keeps no peak."""

    def peaks(self) -> dict[str, int]:
        seen = self._ballast.order(look=True)
        aside = seen["held"] + seen["context"]
        return {"allocated": seen["total"] - seen["free"] - aside, "free": seen["free"]}


class Bench:
    """One engine beside a trainer's memory, under a cap."""

    def __init__(self, spec: dict[str, Any], teller: Teller, log: Path) -> None:
        self.spec = spec
        self.teller = teller
        self.log = log
        # A processor has no memory of its own to cap, and its engine does not sleep.
        self.sleeps = spec["device"] != "cpu"
        self.ballast: Holder | Nobody = Holder() if self.sleeps else Nobody()
        self.trainer: Holder | Nobody = Holder() if self.sleeps else Nobody()
        self.gauge = Gauge(self.ballast)
        self.engine: Any = None
        self.total = 0

    def run(self, errand: dict[str, Any]) -> None:
        """Go through the life of a rollout; raises what it raises."""
        from trials import trainer

        settings = {**self.spec["settings"], errand["knob"]: errand["value"]} if errand.get("knob") else None
        config = trainer.compose({**self.spec, "settings": settings or self.spec["settings"]})
        rollout = config.actor_rollout_ref.rollout
        self._cap()
        with self._part("rollout init", "rollout init") as found:
            arguments = self._arguments(config)
            found["arguments"] = {key: value for key, value in arguments.items() if key != "model"}
            self.engine = self._start(arguments)
        with self._part("generation", "rollout init") as found:
            found |= self._generate(rollout)
        if not self.sleeps:
            return
        with self._part("sleep", "rollout init"):
            self.engine.sleep(level=1)
        with self._part("wake-up", "wake-up"):
            self.engine.wake_up(tags=["weights"])
            self._heed()
        with self._part("wake-up", "generation"):
            self.engine.wake_up(tags=["kv_cache"])
            self._heed()
        with self._part("generation", "generation") as found:
            found |= self._generate(rollout)
        with self._part("sleep", "generation"):
            self.engine.sleep(level=1)

    def _cap(self) -> None:
        """Take what the card has more than the cap; raises UnsupportedError where it has less."""
        from trials.trainer import UnsupportedError

        cap = self.spec.get("cap") if self.sleeps else None
        seen = self.ballast.order(**({"leave": int(cap)} if cap else {"look": True}))
        self.total = seen["total"]
        if cap and cap > 1.02 * seen["total"]:
            raise UnsupportedError(f"the card has {seen['total']} bytes, less than the {cap} that were asked about")
        if seen["error"]:
            raise UnsupportedError(f"the ballast could not be taken: {seen['error']}")
        self.teller.tell("cap", device_total=seen["total"], ballast=seen["held"], free=seen["free"])

    def _part(self, name: str, moment: str) -> Any:
        """Return the part, begun with the trainer's memory as it is at that moment."""
        held = self.trainer.order(hold=int(self.spec["held"][moment]))
        part = self.teller.part_of(name, self.gauge)
        if held["error"]:
            with part as found:
                found["trainer"] = held
                raise RuntimeError(f"OutOfMemoryError of the trainer beside the engine: {held['error']}")
        return _with(part, trainer=held["held"] + held["context"], device_total=self.total)

    def _arguments(self, config: Any) -> dict[str, Any]:
        """Return the arguments of the engine, as verl's own server makes them of the configuration."""
        rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
        own = json.loads((Path(model.path) / "config.json").read_text(encoding="utf-8"))
        cap = self.spec.get("cap") if self.sleeps else None
        share = float(rollout.gpu_memory_utilization)
        found = {
            "model": model.path,
            "dtype": rollout.dtype,
            "load_format": rollout.load_format,
            "distributed_executor_backend": "mp",
            "trust_remote_code": bool(model.get("trust_remote_code", False)),
            "max_model_len": rollout.max_model_len or int(own["max_position_embeddings"]),
            "max_num_seqs": int(rollout.max_num_seqs),
            "enable_chunked_prefill": bool(rollout.enable_chunked_prefill),
            "max_num_batched_tokens": int(rollout.max_num_batched_tokens),
            "enable_prefix_caching": bool(rollout.enable_prefix_caching),
            "enable_sleep_mode": self.sleeps,
            "enforce_eager": bool(rollout.enforce_eager),
            # vLLM's share is one of the whole card; of a smaller one it would be this much.
            "gpu_memory_utilization": share * min(cap, self.total) / self.total if cap else share,
            "disable_log_stats": bool(rollout.disable_log_stats),
            "tensor_parallel_size": 1,
            "seed": int(rollout.get("seed", 0) or 0),
        }
        if rollout.get("logprobs_mode"):
            found["logprobs_mode"] = str(rollout.logprobs_mode)
        return found

    def _start(self, arguments: dict[str, Any]) -> Any:
        from vllm import LLM

        return LLM(**arguments)

    def _generate(self, rollout: Any) -> dict[str, Any]:
        """Have as many sequences generated at once as the engine takes; return the counts."""
        from vllm import SamplingParams

        chance = random.Random(0)
        rows = min(int(rollout.max_num_seqs), MOST_PROMPTS)
        prompts = [
            {"prompt_token_ids": [chance.randrange(1000, 30000) for _ in range(int(self.spec["prompt"]))]}
            for _ in range(rows)
        ]
        tokens = min(int(self.spec["response"]), NEW_TOKENS)
        sampling = SamplingParams(
            temperature=1.0, top_p=1.0, top_k=-1, ignore_eos=True, max_tokens=tokens, logprobs=0, detokenize=False
        )  # fmt: skip
        start = time.monotonic()
        outputs = self.engine.generate(prompts, sampling, use_tqdm=False)
        made = sum(len(item.outputs[0].token_ids) for item in outputs)
        if made != rows * tokens:
            raise RuntimeError(f"{made} tokens came, not {rows * tokens}")
        return {"rows": rows, "new_tokens": made, "generate_seconds": round(time.monotonic() - start, 2)}

    def _heed(self) -> None:
        """Raise RuntimeError where memory was refused without a word to the caller: it would die of it later."""
        how = how_of(self.fault())
        if how:
            raise RuntimeError(f"the engine woke up without its memory: {how}")

    def said(self) -> dict[str, float]:
        """Return what vLLM has said of itself so far."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        return numbers(text)

    def fault(self) -> str:
        """Return the end of the log: the engine's own processes say there what they died of."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-4 * TEXT :] if self.log.is_file() else ""

    def end(self) -> None:
        self.trainer.end()
        self.ballast.end()


class _with:  # noqa: N801 - a part with more to tell
    """A part whose dict holds these from the beginning."""

    def __init__(self, part: Any, **more: Any) -> None:
        self._part, self._more = part, more

    def __enter__(self) -> dict[str, Any]:
        found: dict[str, Any] = self._part.__enter__()
        found |= self._more
        return found

    def __exit__(self, *fault: Any) -> Any:
        return self._part.__exit__(*fault)


def numbers(text: str) -> dict[str, float]:
    """Return the figures that a log of vLLM tells, in bytes, tokens and seconds; what it does not tell is left out."""
    found = {}
    for name, (pattern, unit) in NUMBERS.items():
        told = re.findall(pattern, text)
        if told:
            found[name] = float(told[-1].replace(",", "")) * unit
    return found


def forks() -> bool:
    """Return whether a fork of this process may use the GPU: not where an import has met the driver already."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(Exception):
            code = int(ctypes.CDLL("libcuda.so.1").cuInit(0))
        os._exit(min(code, 1))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def serve(spec: dict[str, Any], teller: Teller, _: Path) -> int:
    """Run the one errand that comes on standard input; return 3, for another one takes another process."""
    from trials import trainer

    log = Path("/proc/self/fd/1").readlink()
    trainer.release()
    import vllm  # noqa: F401  so that the engine has no import to wait for
    from vllm import LLM  # noqa: F401

    method = "fork" if spec["device"] == "cpu" or forks() else "spawn"
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = method
    teller.tell("ready", engine_by=method, context=has_context())
    line = sys.stdin.readline()
    if not line.strip():
        return 0
    with teller.trial(json.loads(line)) as verdict:
        bench = Bench(spec, teller, log)
        try:
            bench.run(json.loads(line))
        except Exception as error:
            verdict.read(error, bench.fault())
        finally:
            verdict.more["engine"] = bench.said()
            bench.end()
    return 3


if __name__ == "__main__":
    sys.exit(command.main(__doc__, "rollout", serve))
