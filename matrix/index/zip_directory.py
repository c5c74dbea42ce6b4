"""The central directory of a zip file, read from the file's tail (APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3)."""

from __future__ import annotations

import itertools
import re
import struct
from dataclasses import dataclass
from typing import IO

_END = b"PK\5\6"
_END_SIZE = 22
_END64_LOCATOR = b"PK\6\7"
_END64 = b"PK\6\6"
_ENTRY = struct.Struct("<4s4xHH4xLLLHHH8xL")
_LOCAL = struct.Struct("<4s22xHH")
LOCAL_SIZE = _LOCAL.size
_MAX32, _MAX16 = 0xFFFFFFFF, 0xFFFF
_DATA = re.compile(r"^[^/]+\.data/(?:purelib|platlib)/")
_ENCRYPTED = 0x1
# The longest end of a zip: its end record with the longest comment, and the two zip64 records.
FARTHEST = _END_SIZE + 0xFFFF + 20 + 56


class NotAZipError(ValueError):
    """The bytes are not the tail of a zip file, or not of one that can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of the zip: where its local header starts, up to where it may reach, and what it must give.

    `offset` and `end` are byte positions in the zip, `end` being where the next thing begins.
    """

    offset: int
    end: int
    length: int
    size: int
    crc: int
    method: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where the central directory lies: start, length in bytes, number of entries."""

    start: int
    length: int
    count: int


def find_end(tail: bytes, total: int) -> End:
    """Return where the central directory lies, from the last bytes of a zip of `total` bytes, FARTHEST or all of them.

    Raises NotAZipError.
    """
    at = _end_record(tail)
    count, length, start = struct.unpack_from("<HLL", tail, at + 10)
    if count != _MAX16 and length != _MAX32 and start != _MAX32:
        return _checked(End(start=start, length=length, count=count), total)
    locator = max(0, at - 20)
    if tail[locator : locator + 4] != _END64_LOCATOR:
        return _checked(End(start=start, length=length, count=count), total)
    (place,) = struct.unpack_from("<Q", tail, locator + 8)
    here = place - (total - len(tail))
    if here < 0 or tail[here : here + 4] != _END64:
        raise NotAZipError("no zip64 end record where its locator points")
    count, length, start = struct.unpack_from("<QQQ", tail, here + 32)
    return _checked(End(start=start, length=length, count=count), total)


def _end_record(tail: bytes) -> int:
    """Return where the end record starts: the last one whose comment reaches exactly to the end of the file."""
    at = tail.rfind(_END)
    while at >= 0:
        if at + _END_SIZE <= len(tail):
            (comment,) = struct.unpack_from("<H", tail, at + 20)
            if at + _END_SIZE + comment == len(tail):
                return at
        at = tail.rfind(_END, 0, at)
    raise NotAZipError("no end record: the file is truncated or is not a zip")


def _checked(end: End, total: int) -> End:
    if end.start + end.length > total:
        raise NotAZipError("the central directory reaches past the end of the file")
    return end


def members(directory: bytes, end: End) -> dict[str, Member]:
    """Return the files by their path relative to site-packages, from the bytes of the central directory.

    The prefix `*.data/purelib/` or `*.data/platlib/` of a wheel is taken off. Raises NotAZipError.
    """
    rows: list[tuple[str, int, int, int, int, int]] = []
    at = 0
    for _ in range(end.count):
        if at + _ENTRY.size > len(directory):
            raise NotAZipError("the central directory is truncated")
        magic, flags, method, crc, length, size, named, extra, comment, offset = _ENTRY.unpack_from(directory, at)
        if magic != b"PK\1\2":
            raise NotAZipError("the central directory is damaged")
        name_at = at + 46
        name = directory[name_at : name_at + named].decode("utf-8", "replace")
        if _MAX32 in (length, size, offset):
            fields = directory[name_at + named : name_at + named + extra]
            size, length, offset = _wide(fields, size, length, offset)
        at = name_at + named + extra + comment
        if not name.endswith("/") and not flags & _ENCRYPTED:
            rows.append((name, offset, length, size, crc, method))
    starts = sorted({row[1] for row in rows} | {end.start})
    following = dict(itertools.pairwise(starts))
    return {
        _DATA.sub("", name, count=1) if ".data/" in name else name: Member(
            offset=offset, end=following[offset], length=length, size=size, crc=crc, method=method
        )
        for name, offset, length, size, crc, method in rows
        if offset in following
    }


def listed(tail: bytes, start: int, end: End) -> dict[str, Member]:
    """Return the files of a zip whose bytes from `start` on are `tail`; the directory must lie within them."""
    return members(tail[end.start - start : end.start - start + end.length], end)


def listed_in(file: IO[bytes], size: int) -> dict[str, Member]:
    """Return the files of a whole zip of `size` bytes; raises NotAZipError."""
    start = max(0, size - FARTHEST)
    file.seek(start)
    end = find_end(file.read(), size)
    file.seek(end.start)
    return members(file.read(end.length), end)


def _wide(fields: bytes, size: int, length: int, offset: int) -> tuple[int, int, int]:
    """Return size, length and offset with those that are 0xFFFFFFFF taken from the zip64 extra field."""
    at = 0
    while at + 4 <= len(fields):
        kind, width = struct.unpack_from("<HH", fields, at)
        if kind == 1:
            wide = list(struct.unpack_from(f"<{width // 8}Q", fields, at + 4))
            narrow = (size, length, offset)
            if len(wide) < sum(value == _MAX32 for value in narrow):
                break
            size, length, offset = (wide.pop(0) if value == _MAX32 else value for value in narrow)
            return size, length, offset
        at += 4 + width
    raise NotAZipError("a zip64 entry has no zip64 field")


def payload(chunk: bytes, member: Member, base: int) -> bytes | None:
    """Return the member's raw bytes from a chunk of the zip that starts at byte `base`; None where they are not all in.

    The local header's name and extra field may be longer than the central directory's, so it has to be looked at.
    """
    at = member.offset - base
    if at < 0 or at + LOCAL_SIZE > len(chunk):
        return None
    magic, named, extra = _LOCAL.unpack_from(chunk, at)
    start = at + LOCAL_SIZE + named + extra
    if magic != b"PK\3\4" or start + member.length > len(chunk):
        return None
    return chunk[start : start + member.length]
