"""Activations of a dense decoder in bfloat16, in bytes a token, as transformers keeps them for the backward pass.

Derived from the code of transformers 5.9.0 (modeling_qwen2.py: the norm computes in float32, the MLP keeps gate, its
activation, up and their product) and of flash-attn 2.8.3 (keeps queries, keys, values, output and a float32 per head).
`tests/accuracy/memory_counted.py` counts the same bytes on real modules; docs/memory.md shows how close they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from matrix.memory.shape import Family, Shape
from matrix.memory.workload import Attention

_IDS = 16
"""Token and position of each token, both int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """Bytes a token: what one layer keeps for its backward pass, what is kept once, and the temporaries of passes.

    Attributes:
        layer: kept by a layer that is not checkpointed.
        boundary: kept by a layer that is checkpointed: its input.
        once: kept besides the layers: rotary tables, token ids, and what the last norm keeps.
        forward: held at the widest moment of a pass without gradients.
        backward: gradients at the widest moment of a layer's backward pass.
    """

    layer: float
    boundary: float
    once: float
    forward: float
    backward: float


def token_bytes(shape: Shape, attention: Attention, length: int) -> TokenBytes:
    """Return the bytes a token for a shape and an attention; eager attention keeps `length` scores a head and token."""
    hidden, queries, keys = shape.hidden_size, shape.query_width, shape.key_width
    wide = shape.intermediate_size
    kept, widest = _attention(shape, attention, length)
    head_norms = (8 * (queries + keys)) if shape.family is Family.QWEN3 else 0
    tables = 4 * shape.head_dim
    # A norm keeps its input in float32, the normalised one and its own output, and a float32 a token.
    norm = 8 * hidden + 4
    rotary = max(6 * hidden + 8 * queries + 4 * keys, 6 * hidden + 4 * queries + 10 * keys)
    return TokenBytes(
        layer=2 * norm + kept + head_norms + 8 * wide,
        boundary=2 * hidden,
        once=norm + tables + _IDS,
        forward=max(6 * wide + 8 * hidden, rotary, 14 * hidden, 6 * hidden + widest) + tables + _IDS / 2,
        backward=4 * wide + 2 * hidden,
    )


def _attention(shape: Shape, attention: Attention, length: int) -> tuple[float, float]:
    """Return what attention keeps a token, and what it holds at its widest moment without gradients."""
    queries, keys, heads = shape.query_width, shape.key_width, shape.num_attention_heads
    flash = 4 * queries + 4 * keys + 4 * heads
    match attention:
        case Attention.FLASH_2:
            return flash, flash
        case Attention.SDPA:
            # Keys and values are repeated for every head before they are handed over.
            return 8 * queries + 4 * heads, 8 * queries + 4 * keys
        case Attention.EAGER:
            scores = heads * length
            # The softmax is computed in float32 and cast back; scores, softmax and its cast are kept.
            return 8 * queries + scores * (4 + 2), 8 * queries + scores * (2 + 2 + 4)
