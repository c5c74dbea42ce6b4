"""The dynamic symbols of ELF64 files: what a library asks of others and what it offers (System V gABI, chapters 4, 5).

Read with `struct` and not with pyelftools, which makes an object of every symbol: docs/doctor.md has the times on
torch's own libraries.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_DYNSYM, _DYNAMIC_TYPE = 11, 6
_NEEDED, _RPATH, _RUNPATH, _SONAME = 1, 15, 29, 14
_WEAK = 2
_LITTLE_64 = b"\x7fELF\x02\x01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """What an ELF file says of its dynamic linking; `undefined` are the symbols that it must find elsewhere."""

    path: Path
    soname: str
    needed: tuple[str, ...]
    search: tuple[str, ...]
    undefined: frozenset[str]


class NotElfError(ValueError):
    """The file is no little-endian ELF64 file, or is truncated."""


def read_library(path: Path) -> Library:
    """Return what a library needs; raises NotElfError for what is none, and OSError."""
    with _Image(path) as image:
        undefined = frozenset(
            image.name(name)
            for name, info, _, section, _, _ in image.symbols()
            if section == 0 and name and info >> 4 != _WEAK
        )
        tags = image.dynamic()
        return Library(
            path=path,
            soname=next(iter(tags.get(_SONAME, ())), path.name),
            needed=tuple(tags.get(_NEEDED, ())),
            search=tuple(part for tag in (_RUNPATH, _RPATH) for text in tags.get(tag, ()) for part in text.split(":")),
            undefined=undefined,
        )


def offered(path: Path, wanted: Container[str]) -> set[str]:
    """Return which of the wanted symbols a library defines; raises NotElfError for what is none, and OSError."""
    with _Image(path) as image:
        return {
            text
            for name, _, _, section, _, _ in image.symbols()
            if section != 0 and (text := image.name(name)) in wanted
        }


class _Image:
    """An ELF file, mapped: its sections are read when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | bytes = b""
        self._strings = (0, 0)
        self._sections: list[tuple[int, ...]] = []

    def __enter__(self) -> _Image:
        with self._path.open("rb") as file:
            try:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise NotElfError(f"{self._path} is empty") from None
        try:
            self._head()
        except (struct.error, NotElfError) as error:
            self.__exit__()
            raise NotElfError(f"{self._path} is no ELF64 file, or cut short") from error
        return self

    def __exit__(self, *raised: object) -> None:
        if isinstance(self._map, mmap.mmap):
            self._map.close()

    def _head(self) -> None:
        if self._map[:6] != _LITTLE_64:
            raise NotElfError(str(self._path))
        head = _HEADER.unpack_from(self._map)
        start, size, count = head[6], head[11], head[12]
        if size != _SECTION.size or start + size * count > len(self._map):
            raise NotElfError(str(self._path))
        self._sections = [_SECTION.unpack_from(self._map, start + at * size) for at in range(count)]

    def _linked(self, kind: int) -> tuple[int, int]:
        """Return offset and size of the section of that kind, and take the strings that it is linked to."""
        for section in self._sections:
            if section[1] == kind:
                strings = self._sections[section[6]]
                self._strings = strings[4], strings[4] + strings[5]
                return section[4], section[5]
        return 0, 0

    def symbols(self) -> list[tuple[int, ...]]:
        """Return the dynamic symbols as the file has them."""
        start, size = self._linked(_DYNSYM)
        return list(_SYMBOL.iter_unpack(self._map[start : start + size]))

    def dynamic(self) -> dict[int, list[str]]:
        """Return the strings of the dynamic section by tag."""
        start, size = self._linked(_DYNAMIC_TYPE)
        found: dict[int, list[str]] = {}
        for tag, value in _DYNAMIC.iter_unpack(self._map[start : start + size]):
            if tag in (_NEEDED, _RPATH, _RUNPATH, _SONAME):
                found.setdefault(tag, []).append(self.name(value))
        return found

    def name(self, at: int) -> str:
        """Return the string at an offset of the strings that the last section read is linked to."""
        start = self._strings[0] + at
        end = self._map.find(b"\0", start, self._strings[1])
        return bytes(self._map[start:end]).decode("utf-8", "replace")
