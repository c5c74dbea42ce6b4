"""The shapes: what the `config.json` of each Qwen2.5 base model says, and the weights that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Shape:
    """One model's shape; field names and values as in its `config.json`, sizes in elements."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    tie_word_embeddings: bool
    max_position_embeddings: int
    eos_token_id: int = 151643
    """Of the base models: `<|endoftext|>`, which is their `bos_token_id` and padding too."""
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02

    @property
    def head_dim(self) -> int:
        """Return the width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def parameters(self) -> int:
        """Return how many parameters there are; a tied head counts once."""
        total = 0
        for size in weights(self).values():
            count = 1
            for length in size:
                count *= length
            total += count
        return total

    def config(self, dtype: str = "bfloat16") -> dict[str, Any]:
        """Return the content of `config.json`, with the names that every transformers since 4.37 reads."""
        return {
            "architectures": ["Qwen2ForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": self.eos_token_id,
            "eos_token_id": self.eos_token_id,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": self.initializer_range,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "max_window_layers": self.num_hidden_layers,
            "model_type": "qwen2",
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "sliding_window": self.max_position_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            "torch_dtype": dtype,
            # As published. Without it transformers 5 warns of a pattern of Mistral's tokenizers in any local model.
            "transformers_version": "4.40.1",
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": self.vocab_size,
        }


def weights(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return the size of each weight by its name in a checkpoint, in the order in which they are drawn."""
    width, inner, keys = shape.hidden_size, shape.intermediate_size, shape.num_key_value_heads * shape.head_dim
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, width)}
    for layer in (f"model.layers.{number}" for number in range(shape.num_hidden_layers)):
        for part, rows in (("q", width), ("k", keys), ("v", keys)):
            found[f"{layer}.self_attn.{part}_proj.weight"] = (rows, width)
            found[f"{layer}.self_attn.{part}_proj.bias"] = (rows,)
        found[f"{layer}.self_attn.o_proj.weight"] = (width, width)
        found[f"{layer}.mlp.gate_proj.weight"] = found[f"{layer}.mlp.up_proj.weight"] = (inner, width)
        found[f"{layer}.mlp.down_proj.weight"] = (width, inner)
        found[f"{layer}.input_layernorm.weight"] = found[f"{layer}.post_attention_layernorm.weight"] = (width,)
    found["model.norm.weight"] = (width,)
    if not shape.tie_word_embeddings:
        found["lm_head.weight"] = (shape.vocab_size, width)
    return found


SHAPES = MappingProxyType(
    {
        shape.name: shape
        for shape in (
            # From the config.json of Qwen/Qwen2.5-0.5B, -1.5B and -7B (not the -Instruct ones, which end a text with
            # another token and, in 1.5B and 7B, say 32768 positions).
            Shape(
                name="qwen2.5-0.5b",
                hidden_size=896,
                intermediate_size=4864,
                num_hidden_layers=24,
                num_attention_heads=14,
                num_key_value_heads=2,
                vocab_size=151_936,
                tie_word_embeddings=True,
                max_position_embeddings=32_768,
            ),
            Shape(
                name="qwen2.5-1.5b",
                hidden_size=1536,
                intermediate_size=8960,
                num_hidden_layers=28,
                num_attention_heads=12,
                num_key_value_heads=2,
                vocab_size=151_936,
                tie_word_embeddings=True,
                max_position_embeddings=131_072,
            ),
            Shape(
                name="qwen2.5-7b",
                hidden_size=3584,
                intermediate_size=18_944,
                num_hidden_layers=28,
                num_attention_heads=28,
                num_key_value_heads=4,
                vocab_size=152_064,
                tie_word_embeddings=False,
                max_position_embeddings=131_072,
            ),
            # No model's: the same tokenizer and the head width of 0.5B, small enough for any machine.
            Shape(
                name="tiny",
                hidden_size=128,
                intermediate_size=256,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                vocab_size=151_936,
                tie_word_embeddings=True,
                max_position_embeddings=32_768,
            ),
        )
    }
)
"""Every shape by its name; `1.5b` is not one, `qwen2.5-1.5b` is."""


def shape_of(name: str) -> Shape:
    """Return the shape of that name, with or without `qwen2.5-`; raises ValueError that names those there are."""
    for known in (name, f"qwen2.5-{name}"):
        if known.lower() in SHAPES:
            return SHAPES[known.lower()]
    raise ValueError(f"there is no shape `{name}`; there are {', '.join(SHAPES)}")
