"""A whole file of the index, its digest checked, for as long as it is needed."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from matrix.cache import Cache, unusable
from matrix.errors import CorruptFileError
from matrix.index import File
from matrix.index.fetch import Fetcher

_SPOOLED = 8 << 20


@contextmanager
def whole_file(
    file: File, fetcher: Fetcher, cache: Cache, limit: int, count: Callable[[int], None]
) -> Iterator[IO[bytes]]:
    """Give the whole file, open for reading; it is gone afterwards. `count` is told the bytes of every try.

    Up to 8 MB it is in memory, above that in a file in the cache's directory without a name. Raises CorruptFileError
    when its digest is wrong twice, NoSpaceError, IndexUnreachableError (also when it is larger than `limit` bytes).
    """
    try:
        cache.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(cache.root, error) from error
    with tempfile.SpooledTemporaryFile(max_size=_SPOOLED, dir=str(cache.root)) as content:
        for _ in range(2):
            try:
                count(fetcher.whole(file.url, content, limit))
            except OSError as error:
                raise unusable(cache.root, error) from error
            content.seek(0)
            if not file.sha256 or hashlib.file_digest(content, "sha256").hexdigest() == file.sha256:
                content.seek(0)
                yield content
                return
    raise corrupt(file.filename, "its SHA-256 is not the one that the index states")


def corrupt(filename: str, what: str) -> CorruptFileError:
    """Return the error for a file that is not what the index or the file itself promises."""
    return CorruptFileError(
        f"{filename}: {what}.",
        why="It was fetched again and was no better: the index, a mirror or a proxy serves a damaged copy.",
        then="Try another index (UV_DEFAULT_INDEX), or try again later.",
    )
