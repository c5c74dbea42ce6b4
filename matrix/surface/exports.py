"""What the files of a folder export by `__all__` and `@requires`, as transformers' `define_import_structure` reads it.

The source is `create_import_structure_from_path` in transformers 4.46 to 5.24, which works on lines of text: files
whose name starts with `convert_` or `modular_` are left out, folders are entered, `__init__.py` is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from matrix.surface.modules import Package

_LEFT_OUT = ("convert_", "modular_")
# Reading every file of transformers' models is 25 MB of source; a package with more is not searched to the end.
_MOST_FILES = 6_000


class Exports:
    """The names that a folder's files export; folders whose name the wanted name starts with are read first."""

    def __init__(self, package: Package, base: str) -> None:
        """Find the folder's files in the archive's directory; none is read yet."""
        self._package = package
        self._base = base
        self._files = [
            dotted
            for dotted in package.source
            if dotted.startswith(f"{base}.")
            and dotted not in package.packages
            and not dotted.rpartition(".")[2].startswith(_LEFT_OUT)
        ]
        self._read: set[str] = set()
        self._names: dict[str, list[str]] = {}
        self.complete = len(self._files) <= _MOST_FILES

    def modules(self, name: str) -> Iterator[str]:
        """Yield the modules that export `name`, reading no more files than needed to find the first."""
        seen: set[str] = set()
        for batch in self._batches(name):
            self._load(batch)
            for module in self._names.get(name, ()):
                if module not in seen:
                    seen.add(module)
                    yield module

    def _batches(self, name: str) -> Iterator[list[str]]:
        yield []
        squashed = _squash(name)
        near = [f for f in self._files if squashed.startswith(_squash(f.split(".")[-2]))]
        yield near
        if self.complete and not self._settled(name):
            yield self._files

    def _settled(self, name: str) -> bool:
        """Return whether a name can only be in the folder it is named after.

        In transformers 4.51.3, 4.57.6, 5.9.0 and 5.24.0 every export `Auto…` lies in `models/auto` (20 thousand
        exports, no exception); asking for one that is gone must not read the other 2,000 files.
        """
        return re.match(r"Auto[A-Z]", name) is not None and f"{self._base}.auto" in self._package.packages

    def _load(self, files: list[str]) -> None:
        wanted = [f for f in files if f not in self._read]
        if not wanted:
            return
        self._read.update(wanted)
        for module, names in self._package.exported(wanted).items():
            for name in names:
                self._names.setdefault(name, []).append(module)


def _squash(name: str) -> str:
    return name.replace("_", "").lower()
