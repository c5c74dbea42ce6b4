"""The words of the memory model: the phases of a PPO step, and the parts that a GPU's memory is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

GIB = 1 << 30


class Phase(StrEnum):
    """What a GPU does at a time, in the order of a step; all but the first come again each step."""

    ROLLOUT_INIT = "rollout init"
    WAKE_UP = "wake-up"
    GENERATION = "generation"
    OLD_LOG_PROB = "old log-prob"
    REF_LOG_PROB = "ref log-prob"
    VALUES = "values"
    CRITIC_UPDATE = "critic update"
    ACTOR_UPDATE = "actor update"


class Part(StrEnum):
    """What memory is held for; the engine is vLLM, the others are the process that trains."""

    CONTEXT = "context"
    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    GATHERED = "gathered weights"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    SYNC = "weight sync"
    WORKSPACE = "workspaces"
    OVERHEAD = "allocator"
    ENGINE_CONTEXT = "engine context"
    ENGINE_WEIGHTS = "engine weights"
    ENGINE_PEAK = "engine pass"
    ENGINE_GRAPHS = "engine graphs"
    KV_CACHE = "KV cache"

    @property
    def is_allocated(self) -> bool:
        """Return whether torch's allocator of the process that trains holds it."""
        return self in _ALLOCATED


_ALLOCATED = frozenset(
    {
        Part.WEIGHTS,
        Part.OPTIMIZER,
        Part.GRADIENTS,
        Part.GATHERED,
        Part.ACTIVATIONS,
        Part.LOGITS,
        Part.SYNC,
        Part.WORKSPACE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one GPU holds at the worst moment of a phase, by part, in bytes."""

    parts: Mapping[Part, float]

    @property
    def total(self) -> float:
        """Return all parts together, in bytes."""
        return sum(self.parts.values())

    @property
    def allocated(self) -> float:
        """Return what torch's allocator of the process that trains has given out, in bytes."""
        return sum(size for part, size in self.parts.items() if part.is_allocated)

    def __add__(self, other: Holding) -> Holding:
        """Return both together, part by part."""
        names = [part for part in Part if part in self.parts or part in other.parts]
        return Holding(parts={part: self.parts.get(part, 0) + other.parts.get(part, 0) for part in names})
