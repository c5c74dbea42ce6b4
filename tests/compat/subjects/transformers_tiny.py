"""Tiny random models and a tokenizer made on the spot: what the subjects of these families share."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}go{% endif %}"


def tokenizer(**kwargs: Any) -> Any:
    """Return a tokenizer of whole words with a chat template that writes one word a message, and `go`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<unk>", "<eos>", "go", *(f"w{n}" for n in range(28))]
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "<eos>", "chat_template": TEMPLATE}
    return PreTrainedTokenizerFast(tokenizer_object=made, **{**named, **kwargs})


def qwen2(**kwargs: Any) -> Any:
    """Return the configuration of a Qwen2 of a few thousand weights."""
    from transformers import Qwen2Config

    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Qwen2Config(**{**small, "num_key_value_heads": 2, "vocab_size": 32, "pad_token_id": 0, **kwargs})


def version(distribution: str) -> tuple[int, ...]:
    """Return the numbers of an installed version, (0,) where it is absent."""
    import importlib.metadata

    try:
        text = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return (0,)
    return tuple(int(number) for number in re.match(r"[\d.]+", text)[0].strip(".").split("."))  # type: ignore[index]


def source(path: str) -> Path:
    """Return the file of an installed package, e.g. `verl/utils/model.py`, without importing the package."""
    for folder in sys.path:
        found = Path(folder, path)
        if found.is_file():
            return found
    raise SystemExit(f"UNTESTED {path} is not in this release")


def say(**values: Any) -> None:
    """Write what was measured as the last line."""
    print("\nMEASURED " + json.dumps(values, default=str), flush=True)
