"""The folder of probes (`tests/compat`): where it is, and the digests of what a probe is made of."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from matrix.errors import ToolError

_PACKAGE = Path(__file__).parents[1]
_SHARED = ("conftest.py", "pytest.ini", "kit")


def probes_folder() -> Path:
    """Return the folder of the probes: inside an installed package, or of the checkout; raises ToolError for none."""
    for folder in (_PACKAGE / "compat", _PACKAGE.parent / "tests" / "compat"):
        if (folder / "conftest.py").is_file():
            return folder
    raise ToolError(
        "The probes are not here, so no tier deeper than surface can be tried.",
        why=f"Neither {_PACKAGE / 'compat'} nor tests/compat of a checkout holds them.",
        then="Install the package again, or run from a checkout.",
    )


@functools.cache
def file_digest(folder: Path, name: str) -> str:
    """Return `sha256:<hex>` of a file of probes and of what it names in the folders beside it; of nothing for no file.

    Where a folder's name stands in the text, all of the folder counts; else those of its files whose names do, and what
    these name in turn. A digest that covers too much asks again, one that covers too little gives an answer that is no
    longer true.
    """
    path = folder / name
    if not path.is_file():
        return _hex(b"")
    beside = [
        inner
        for inner in sorted(folder.iterdir())
        if inner.is_dir() and inner.name not in _SHARED and not _is_made(inner.relative_to(folder))
    ]
    named, unread = [path], [path]
    while unread:
        text = unread.pop().read_text(encoding="utf-8", errors="replace")
        more = [
            file
            for inner in beside
            for file in _files(inner)
            if file not in named and (inner.name in text or file.stem in text)
        ]
        named += more
        unread += more
    return _of(folder, sorted(named))


@functools.cache
def shared_digest(folder: Path) -> str:
    """Return `sha256:<hex>` of what all probes share: fixtures, kit, settings."""
    files = [path for name in _SHARED for path in _files(folder / name)]
    return _of(folder, files)


@functools.cache
def whole_digest(folder: Path) -> str:
    """Return `sha256:<hex>` of the folder: what there is to run depends on it."""
    return _of(folder, _files(folder))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and not _is_made(file.relative_to(path)))


def _is_made(inner: Path) -> bool:
    """Return whether a file is none of the probes: bytecode, or what a tool keeps in a hidden folder beside them.

    A wheel of this tool does not carry it either (matrix/bundle/toolwheel.py), and the same probes have one digest.
    """
    return any(part == "__pycache__" or part.startswith(".") for part in inner.parts)


def _of(folder: Path, files: list[Path]) -> str:
    parts = [f"{path.relative_to(folder).as_posix()} {_hex(path.read_bytes())}" for path in files]
    return _hex("\n".join(parts).encode())


def _hex(body: bytes) -> str:
    return "sha256:" + hashlib.sha256(body).hexdigest()
