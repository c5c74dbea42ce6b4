"""One pass over a log of any size: which errors it holds, in which processes, and which versions it tells.

Most lines of a long log are of no interest and like others but for their numbers, so each kind is looked at once for
words that errors are written with, and only the lines around those are read one by one. Memory is bounded by the
limits below, not by the log, and so is time: a log of nothing but errors is read for new kinds of them after a while.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from matrix.doctor.classes import classify
from matrix.doctor.logfile import LogFile
from matrix.doctor.matching import shows_in_line, words_of
from matrix.doctor.streams import Line, clean, split
from matrix.doctor.tracebacks import Chain, Link, Raised, Reader
from matrix.doctor.versions import VersionBook, packages_of, telling_lines, telling_words
from matrix.failure import Failure

ERROR_WORDS = (
    b"Traceback", b"rror", b"ERROR", b"xception", b"FATAL", b"atal", b"ailed", b"CRITICAL", b"illed", b"what():",
    b"terminate called", b"SIG", b"signal:", b"dumped", b"Seg", b"NCCL WARN", b"atchdog", b"undefined symbol", b"oom",
    b"of memory", b"No space left", b"% full", b"CANCELLED", b"exit", b"Could not ", b"No solution found", b"died",
    b"ncompatible", b"satisfiable", b"not found", b"Interrupt", b"No available", b"cannot be", b"insufficient",
    b"too old", b"imed out", b"no longer", b"exceed", b"ssertion",
)  # fmt: skip
"""What lines that tell of an error hold, without digits: lines that differ in digits only are looked at once."""
EVENTS = 500
PROCESSES = 4096
SHAPES = 50_000
SEEN = 100_000
"""So many kinds of lines are remembered as of no interest; then they are forgotten and looked at again."""
READ_LINES = 1_000_000
"""So many lines are read one by one; from then on errors that came before are not counted any more."""
FORGOTTEN = 2_000
"""A traceback whose process has written nothing for so many lines is over."""
_CONTEXT = 12
_KEPT_PROCESSES = 64
_STEP = re.compile(rb"step:\d+ - ")
_DIGITS = b"0123456789."
_WRONG, _TELLS = 1, 2
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
_LOOSE = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Timeout)(?:\([\w.]+\))?)(?::\s+(?P<message>\S.*)|:?$)"
)
_FRAME_HEAD = '  File "'


@dataclass(slots=True, kw_only=True)
class Event:
    """An error as it was met first, and how often, where and until when it came again."""

    chain: Chain | None
    line: Line
    class_id: str = ""
    count: int = 1
    processes: set[str] = field(default_factory=set)
    last: int = 0

    @property
    def number(self) -> int:
        """Return the number of the line in which it was met first."""
        return self.chain.number if self.chain is not None else self.line.number


@dataclass(slots=True, kw_only=True)
class Scan:
    """What a log holds; `steps` are the numbers of the last two lines that tell of a training step."""

    lines: int = 0
    bytes: int = 0
    events: list[Event] = field(default_factory=list)
    versions: VersionBook
    steps: tuple[int, ...] = ()
    left_out: int = 0
    unexplained: int = 0
    first_unexplained: str = ""
    notes: tuple[str, ...] = ()


class Scanner:
    """Reads logs for errors that the given failures, and the classes of errors, know of."""

    def __init__(self, failures: Iterable[Failure]) -> None:
        """Prepare the words to look for; raises DataError where the classes cannot be read."""
        self._failures = tuple(failure for failure in failures if not failure.silent)
        self._packages = packages_of(package for failure in self._failures for package in failure.affects)
        self._telling = telling_lines(self._packages)

    def scan(self, log: LogFile) -> Scan:
        """Return what the log holds, read once from its beginning to its end; raises DataError as `LogFile` does."""
        run = _Run(self._failures, self._packages, self._telling)
        for block in log.blocks():
            run.block(block)
        found = run.finish()
        found.bytes = log.size
        found.notes = (*log.notes, *found.notes)
        return found


class _Run:
    """One scan: the readers of the processes, what was found so far, and where in the log we are."""

    def __init__(self, failures: tuple[Failure, ...], packages: frozenset[str], telling: re.Pattern[bytes]) -> None:
        self._failures = failures
        self._telling = telling
        self._version_words = telling_words(packages)
        self._words = (*ERROR_WORDS, *sorted(set().union(*(words_of(failure) for failure in failures))))
        self._seen: dict[bytes, int] = {}
        self._fresh: set[bytes] = set()
        self._read = 0
        self._cut_at = 0
        self._readers: OrderedDict[str, Reader] = OrderedDict()
        self._active: dict[str, int] = {}
        self._events: OrderedDict[tuple[str, ...], Event] = OrderedDict()
        self._shapes: set[str] = set()
        self._steps: deque[int] = deque(maxlen=2)
        self._number = 1
        self.found = Scan(versions=VersionBook(packages=packages))

    def block(self, block: bytes) -> None:
        """Read one block of whole lines."""
        lines = block.split(b"\n")
        lines.pop()
        first, seen = self._number, self._seen
        if len(seen) > SEEN:
            seen.clear()
        hits: dict[int, int] = {}
        spent = self._read > READ_LINES
        shapes = block.translate(None, _DIGITS).split(b"\n")
        shapes.pop()
        self._learn(lines, shapes)
        for at, shape in enumerate(shapes):
            interest = seen[shape]
            if interest and spent and shape not in self._fresh:
                self._cut_at = self._cut_at or first + at
            elif interest:
                hits[at] = interest
        follow = FORGOTTEN if spent else len(lines)
        at = self._lines(lines, 0, -1, first, hits, follow)
        for start in hits:
            if start >= at:
                at = self._lines(lines, max(at, start - _CONTEXT), start, first, hits, follow)
        if spent:
            self._forget(self._number + 2 * FORGOTTEN)
        self._number = first + len(lines)
        self._step(block, first)
        self.found.lines = self._number - 1

    def _learn(self, lines: list[bytes], shapes: list[bytes]) -> None:
        """Look at the lines of kinds not met before; words that none of them holds are looked for once for all."""
        new = {shape: line for shape, line in zip(shapes, lines, strict=True) if shape not in self._seen}
        text = b"\n".join(new.values())
        wrong = [word for word in self._words if word in text]
        telling = [word for word in self._version_words if word in text]
        self._fresh = set(new)
        for shape, line in new.items():
            interest = _WRONG if any(word in line for word in wrong) else 0
            if any(word in line for word in telling) and self._telling.search(line):
                interest |= _TELLS
            self._seen[shape] = interest

    def finish(self) -> Scan:
        """Close what is open and return what was found."""
        for reader in self._readers.values():
            self._keep_chains(reader.close())
        self.found.events = sorted(self._events.values(), key=lambda event: event.number)
        self.found.steps = tuple(self._steps)
        if self._cut_at:
            self.found.notes = (f"there are so many errors that from line {self._cut_at} on only new ones were read",)
        return self.found

    def _lines(self, lines: list[bytes], at: int, upto: int, first: int, hits: dict[int, int], follow: int) -> int:
        """Read lines from `at` through `upto`, and at most `follow` more while a traceback is open; return the next."""
        last = min(len(lines), upto + 1 + follow)
        while at < last and (at <= upto or self._active):
            self._number = first + at
            self._read += 1
            interest = hits.get(at, 0)
            self._line(lines[at], hit=bool(interest & _WRONG), tells=bool(interest & _TELLS))
            at += 1
        return at

    def _line(self, raw: bytes, *, hit: bool, tells: bool) -> None:
        for piece in raw.split(b"\r") if b"\r" in raw else (raw,):
            line = split(self._number, clean(piece))
            if not line.text and not self._active:
                continue
            if tells:
                self.found.versions.read(line.number, line.process, line.text)
            if self._active or hit or line.process not in self._readers:
                self._feed(line, hit=hit)
            else:
                self._readers[line.process].feed(line)

    def _feed(self, line: Line, *, hit: bool) -> None:
        reader = self._reader(line.process)
        taken, chains = reader.feed(line)
        if chains:
            self._keep_chains(chains)
        if reader.active:
            self._active[line.process] = line.number
            if taken and _FRAME_HEAD in line.text:
                self.found.versions.read_path(line.number, line.text)
        elif self._active:
            self._active.pop(line.process, None)
        if len(self._active) > 1 or (self._active and line.process not in self._active):
            self._forget(line.number)
        if hit and not taken:
            self._loose(line)

    def _reader(self, process: str) -> Reader:
        reader = self._readers.get(process)
        if reader is None:
            reader = self._readers[process] = Reader(process)
            if len(self._readers) > PROCESSES:
                gone, old = self._readers.popitem(last=False)
                self._active.pop(gone, None)
                self._keep_chains(old.close())
        else:
            self._readers.move_to_end(process)
        return reader

    def _forget(self, number: int) -> None:
        for process, last in list(self._active.items()):
            if number - last > FORGOTTEN:
                del self._active[process]
                self._keep_chains(self._readers[process].close())

    def _keep_chains(self, chains: Iterable[Chain]) -> None:
        for chain in chains:
            root = chain.root
            line = Line(number=chain.number, process=chain.process, text=root.line)
            key = (root.name, _shape(root.message.split("\n", 1)[0]))
            self._keep(key, Event(chain=chain, line=line), chain.repeats)

    def _loose(self, line: Line) -> None:
        """Keep a line that is no part of a traceback where it tells of an error."""
        if line.logged in ("INFO", "WARNING", "DEBUG"):
            return
        shape = _shape(line.text)
        known = shape in self._shapes
        if not known and len(self._shapes) < SHAPES:
            self._shapes.add(shape)
        raised = _LOOSE.match(line.text.strip())
        if raised is not None and raised["name"] not in ("Error", "Exception"):
            self._keep_chains([_alone(line, raised)])
            return
        if known and (shape,) in self._events:
            self._keep((shape,), Event(chain=None, line=line), line.repeats)
            return
        if known:
            return
        sort = classify("", line.text)
        if sort is not None or any(shows_in_line(failure, line.text) for failure in self._failures):
            key = (sort[0].id,) if sort is not None else (shape,)
            self._shapes.discard(shape)
            self._keep(key, Event(chain=None, line=line, class_id=sort[0].id if sort else ""), line.repeats)
        elif line.logged in ("ERROR", "CRITICAL", "FATAL") or line.text.startswith(("ERROR", "FATAL", "CRITICAL")):
            self.found.unexplained += 1
            self.found.first_unexplained = self.found.first_unexplained or line.text[:300]

    def _keep(self, key: tuple[str, ...], event: Event, repeats: int) -> None:
        old = self._events.get(key)
        if old is None:
            if len(self._events) >= EVENTS:
                self.found.left_out += 1
                return
            self._events[key] = old = event
            old.count = 1 + repeats
        else:
            old.count += 1 + repeats
            if old.chain is not None and event.chain is not None and _richer(event.chain, old.chain):
                # Frames tell more than the line alone, which may come first (logged, then raised).
                old.chain = event.chain
        old.last = max(old.last, event.number)
        if len(old.processes) < _KEPT_PROCESSES:
            old.processes.add(event.line.process)

    def _step(self, block: bytes, first: int) -> None:
        at = block.rfind(b"step:")
        found: list[int] = []
        while at >= 0 and len(found) < 2:
            if _STEP.match(block, at):
                found.append(first + block.count(b"\n", 0, at))
            at = block.rfind(b"step:", 0, at)
        self._steps.extend(reversed(found))


def _shape(text: str) -> str:
    return _NUMBER.sub("#", text[:400])


def _richer(new: Chain, old: Chain) -> bool:
    return bool(new.root.frames) and not old.root.frames


def _alone(line: Line, raised: re.Match[str]) -> Chain:
    """Return an exception that stands in the log without its traceback."""
    return Chain(
        process=line.process,
        raised=(
            Raised(
                exception=raised["name"],
                message=raised["message"] or "",
                frames=(),
                link=Link.FIRST,
                text=line.text,
                number=line.number,
            ),
        ),
    )


def lines_of(text: str) -> Iterator[Line]:
    """Yield the lines of a text with their processes told apart."""
    for number, raw in enumerate(text.encode().split(b"\n"), 1):
        yield split(number, clean(raw))
