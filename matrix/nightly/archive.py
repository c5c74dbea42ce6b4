"""The nights that are kept: one JSON file each in the home, written whole or not at all, the oldest removed in time."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matrix.atomic import replace_file
from matrix.errors import CorruptFileError, DataError, NewerSchemaError, NoSpaceError
from matrix.nightly.record import SCHEMA, Night
from matrix.store import Migration, upgrade

KEPT = 90
"""So many nights are kept."""
MIGRATIONS: tuple[Migration, ...] = ()
"""`MIGRATIONS[n - 1]` turns a night of schema n into one of schema n + 1."""


class Archive:
    """The nights in a folder, by the moment at which they ended."""

    def __init__(self, folder: Path) -> None:
        """Touch nothing yet."""
        self.folder = folder

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files of the nights, oldest first."""
        return tuple(sorted(self.folder.glob("night-*.json")))

    def latest(self) -> tuple[Night | None, tuple[str, ...]]:
        """Return the last night that can be read, None where there is none, and a line for each that cannot.

        Raises:
            NewerSchemaError: a newer release of this tool wrote it.
        """
        notes: list[str] = []
        for path in reversed(self.files):
            try:
                return read_night(path), tuple(notes)
            except CorruptFileError as error:
                notes.append(f"{error.what} The night before it is compared with.")
        return None, tuple(notes)

    def recent(self, count: int) -> Iterator[Night]:
        """Yield the last nights that can be read, latest first; raises as `latest` does."""
        for path in reversed(self.files[-count:]):
            with contextlib.suppress(CorruptFileError):
                yield read_night(path)

    def keep(self, night: Night) -> Path:
        """Return the file of the night once it is on the disk; nights beyond the last 90 are removed.

        Raises:
            NoSpaceError: the disk is full; the nights before are kept, and what was observed is in the store.
            DataError: the folder cannot be written.
        """
        path = self.folder / f"night-{night.stamp}.json"
        body = json.dumps(night.to_json(), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        try:
            replace_file(path, body.encode("utf-8", "replace"), last=True)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise NoSpaceError(
                    f"No room is left for the record of this night, {path}.",
                    why="The nights before are kept, and so is what was observed.",
                    then="Free some space and run it again: what was answered is not asked again.",
                ) from error
            why = error.strerror or str(error)
            raise DataError(path, "", f"cannot be written: {why}", then="Check the rights of the home.") from error
        for old in self.files[:-KEPT]:
            old.unlink(missing_ok=True)
        return path


def read_night(path: Path) -> Night:
    """Return the night in a file, migrated where an earlier release wrote it.

    Raises:
        NewerSchemaError: a newer release of this tool wrote it.
        CorruptFileError: it is no night.
    """
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise TypeError("not an object")
        return Night.from_json(upgrade(data, MIGRATIONS, SCHEMA))
    except NewerSchemaError as error:
        raise NewerSchemaError(f"{path}: {error.what}", then=error.then) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(
            f"{path} is not the record of a night: {type(error).__name__}: {error}.",
            why="Something else wrote to it.",
            then="Move it away; this night is then compared with the one before.",
        ) from error
