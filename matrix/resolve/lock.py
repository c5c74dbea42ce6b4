"""The lock: a PEP 751 `pylock.toml` as uv writes it, taken apart by package, and the folder that keeps locks."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from matrix.errors import CorruptFileError, NoSpaceError, ToolError

_SEPARATOR = "\n[[packages]]\n"
_ENTRY = re.compile(r'name = "([^"]+)"\nversion = "([^"]+)"\n')


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """One package of a lock; `entry` is its text below `[[packages]]`."""

    name: str
    version: Version
    entry: str

    @property
    def has_wheel(self) -> bool:
        """Return whether there is a wheel for the lock's platform; else it has to be built from its sdist."""
        return "\nwheels = [" in self.entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """The complete resolved set of a cell, in uv's order (by name)."""

    head: str
    packages: tuple[Locked, ...]

    @property
    def text(self) -> str:
        """Return the `pylock.toml`."""
        return _SEPARATOR.join([self.head, *(package.entry for package in self.packages)])

    @property
    def versions(self) -> Mapping[str, Version]:
        """Return the version of each package, by its name."""
        return {package.name: package.version for package in self.packages}

    @property
    def to_build(self) -> tuple[str, ...]:
        """Return the packages that have no wheel for the platform, as `name==version`."""
        return tuple(f"{package.name}=={package.version}" for package in self.packages if not package.has_wheel)

    def with_entry(self, other: Locked) -> Lock:
        """Return this lock with another release in the place of the package of that name."""
        text = other.entry.rstrip("\n")
        packages = tuple(
            replace(other, entry=text + package.entry[len(package.entry.rstrip("\n")) :])
            if package.name == other.name
            else package
            for package in self.packages
        )
        return replace(self, packages=packages)


def parse_lock(text: str) -> Lock:
    """Return the lock that uv wrote, split at its packages (a TOML parser takes 30 ms for what takes one here).

    Raises ToolError when the text is not as uv writes it.
    """
    head, *entries = text.split(_SEPARATOR)
    packages = []
    for entry in entries:
        match = _ENTRY.match(entry)
        if match is None:
            raise ToolError(
                "uv wrote a lock of an unexpected form.",
                why=f"No name and version in: {entry[:200]}",
                then="Install the uv release that this project names in its pyproject.toml.",
            )
        packages.append(Locked(name=match[1], version=Version(match[2]), entry=entry))
    return Lock(head=head, packages=tuple(packages))


class LockFolder:
    """Locks by their digest, gzipped; the same lock is kept once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def under(cls, cache: Path) -> LockFolder:
        """Return the folder of the locks in a home's cache."""
        return cls(cache / "resolve" / "locks")

    def path(self, digest: str) -> Path:
        """Return where the lock of that digest (`sha256:…`) lies."""
        name = digest.removeprefix("sha256:")
        return self._folder / name[:2] / f"{name}.pylock.toml.gz"

    def write(self, text: str) -> str:
        """Return the digest of `text` once it is kept; raises NoSpaceError, OSError."""
        body = text.encode()
        digest = "sha256:" + hashlib.sha256(body).hexdigest()
        path = self.path(digest)
        if path.exists():
            return digest
        aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_bytes(gzip.compress(body, 5, mtime=0))
            aside.replace(path)
        except OSError as error:
            aside.unlink(missing_ok=True)
            if error.errno == errno.ENOSPC:
                raise NoSpaceError("No room is left for a lock.", then="Free some disk space.") from error
            raise
        return digest

    def read(self, digest: str) -> str:
        """Return the lock; raises CorruptFileError when it is gone or is not what was kept (it is then removed)."""
        path = self.path(digest)
        try:
            body = gzip.decompress(path.read_bytes())
        except FileNotFoundError:
            why = "It is gone; the cache was deleted perhaps."
        except (OSError, EOFError, zlib.error) as error:
            why = f"{type(error).__name__}: {error}"
        else:
            if "sha256:" + hashlib.sha256(body).hexdigest() == digest:
                return body.decode()
            why = "Its content does not match its name."
        path.unlink(missing_ok=True)
        raise CorruptFileError(
            f"A lock cannot be read: {path}.", why=why, then="Resolve the cell again, and the lock is written anew."
        )
