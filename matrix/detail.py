"""The detail of a stored observation: small values in its line, large ones in files that are read when looked at."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from matrix.atomic import replace_file
from matrix.errors import CorruptFileError


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """A value that lies in a file of its own: SHA-256 of its JSON, and the size of the gzipped file in bytes."""

    sha256: str
    size: int

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data; `from_json` gives the equal value back."""
        return {"sha256": self.sha256, "size": self.size}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Large:
        """Return what `to_json` wrote; raises KeyError or ValueError for anything else."""
        return cls(sha256=str(data["sha256"]), size=int(str(data["size"])))

    def path(self, folder: Path) -> Path:
        """Return where it lies under `folder`."""
        return folder / self.sha256[:2] / f"{self.sha256}.json.gz"


class Detail(Mapping[str, object]):
    """A mapping that equals the detail that was stored; a large value is read, and checked, each time it is looked at.

    Nothing is kept in memory: a run over a thousand cells looks at a thousand lists of findings, one after the other.
    Raises CorruptFileError where a file does not hold what was stored; the file is then set aside (`.bad`), so that
    the next run asks that question again.
    """

    __slots__ = ("_folder", "_large", "_small")

    def __init__(self, folder: Path, small: Mapping[str, object], large: Mapping[str, Large]) -> None:
        """Hold the small values, and where the large ones lie."""
        self._folder = folder
        self._small = small
        self._large = large

    def __getitem__(self, name: str) -> object:
        """Return the value; raises KeyError, CorruptFileError."""
        large = self._large.get(name)
        return self._small[name] if large is None else _read_large(large.path(self._folder), large)

    def __iter__(self) -> Iterator[str]:
        """Yield the names, sorted."""
        return iter(sorted([*self._small, *self._large]))

    def __len__(self) -> int:
        """Return how many values there are."""
        return len(self._small) + len(self._large)

    def __eq__(self, other: object) -> bool:
        """Return whether the other mapping holds the same values."""
        return dict(self) == dict(other) if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, name: object) -> bool:
        """Return whether there is a value of that name, without reading it."""
        return name in self._small or name in self._large

    def is_whole(self) -> bool:
        """Return whether the files of the large values are there at their full size (their content is not read)."""
        for large in self._large.values():
            try:
                if large.path(self._folder).stat().st_size != large.size:
                    return False
            except OSError:
                return False
        return True


def write_large(folder: Path, text: bytes) -> Large:
    """Return the name of `text`, once it lies under `folder`; the same text is kept once. Raises OSError.

    The folder's own entry is left to the operating system: a power cut that takes it makes `is_whole` false, and the
    question is asked again.
    """
    sha256 = hashlib.sha256(text).hexdigest()
    packed = gzip.compress(text, 5, mtime=0)
    large = Large(sha256=sha256, size=len(packed))
    path = large.path(folder)
    if path.exists() and path.stat().st_size == large.size:
        return large
    replace_file(path, packed, last=True)
    return large


def _read_large(path: Path, large: Large) -> object:
    try:
        text = gzip.decompress(path.read_bytes())
        if hashlib.sha256(text).hexdigest() == large.sha256:
            return json.loads(text)
    except FileNotFoundError:
        why = "The file is gone."
    except (OSError, EOFError, zlib.error) as error:
        why = f"{type(error).__name__}: {error}"
    else:
        why = "Its content does not match its name."
    if path.exists():
        path.replace(path.with_suffix(".bad"))
    raise CorruptFileError(
        f"A stored detail cannot be read: {path}.",
        why=why,
        then="It was set aside; run again, and what it answered is asked anew.",
    )
