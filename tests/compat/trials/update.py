"""Trials of the trainer: `python update.py --spec SPEC.json --out LINES.jsonl`, errands as JSON lines on stdin.

SPEC: `device` (cuda, cpu), `overrides` (of verl's own configuration), `critic`, `prompt`, `response` (tokens), `cap`
(bytes or null), `beside` (bytes that somebody else holds on the card). An errand: `trial`, `knob` (verl's own key),
`value`; one without a knob runs a step as configured. Many errands run in this one process; it ends (3) with the
first that dies, because FSDP does not survive an interrupted pass. Nothing touches the device before the first errand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPAT = Path(__file__).resolve().parent.parent
if str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from trials import command  # noqa: E402
from trials.holder import has_context  # noqa: E402
from trials.telling import Teller  # noqa: E402

ACTOR, ROLLOUT, CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "critic"
WARM_TOKENS = 32


@dataclass(frozen=True)
class Knob:
    """What a key changes in the built trainer, and the parts that it weighs on."""

    parts: tuple[str, ...]
    rows: str
    """`value`: that many rows a micro-batch; `tokens`: as many as fit into the value; `fixed`: as configured."""
    engines: tuple[tuple[str, str], ...] = ()
    """(actor or critic, field of its engine's settings) that take the value."""


KNOBS = {
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": Knob(("actor update",), "value", (("actor", "micro_batch_size_per_gpu"),)),
    f"{ACTOR}.ppo_max_token_len_per_gpu": Knob(("actor update",), "tokens", (("actor", "max_token_len_per_gpu"),)),
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": Knob(
        ("old log-prob",), "value", (("actor", "infer_micro_batch_size_per_gpu"),)
    ),
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu": Knob(
        ("old log-prob",), "tokens", (("actor", "infer_max_token_len_per_gpu"),)
    ),
    f"{CRITIC}.ppo_max_token_len_per_gpu": Knob(("critic update",), "tokens", (("critic", "max_token_len_per_gpu"),)),
    f"{CRITIC}.ppo_infer_max_token_len_per_gpu": Knob(
        ("values", "critic update"),
        "tokens",
        (("critic", "infer_max_token_len_per_gpu"), ("critic", "max_token_len_per_gpu")),
    ),
    "data.max_response_length": Knob(("old log-prob", "values", "critic update", "actor update"), "fixed"),
}
IDLE = {
    f"{CRITIC}.ppo_micro_batch_size_per_gpu": "the critic's engine always takes token budgets: the key does nothing",
}
"""Keys that the releases tried here read nowhere on the way of an update."""
OF_OLD = {
    f"{CRITIC}.ppo_max_token_len_per_gpu": "verl 0.9's trainer sets it from critic.ppo_infer_max_token_len_per_gpu"
}
"""Keys that only releases with padded batches read."""


class Bench:
    """The engines of one child and what is done to them, errand by errand."""

    def __init__(self, spec: dict[str, Any], teller: Teller) -> None:
        self.spec = spec
        self.teller = teller
        self.gauge = _gauge(spec)
        self.trainer: Any = None
        self.vocabulary = 0
        self._configured: dict[tuple[str, str], Any] = {}

    def ready(self, parts: tuple[str, ...]) -> None:
        """Build the engines under the cap, once, and take a small step, so that the optimizer's states are there.

        What `parts` compile is compiled then, too.
        """
        from trials import trainer

        if self.trainer is not None:
            return
        trainer.alone()
        self.trainer = trainer.Trainer(trainer.compose(self.spec), critic=bool(self.spec["critic"]))
        self.teller.tell("cap", **self.gauge.enforce())
        with self.teller.part_of("trainer init", self.gauge):
            self.trainer.build()
        model = json.loads((Path(self.trainer.config.actor_rollout_ref.model.path) / "config.json").read_text())
        self.vocabulary = int(model["vocab_size"])
        with self.teller.part_of("first step", self.gauge) as found:
            found["expandable_segments"] = self.trainer.expandable()
            length = min(WARM_TOKENS, self.spec["prompt"])
            for name, phase in self.trainer.phases().items():
                if name.endswith("update") or name in parts:
                    phase(self._batch(2, length, length, micro=1))
            found |= self.gauge.enforce()
        fields = {pair for knob in KNOBS.values() for pair in knob.engines if pair[0] == "actor" or self.trainer.critic}
        self._configured = {pair: getattr(self._engine(pair[0]), pair[1]) for pair in fields}

    def run(self, errand: dict[str, Any]) -> None:
        """Run the parts that the errand's knob weighs on; raises what they raise."""
        knob, value = errand.get("knob"), errand.get("value")
        for part, rows, response, micro in self._passes(knob, value):
            data = self._batch(rows, self.spec["prompt"], response, micro=micro)
            with self.teller.part_of(part, self.gauge) as found:
                found |= {"rows": rows, "tokens": rows * (self.spec["prompt"] + response), "micro_batch": micro}
                self.trainer.phases()[part](data)

    def _passes(self, name: str | None, value: Any) -> list[tuple[str, int, int, int]]:
        """Return (part, rows, response length, rows of a micro-batch) for each part to run."""
        phases, response = self.trainer.phases(), int(self.spec["response"])
        knob = KNOBS[name] if name else Knob(tuple(phases), "fixed")
        for (who, field), configured in self._configured.items():
            setattr(self._engine(who), field, configured)
        for who, field in knob.engines:
            setattr(self._engine(who), field, int(value))
        if name == "data.max_response_length":
            response = int(value)
        length = int(self.spec["prompt"]) + response
        found = []
        for part in knob.parts:
            if part not in phases:
                continue
            if knob.rows == "value":
                micro = int(value)
            elif knob.rows == "tokens":
                micro = int(value) // length
            else:
                micro = min(self._micro(part, length), self._most(part))
            if micro < 1:
                raise ValueError(f"{name}={value}: no sequence of {length} tokens fits into it")
            found.append((part, micro * self._passes_of(part, micro), response, micro))
        return found

    def _passes_of(self, part: str, micro: int) -> int:
        """Return how many micro-batches to run: two of an update, of which only the second meets gradients, if it has.

        A micro-batch that is larger than half of a mini-batch has no second one.
        """
        return 2 if part.endswith("update") and 2 * micro <= self._most(part) else 1

    def _most(self, part: str) -> int:
        """Return how many sequences a part has at most: a mini-batch of an update, else the whole batch."""
        config = self.trainer.config
        parts = {"critic update": config.critic, "actor update": config.actor_rollout_ref.actor}
        prompts = parts[part].ppo_mini_batch_size if part in parts else config.data.train_batch_size
        return int(prompts) * int(config.actor_rollout_ref.rollout.n)

    def _engine(self, who: str) -> Any:
        return self.trainer.critic.engine_config if who == "critic" else self.trainer.actor.actor.engine_config

    def _micro(self, part: str, length: int) -> int:
        """Return how many rows a micro-batch of the part has as configured."""
        engine = self._engine("critic" if part in ("values", "critic update") else "actor")
        training = part.endswith("update")
        if engine.use_dynamic_bsz:
            return int(engine.max_token_len_per_gpu if training else engine.infer_max_token_len_per_gpu) // length
        return int(engine.micro_batch_size_per_gpu if training else engine.infer_micro_batch_size_per_gpu)

    def _batch(self, rows: int, prompt: int, response: int, *, micro: int) -> Any:
        from trials.batches import batch

        assert rows % micro == 0, (rows, micro)
        return batch(rows, prompt, response, self.vocabulary, padded=self.trainer.padded)


def _gauge(spec: dict[str, Any]) -> Any:
    from trials import gauges

    kind: Callable[..., Any] = gauges.CpuGauge if spec["device"] == "cpu" else gauges.CudaGauge
    return kind(spec.get("cap"), int(spec.get("beside") or 0))


def _parts(errand: dict[str, Any]) -> tuple[str, ...]:
    """Return the parts that an errand will run; all of them without a knob."""
    return KNOBS[errand["knob"]].parts if errand.get("knob") else KNOBS["data.max_response_length"].parts


def refusal(errand: dict[str, Any], padded: bool) -> str:
    """Return why a knob cannot be tried with the installed release, "" where it can."""
    name = errand.get("knob")
    if name in IDLE:
        return IDLE[name]
    if name in OF_OLD and not padded:
        return OF_OLD[name]
    return "" if name is None or name in KNOBS else f"no trial of {name}"


def serve(spec: dict[str, Any], teller: Teller, _: Path) -> int:
    """Run the errands that come on standard input until it ends; return 3 after one that died."""
    from trials import trainer

    padded = trainer.release().startswith("0.8.")
    trainer.load()
    teller.tell("ready", context=has_context())
    bench: Bench | None = None
    for line in filter(str.strip, sys.stdin):
        errand = json.loads(line)
        reason = refusal(errand, padded)
        with teller.trial(errand) as verdict:
            if reason:
                raise trainer.UnsupportedError(reason)
            if bench is None:
                bench = Bench(spec, teller)
            with bench.gauge:
                bench.ready(_parts(errand))
                bench.run(errand)
        if verdict.outcome != "pass" and not reason:
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(command.main(__doc__, "update", serve))
