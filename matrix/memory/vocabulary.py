"""What is as wide as the vocabulary: logits, log-probabilities, entropy, and the gradients of all three.

verl 0.9.1 (verl/workers/engine/fsdp/transformer_impl.py, verl/utils/torch_functional.py) computes logits for every
token of a micro-batch, prompts included, in the type of the gathered weights (bfloat16).
"""

from __future__ import annotations

from dataclasses import dataclass

from matrix.memory.constants import Constants
from matrix.memory.workload import Training

LOGIT = 2
"""Bytes of a logit in bfloat16."""
FUSED_CHUNK = 512
"""Tokens of a chunk of verl's fused head (verl 0.9.1, verl/utils/experimental/torch_functional.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """Bytes that are as wide as the vocabulary, at the worst moment of a pass."""

    forward: float
    backward: float


def logits(
    tokens: int, vocabulary: int, settings: Training, constants: Constants, *, entropy: bool, flash: bool
) -> Logits:
    """Return the bytes of logits, log-probabilities and entropy for `tokens` tokens.

    `flash` says whether flash-attn's cross-entropy is there: it needs nothing beside the logits, and writes their
    gradient over them unless the entropy needs them too. Without it each row's log-softmax is kept in float32.
    """
    if settings.use_fused_kernels:
        # Logits, their softmax and a temporary in float32; backwards two more for what the labels leave of it.
        chunk = min(tokens, FUSED_CHUNK) * vocabulary
        return Logits(forward=12.0 * chunk, backward=20.0 * chunk)
    numbers = tokens * vocabulary
    base = float(LOGIT * numbers)
    padded = 0.0 if settings.use_remove_padding else base
    # Padded, the logits are copied without their padding once the entropy is there.
    forward = backward = base + padded
    if not flash:
        # Each row's log-softmax is kept in float32; without gradients it goes with its row.
        backward += 4.0 * numbers
    elif entropy:
        backward += LOGIT * numbers
    if entropy:
        forward = max(forward, base + _entropy(tokens, vocabulary, settings, constants))
        backward += _entropy_backward(tokens, vocabulary, settings)
    return Logits(forward=forward, backward=backward)


def _entropy(tokens: int, vocabulary: int, settings: Training, constants: Constants) -> float:
    """Return what the entropy takes beside the logits, without gradients.

    Not compiled, autocast casts the logits to float32 and the softmax, the product and the log-sum-exp's exponential
    are float32 too; in chunks, that many tokens at a time. Compiled, the reductions fuse.
    """
    if settings.entropy_from_logits_with_chunking:
        tokens = min(tokens, settings.entropy_from_logits_chunk_size)
        return 12.0 * tokens * vocabulary
    if settings.use_torch_compile and settings.use_remove_padding:
        return 4.0 * constants.compiled_entropy_copies * tokens * vocabulary
    return 12.0 * tokens * vocabulary


def _entropy_backward(tokens: int, vocabulary: int, settings: Training) -> float:
    """Return what the entropy's gradient takes beside the logits and the other gradient.

    Counted with verl's own functions on a processor, the types being those of CUDA's autocast; compiled, derived: the
    softmax is computed again and one gradient written.
    """
    numbers = tokens * vocabulary
    compiled = settings.use_torch_compile and settings.use_remove_padding
    if settings.entropy_from_logits_with_chunking:
        # What all chunks keep goes as their gradients come; a chunk's own temporaries are wider than that.
        chunk = min(1.0, settings.entropy_from_logits_chunk_size / tokens)
        return numbers * max(10 - 8 * chunk, 6 + 20 * chunk)
    if compiled:
        return float(LOGIT * numbers)
    return (12.0 if settings.entropy_checkpointing else 22.0) * numbers
