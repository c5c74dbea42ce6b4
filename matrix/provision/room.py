"""Room on the disk: what a cell will add to it, said before anything is fetched, and what an environment takes."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from matrix.errors import NoSpaceError

EXPANSION = 2.5
"""Installed bytes a byte of wheel, over a whole lock; docs/provision.md has the measurement."""
BASE = 64 << 20
"""What an environment has of its own although every file is linked: folders, scripts, records, its python."""
UNKNOWN = 8 << 20
"""Taken for a file whose size the index does not tell."""
RESERVE = 1 << 30
"""Left free: imports write bytecode, vLLM and torch compile into their caches, and others use the disk too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Bytes that a cell will add: to uv's cache, and to the environment's own folder; `unsized` files were guessed."""

    cache: int
    environment: int
    unsized: int = 0

    @property
    def total(self) -> int:
        """Return both together."""
        return self.cache + self.environment


def estimate(sizes: Mapping[str, int | None], fetched: Collection[str], *, linked: bool) -> Estimate:
    """Return what installing files of these sizes adds, when those in `fetched` are not in uv's cache yet.

    Without hard links every file is there a second time. An estimate, on the high side: see `EXPANSION`.
    """

    def unpacked(names: Collection[str]) -> int:
        return int(sum((UNKNOWN if sizes[name] is None else sizes[name] or 0) for name in names) * EXPANSION)

    return Estimate(
        cache=unpacked(fetched),
        environment=BASE + (0 if linked else unpacked(sizes)),
        unsized=sum(sizes[name] is None for name in fetched),
    )


def free_bytes(path: Path) -> int:
    """Return the bytes that can still be written where `path` lies, or will lie."""
    return shutil.disk_usage(existing(path)).free


def check_room(needed: Estimate, cache: Path, environments: Path, free: Callable[[Path], int] = free_bytes) -> None:
    """Raise NoSpaceError where the cell does not fit, saying how much it takes and where."""
    if existing(cache).stat().st_dev == existing(environments).stat().st_dev:
        wanted = [(environments, needed.total)]
    else:
        wanted = [(cache, needed.cache), (environments, needed.environment)]
    for place, bytes_ in wanted:
        has = free(place)
        if has < bytes_ + RESERVE:
            raise NoSpaceError(
                f"The cell takes about {gigabytes(bytes_)} more in {place}, where {gigabytes(has)} are free.",
                why=f"{gigabytes(RESERVE)} are to stay free for what runs in it.",
                then="Free some space (`verl-matrix env list`, `env remove`, `uv cache prune`), or use a larger disk "
                "with --home and UV_CACHE_DIR.",
            )


def can_link(source: Path, target: Path) -> bool:
    """Return whether a file of the folder `source` can be hard-linked into the folder `target`; both are made."""
    name = f".link-{os.urandom(6).hex()}"
    try:
        source.mkdir(parents=True, exist_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
        (target / f"{name}-2").hardlink_to(source / name)
    except OSError:
        return False
    finally:
        for path in (source / name, target / f"{name}-2"):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a folder takes on disk, in bytes: `own` goes when it is removed, `shared` is linked from elsewhere too."""

    own: int
    shared: int

    @property
    def total(self) -> int:
        """Return both together."""
        return self.own + self.shared


def usage(folder: Path) -> Usage:
    """Return what the folder takes; a file that vanishes meanwhile is not counted."""
    own = shared = 0
    for stat in _inodes(folder):
        if stat.st_nlink > 1:
            shared += stat.st_blocks * 512
        else:
            own += stat.st_blocks * 512
    return Usage(own=own, shared=shared)


def added_since(folder: Path, moment: float) -> int:
    """Return the bytes of the folder's files that were written at or after `moment` (seconds since the epoch).

    uv gives a file that it unpacks the time of unpacking, and a link has the time of the file, so what was in its cache
    before does not count.
    """
    return sum(stat.st_blocks * 512 for stat in _inodes(folder) if stat.st_mtime >= moment)


def existing(path: Path) -> Path:
    """Return the path, or the nearest of its parents that exists."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def gigabytes(count: int) -> str:
    """Return a number of bytes for people, e.g. `9.8 GB`, `41 MB` or `90 kB`."""
    for size, unit, digits in ((1e9, "GB", 1), (1e6, "MB", 0)):
        if count >= size:
            return f"{count / size:.{digits}f} {unit}"
    return f"{count / 1e3:.0f} kB"


def _inodes(folder: Path) -> Iterator[os.stat_result]:
    """Yield each inode below the folder once, folders but for their subfolder links included."""
    seen: set[int] = set()
    for place, folders, files in os.walk(folder):
        for name in (*files, *folders):
            with contextlib.suppress(OSError):
                stat = os.lstat(os.path.join(place, name))  # noqa: PTH118 - a tenth of the time over 100,000 files
                if stat.st_ino not in seen:
                    seen.add(stat.st_ino)
                    yield _alone(stat) if name in folders else stat


def _alone(stat: os.stat_result) -> os.stat_result:
    """Return a folder's figures with one link: its links count its subfolders, not other places."""
    values = list(stat)
    values[3] = 1
    extras = {name: getattr(stat, name) for name in ("st_blocks", "st_mtime")}
    return os.stat_result(values, extras)
