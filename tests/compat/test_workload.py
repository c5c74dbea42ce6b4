"""Probes of the workload in a cell: its tokenizer and its models as this cell's transformers reads them.

What fails here makes every figure that was measured with the workload doubtful. docs/workload.md tells how it is made.
"""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from kit import run_python
from workload.gsm8k import problem
from workload.shapes import SHAPES
from workload.tokenizer import ADDED, FILES, RANKS, SPECIAL, SPLIT, byte_letters, copy_tokenizer, find_tokenizer

COMPAT = Path(__file__).resolve().parent
pytestmark = [pytest.mark.tier("behave"), pytest.mark.needs("transformers>=4.37", "tokenizers"), pytest.mark.limit(240)]
TEXTS = (
    "Hello world",
    "def f(x):\n\treturn x ** 2  # a comment\n\n\n",
    "你好，世界！今天天气不错，我们去公园吧。",  # noqa: RUF001 - full-width marks are the point
    "日本語と한국어, العربية, हिन्दी, ελληνικά",
    "🙂 👩‍👩‍👧‍👦 ✨ and more",
    "   leading, trailing and   double   ",
    "a\r\n\r\nb\t\tc\n \n",
    "1234567890 3.14159 2^10=1024",
    "I'll don't WE'RE it's o'clock",
    "naïve café Ünïcödé and e\u0301 composed",
    "\u00a0\u2003x\u200b",
    "x" * 500,
    "\x00\x01\x7f",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<tool_call>{}</tool_call>",
)
ENCODE = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
texts = json.loads(open(sys.argv[2], encoding="utf-8").read())
ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
chat = tokenizer.apply_chat_template([{"role": "user", "content": "1+1?"}], add_generation_prompt=True, tokenize=False)
print("TOLD " + json.dumps({"ids": ids, "back": [tokenizer.decode(one) for one in ids], "chat": chat,
      "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id, "size": len(tokenizer)}))
"""
LOAD = """
import json, math, sys
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).float().eval()
ids = torch.randint(0, model.config.vocab_size, (2, 64), generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    out = model(input_ids=ids, labels=ids)
print("TOLD " + json.dumps({"loss": float(out.loss), "uniform": math.log(model.config.vocab_size),
      "spread": float(out.logits.std()), "parameters": sum(p.numel() for p in model.parameters())}))
"""


def _told(code: str, *argv: str) -> dict[str, Any]:
    ended = run_python("-c", code, *argv, timeout=220)
    assert ended.code == 0, ended.fault
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("TOLD ")]
    found: dict[str, Any] = json.loads(line.removeprefix("TOLD "))
    return found


def _encoded(folder: Path, texts: list[str]) -> dict[str, Any]:
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    return _told(ENCODE, str(folder), str(folder / "texts.json"))


@pytest.mark.needs("tiktoken")
def test_tokenizer_is_the_one_of_its_ranks(tmp_path: Path, record_property: Any) -> None:
    """Every text has the tokens that tiktoken gives it from the same ranks, and comes back whole."""
    import random

    import tiktoken

    source = find_tokenizer()
    if source is None:
        pytest.skip("no tokenizer was built here: python tests/compat/workload/build.py --ranks FILE")
    copy_tokenizer(tmp_path, source)
    bytes_of = {letter: byte for byte, letter in byte_letters().items()}
    vocabulary = json.loads((tmp_path / FILES[2]).read_text(encoding="utf-8"))
    ranks = {bytes(bytes_of[letter] for letter in token): number for token, number in vocabulary.items()}
    assert len(ranks) == RANKS
    special = {text: number for number, text in enumerate(SPECIAL + ADDED, RANKS)}
    reference = tiktoken.Encoding("ranks", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens=special)
    texts = [*TEXTS, *(problem(random.Random(number))[0] for number in range(50)), Path(__file__).read_text("utf-8")]
    told = _encoded(tmp_path, texts)
    record_property("texts", len(texts))
    for text, ids, back in zip(texts, told["ids"], told["back"], strict=True):
        normal = unicodedata.normalize("NFC", text)
        assert ids == reference.encode(normal, allowed_special="all"), text
        assert back == normal
    assert (told["eos"], told["pad"], told["size"]) == (RANKS, RANKS, RANKS + len(SPECIAL) + len(ADDED))


def test_stand_in_reads_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ranks each byte is a token, and Qwen2.5's special ones keep their numbers."""
    monkeypatch.setattr("workload.tokenizer.find_tokenizer", lambda: None)
    assert copy_tokenizer(tmp_path) == "bytes"
    told = _encoded(tmp_path, ["az é", "<|im_start|>x<|im_end|>"])
    assert told["ids"] == [list("az é".encode()), [RANKS + 1, ord("x"), RANKS + 2]]
    assert told["back"] == ["az é", "<|im_start|>x<|im_end|>"]
    assert told["chat"].endswith("<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n")
    assert told["eos"] == RANKS


@pytest.mark.needs("torch", "safetensors")
def test_model_is_sane(tmp_path: Path, record_property: Any) -> None:
    """A model of random weights loads, has as many parameters as its shape says, and predicts next to nothing."""
    ended = run_python(
        str(COMPAT / "workload" / "build.py"), "model", "--shape", "tiny", "--into", str(tmp_path / "m"), timeout=60
    )
    assert ended.code == 0, ended.fault
    record_property("seconds", json.loads(ended.stdout)["seconds"])
    told = _told(LOAD, str(tmp_path / "m"))
    shape = SHAPES["tiny"]
    assert told["parameters"] == shape.parameters
    assert abs(told["spread"] / (0.02 * shape.hidden_size**0.5) - 1) < 0.1
    assert abs(told["loss"] - told["uniform"]) < 0.2
