"""The inside of an update side: verl's engines of actor and critic, built once, switched between variants, timed.

Run by `update.py`, one process a rank. Each phase is what verl's trainer calls in a step, with the same mini-batches
and epochs; its batch lies ready before its time begins. Gradients are taken from the same call, with the optimizer's
step left out.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from array import array
from pathlib import Path
from typing import Any

COMPAT = Path(__file__).resolve().parent.parent
if str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from ppo import tree  # noqa: E402
from trials import trainer  # noqa: E402

from benches import obey, sketches, switches  # noqa: E402

PARTS = {
    "old_log_prob": "old log-prob",
    "values": "values",
    "update_critic": "critic update",
    "update_actor": "actor update",
}
_TOLD_ELSEWHERE = ("perf/", "mfu", "lr")


class Trainer(trainer.Trainer):
    """The trainer that takes mini-batches and epochs as configured; `config` may be exchanged between phases."""

    batch_rows = 0
    """Rows of the whole batch, of all ranks."""

    def _update(self, data: Any, settings: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return what verl's own trainer adds to a batch for an update."""
        size = min(int(settings.ppo_mini_batch_size) * int(self.config.actor_rollout_ref.rollout.n), self.batch_rows)
        return {
            **super()._update(data, settings),
            "global_batch_size": size,
            "mini_batch_size": size,
            "epochs": int(settings.ppo_epochs),
        }


class Updates:
    """The engines of one rank and what is ordered of them."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.plan = spec["plan"]
        self.cuda = spec["device"] == "cuda"
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.configs: dict[str, Any] = {}
        self.trainer: Any = None
        self.current = ""
        self.counter: dict[str, switches.Calls] = {}
        self.vocabulary = self.before = 0
        # Now, while the other side is built; the device is not touched by it.
        trainer.release()
        trainer.load()

    def do_judge(self) -> dict[str, Any]:
        """Return what differs between the variants of this side, and whether a built trainer can be switched."""
        release = trainer.release()
        self.configs = {name: trainer.composed(words) for name, words in self.spec["words"].items()}
        changed = switches.differing(list(self.configs.values()))
        return {"release": release, **switches.judged(changed, release)}

    def do_build(self, variant: str) -> dict[str, Any]:
        """Build the engines as a variant has them; no weight moves until the first phase that is timed."""
        if self.world == 1:
            trainer.alone()
        if not self.configs:
            self.do_judge()
        if self.cuda:
            import torch

            torch.cuda.set_device(0)
        self.before = self._room()[0]
        import torch

        # What no checkpoint holds is drawn when it is built: a critic's head, which both sides are to have alike.
        torch.manual_seed(int(self.plan["seed"]))
        start = time.monotonic()
        self.trainer = Trainer(self.configs[variant], critic=bool(self.plan["critic"]))
        self.trainer.build()
        model = Path(self.trainer.config.actor_rollout_ref.model.path)
        self.vocabulary = int(json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"])
        self.counter = {who: switches.Calls(self._engine(who).module) for who in self._who()}
        self.current = variant
        self._switch(variant)
        expandable = self.trainer.expandable()
        return {
            "seconds": round(time.monotonic() - start, 2),
            "expandable_segments": expandable,
            "numbers": self._numbers(),
            "data_parallel": self._engine("actor").get_data_parallel_size(),
            "strategy": str(self.trainer.config.actor_rollout_ref.actor.strategy),
            "attention": switches.attention(self._engine("actor").module),
            "memory": self._peaks(),
        }

    def do_phase(self, variant: str, phase: str, seed: int) -> dict[str, Any]:
        """Return the seconds, tokens, memory and numerics of one phase; the switch and the batch are not timed."""
        self._switch(variant)
        data = self._batch(seed)
        calls = self.counter[_who(phase)]
        calls.reset()
        self._begin()
        start = time.perf_counter()
        out = self._run(phase, data)
        self._wait()
        seconds = time.perf_counter() - start
        numerics, mfu = self._numerics(phase, out)
        prompts, response = self._lengths(self.trainer.batch_rows), int(self.plan["response"])
        lengths = {
            "prompt_tokens": sum(prompts),
            "squares": sum((prompt + response) ** 2 for prompt in prompts),
        }
        return {
            "seconds": seconds,
            "tokens": sum(prompts) + response * len(prompts),
            "rows": self.trainer.batch_rows,
            "memory": self._peaks(),
            "numerics": numerics,
            "more": {"micro_batches": calls.model, "layer_calls": calls.layer, "mfu": mfu, **lengths},
        }

    def do_sketch(self, variant: str, folder: str, rows: int) -> dict[str, Any]:
        """Write what a variant computes of one batch with the weights as they are, and return where, by phase.

        No weight moves. `as_asked` is whether the first layer was called as often as the variant's checkpointing says.
        """
        self._switch(variant)
        found: dict[str, Any] = {}
        for phase in self.plan["phases"]:
            data = self._batch(self.plan["seed"], rows=rows)
            path = Path(folder) / f"{phase}.{self.rank}"
            who, update = _who(phase), phase.startswith("update")
            calls = self.counter[who]
            calls.reset()
            with sketches.withheld(self._engine(who)) as held:
                out = self._run(phase, data)
            if update:
                loss = self._numerics(phase, out)[0].get("loss")
                head = {"norm": held.norm, "loss": loss, "names": held.names, "counts": held.counts}
                sketches.write(path, head, held.figures)
            elif out is not None:
                name = "values" if phase == "values" else "log_probs"
                figures = _flat(out[name])
                sketches.write(path, {"names": [name], "counts": [len(figures)]}, figures)
            else:
                sketches.write(path, {"names": [], "counts": []}, array("f"))
            times = 2 if update and switches.checkpoints(self.configs[variant], who) else 1
            found[phase] = {"path": str(path), "as_asked": calls.layer == times * calls.model > 0}
        return found

    def do_room(self) -> dict[str, int]:
        """Return the device's free memory as it was before anything was built, as it is, and its total, in bytes."""
        free, total = self._room()
        return {"before": self.before, "free": free, "total": total}

    def _room(self) -> tuple[int, int]:
        if not self.cuda:
            from ppo.cpu_platform import machine_memory

            return machine_memory()
        import torch

        free, total = torch.cuda.mem_get_info()
        return int(free), int(total)

    def _run(self, phase: str, data: Any) -> Any:
        return self.trainer.phases()[PARTS[phase]](data)

    def _switch(self, variant: str) -> None:
        self.trainer.config = self.configs[variant]
        self.trainer.batch_rows = int(self.plan["batch"])
        for who in self._who():
            values = switches.fields(self.configs[variant], who, self.trainer.padded)
            switches.set_fields(self._engine(who).engine_config, values)
            if variant != self.current:
                switches.checkpoint(self._engine(who).module, switches.checkpoints(self.configs[variant], who))
        self.current = variant

    def _who(self) -> tuple[str, ...]:
        return ("critic", "actor") if self.plan["critic"] else ("actor",)

    def _engine(self, who: str) -> Any:
        worker = self.trainer.critic if who == "critic" else self.trainer.actor.actor
        return worker.engine

    def _lengths(self, rows: int) -> list[int]:
        given = self.spec.get("prompts")
        return [given[at % len(given)] for at in range(rows)] if given else [int(self.plan["prompt"])] * rows

    def _batch(self, seed: int, rows: int | None = None) -> Any:
        """Return this rank's rows of a batch; ranks that share sequences (Ulysses) have the same."""
        from trials.batches import batch

        rows = rows or int(self.plan["batch"])
        self.trainer.batch_rows = rows
        engine = self._engine("actor")
        ranks, rank = engine.get_data_parallel_size(), engine.get_data_parallel_rank()
        if rows % ranks:
            raise ValueError(f"a batch of {rows} sequences is not divisible among {ranks} ranks")
        each = rows // ranks
        return batch(
            rows, int(self.plan["prompt"]), int(self.plan["response"]), self.vocabulary,
            padded=self.trainer.padded, seed=seed, prompts=self._lengths(rows), log_prob=-math.log(self.vocabulary),
            part=slice(rank * each, (rank + 1) * each),
        )  # fmt: skip

    def _begin(self) -> None:
        """Begin a measurement: nothing in flight, every rank here, peaks at what is held."""
        import torch

        self._wait()
        if self.world > 1:
            torch.distributed.barrier()
            self._wait()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()

    def _wait(self) -> None:
        if self.cuda:
            import torch

            torch.cuda.synchronize()

    def _peaks(self) -> dict[str, int]:
        if not self.cuda:
            return {"resident": tree.memory(os.getpid())[0]}
        import torch

        return {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "held": torch.cuda.memory_allocated(),
            "retries": int(torch.cuda.memory_stats().get("num_alloc_retries", 0)),
        }

    def _numbers(self) -> str:
        return str(getattr(self._engine("actor"), "_autocast_dtype", "torch.bfloat16")).removeprefix("torch.")

    def _numerics(self, phase: str, out: Any) -> tuple[dict[str, Any], float | None]:
        """Return what a phase says of its numbers, as means over its mini-batches, and verl's own MFU."""
        if out is None:
            return {}, None
        if not phase.startswith("update"):
            told = {"values": "value", "log_probs": "log_prob", "entropy": "entropy"}
            parts = {told[name]: out[name].values() for name in told if name in out.keys()}  # noqa: SIM118
            means = {f"{name}_mean": float(part.float().mean()) for name, part in parts.items()}
            return {**means, "finite": all(math.isfinite(value) for value in means.values())}, None
        from verl.utils import tensordict_utils as tu

        metrics = tu.get(out, "metrics")
        found = {name.rpartition("/")[2]: _mean(value) for name, value in metrics.items() if _is_told(name)}
        figures = [value for value in found.values() if value is not None]
        mfu = _mean(metrics["mfu"]) if "mfu" in metrics else None
        return {**found, "finite": all(math.isfinite(value) for value in figures)}, mfu


def _is_told(name: str) -> bool:
    return not any(name == word or name.startswith(word) for word in _TOLD_ELSEWHERE)


def _who(phase: str) -> str:
    return "critic" if phase in ("values", "update_critic") else "actor"


def _mean(value: Any) -> float | None:
    """Return the mean of a metric over mini-batches and micro-batches; None for what is no number."""
    several = value if isinstance(value, (list, tuple)) else [value]
    figures = []
    for one in several:
        inner = getattr(one, "aggregate", None)
        one = inner() if callable(inner) else one
        if isinstance(one, (list, tuple)):
            figures.append(_mean(one))
        else:
            try:
                figures.append(float(one))
            except (TypeError, ValueError):
                return None
    known = [figure for figure in figures if figure is not None]
    return sum(known) / len(known) if known else None


def _flat(values: Any) -> array[float]:
    flat = values.values() if values.is_nested else values
    return array("f", flat.detach().float().cpu().reshape(-1).tolist())


if __name__ == "__main__":
    sys.exit(obey.main(Updates))
