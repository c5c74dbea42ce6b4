"""Files that are written whole or not at all, so that no reader and no kill ever leaves half of one."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int | None = None, last: bool = False) -> None:
    """Leave `content` at `path`, on disk; what was there before stays until the new file is complete.

    The folder is made if need be. A new file gets `mode`, else what the umask lets. With `last` the rename itself is
    made to last through a power cut too. Raises OSError; nothing is left behind then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.parent / f".tmp-{secrets.token_hex(8)}"
    try:
        # Not mkstemp, which makes the file private: a report or a shared cache is there to be read by others.
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    if last:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
