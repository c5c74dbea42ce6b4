"""ELF files: the symbols that a shared library defines and those it leaves to others, read without loading it.

Enough of the format for 64-bit little-endian shared objects (System V gABI 4.1, chapters 4 and 5).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

_DYNSYM = 11
_UNDEFINED = 0
_WEAK = 2


class NotElfError(ValueError):
    """A file is no 64-bit little-endian ELF object."""


@dataclass(frozen=True)
class Symbols:
    """The dynamic symbols of a library: `defined` by it, and `wanted` from elsewhere (weak ones left out)."""

    defined: frozenset[str]
    wanted: frozenset[str]


def read_symbols(path: Path) -> Symbols:
    """Return the dynamic symbols of a shared library; raises NotElfError."""
    with path.open("rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":
            raise NotElfError(f"{path} is no 64-bit little-endian ELF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _symbols(data)


def _symbols(data: mmap.mmap) -> Symbols:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * n) for n in range(count)]
    defined, wanted = set(), set()
    for section in sections:
        if section[1] != _DYNSYM:
            continue
        start, length = sections[section[6]][4], sections[section[6]][5]
        names = data[start : start + length]
        for name, info, _other, index, _value, _size in struct.iter_unpack(
            "<IBBHQQ", data[section[4] : section[4] + section[5]]
        ):
            text = names[name : names.index(b"\0", name)].decode("ascii", "replace")
            if index != _UNDEFINED:
                defined.add(text)
            elif text and info >> 4 != _WEAK:
                wanted.add(text)
    return Symbols(defined=frozenset(defined), wanted=frozenset(wanted))


def unresolved(extension: Path, libraries: list[Path], prefix: str = "_ZN") -> frozenset[str]:
    """Return what `extension` wants of the C++ names of torch (c10, at, torch) and none of `libraries` defines."""
    marks = ("3c10", "2at", "5torch", "8torch")
    wanted = {
        name
        for name in read_symbols(extension).wanted
        if name.startswith(prefix) and name[len(prefix) :].lstrip("K").startswith(marks)
    }
    for library in libraries:
        if not wanted:
            break
        wanted -= read_symbols(library).defined
    return frozenset(wanted)
