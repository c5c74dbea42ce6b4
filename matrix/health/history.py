"""What a log says over time: runs of a training, each with its steps and the series of the metrics that are judged."""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import math
import zlib
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from matrix.doctor.logfile import OPENERS, find_log, standard_input
from matrix.errors import DataError
from matrix.health.lines import CHUNK, LONGEST, LoggedStep, Notes, Readable, logged_steps
from matrix.health.names import KEPT, Metric

MOST_STEPS = 1 << 17
"""Steps kept of a run; beyond them every second one is let go, so that memory is bounded whatever the log's length."""
MOST_NAMES = 4096
_BINARY_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric over the steps that logged it, under the name it had in the log; finite values only."""

    metric: Metric
    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __len__(self) -> int:
        """Return how many steps logged it."""
        return len(self.values)

    def __bool__(self) -> bool:
        """Return whether any step logged it."""
        return bool(self.values)


@dataclass(slots=True)
class NotFinite:
    """Where a metric was NaN or infinite: first and last step, how often, and how many finite values it had."""

    first: int
    last: int
    count: int = 1


@dataclass(slots=True, kw_only=True)
class Run:
    """One training; a restart from a checkpoint goes on with it, and what was redone counts once.

    `stride` is 1, or 2^k where only every 2^k-th step was kept; `restarts` are (step it had come to, step it went back
    to).
    """

    number: int
    source: str = ""
    first_line: int = 0
    last_line: int = 0
    steps: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, array[float]] = field(default_factory=dict)
    not_finite: dict[str, NotFinite] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    restarts: list[tuple[int, int]] = field(default_factory=list)
    stride: int = 1
    rounded: bool = True
    skipped: int = 0

    def add(self, logged: LoggedStep) -> None:
        """Take the metrics of one step; the same step again adds to it, or replaces what it said before."""
        self.first_line = self.first_line or logged.line
        self.last_line = logged.line
        self.rounded = self.rounded and logged.rounded
        fresh = not self.steps or logged.step > self.steps[-1]
        if not fresh and (logged.step < self.steps[-1] or self._says(logged.values)):
            self._rewind(logged.step)
            fresh = True
        if fresh and not self._takes():
            return
        if fresh:
            self.steps.append(logged.step)
            for column in self.columns.values():
                column.append(math.nan)
        for name, value in logged.values.items():
            self._put(name, value, logged.step)

    def _says(self, values: Mapping[str, float]) -> bool:
        """Return whether the last step already has one of these metrics."""
        return any(name in self.columns and not math.isnan(self.columns[name][-1]) for name in values)

    def _takes(self) -> bool:
        """Return whether the next step is kept; lets every second one go when there are too many."""
        if self.stride > 1:
            self.skipped = (self.skipped + 1) % self.stride
            if self.skipped:
                return False
        if len(self.steps) >= MOST_STEPS:
            self.steps = self.steps[::2]
            self.columns = {name: column[::2] for name, column in self.columns.items()}
            self.stride *= 2
        return True

    def _rewind(self, step: int) -> None:
        self.restarts.append((self.steps[-1], step))
        keep = len(self.steps)
        while keep and self.steps[keep - 1] >= step:
            keep -= 1
        del self.steps[keep:]
        for column in self.columns.values():
            del column[keep:]

    def _put(self, name: str, value: float, step: int) -> None:
        if len(self.seen) < MOST_NAMES:
            self.seen.add(name)
        if not math.isfinite(value):
            if (found := self.not_finite.get(name)) is not None:
                found.count += 1
                found.last = step
            elif len(self.not_finite) < MOST_NAMES:
                self.not_finite[name] = NotFinite(first=step, last=step)
        elif name in KEPT:
            column = self.columns.get(name)
            if column is None:
                column = self.columns[name] = array("d", [math.nan]) * len(self.steps)
            column[-1] = value

    def series(self, metric: Metric) -> Series:
        """Return the metric under the first of its names that this run logged; empty where it logged none."""
        for name in metric.names:
            if name in self.columns:
                pairs = [(s, v) for s, v in zip(self.steps, self.columns[name], strict=True) if not math.isnan(v)]
                if pairs:
                    steps, values = zip(*pairs, strict=True)
                    return Series(metric=metric, name=name, steps=steps, values=values)
        return Series(metric=metric, name=metric.names[0], steps=(), values=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log as read: its runs in the order they began, and what was met beside them."""

    path: str
    runs: tuple[Run, ...]
    notes: Notes


def read_log(path: Path | str) -> Log:
    """Return what the log says; `-` reads standard input; gzip, bzip2, xz and UTF-16 are read as what they hold.

    Raises:
        UsageError: there is no such file.
        DataError: it cannot be read, is empty, is no text, or holds no metrics; which of these is said.
    """
    notes = Notes()
    if str(path) == "-":
        return _read("standard input", standard_input(), notes)
    found = find_log(str(path))
    packed = False
    try:
        with found.open("rb") as file:
            if found.is_char_device():
                # A device need not end (/dev/zero), and of one only what fits one line is looked at.
                return _read(str(path), io.BytesIO(file.read(LONGEST)), notes)
            magic = file.peek(6)[:6]
            opener = next((how for start, how in OPENERS.items() if magic.startswith(start)), None)
            if opener is not None:
                packed = True
                with opener(file) as unpacked:
                    return _read(str(path), unpacked, notes)
            return _read(str(path), file, notes)
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise DataError(path, "", f"is a compressed file that is cut off or damaged: {error}", then=_AGAIN) from error
    except OSError as error:
        if packed and error.errno is None:
            # So bz2 says that what it unpacks is none.
            what = f"is a compressed file that is cut off or damaged: {error}"
            raise DataError(path, "", what, then=_AGAIN) from error
        raise DataError(path, "", f"cannot be read: {error.strerror or error}", then=_PATH) from error


def _read(path: str, file: Readable | IO[bytes], notes: Notes) -> Log:
    runs = collect(logged_steps(_as_utf8(file, notes), notes))
    if not runs:
        raise _nothing(path, notes)
    return Log(path=path, runs=runs, notes=notes)


def _as_utf8(file: Readable | IO[bytes], notes: Notes) -> Readable:
    """Return the file, read as what its mark says: PowerShell's `>` writes UTF-16."""
    head = file.read(CHUNK)
    rest = _After(head=head, file=file)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        notes.hints.add("utf-16")
        return _Recoded(file=rest)
    return rest


@dataclass(slots=True, kw_only=True)
class _After:
    """A file of which `head` was read already."""

    head: bytes
    file: Readable | IO[bytes]

    def read(self, size: int, /) -> bytes:
        """Return what was read ahead, then the rest."""
        head, self.head = self.head, b""
        return head or self.file.read(size)


@dataclass(slots=True, kw_only=True)
class _Recoded:
    """A file in UTF-16, as UTF-8."""

    file: _After
    decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-16"))

    def read(self, size: int, /) -> bytes:
        """Return some more of it; half a character at its end becomes the replacement sign."""
        self.decoder.errors = "replace"
        while block := self.file.read(size):
            if text := self.decoder.decode(block):
                return text.encode("utf-8", "replace")
        return self.decoder.decode(b"", final=True).encode("utf-8", "replace")


def collect(steps: Iterable[LoggedStep]) -> tuple[Run, ...]:
    """Return the runs that these steps belong to, by the process that printed them and by where the count starts over.

    A process that is met for the first time goes on with the newest run when it starts after that run's first step: it
    was resumed from a checkpoint. One that starts at or before it is another run.
    """
    runs: list[Run] = []
    by_source: dict[str, Run] = {}
    for logged in steps:
        run = by_source.get(logged.source)
        if run is None and runs and runs[-1].steps and logged.step > runs[-1].steps[0]:
            run = runs[-1]
        if run is None or _starts_over(run, logged):
            run = Run(number=len(runs) + 1, source=logged.source)
            runs.append(run)
        by_source[logged.source] = run
        run.add(logged)
    return tuple(runs)


def _starts_over(run: Run, logged: LoggedStep) -> bool:
    first = run.steps[0]
    if logged.step == first and len(run.steps) == 1:
        return any(name in run.seen for name in logged.values)
    return logged.step <= first


def _nothing(path: str, notes: Notes) -> DataError:
    """Return the error that says why a log without metrics has none."""
    if not notes.bytes:
        return DataError(path, "", "is empty", then="Give the file that the trainer's output went to.")
    looked = min(notes.bytes, 1 << 20)
    if notes.nul > _BINARY_SHARE * looked or notes.undecodable > _BINARY_SHARE * looked:
        return DataError(path, "", "is no text: it looks like a binary file", then=_WHICH)
    what = f"holds no metrics in {notes.lines} lines: none reads `step:N - key:value …` or is of verl's file logger"
    if "progress" in notes.hints:
        then = "A training was running; add console or file to trainer.logger, and the metrics are printed."
        return DataError(path, "", what, then=then)
    return DataError(path, "", what, then=_WHICH)


_PATH = "Check the path and its permissions."
_AGAIN = "Copy it again, or unpack what there is and give that."
_WHICH = (
    "Give verl's console output, or the JSON lines of trainer.logger=[file]; TensorBoard and wandb files are not read."
)
