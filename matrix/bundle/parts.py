"""The stream of a bundle: a plain tar, cut into parts of at most a given size as it is written."""

from __future__ import annotations

import errno
import hashlib
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from matrix.bundle.manifest import Entry, Part
from matrix.errors import NoSpaceError, UsageError

SMALLEST = 1 << 16
DEFAULT = 60_000_000
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}
_BLOCK = 1 << 20


def parse_size(text: str) -> int:
    """Return `60MB` (10^6), `58MiB` (2^20), `500000` in bytes; raises UsageError for another form, and below 64 KiB."""
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()]) if match else 0
    if size < SMALLEST:
        raise UsageError(f"`{text[:40]}` is no size of a part.", then="Write it like 60MB or 58MiB; 64KiB at least.")
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file that goes into a bundle; `sha256` is what it must have."""

    path: Path
    size: int
    sha256: str
    mode: int = 0o644


@dataclass(slots=True)
class Cutter:
    """A file to write to, whose bytes end up in parts `NAME.000`, … of `size` bytes in `folder`, the last shorter."""

    folder: Path
    size: int
    stem: str = "part"
    parts: list[Part] = field(default_factory=list)
    _file: IO[bytes] | None = None
    _held: int = 0
    _digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    _total: int = 0

    def write(self, data: bytes | memoryview) -> int:
        """Append `data`, in as many parts as it takes."""
        rest = memoryview(data)
        while rest:
            if self._file is None:
                self._file = (self.folder / self._name).open("wb")
            piece = rest[: self.size - self._held]
            self._file.write(piece)
            self._digest.update(piece)
            self._held += len(piece)
            rest = rest[len(piece) :]
            if self._held == self.size:
                self.close()
        self._total += len(data)
        return len(data)

    def tell(self) -> int:
        """Return the bytes written so far."""
        return self._total

    def close(self) -> None:
        """End the part that is open."""
        if self._file is None:
            return
        self._file.close()
        self.parts.append(Part(name=self._name, size=self._held, sha256=self._digest.hexdigest()))
        self._file, self._held, self._digest = None, 0, hashlib.sha256()

    @property
    def _name(self) -> str:
        return f"{self.stem}.{len(self.parts):03d}"


def write_parts(sources: Mapping[str, Source], folder: Path, size: int) -> tuple[dict[str, Entry], tuple[Part, ...]]:
    """Return where each file lies in the stream, and the parts, once all are written to `folder`.

    Two bundles of the same files are the same bytes: no time and no owner goes into the tar. Raises NoSpaceError.
    """
    cutter = Cutter(folder, size)
    entries: dict[str, Entry] = {}
    try:
        # GNU tar's form: a long name needs no second format, and everybody's tar reads it.
        with tarfile.open(fileobj=cutter, mode="w", format=tarfile.GNU_FORMAT, copybufsize=_BLOCK) as tar:  # type: ignore[call-overload]
            for name, source in sources.items():
                info = tarfile.TarInfo(name)
                info.size, info.mode = source.size, source.mode
                header = len(info.tobuf(tarfile.GNU_FORMAT))
                entries[name] = Entry(
                    size=source.size, sha256=source.sha256, mode=source.mode, offset=cutter.tell() + header
                )
                with source.path.open("rb") as file:
                    tar.addfile(info, file)
        cutter.close()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(f"No room is left in {folder} for the parts.", then="Free some space.") from error
        raise
    return entries, tuple(cutter.parts)
