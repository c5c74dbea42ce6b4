"""The shelf: the environments under the home, each a folder with a latch beside it; listed, found and removed here."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from matrix.errors import BusyError
from matrix.provision.environment import MANIFEST, Manifest, read_manifest
from matrix.provision.latch import Waiting, is_held, take
from matrix.provision.room import Usage, usage

_LONGEST = 150
_GONE = ".gone-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelved:
    """One environment on the shelf; `manifest` None means half-finished. `used` is when it was last taken (UTC)."""

    name: str
    folder: Path
    manifest: Manifest | None
    usage: Usage
    used: datetime
    in_use: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """The folder in which environments lie."""

    root: Path

    def folder(self, cell: str) -> Path:
        """Return where the environment of that cell lies; a name too long for a folder ends in its digest."""
        if len(cell) > _LONGEST:
            cell = f"{cell[: _LONGEST - 13]}-{hashlib.sha256(cell.encode()).hexdigest()[:12]}"
        return self.root / cell

    def latch(self, folder: Path) -> Path:
        """Return the latch file of the environment in `folder`."""
        return self.root / f".{folder.name}.latch"

    def entries(self) -> list[Shelved]:
        """Return what is on the shelf, by name."""
        found = []
        for folder in self._folders():
            manifest = read_manifest(folder)
            stamp = folder / MANIFEST if manifest is not None else folder
            with contextlib.suppress(FileNotFoundError):
                used = datetime.fromtimestamp(stamp.stat().st_mtime, UTC)
                held = is_held(self.latch(folder))
                name = manifest.cell if manifest is not None else folder.name
                item = Shelved(name=name, folder=folder, manifest=manifest, usage=usage(folder), used=used, in_use=held)
                found.append(item)
        return found

    def remove(self, folder: Path) -> Usage:
        """Remove an environment that nobody uses and return what it took; raises BusyError where somebody does."""
        waiting = Waiting(path=self.latch(folder), what=f"The environment {folder.name}", patience_s=0.0)
        latch = take(waiting, shared=False)
        try:
            took = usage(folder)
            self.discard(folder)
            (self.root / f".{folder.name}.needs").unlink(missing_ok=True)
            latch.path.unlink(missing_ok=True)
        finally:
            latch.drop()
        self.sweep()
        return took

    def try_remove(self, folder: Path) -> bool:
        """Return whether the environment is gone; it stays where somebody else uses it."""
        try:
            self.remove(folder)
        except BusyError:
            return False
        return True

    def discard(self, folder: Path) -> None:
        """Make the folder vanish at once and then delete it; only for who holds its latch alone.

        A kill in between leaves a folder that `sweep` deletes.
        """
        gone = self.root / f"{_GONE}{os.urandom(6).hex()}"
        try:
            folder.rename(gone)
        except FileNotFoundError:
            return
        shutil.rmtree(gone, ignore_errors=True)

    def sweep(self) -> None:
        """Delete what a killed removal left."""
        for folder in self.root.glob(f"{_GONE}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def _folders(self) -> Iterator[Path]:
        if self.root.is_dir():
            yield from sorted(path for path in self.root.iterdir() if path.is_dir() and not path.name.startswith("."))
