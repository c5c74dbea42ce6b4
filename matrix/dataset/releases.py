"""Where the code that scores comes from: a release's wheel on the index, or the verl that is installed here."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from packaging.version import Version

from matrix.cell import Axis, Platform
from matrix.dataset.scorer import GSM8K, MAIN, READER, REWARDS, Scorer, read_scorer
from matrix.errors import UnknownReleaseError
from matrix.index import PackageIndex

_FILES = (REWARDS, MAIN, GSM8K, READER)


def scorer_of_release(index: PackageIndex, version: Version) -> Scorer:
    """Return what that release of verl scores, from its wheel: four members are read, not the wheel.

    Raises:
        UnknownReleaseError: there is no such release, or none with a wheel.
        IndexUnreachableError: the index does not answer, or offline nothing is cached.
    """
    release = index.require_release(Axis.VERL.value, version)
    file = index.best_file(release, Platform())
    if file is None:
        why = index.why_no_file(release, Platform())
        raise UnknownReleaseError(f"A wheel of verl {version}", then=f"{why}. Give another release with --verl.")
    archive = index.archive(file)
    there = set(archive.names())
    texts = {name: content.decode() for name, content in archive.read([n for n in _FILES if n in there]).items()}
    return read_scorer(str(version), texts.get)


def scorer_installed() -> Scorer | None:
    """Return what the verl installed in this environment scores, None where none is installed; nothing is imported."""
    try:
        distribution = importlib.metadata.distribution("verl")
    except importlib.metadata.PackageNotFoundError:
        return None

    def read(name: str) -> str | None:
        try:
            return Path(str(distribution.locate_file(name))).read_text(encoding="utf-8")
        except OSError:
            return None

    try:
        return read_scorer(distribution.version, read)
    except ValueError:
        # An editable installation, whose files lie elsewhere.
        return None
