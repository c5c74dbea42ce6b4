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
        implied: settings without which verl does not read the key.
        foretold_as: the memory model's key, where it has another name for it.
        of_critic: whether there must be a critic.
    """

    key: str
    script: Script
    steps: Steps
    top: float
    implied: Mapping[str, Value] = field(default_factory=dict)
    foretold_as: str = ""
    of_critic: bool = False

    def values(self, workload: Workload) -> tuple[float, ...]:
        """Return the values to search among, rising; raises UsageError where a sequence is too long for any."""
        length = workload.length
        match self.steps:
            case Steps.ONE:
                return ladder(1, int(self.top))
            case Steps.SEQUENCE:
                return ladder(length, length * int(self.top), length)
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


_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_BY_ROWS: Mapping[str, Value] = {f"{_ACTOR}.use_dynamic_bsz": False, f"{_ROLLOUT}.log_prob_use_dynamic_bsz": False}
_BY_TOKENS: Mapping[str, Value] = {f"{_ACTOR}.use_dynamic_bsz": True, f"{_ROLLOUT}.log_prob_use_dynamic_bsz": True}
_ROWS = 1024

_ALL = (
    Searched(
        key=f"{_ACTOR}.ppo_micro_batch_size_per_gpu", script=Script.UPDATE, steps=Steps.ONE, top=_ROWS, implied=_BY_ROWS
    ),
    Searched(
        key=f"{_ACTOR}.ppo_max_token_len_per_gpu",
        script=Script.UPDATE, steps=Steps.SEQUENCE, top=_ROWS, implied=_BY_TOKENS,
    ),
    Searched(
        key=f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        script=Script.UPDATE, steps=Steps.ONE, top=_ROWS, implied=_BY_ROWS,
    ),
    Searched(
        key=f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
        script=Script.UPDATE, steps=Steps.SEQUENCE, top=_ROWS, implied=_BY_TOKENS,
    ),
    Searched(
        key="critic.ppo_infer_max_token_len_per_gpu",
        script=Script.UPDATE, steps=Steps.SEQUENCE, top=4 * _ROWS,
        foretold_as="critic.ppo_max_token_len_per_gpu", of_critic=True,
    ),
    Searched(
        key="critic.ppo_max_token_len_per_gpu",
        script=Script.UPDATE, steps=Steps.SEQUENCE, top=4 * _ROWS, of_critic=True,
    ),
    Searched(
        key="critic.ppo_micro_batch_size_per_gpu", script=Script.UPDATE, steps=Steps.ONE, top=_ROWS, of_critic=True
    ),
    Searched(key="data.max_response_length", script=Script.UPDATE, steps=Steps.BLOCK, top=131072),
    Searched(
        key=f"{_ROLLOUT}.gpu_memory_utilization", script=Script.ROLLOUT, steps=Steps.FRACTION, top=0.95
    ),
    Searched(key=f"{_ROLLOUT}.max_num_seqs", script=Script.ROLLOUT, steps=Steps.DOUBLING, top=16384),
    Searched(key=f"{_ROLLOUT}.max_num_batched_tokens", script=Script.ROLLOUT, steps=Steps.DOUBLING, top=524288),
)  # fmt: skip
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
