"""The tokenizer: Qwen2.5's own, built from its ranks, and a byte-level stand-in for where the ranks are not at hand.

The ranks are those of tiktoken: a token and its number on a line. Which two parts make a token follows from them: of
all pairs that are tokens, the one with the smallest number is joined first. Of nothing here is a copy kept in the
repository; `build` takes the ranks from the PyPI package `dashscope`.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

TOKENIZER = "VERL_MATRIX_TOKENIZER"
"""The variable that names a folder with a built tokenizer."""
HOME = "VERL_MATRIX_HOME"
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
RANKS = 151_643
"""So many tokens Qwen2.5 has without its special ones (qwen.tiktoken)."""

SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
ADDED = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>"),
)
"""Added by Qwen2.5 behind the special ones, and not special: a decoder shows them."""
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{%- if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""Plain turns as Qwen2.5 writes them, the system's default one included; no tools."""


def read_ranks(path: Path) -> dict[bytes, int]:
    """Return each token's number; raises ValueError where they are not those of Qwen2.5."""
    ranks = {}
    for line in path.read_bytes().splitlines():
        if line:
            token, number = line.split()
            ranks[base64.b64decode(token)] = int(number)
    if len(ranks) != RANKS or set(ranks.values()) != set(range(RANKS)):
        raise ValueError(f"{path} has {len(ranks)} tokens; Qwen2.5's ranks are 0 to {RANKS - 1}, each once")
    return ranks


def byte_letters() -> dict[int, str]:
    """Return the letter that stands for each byte in a byte-level vocabulary (as in GPT-2: printable, none a space)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + number) for number, byte in enumerate(others)}


def merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the two parts of every token of more than a byte, in the order in which they are joined.

    Raises ValueError where a token is never reached by joining two others.
    """
    found = []
    for token, rank in sorted(ranks.items(), key=lambda entry: entry[1]):
        if len(token) > 1:
            parts = _parts(token, rank, ranks)
            if len(parts) != 2:
                raise ValueError(f"token {rank} is not made of two others: {parts}")
            found.append((parts[0], parts[1]))
    return found


def _parts(token: bytes, rank: int, ranks: dict[bytes, int]) -> list[bytes]:
    """Return what is left of a token's bytes when all that comes before its number has been joined."""
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        lowest, where = rank, -1
        for place in range(len(parts) - 1):
            number = ranks.get(parts[place] + parts[place + 1], rank)
            if number < lowest:
                lowest, where = number, place
        if where < 0:
            break
        parts[where : where + 2] = [parts[where] + parts[where + 1]]
    return parts


def write_tokenizer(folder: Path, ranks: Path) -> None:
    """Write Qwen2.5's tokenizer below `folder`, from the file of its ranks: what the model's own repository has."""
    known = read_ranks(ranks)
    letters = byte_letters()

    def spelt(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocabulary = {spelt(token): number for token, number in sorted(known.items(), key=lambda entry: entry[1])}
    _write(folder, vocabulary, [(spelt(left), spelt(right)) for left, right in merges(known)])


def write_stand_in(folder: Path) -> None:
    """Write a tokenizer of single bytes with Qwen2.5's special tokens, at Qwen2.5's numbers, below `folder`."""
    _write(folder, {letter: byte for byte, letter in sorted(byte_letters().items())}, [])


def _write(folder: Path, vocabulary: dict[str, int], joined: list[tuple[str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    added = [_added(number, text) for number, text in enumerate(SPECIAL + ADDED, RANKS)]
    # Where numbers are left out, the library counts added tokens from the size of the vocabulary: named there, they
    # keep theirs.
    whole = vocabulary if len(vocabulary) == RANKS else vocabulary | {entry["content"]: entry["id"] for entry in added}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": whole,
            # As text, not as pairs: tokenizers before 0.20 reads only this.
            "merges": [f"{left} {right}" for left, right in joined],
        },
    }
    _dump(folder / "tokenizer.json", content)
    _dump(folder / "vocab.json", whole)
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in joined)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _dump(folder / "tokenizer_config.json", _settings(added))


def _added(number: int, text: str) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **plain, "special": text in SPECIAL}


def _settings(added: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(entry["id"]): {k: v for k, v in entry.items() if k != "id"} for entry in added},
        "additional_special_tokens": list(SPECIAL[1:]),
        "bos_token": None,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL[0],
        "errors": "replace",
        "model_max_length": 131_072,
        "pad_token": SPECIAL[0],
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def _dump(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def places() -> list[Path]:
    """Return the folders where a built tokenizer may lie, the nearest first."""
    found = []
    if os.environ.get(TOKENIZER):
        found.append(Path(os.environ[TOKENIZER]))
    # Where nothing has to be told: beside these files; in a bundle DIR/workload, where this cell is DIR/cells/NAME.
    found.append(Path(__file__).with_name("built"))
    found += [folder / "workload" / "tokenizer" for folder in Path(sys.prefix).parents[1:2]]
    if os.environ.get(HOME):
        found.append(Path(os.environ[HOME], "cache", "workload", "tokenizer"))
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    found.append(Path(cache, "verl-matrix", "workload", "tokenizer"))
    return found


def find_tokenizer() -> Path | None:
    """Return the first of `places` that holds a tokenizer, None where none does."""
    return next((place for place in places() if (place / FILES[0]).is_file()), None)


def copy_tokenizer(folder: Path, source: Path | None = None) -> str:
    """Put a tokenizer into a model's folder and return which: `qwen2.5`, or `bytes` for the stand-in."""
    found = source or find_tokenizer()
    if found is None:
        write_stand_in(folder)
        return "bytes"
    for name in FILES:
        if (found / name).exists():
            shutil.copyfile(found / name, folder / name)
    return "qwen2.5" if (folder / "merges.txt").stat().st_size > 100 else "bytes"
