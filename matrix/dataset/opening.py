"""Opening of a data file: what it is by its first and last bytes, and pyarrow where it is parquet."""

from __future__ import annotations

import codecs
import errno
import importlib
from pathlib import Path
from typing import Any

from matrix.dataset.remark import Kind, Remark
from matrix.errors import ToolError
from matrix.gravity import Gravity

MAGIC, ENCRYPTED = b"PAR1", b"PARE"
LEAST = 12
"""Bytes of the smallest parquet there can be: two magics and the length of the footer."""

_OTHERS = (
    (b"ARROW1", "an Arrow (Feather) file", "Read it with pyarrow.feather and write parquet."),
    (b"\x1f\x8b", "a gzip file", "Unpack it first."),
    (b"PK\x03\x04", "a zip file", "Unpack it first."),
    (b"version https://git-lfs", "a pointer of Git LFS, not the data", "Run `git lfs pull`."),
    (b"<!DOCTYPE", "a web page: the download ended at an HTML page", "Download the file itself (the raw address)."),
    (b"<html", "a web page: the download ended at an HTML page", "Download the file itself (the raw address)."),
    (b"SQLite format 3", "an SQLite database", "Export it as parquet."),
)


def pyarrow() -> Any:
    """Return the module pyarrow with `parquet` and `compute`; raises ToolError where it is not installed."""
    try:
        for name in ("pyarrow.compute", "pyarrow.parquet"):
            importlib.import_module(name)
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ToolError(
            "Parquet files cannot be read: pyarrow does not import here.",
            why=str(error),
            then="Install pyarrow; before its release 26 it also takes numpy 1.x.",
        ) from error


def misfit(path: Path) -> Remark | None:
    """Return why the file is no parquet, by looking at it; None where it begins and ends like one."""
    try:
        size = path.stat().st_size
        if path.is_dir():
            return _error(Kind.UNREADABLE, "is a folder", then="Name the files in it.")
        if not path.is_file():
            return _error(Kind.UNREADABLE, "is no regular file")
        if not size:
            return _error(Kind.EMPTY_FILE, "is empty (0 bytes)", then="Write it again; the disk may have been full.")
        with path.open("rb") as file:
            head = file.read(512)
            file.seek(max(0, size - 8))
            tail = file.read(8)
    except FileNotFoundError:
        return _error(Kind.MISSING, "does not exist", then=_near(path))
    except OSError as error:
        hint = "A relative path is resolved where the worker runs." if error.errno == errno.ENOTDIR else ""
        return _error(Kind.UNREADABLE, f"cannot be read: {error.strerror or error}", then=hint)
    if head.startswith(ENCRYPTED) or tail.endswith(ENCRYPTED):
        return _error(Kind.NOT_PARQUET, "is encrypted parquet, which verl does not read")
    if not head.startswith(MAGIC):
        return _error(Kind.NOT_PARQUET, *_what(head))
    if size < LEAST or not tail.endswith(MAGIC):
        return _error(
            Kind.TRUNCATED,
            f"is cut off: it begins like parquet and its end is missing ({size} bytes)",
            then="Write or copy it again; compare its size with the source's.",
        )
    length = int.from_bytes(tail[:4], "little")
    if length + LEAST > size:
        return _error(
            Kind.TRUNCATED,
            f"is damaged: its footer would be {length} bytes and the file has {size}",
            then="Write or copy it again.",
        )
    return None


def _what(head: bytes) -> tuple[str, str]:
    for magic, what, then in _OTHERS:
        if head.lstrip()[: len(magic)].lower() == magic.lower():
            return f"is {what}", then
    try:
        # What is looked at may end within a character; elsewhere a byte that is none says that this is no text.
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        text = "\0"
    if any(char < " " and char not in "\t\n\r\f\x1b" for char in text):
        return "is no parquet: its first bytes are not PAR1", "Write it with `to_parquet`."
    first = text.lstrip().splitlines()[0] if text.strip() else ""
    if first.startswith(("{", "[")):
        return (
            "is JSON text, not parquet",
            "verl reads .json from 0.7.0 and .jsonl from 0.7.1; name it so, or convert it.",
        )
    if first.count(",") or first.count("\t"):
        return "is text in columns (CSV), not parquet", "Convert it: `pandas.read_csv(f).to_parquet(g)`."
    return "is text, not parquet", "Write it with `to_parquet`."


def _near(path: Path) -> str:
    """Return what lies in the folder instead, or which part of the path is missing."""
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if folder != path.parent:
        return f"{folder} exists, and nothing below it of that name."
    try:
        there = sorted(item.name for item in folder.iterdir() if item.suffix == ".parquet")[:5]
    except OSError:
        return ""
    where = "this folder" if folder == Path() else str(folder)
    return f"In {where}: {', '.join(there)}." if there else f"No parquet file lies in {where}."


def _error(kind: Kind, what: str, then: str = "") -> Remark:
    return Remark(kind=kind, gravity=Gravity.ERROR, message=what, then=then)
