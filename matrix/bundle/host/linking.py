"""Links: the host's own packages into a cell file by file, and bytecode from one cell to another."""

from __future__ import annotations

import contextlib
import csv
import importlib.metadata
import os
import sys
import time
from collections.abc import Sequence

from matrix.bundle.host.arrival import BLOCK, Stopped

LINK_S = 0.2
"""A hard link takes microseconds; one that takes longer was a copy (overlayfs copies what lies in a lower layer)."""
CACHE = "__pycache__"


class Linker:
    """Files of the host's packages, to be linked into the cell that is made in `inside` and will lie in `final`.

    Hard links where the file system has them, else symbolic ones; `hard` says which in the end. Only what a package
    lists is linked, so nothing else of the host shows.
    """

    def __init__(self, inside: str, final: str, packages: str) -> None:
        self.inside, self.final, self.packages = inside, final, packages
        self.hard = True
        self.files: dict[str, str] = {}
        self.missing: list[str] = []

    def add(self, name: str) -> None:
        """Take all files of a distribution of the running Python; raises Stopped for one that does not list them."""
        found = importlib.metadata.distribution(name)
        record = found.read_text("RECORD")
        if not record:
            raise Stopped(f"{name} of this host lists no files (no RECORD), so it cannot be linked: have it carried")
        base = str(found.locate_file(""))
        for row in csv.reader(record.splitlines()):
            if row and row[0] and not os.path.isabs(row[0]):
                target = os.path.normpath(os.path.join(self.packages, row[0]))
                if target.startswith(self.inside + os.sep):
                    self.files[target] = os.path.normpath(os.path.join(base, row[0]))

    def link(self) -> None:
        """Link all of it, and the bytecode that the host has of it; `missing` is what is listed and not there."""
        sizes = {target: size_of(source) for target, source in self.files.items()}
        made: set[str] = set()
        # The largest first: where a link is a copy in truth, the first one shows it.
        for target in sorted(self.files, key=lambda target: -sizes[target]):
            source, parent = self.files[target], os.path.dirname(target)
            if sizes[target] < 0:
                if not source.endswith(".pyc"):
                    self.missing.append(source)
                continue
            if parent not in made:
                os.makedirs(parent, exist_ok=True)
                made.add(parent)
            if parent != os.path.join(self.inside, "bin") or not self.script(source, target):
                self.one(source, target)
        self.bytecode()

    def one(self, source: str, target: str) -> None:
        """Link one file; one that is there stays."""
        if self.hard:
            began = time.monotonic()
            try:
                os.link(source, target)
            except FileExistsError:
                return
            except OSError:
                self.hard = False
            else:
                if time.monotonic() - began < LINK_S:
                    return
                os.unlink(target)
                self.hard = False
        with contextlib.suppress(FileExistsError):
            os.symlink(source, target)

    def script(self, source: str, target: str) -> bool:
        """Return whether the file is a script for Python, which was then written for the cell's own interpreter."""
        with open(source, "rb") as file:
            first, _, rest = file.read(BLOCK).partition(b"\n")
        if not (first.startswith(b"#!") and b"python" in first):
            return False
        with open(target, "wb") as file:
            file.write(b"#!" + os.path.join(self.final, "bin", "python").encode() + b"\n" + rest)
        os.chmod(target, 0o755)
        return True

    def bytecode(self) -> None:
        """Link the bytecode that lies beside the host's files and that not every installer lists."""
        ending = f".{sys.implementation.cache_tag}.pyc"
        held: dict[str, set[str]] = {}
        for target, source in self.files.items():
            if not target.endswith(".py"):
                continue
            folder, name = os.path.join(os.path.dirname(source), CACHE), os.path.basename(source)[:-3] + ending
            if folder not in held:
                held[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
            if name in held[folder]:
                place = os.path.join(os.path.dirname(target), CACHE)
                os.makedirs(place, exist_ok=True)
                self.one(os.path.join(folder, name), os.path.join(place, name))


def size_of(path: str) -> int:
    """Return the bytes of a file, -1 for none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def share_bytecode(packages: str, others: Sequence[str]) -> int:
    """Return how many files of bytecode were linked into `packages` from others, made of the very same source files.

    The sources are hard links of one file, with one time and size, which is what bytecode is checked by.
    """
    held: dict[int, str] = {}
    for other in others:
        held.update((inode, path) for path, inode in sources_with_bytecode(other))
    linked = 0
    for folder, _, _ in os.walk(packages) if held else ():
        for entry in os.scandir(folder):
            if entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
                made = held.get(entry.inode())
                if made is not None:
                    place = os.path.join(folder, CACHE)
                    os.makedirs(place, exist_ok=True)
                    with contextlib.suppress(OSError):
                        os.link(made, os.path.join(place, os.path.basename(made)))
                        linked += 1
    return linked


def sources_with_bytecode(packages: str) -> list[tuple[str, int]]:
    """Return the path of each file of bytecode below `packages`, and the inode of the source that it was made of."""
    ending = f".{sys.implementation.cache_tag}.pyc"
    found = []
    for folder, folders, _ in os.walk(packages):
        if CACHE not in folders:
            continue
        cached = set(os.listdir(os.path.join(folder, CACHE)))
        for entry in os.scandir(folder):
            name = entry.name[:-3] + ending
            if entry.name.endswith(".py") and name in cached and entry.is_file(follow_symlinks=False):
                found.append((os.path.join(folder, CACHE, name), entry.inode()))
    return found
