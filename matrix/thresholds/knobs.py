"""The knobs that are searched: which script tries one, its values, what has to be set for it to count, its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from matrix.errors import UsageError
from matrix.memory.workload import Value, Workload
from matrix.nearness import near_names
from matrix.thresholds.ladder import fractions, ladder


class Script(StrEnum):
    """The in-cell script that tries a value; the value is its name below `tests/compat/trials`."""

    UPDATE = "update.py"
    ROLLOUT = "rollout.py"
    STEP = "step.py"


class Steps(StrEnum):
    """What the values of a knob are multiples of."""

    ONE = "one"
    SEQUENCE = "sequence"
    BLOCK = "block"
    DOUBLING = "doubling"
    FRACTION = "fraction"


BLOCK = 64
"""Tokens between neighbouring response lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """How one knob is searched.

    Attributes:
        key: verl's own key.
        script: who tries it.
        steps: what its values are multiples of.
        top: the most sequences, tokens or share of the card that is tried.
        parts: what it weighs on, in the words of the memory model's phases.
        implied: settings without which verl does not read the key.
        of_critic: whether there must be a critic.
    """

    key: str
    script: Script
    steps: Steps
    top: float
    parts: tuple[str, ...]
    implied: Mapping[str, Value] = field(default_factory=dict)
    of_critic: bool = False

    def values(self, workload: Workload) -> tuple[float, ...]:
        """Return the values to search among, rising; raises UsageError where a sequence is too long for any."""
        length = workload.length
        rows = min(int(self.top), self._rows(workload))
        match self.steps:
            case Steps.ONE:
                return ladder(1, rows)
            case Steps.SEQUENCE:
                return ladder(length, length * rows, length)
            case Steps.BLOCK:
                room = workload.shape.max_position_embeddings - workload.prompt_length
                top = min(int(self.top), room) // BLOCK * BLOCK
                if top < BLOCK:
                    raise UsageError(f"A prompt of {workload.prompt_length} tokens leaves no room for a response.")
                return ladder(BLOCK, top, BLOCK)
            case Steps.DOUBLING:
                return tuple(2**power for power in range(4, int(self.top).bit_length()))
            case Steps.FRACTION:
                return fractions(0.05, self.top, 0.05)

    def _rows(self, workload: Workload) -> int:
        """Return beyond how many sequences a larger value changes nothing, because the batch has no more."""
        owner = workload.critic if self.of_critic else workload.actor
        trains = owner is not None and (_UPDATE in self.parts or _CRITIC in self.parts)
        prompts = owner.ppo_mini_batch_size if owner is not None and trains else workload.train_batch_size
        return max(1, prompts * workload.n // workload.n_gpus)


_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_BY_ROWS: Mapping[str, Value] = {f"{_ACTOR}.use_dynamic_bsz": False, f"{_ROLLOUT}.log_prob_use_dynamic_bsz": False}
_BY_TOKENS: Mapping[str, Value] = {f"{_ACTOR}.use_dynamic_bsz": True, f"{_ROLLOUT}.log_prob_use_dynamic_bsz": True}
_ROWS = 1024

_UPDATE, _OLD, _VALUES, _CRITIC = "actor update", "old log-prob", "values", "critic update"
_ENGINE = ("rollout init", "wake-up", "generation")


def _trained(
    key: str, steps: Steps, parts: tuple[str, ...], implied: Mapping[str, Value], *, top: int = _ROWS
) -> Searched:
    of_critic = key.startswith("critic.")
    return Searched(
        key=key, script=Script.UPDATE, steps=steps, top=top, parts=parts, implied=implied, of_critic=of_critic
    )  # fmt: skip


def _generated(name: str, steps: Steps, top: float) -> Searched:
    return Searched(key=f"{_ROLLOUT}.{name}", script=Script.ROLLOUT, steps=steps, top=top, parts=_ENGINE)


_ALL = (
    _trained(f"{_ACTOR}.ppo_micro_batch_size_per_gpu", Steps.ONE, (_UPDATE,), _BY_ROWS),
    _trained(f"{_ACTOR}.ppo_max_token_len_per_gpu", Steps.SEQUENCE, (_UPDATE,), _BY_TOKENS),
    _trained(f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu", Steps.ONE, (_OLD,), _BY_ROWS),
    _trained(f"{_ROLLOUT}.log_prob_max_token_len_per_gpu", Steps.SEQUENCE, (_OLD,), _BY_TOKENS),
    _trained("critic.ppo_infer_max_token_len_per_gpu", Steps.SEQUENCE, (_VALUES, _CRITIC), {}, top=4 * _ROWS),
    _trained("critic.ppo_max_token_len_per_gpu", Steps.SEQUENCE, (_CRITIC,), {}, top=4 * _ROWS),
    _trained("critic.ppo_micro_batch_size_per_gpu", Steps.ONE, (_CRITIC,), {}),
    _trained("data.max_response_length", Steps.BLOCK, (_OLD, _VALUES, _CRITIC, _UPDATE), {}, top=131072),
    _generated("gpu_memory_utilization", Steps.FRACTION, 0.95),
    _generated("max_num_seqs", Steps.DOUBLING, 16384),
    _generated("max_num_batched_tokens", Steps.DOUBLING, 524288),
)
KNOBS: Mapping[str, Searched] = {item.key: item for item in _ALL}


def knob_named(word: str) -> Searched:
    """Return the knob of that key, or whose key alone ends in the word; raises UsageError."""
    if word in KNOBS:
        return KNOBS[word]
    ends = [item for key, item in KNOBS.items() if key.endswith(f".{word}")]
    if len(ends) == 1:
        return ends[0]
    several = " and ".join(item.key for item in ends)
    near = ", ".join(near_names(word, KNOBS))
    raise UsageError(
        f"`{word}` names no knob that is searched." if not ends else f"`{word}` may be {several}.",
        why=f"Closest: {near}." if near and not ends else "",
        then=f"The knobs: {', '.join(KNOBS)}.",
    )
