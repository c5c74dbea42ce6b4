"""How many tokens one pass through the model has: micro-batches by sequences, or by a budget of tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The largest micro-batch of a phase on one GPU: its sequences, its tokens, and how many such passes there are."""

    sequences: int
    tokens: int
    passes: int

    @property
    def accumulates(self) -> bool:
        """Return whether a second pass meets the gradients of the first."""
        return self.passes > 1


def by_sequences(total: int, length: int, micro_batch: int) -> Pass:
    """Return the pass of a fixed micro-batch of sequences, each of `length` tokens, out of `total`."""
    sequences = min(total, micro_batch)
    return Pass(sequences=sequences, tokens=sequences * length, passes=-(-total // sequences))


def by_tokens(total: int, length: int, budget: int) -> Pass:
    """Return the pass of a budget of tokens, as verl's `rearrange_micro_batches` cuts `total` sequences of one length.

    verl makes as many micro-batches as the tokens fill, and then spreads the sequences evenly over them; so the
    largest can go beyond the budget, where a budget holds no whole number of sequences
    (verl 0.9.1, verl/utils/seqlen_balancing.py).
    """
    passes = min(total, -(-total * length // budget))
    sequences = -(-total // passes)
    return Pass(sequences=sequences, tokens=sequences * length, passes=passes)
