"""The members of a wheel on an index, read by byte ranges: its directory first, then what is asked for.

The figures below were chosen by measurement on vLLM's wheels. Their sources lie in a few dozen runs between shared
libraries and tables of kernel parameters; the 350 modules of vLLM 0.24.0 that verl 0.9.1 names take 53 requests and
0.95 % of the wheel's bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass

from matrix.cache import Cache
from matrix.errors import CorruptFileError
from matrix.index import File
from matrix.index.archive import FileArchive
from matrix.index.download import corrupt, whole_file
from matrix.index.fetch import Fetcher, Span
from matrix.index.pack import DamagedMemberError, MemberStore, Packed
from matrix.index.zip_directory import Member, NotAZipError, find_end, listed, listed_in, payload

# A wheel up to this size is read whole: one request instead of three.
SMALL = 4 << 20
# The largest wheel that is read whole where the server does not do ranges; spooled to disk, never held in memory.
LARGEST = 2 << 30
# The first look at a wheel's end: holds METADATA and the directory of a wheel of about 2,000 members; never less than
# `zip_directory.FARTHEST`, so that it always says where the directory starts.
TAIL = 256 << 10
# Read ahead of a directory that was larger than the first look, since METADATA lies just before it.
AHEAD = 64 << 10
# Two members closer than this are always read by one request.
NEAR = 8 << 10
# More requests than this are merged over larger gaps while less is read in vain than is wanted, times WASTE.
REQUESTS = 12
WASTE = 0.35
# A request is cut in two above this, so that parallel requests share the work.
LONGEST = 1 << 20
THREADS = 8
# Members that are kept although nobody asked for them yet, when they lay between others or the wheel was read whole.
_KEPT = (".py", ".pyi", ".yaml", ".yml", "METADATA", "entry_points.txt", "top_level.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Bytes `start` to `stop` (exclusive) of the wheel, read by one request for these members."""

    start: int
    stop: int
    names: tuple[str, ...]


class WheelArchive(FileArchive):
    """A wheel's members, read piecewise and kept in the cache by the wheel's digest; safe for threads.

    Its whole digest cannot be checked when only pieces are read: each member's CRC is, and the digest of a wheel that
    is read whole.
    """

    def __init__(self, file: File, fetcher: Fetcher, cache: Cache) -> None:
        """Read nothing yet."""
        self._file = file
        self._fetcher = fetcher
        self._cache = cache
        self._store = MemberStore(cache, file.key)
        self._members: dict[str, Member] | None = None
        self._lock = threading.RLock()
        self._read = 0
        self._counting = threading.Lock()

    def names(self) -> Sequence[str]:
        """Return the path of every member, relative to site-packages, in the wheel's order."""
        return tuple(self._directory())

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the content of these members, the missing ones by one round of parallel requests.

        Raises KeyError for one that is not there, IndexUnreachableError, CorruptFileError.
        """
        wanted = list(dict.fromkeys(names))
        found = self._store.get(wanted)
        if len(found) == len(wanted):
            return {name: found[name] for name in wanted}
        with self._lock:
            directory = self._directory()
            found |= self._store.get(name for name in wanted if name not in found)
            missing = [name for name in wanted if name not in found]
            if unknown := next((name for name in missing if name not in directory), None):
                raise KeyError(f"{unknown} is not in {self.filename}")
            found |= self._fetched(missing, directory)
        return {name: found[name] for name in wanted}

    def _directory(self) -> dict[str, Member]:
        with self._lock:
            if self._members is None:
                kept = self._cache.get("directory", self._file.key)
                self._members = _unpacked(kept) if kept is not None else self._read_directory()
            return self._members

    def _read_directory(self) -> dict[str, Member]:
        """Return the members from the wheel's tail, and keep those that came along with it."""
        size = self._file.size
        if size is None:
            size = self._span(0, 1).total
        if size is None or size <= SMALL:
            return self._read_whole()
        start = max(0, size - TAIL)
        tail = self._bytes(start, size)
        if tail is None:
            return self._read_whole()
        try:
            end = find_end(tail, size)
            if end.start < start:
                # What lies before the first look: the rest of the directory, with METADATA ahead of it.
                upto, start = start, max(0, end.start - AHEAD)
                ahead = self._bytes(start, upto)
                if ahead is None:
                    return self._read_whole()
                tail = ahead + tail
            found = listed(tail, start, end)
        except NotAZipError as error:
            raise self._corrupt(str(error)) from error
        self._keep(found)
        self._store.put(_packed_in(tail, start, {n: m for n, m in found.items() if m.offset >= start and _kept(n)}))
        return found

    def _fetched(self, names: Sequence[str], directory: Mapping[str, Member]) -> dict[str, bytes]:
        """Return these members from the network, and keep them and their neighbours."""
        if not names:
            return {}
        chunks = plan_chunks({name: directory[name] for name in names})
        with ThreadPoolExecutor(min(THREADS, len(chunks))) as pool:
            answers = list(pool.map(lambda chunk: self._chunk(chunk, directory), chunks))
        if any(answer is None for answer in answers):
            self._read_whole(also=names)
            found = self._store.get(names)
            if lost := next((name for name in names if name not in found), None):
                raise self._corrupt(f"{lost} is not what the directory promises")
            return found
        packed = {name: member for answer in answers if answer is not None for name, member in answer.items()}
        self._store.put(packed)
        return {name: packed[name].content() for name in names}

    def _chunk(self, chunk: Chunk, directory: Mapping[str, Member]) -> dict[str, Packed] | None:
        """Return the members in the chunk; what does not match its CRC is fetched once more. None: no ranges here."""
        inside = {
            name: member
            for name, member in directory.items()
            if chunk.start <= member.offset and member.end <= chunk.stop and (_kept(name) or name in chunk.names)
        } | {name: directory[name] for name in chunk.names}
        for _ in range(2):
            data = self._bytes(chunk.start, chunk.stop)
            if data is None:
                return None
            packed = _packed_in(data, chunk.start, inside)
            if all(name in packed for name in chunk.names):
                return packed
        missing = next(name for name in chunk.names if name not in packed)
        raise self._corrupt(f"{missing} is not what the directory promises")

    def _bytes(self, start: int, stop: int) -> bytes | None:
        """Return the range, whole; None where the server does not do ranges."""
        span = self._span(start, stop)
        if span.data is None:
            return None
        data = span.data if span.start == start else span.data[start:stop]
        if len(data) < stop - start:
            raise self._corrupt(f"{stop - start} bytes were asked for and {len(data)} came")
        return data[: stop - start]

    def _span(self, start: int, stop: int) -> Span:
        span = self._fetcher.span(self._file.url, start, stop)
        self._count(len(span.data or b""))
        return span

    def _read_whole(self, also: Iterable[str] = ()) -> dict[str, Member]:
        """Return the members after reading the whole wheel, its digest checked; keeps its sources and `also`.

        Raises CorruptFileError when it does not match its digest twice, NoSpaceError.
        """
        asked = set(also)
        limit = max(LARGEST, self._file.size or 0)
        with whole_file(self._file, self._fetcher, self._cache, limit, self._count) as file:
            size = file.seek(0, 2)
            try:
                found = listed_in(file, size)
            except NotAZipError as error:
                raise self._corrupt(str(error)) from error
            packed: dict[str, Packed] = {}
            for name, member in found.items():
                if size <= SMALL or _kept(name) or name in asked:
                    file.seek(member.offset)
                    packed |= _packed_in(file.read(member.end - member.offset), member.offset, {name: member})
        self._store.put(packed)
        self._keep(found)
        return found

    def _keep(self, found: dict[str, Member]) -> None:
        rows = json.dumps({name: astuple(member) for name, member in found.items()}, separators=(",", ":"))
        self._cache.put("directory", self._file.key, zlib.compress(rows.encode(), 6))

    def _count(self, count: int) -> None:
        with self._counting:
            self._read += count

    def _corrupt(self, what: str) -> CorruptFileError:
        return corrupt(self.filename, what)


def plan_chunks(wanted: Mapping[str, Member]) -> list[Chunk]:
    """Return the requests that read these members: disjoint, in order, each member whole in one of them.

    Near members share a request. Then the smallest gaps are closed while there are more than REQUESTS requests and the
    bytes read in vain stay below WASTE of those wanted. Last, long requests are cut between members.
    """
    ordered = sorted(wanted.items(), key=lambda item: item[1].offset)
    gaps = [later[1].offset - earlier[1].end for earlier, later in itertools.pairwise(ordered)]
    apart = {at for at, gap in enumerate(gaps) if gap > NEAR}
    allowed = WASTE * sum(member.end - member.offset for member in wanted.values())
    for at in sorted(apart, key=lambda at: gaps[at]):
        allowed -= gaps[at]
        if len(apart) < REQUESTS or allowed < 0:
            break
        apart.discard(at)
    chunks: list[Chunk] = []
    names: list[str] = []
    for at, (name, member) in enumerate(ordered):
        names.append(name)
        start = wanted[names[0]].offset
        full = at + 1 < len(ordered) and ordered[at + 1][1].end - start > LONGEST
        if at in apart or at + 1 == len(ordered) or full:
            chunks.append(Chunk(start=start, stop=member.end, names=tuple(names)))
            names = []
    return chunks


def _packed_in(data: bytes, start: int, inside: Mapping[str, Member]) -> dict[str, Packed]:
    """Return those members that lie whole in the bytes from `start` on and match their size and CRC."""
    found = {}
    for name, member in inside.items():
        raw = payload(data, member, start)
        if raw is not None:
            packed = Packed(raw=raw, method=member.method, size=member.size, crc=member.crc)
            with contextlib.suppress(DamagedMemberError):
                packed.content()
                found[name] = packed
    return found


def _kept(name: str) -> bool:
    return name.endswith(_KEPT)


def _unpacked(kept: bytes) -> dict[str, Member]:
    fields = ("offset", "end", "length", "size", "crc", "method")
    rows: dict[str, list[int]] = json.loads(zlib.decompress(kept))
    return {name: Member(**dict(zip(fields, row, strict=True))) for name, row in rows.items()}
