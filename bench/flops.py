"""Model FLOPs of a dense decoder in each phase of a PPO step, by one formula for all releases of verl.

Counted is what the model itself asks for, as multiply and add: every matrix product with a weight, and causal attention
(half of the square of a sequence). Not counted are the look-up in the input embedding, norms, activations, the softmax,
the optimizer, and whatever an implementation does twice: recompute under gradient checkpointing, padding, prompts that
several answers share. So a setting cannot raise its own utilisation by doing more work. A backward pass counts twice
the forward one (Kaplan et al. 2020, arXiv:2001.08361, section 2.1; Chowdhery et al. 2022, arXiv:2204.02311, appendix B,
which counts the whole square of a sequence).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from matrix.memory.shape import Shape


class Phase(StrEnum):
    """A phase of a step in which the model computes; the value is its name in verl's `timing_s/`."""

    GENERATION = "gen"
    OLD_LOG_PROB = "old_log_prob"
    REFERENCE = "ref"
    VALUES = "values"
    UPDATE_CRITIC = "update_critic"
    UPDATE_ACTOR = "update_actor"

    @property
    def is_update(self) -> bool:
        """Return whether gradients are computed."""
        return self in (Phase.UPDATE_CRITIC, Phase.UPDATE_ACTOR)

    @property
    def is_critic(self) -> bool:
        """Return whether it is the critic that computes."""
        return self in (Phase.VALUES, Phase.UPDATE_CRITIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The lengths of the parts of a batch as verl logs them, in tokens: mean, smallest, largest."""

    mean: float
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse what no lengths can have."""
        if not 0 <= self.low <= self.mean <= self.high:
            raise ValueError(f"no lengths have the mean {self.mean}, from {self.low} to {self.high}")

    @property
    def deviation(self) -> float:
        """Return the largest standard deviation that such lengths can have (Bhatia and Davis 2000)."""
        return sqrt((self.high - self.mean) * (self.mean - self.low))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long the sequences of a step are: how many, their tokens, and the sum of the squares of their lengths.

    `spread` is by how much `squares` may be off to either side; 0 where every length is known.
    """

    sequences: int
    prompt: float
    response: float
    squares: float
    spread: float = 0.0

    @property
    def tokens(self) -> float:
        """Return the tokens of all prompts and responses."""
        return self.prompt + self.response

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Lengths:
        """Return the lengths of sequences of (prompt, response) tokens; raises ValueError for a length below 0."""
        known = list(pairs)
        if any(part < 0 for pair in known for part in pair):
            raise ValueError("a length is below 0")
        return cls(
            sequences=len(known),
            prompt=float(sum(prompt for prompt, _ in known)),
            response=float(sum(response for _, response in known)),
            squares=float(sum((prompt + response) ** 2 for prompt, response in known)),
        )

    @classmethod
    def summarised(cls, sequences: int, prompt: Summary, response: Summary) -> Lengths:
        """Return the lengths of so many sequences of which only the summaries are known.

        The squares lie between those of equal lengths and those of the widest spread that the summaries allow; the
        middle is taken.
        """
        mean = prompt.mean + response.mean
        widest = (prompt.deviation + response.deviation) ** 2
        return cls(
            sequences=sequences,
            prompt=sequences * prompt.mean,
            response=sequences * response.mean,
            squares=sequences * (mean**2 + widest / 2),
            spread=sequences * widest / 2,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """FLOPs of one phase of one step on all GPUs together: of products with weights, and of attention.

    `spread` is by how much attention may be off, where the lengths are known by their summaries alone.
    """

    dense: float
    attention: float
    spread: float = 0.0

    @property
    def total(self) -> float:
        """Return both together."""
        return self.dense + self.attention

    @property
    def uncertainty(self) -> float:
        """Return by which share the total may be off."""
        return self.spread / self.total if self.total else 0.0


def body_weights(shape: Shape) -> int:
    """Return how many weights of a model's layers stand in matrix products: no embedding, no head, no norm, no bias."""
    attention = shape.hidden_size * (2 * shape.query_width + 2 * shape.key_width)
    return shape.num_hidden_layers * (attention + 3 * shape.hidden_size * shape.intermediate_size)


def head_weights(shape: Shape, *, critic: bool) -> int:
    """Return how many weights the output layer has: one row for each token, one row for a critic; tied or not."""
    return shape.hidden_size * (1 if critic else shape.vocab_size)


def model_flops(shape: Shape, phase: Phase, lengths: Lengths, *, epochs: int = 1) -> Counted:
    """Return the model FLOPs of a phase over all sequences of a step.

    A forward pass is 2 per weight and token and 2 · width · s² per layer and sequence of length s (QKᵀ and AV, causal).
    An update is three forward passes, `epochs` times. Generation computes every token but each sequence's last, and
    the output layer once for each token that is drawn; the other phases compute the output layer for every token.
    """
    width = shape.num_hidden_layers * shape.query_width
    body, head = body_weights(shape), head_weights(shape, critic=phase.is_critic)
    if phase is Phase.GENERATION:
        fed = lengths.tokens - lengths.sequences
        # The squares of lengths that are each one token shorter.
        squares = lengths.squares - 2 * lengths.tokens + lengths.sequences
        dense = 2.0 * (body * fed + head * lengths.response)
        return Counted(dense=dense, attention=2.0 * width * squares, spread=2.0 * width * lengths.spread)
    times = 3 * epochs if phase.is_update else 1
    return Counted(
        dense=2.0 * times * (body + head) * lengths.tokens,
        attention=2.0 * times * width * lengths.squares,
        spread=2.0 * times * width * lengths.spread,
    )
