"""Where things are kept between runs: observations in the store, downloads in the cache."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from matrix.errors import NoSpaceError, UsageError

VARIABLE = "VERL_MATRIX_HOME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The two folders that outlive a run. The cache may be deleted at any time; the store is the record."""

    store: Path
    cache: Path

    @classmethod
    def find(cls, given: str | None) -> Home:
        """Return the folders under `given`, else under `VERL_MATRIX_HOME`, else where the user's data and cache lie."""
        root = given or os.environ.get(VARIABLE)
        if root:
            home = Path(root).expanduser().absolute()
            return cls(store=home / "store", cache=home / "cache")
        import platformdirs

        return cls(
            store=platformdirs.user_data_path("verl-matrix") / "store",
            cache=platformdirs.user_cache_path("verl-matrix"),
        )

    def prepare(self) -> None:
        """Make both folders, so that what is found out can be kept.

        Raises:
            UsageError: one of them cannot be made, or nothing can be written there.
            NoSpaceError: the disk is full.
        """
        for folder in (self.store, self.cache):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise NoSpaceError(f"No room is left for {folder}.", then=f"Free some space, or {_ELSE}") from error
                raise _unwritable(folder, error.strerror or str(error)) from error
            if not os.access(folder, os.W_OK | os.X_OK):
                raise _unwritable(folder, "it is not writable")


_ELSE = f"keep things elsewhere with --home or {VARIABLE}."


def _unwritable(folder: Path, why: str) -> UsageError:
    return UsageError(f"Nothing can be kept in {folder}: {why}.", then=f"Make it writable, or {_ELSE}")
