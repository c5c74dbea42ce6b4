"""The members of one archive that were read so far, kept compressed in a few pack files.

A pack is one cache file: a line with the SHA-256 of its table, the table's length, the table (JSON: member → place,
length, size, method, CRC-32), then the members as they lay in the archive. Packs are never changed: each batch that is
read writes one, and when there are more than `MOST_PACKS` they are written together as one. So several processes may
fill the same store without a lock, and a member's own CRC tells when its bytes went bad.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from matrix.cache import Cache, unusable, write_atomically

MOST_PACKS = 6
STORED, DEFLATED = 0, 8
METHODS = (STORED, DEFLATED)


class DamagedMemberError(ValueError):
    """A member's bytes do not give the content that was promised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A member as it lies in a zip: raw bytes, its method (0 stored, 8 deflated), true size and CRC-32."""

    raw: bytes
    method: int
    size: int
    crc: int

    def content(self) -> bytes:
        """Return the member's content; raises DamagedMemberError where it is not what size and CRC promise."""
        try:
            data = zlib.decompress(self.raw, -15, self.size) if self.method == DEFLATED else self.raw
        except zlib.error as error:
            raise DamagedMemberError(str(error)) from error
        if self.method not in METHODS or len(data) != self.size or zlib.crc32(data) != self.crc:
            raise DamagedMemberError("its size or CRC is wrong, or its method is unknown")
        return data

    @classmethod
    def of(cls, content: bytes) -> Packed:
        """Return the content, compressed."""
        deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
        raw = deflate.compress(content) + deflate.flush()
        return cls(raw=raw, method=DEFLATED, size=len(content), crc=zlib.crc32(content))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    pack: Path
    start: int
    length: int
    method: int
    size: int
    crc: int


class MemberStore:
    """Members of the archive named by `key`, on disk; safe for threads and for several processes."""

    def __init__(self, cache: Cache, key: str) -> None:
        """Look at nothing yet: the tables are read at the first question."""
        self._directory = cache.path("members", key)
        self._places: dict[str, _Place] | None = None
        self._lock = threading.RLock()

    def get(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the content of those members that are here and whole; a damaged one is as if it were not here."""
        with self._lock:
            places = self._table()
            wanted: dict[Path, list[tuple[str, _Place]]] = {}
            for name in names:
                if (place := places.get(name)) is not None:
                    wanted.setdefault(place.pack, []).append((name, place))
        found: dict[str, bytes] = {}
        for pack, members in wanted.items():
            for name, packed in _read_pack(pack, members):
                try:
                    found[name] = packed.content()
                except DamagedMemberError:
                    self._forget(name)
        return found

    def put(self, members: Mapping[str, Packed]) -> None:
        """Keep these members; raises NoSpaceError, UsageError."""
        if not members:
            return
        with self._lock:
            places = self._table()
            packs = {place.pack for place in places.values()}
            merged = dict(members)
            if len(packs) >= MOST_PACKS:
                for pack in packs:
                    merged = dict(_read_pack(pack, [(n, p) for n, p in places.items() if p.pack == pack])) | merged
            path, table = self._write(merged)
            places.update(table)
            for old in packs - {path} if len(packs) >= MOST_PACKS else ():
                with contextlib.suppress(OSError):
                    old.unlink()

    def _write(self, members: Mapping[str, Packed]) -> tuple[Path, dict[str, _Place]]:
        rows: dict[str, tuple[int, int, int, int, int]] = {}
        start = 0
        for name, packed in members.items():
            rows[name] = (start, len(packed.raw), packed.method, packed.size, packed.crc)
            start += len(packed.raw)
        table = json.dumps(rows, separators=(",", ":")).encode()
        digest = hashlib.sha256(table).hexdigest()
        head = f"{digest} {len(table)}\n".encode() + table
        path = self._directory / f"{digest[:24]}.pack"
        write_atomically(path, head + b"".join(packed.raw for packed in members.values()))
        return path, _places(path, rows, len(head))

    def _table(self) -> dict[str, _Place]:
        if self._places is None:
            self._places = {}
            for pack in sorted(self._directory.glob("*.pack")):
                self._places.update(_read_table(pack))
        return self._places

    def _forget(self, name: str) -> None:
        with self._lock:
            self._table().pop(name, None)


def _places(pack: Path, rows: Mapping[str, tuple[int, int, int, int, int]], base: int) -> dict[str, _Place]:
    return {
        name: _Place(pack=pack, start=base + start, length=length, method=method, size=size, crc=crc)
        for name, (start, length, method, size, crc) in rows.items()
    }


def _read_table(pack: Path) -> dict[str, _Place]:
    """Return the pack's table; a pack whose table is damaged is removed, one that just went away is empty."""
    try:
        with pack.open("rb") as file:
            line = file.readline(200)
            digest, _, length = line.decode("ascii", "replace").strip().partition(" ")
            table = file.read(int(length)) if length.isdigit() else b""
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise unusable(pack, error) from error
    if hashlib.sha256(table).hexdigest() != digest:
        with contextlib.suppress(OSError):
            pack.unlink()
        return {}
    return _places(pack, json.loads(table), len(line) + len(table))


def _read_pack(pack: Path, members: Iterable[tuple[str, _Place]]) -> list[tuple[str, Packed]]:
    """Return these members as they lie in the pack; none when another process merged the pack away."""
    try:
        file = os.open(pack, os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        return [
            (
                name,
                Packed(
                    raw=os.pread(file, place.length, place.start),
                    method=place.method,
                    size=place.size,
                    crc=place.crc,
                ),
            )
            for name, place in members
        ]
    except OSError as error:
        raise unusable(pack, error) from error
    finally:
        os.close(file)
