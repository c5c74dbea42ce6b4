"""All statements of a repository: which of its files are read, and by which reader; the folder is only looked at."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from matrix.errors import UsageError
from matrix.statements.dockerfile import is_dockerfile, read_dockerfile
from matrix.statements.locks import is_conda, is_lock, read_conda, read_lock
from matrix.statements.prose import is_prose, read_prose
from matrix.statements.pyproject import read_pyproject
from matrix.statements.requirements import read_requirements
from matrix.statements.setup_py import read_setup
from matrix.statements.statement import Force, Place, Reading, Remark
from matrix.statements.workflow import is_workflow, read_workflow

_SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages", ".tox", ".nox"})
_REQUIREMENTS = re.compile(
    r"(?:^|/)(?:[\w.-]*requirements[\w.-]*|requirements/[\w.-]+|constraints[\w.-]*)\.(?:txt|in)$"
)
_BUILT = (".egg-info", ".dist-info")
_LARGEST = 32 << 20
"""No file of statements is larger; one that is gets a remark."""
_KEPT = 40_000
"""So many files are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """What a folder says, and how many files of it say something."""

    root: Path
    reading: Reading
    files: tuple[str, ...]


def read_repository(root: Path) -> Repository:
    """Return everything that the files below `root` state about versions; links are not followed.

    Raises:
        UsageError: it is no folder, or cannot be read.
    """
    if not root.is_dir():
        raise UsageError(
            f"{root} is no folder.", then="Give the folder of a repository, or of an unpacked source archive."
        )
    names = sorted(_names(root))
    reading = Reading()
    files = []
    for name in names:
        found = _read(root, name)
        if found is not None:
            reading += found
            files.append(name)
    packages = {statement.package for statement in reading.statements}
    for name in names:
        if is_prose(name) and (text := _text(root / name)) is not None:
            reading += read_prose(text, name, packages)
            files.append(name)
    return Repository(root=root, reading=reading, files=tuple(files))


def _names(root: Path) -> Iterator[str]:
    count = 0
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(
            name for name in inner if name not in _SKIPPED and not name.endswith((".egg-info", ".dist-info"))
        )
        for name in files:
            count += 1
            if count > _KEPT:
                return
            yield (Path(folder) / name).relative_to(root).as_posix()


def _read(root: Path, name: str) -> Reading | None:
    """Return what a file of the repository says, None where it is of no kind that is read; prose comes later."""
    base = name.rsplit("/", 1)[-1]
    at_root = "/" not in name
    known = (
        (base == "setup.py" and at_root)
        or (base == "pyproject.toml" and at_root)
        or is_lock(name)
        or _REQUIREMENTS.search(name)
        or is_dockerfile(base)
        or is_workflow(name)
        or is_conda(name)
    )
    if not known or (root / name).is_symlink():
        return None
    text = _text(root / name)
    if text is None:
        return Reading(remarks=(Remark(place=Place(file=name, line=1), what="cannot be read as UTF-8 text"),))
    if base == "setup.py":
        return read_setup(text, name)
    if base == "pyproject.toml":
        return read_pyproject(text, name)
    if is_lock(name):
        return read_lock(text, name)
    if _REQUIREMENTS.search(name):
        force = Force.BOUNDS if base.startswith("constraints") else Force.ASKS
        return read_requirements(text, name, force=force)
    if is_dockerfile(base):
        return read_dockerfile(text, name)
    return read_workflow(text, name) if is_workflow(name) else read_conda(text, name)


def _text(path: Path) -> str | None:
    try:
        if path.stat().st_size > _LARGEST:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
