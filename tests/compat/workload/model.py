"""The model: a folder with a shape's configuration, seeded random weights and a tokenizer, written in seconds.

The weights are what an initialised model has: normal with the configuration's spread, norms 1, biases 0. They are drawn
straight into the file from a table of the normal distribution's quantiles, one of 65,536 for each 16 random bits, by as
many threads as there are processors; a weight depends on the seed, its tensor and its place, never on the threads.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from pathlib import Path
from statistics import NormalDist
from typing import Any

from workload.shapes import Shape, shape_of, weights
from workload.tokenizer import copy_tokenizer

MODEL = "VERL_MATRIX_MODEL"
"""The variable that names a real model, used in place of every shape."""
SHARD = 1 << 30
"""Bytes after which another file begins: a file takes one write at a time, so that threads need several."""
NOTE = "workload.json"
_PIECE = 1 << 22
_BLOCK = 1 << 16
"""Elements drawn at once: the block, its random bits and the table stay in a core's cache."""
_DTYPES = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}


@dataclass(frozen=True)
class _Piece:
    """A part of a tensor and where it goes: file, offset in bytes, elements, and the numbers its seed is made of."""

    file: int
    offset: int
    count: int
    kind: str
    seed: tuple[int, int, int]


def model_for(
    name: str, folder: Path, *, seed: int = 0, dtype: str = "bfloat16", tokenizer: Path | None = None
) -> Path:
    """Return the real model that `VERL_MATRIX_MODEL` names, else the folder the shape `name` was written to."""
    given = os.environ.get(MODEL)
    if given:
        return Path(given)
    return write_model(shape_of(name), folder, seed=seed, dtype=dtype, tokenizer=tokenizer)


def write_model(
    shape: Shape, folder: Path, seed: int = 0, dtype: str = "bfloat16", tokenizer: Path | None = None
) -> Path:
    """Write configuration, weights and tokenizer of a shape and return the folder; one already there is kept.

    `dtype` is `bfloat16` or `float32`. `tokenizer` is a folder that `write_tokenizer` filled; without it the one that
    `find_tokenizer` knows is taken, and where there is none a byte-level stand-in with Qwen's special tokens.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"weights are written as {' or '.join(_DTYPES)}, not as {dtype}")
    folder = Path(folder)
    wanted = {"shape": shape.name, "seed": seed, "dtype": dtype, "parameters": shape.parameters}
    note = folder / NOTE
    if note.exists():
        said = json.loads(note.read_text(encoding="utf-8"))
        if {name: said.get(name) for name in wanted} == wanted:
            return folder
        note.unlink()
    start = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob("model*.safetensors*"):
        left.unlink()
    kind = copy_tokenizer(folder, tokenizer)
    _write_json(folder / "config.json", shape.config(dtype))
    generation = {"bos_token_id": shape.eos_token_id, "eos_token_id": shape.eos_token_id, "do_sample": False}
    _write_json(folder / "generation_config.json", generation)
    _write_weights(shape, folder, seed, dtype)
    seconds = round(time.monotonic() - start, 2)
    # Last: a folder with this file is whole.
    _write_json(note, {**wanted, "tokenizer": kind, "seconds": seconds})
    return folder


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def shards(shape: Shape, itemsize: int, limit: int = SHARD) -> list[dict[str, tuple[int, ...]]]:
    """Return the weights that each file holds, none above `limit` bytes unless a single weight is."""
    found: list[dict[str, tuple[int, ...]]] = [{}]
    used = 0
    for name, size in weights(shape).items():
        needs = prod(size) * itemsize
        if found[-1] and used + needs > limit:
            found.append({})
            used = 0
        found[-1][name] = size
        used += needs
    return found


def header(tensors: dict[str, tuple[int, ...]], code: str, itemsize: int) -> tuple[bytes, dict[str, int]]:
    """Return a safetensors header and where the data of each tensor begins in the file, in bytes."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begins: dict[str, int] = {}
    at = 0
    for name, size in tensors.items():
        begins[name] = at
        end = at + prod(size) * itemsize
        entries[name] = {"dtype": code, "shape": list(size), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = len(text).to_bytes(8, "little") + text
    return data, {name: begin + len(data) for name, begin in begins.items()}


def _write_weights(shape: Shape, folder: Path, seed: int, dtype: str) -> None:
    code, itemsize = _DTYPES[dtype]
    parts = shards(shape, itemsize)
    names = [_file_name(number, len(parts)) for number in range(len(parts))]
    files = [os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644) for name in names]
    try:
        begins: list[dict[str, int]] = []
        for file, part in zip(files, parts, strict=True):
            head, begin = header(part, code, itemsize)
            os.pwrite(file, head, 0)
            os.ftruncate(file, len(head) + sum(prod(size) for size in part.values()) * itemsize)
            begins.append(begin)
        tables = _tables(shape.initializer_range, dtype)
        pieces = _pieces(parts, begins, itemsize, seed)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            # Taken one by one so that a fault of any is raised here.
            for _ in pool.map(lambda piece: _fill(files[piece.file], piece, tables), pieces):
                pass
    finally:
        for file in files:
            os.close(file)
    if len(parts) > 1:
        total = shape.parameters * itemsize
        where = {name: names[number] for number, part in enumerate(parts) for name in part}
        _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})


def _file_name(number: int, of: int) -> str:
    return "model.safetensors" if of == 1 else f"model-{number + 1:05d}-of-{of:05d}.safetensors"


def _pieces(
    parts: list[dict[str, tuple[int, ...]]], begins: list[dict[str, int]], itemsize: int, seed: int
) -> Iterator[_Piece]:
    """Yield the pieces of all files, the files in turn."""
    tensor = 0
    of_file: list[list[_Piece]] = [[] for _ in parts]
    for file, part in enumerate(parts):
        for name, size in part.items():
            kind = "one" if name.endswith("norm.weight") else "zero" if name.endswith("bias") else "normal"
            for number, first in enumerate(range(0, prod(size), _PIECE)):
                count = min(_PIECE, prod(size) - first)
                offset = begins[file][name] + first * itemsize
                of_file[file].append(_Piece(file, offset, count, kind, (seed, tensor, number)))
            tensor += 1
    for turn in zip_longest(*of_file):
        yield from (piece for piece in turn if piece is not None)


def _tables(spread: float, dtype: str) -> dict[str, Any]:
    """Return, for each kind of weight, the values that it is drawn from: the bits of the dtype as integers."""
    import numpy as np

    normal = NormalDist(sigma=spread)
    half = np.array([normal.inv_cdf((number + 0.5) / 65536) for number in range(32768, 65536)], np.float32)
    values = {
        "normal": np.concatenate((-half[::-1], half)),
        "one": np.ones(1, np.float32),
        "zero": np.zeros(1, np.float32),
    }
    if dtype == "float32":
        return {kind: table.view(np.uint32) for kind, table in values.items()}
    # To the nearest bfloat16, ties to even: its bits are the upper half of a float's.
    bits = {kind: table.view(np.uint32) for kind, table in values.items()}
    return {kind: ((table + 0x7FFF + ((table >> 16) & 1)) >> 16).astype(np.uint16) for kind, table in bits.items()}


def _fill(file: int, piece: _Piece, tables: dict[str, Any]) -> None:
    """Draw a piece and write it where it belongs."""
    import numpy as np

    table = tables[piece.kind]
    out = np.empty(piece.count, table.dtype)
    if piece.kind == "normal":
        draw = np.random.Generator(np.random.SFC64(piece.seed))
        for first in range(0, piece.count, _BLOCK):
            part = out[first : first + _BLOCK]
            bits = draw.integers(0, 1 << 64, -(-len(part) // 4), dtype=np.uint64).view(np.uint16)
            np.take(table, bits[: len(part)], out=part, mode="clip")
    else:
        out[:] = table[0]
    left = memoryview(out.data).cast("B")
    at = piece.offset
    while left:
        written = os.pwrite(file, left, at)
        left, at = left[written:], at + written
