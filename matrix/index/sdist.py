"""The members of an sdist, read whole once; nothing is unpacked to disk and nothing in it is run."""

from __future__ import annotations

import json
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import IO

from matrix.cache import Cache
from matrix.index import File
from matrix.index.archive import FileArchive
from matrix.index.download import corrupt, whole_file
from matrix.index.fetch import Fetcher
from matrix.index.pack import MemberStore, Packed

# The largest sdist that is read; vLLM's are 9 to 35 MB, torch has none.
LARGEST = 64 << 20
# The largest member, and the most of all members, that are looked at: a small archive may unpack to gigabytes.
LARGEST_MEMBER = 16 << 20
LARGEST_TOTAL = 256 << 20
_KEPT = (".py", ".pyi", ".yaml", ".yml", ".toml", ".cfg", ".txt", "PKG-INFO")
_ROOTS = ("src/", "python/", "lib/")


class SdistArchive(FileArchive):
    """An sdist's members (tar.gz or zip) by the path they would have in site-packages, as well as can be known.

    The top folder is taken off, and `src/` where packages lie below it. Safe for threads.
    """

    def __init__(self, file: File, fetcher: Fetcher, cache: Cache) -> None:
        """Read nothing yet."""
        self._file = file
        self._fetcher = fetcher
        self._cache = cache
        self._store = MemberStore(cache, file.key)
        self._names: tuple[str, ...] | None = None
        self._lock = threading.RLock()
        self._read = 0

    def names(self) -> Sequence[str]:
        """Return the path of every regular file in it."""
        with self._lock:
            if self._names is None:
                kept = self._cache.get("directory", self._file.key)
                self._names = tuple(json.loads(zlib.decompress(kept))) if kept is not None else self._fetch(())
            return self._names

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the content of these members; raises KeyError, IndexUnreachableError, CorruptFileError."""
        wanted = list(dict.fromkeys(names))
        found = self._store.get(wanted)
        with self._lock:
            missing = [name for name in wanted if name not in found]
            if missing:
                known = set(self.names())
                if unknown := next((name for name in missing if name not in known), None):
                    raise KeyError(f"{unknown} is not in {self.filename}")
                found |= self._store.get(missing)
                if any(name not in found for name in missing):
                    self._fetch(missing)
                    found |= self._store.get(missing)
        if lost := next((name for name in wanted if name not in found), None):
            raise corrupt(self.filename, f"{lost} cannot be read or has more than {LARGEST_MEMBER >> 20} MiB")
        return {name: found[name] for name in wanted}

    def _fetch(self, also: Iterable[str]) -> tuple[str, ...]:
        """Read the whole file, keep its sources and the members `also`, and return all names."""
        asked = {root + name for name in also for root in ("", *_ROOTS)}
        with whole_file(self._file, self._fetcher, self._cache, LARGEST, self._count) as content:
            try:
                raw = _read(self._file.filename, content, asked)
            except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error) as error:
                raise corrupt(self.filename, f"it cannot be unpacked ({error})") from error
        prefix = _source_root(raw)
        names = tuple(name.removeprefix(prefix) for name in raw)
        self._store.put({name.removeprefix(prefix): Packed.of(body) for name, body in raw.items() if body is not None})
        self._cache.put("directory", self._file.key, zlib.compress(json.dumps(names).encode(), 6))
        self._names = names
        return names

    def _count(self, count: int) -> None:
        self._read += count


def _read(filename: str, content: IO[bytes], asked: set[str]) -> dict[str, bytes | None]:
    """Return each regular file below the top folder, with its content when it is a source or was asked for.

    Links, devices and paths that leave the archive are not there; contents too large to look at are None.
    """
    found: dict[str, bytes | None] = {}
    left = LARGEST_TOTAL
    for path, size, body in _zip_files(content) if filename.endswith(".zip") else _tar_files(content):
        looked_at = (path.endswith(_KEPT) or path in asked) and size <= min(LARGEST_MEMBER, left)
        found[path] = body() if looked_at else None
        left -= size if looked_at else 0
    return found


def _zip_files(content: IO[bytes]) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    with zipfile.ZipFile(content) as archive:
        for info in archive.infolist():
            if not info.is_dir() and (path := _inside(info.filename)) is not None:
                yield path, info.file_size, partial(archive.read, info)


def _tar_files(content: IO[bytes]) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    with tarfile.open(fileobj=content, mode="r:gz") as tar:
        for member in tar:
            if member.isreg() and (path := _inside(member.name)) is not None:
                file = tar.extractfile(member)
                yield path, member.size, file.read if file is not None else bytes


def _inside(path: str) -> str | None:
    """Return the path below the top folder; None for one that is absolute, leaves the archive or is the top itself."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "\\" in path or len(parts) < 2:
        return None
    return "/".join(parts[1:])


def _source_root(names: Iterable[str]) -> str:
    """Return the folder that packages lie below: `src/` and the like when it holds a package and is none itself."""
    known = set(names)
    for root in _ROOTS:
        holds = any(name.startswith(root) and name.endswith("/__init__.py") and name.count("/") == 2 for name in known)
        if holds and f"{root}__init__.py" not in known:
            return root
    return ""
