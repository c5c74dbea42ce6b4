"""The cache on disk: entries that carry their digest, written whole or not at all, safe for several processes.

Layout: `<root>/index-1/<kind>/<first two of the key>/<key>`. An entry is the hex SHA-256 of its payload, a newline, the
payload. A new layout gets a new number, so an older release of this tool never reads what it cannot understand. No
locks: every file is written once under a name of its own and then renamed, so two processes that fetch the same thing
both end with a good entry, on network file systems too.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from matrix.atomic import replace_file
from matrix.errors import NoSpaceError, UsageError

LAYOUT = "index-1"
_DIGEST_CHARS = 64
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Cache:
    """Entries by kind and key below `root`; what `get` returns is what `put` was given, or None."""

    def __init__(self, root: Path) -> None:
        """Remember where the entries lie; nothing is created before the first `put`."""
        self.root = root / LAYOUT

    def path(self, kind: str, key: str) -> Path:
        """Return where the entry lies; a key that is no plain word is hashed, so it cannot leave the cache."""
        if not key.replace("-", "").replace(".", "").isalnum() or key.startswith("."):
            key = hashlib.sha256(key.encode()).hexdigest()
        return self.root / kind / key[:2] / key

    def get(self, kind: str, key: str) -> bytes | None:
        """Return the entry's payload; None where there is none, or where it was damaged, which also removes it."""
        path = self.path(kind, key)
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unusable(path, error) from error
        digest, payload = content[:_DIGEST_CHARS], content[_DIGEST_CHARS + 1 :]
        if content[_DIGEST_CHARS : _DIGEST_CHARS + 1] == b"\n" and digest == _digest(payload):
            return payload
        self.drop(kind, key)
        return None

    def put(self, kind: str, key: str, payload: bytes) -> Path:
        """Keep the payload, whole or not at all, and return its path; raises NoSpaceError, UsageError."""
        path = self.path(kind, key)
        write_atomically(path, _digest(payload) + b"\n" + payload)
        return path

    def drop(self, kind: str, key: str) -> None:
        """Remove the entry if it is there."""
        with contextlib.suppress(OSError):
            self.path(kind, key).unlink()

    def size(self) -> int:
        """Return how many bytes the entries take on disk."""
        return sum(stat.st_size for stat in _stats(self.root))

    def clear(self) -> int:
        """Remove every entry of this layout and return how many bytes that freed; a second process just refetches."""
        freed = self.size()
        shutil.rmtree(self.root, ignore_errors=True)
        return freed


def write_atomically(path: Path, content: bytes) -> None:
    """Leave `content` at `path`, whole or not at all; raises NoSpaceError, UsageError (not writable)."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: OSError) -> NoSpaceError | UsageError:
    """Return the error of this project that says why the cache cannot be used."""
    if error.errno in _FULL:
        return NoSpaceError(
            f"No room left for {path}.",
            why=str(error.strerror),
            then="Free some space, or put it elsewhere with --home.",
        )
    return UsageError(
        f"The cache cannot be used: {path}: {error.strerror or error}.",
        then="Make it readable and writable, or put it elsewhere with --home.",
    )


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).hexdigest().encode()


def _stats(root: Path) -> Iterator[os.stat_result]:
    for directory, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(OSError):
                yield (Path(directory) / name).stat()
