"""Reading of verl's logs: console lines of every release and the file logger's JSON lines, in bounded memory.

The console logger prints `step:N - key:value - key:value` (verl/utils/logger/aggregate_logger.py): three decimals up to
0.4.1, `pprint.pformat` from 0.5.0, so `np.float64(0.1)` with numpy 2. The file logger (verl/utils/tracking.py, from
0.6.0) writes `{"step": N, "data": {…}}`: by `json` up to 0.7.0, where NaN is `NaN`, and by `orjson` since, where NaN
and the infinities are `null`. Around them stand Ray's prefixes, colours, and progress bars without an end of line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

CHUNK = 1 << 20
LONGEST = 4 << 20
"""A line longer than this is given up: no step line is, and memory must not follow what somebody printed."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_PREFIX = re.compile(r"\(([\w.:<>-]+) pid=(\d+)(?:, ip=([^)\s]+))?\)")
# Not preceded by a word or a slash: `training/global_step:34` and `timing_s/step:96` are values of a step line.
_STEP = re.compile(r"(?:^|[^\w/.-])step:(-?\d+) - ")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")
_NUMPY = re.compile(r"(?:np|numpy)\.(?:float|int|uint|longdouble|double|half|single)\w*\((.*)\)")
_WORDS = {"True": 1.0, "False": 0.0, "np.True_": 1.0, "np.False_": 0.0}
_ROUNDED = re.compile(r"-?\d+\.\d{3}|-?nan|-?inf")
_VOCABULARY = re.compile(rb"[\"']vocab_size[\"']:\s*(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """One line of metrics: `source` is the process that printed it ("" where the line does not say), `line` 1-based.

    `rounded` says that every number has three decimals, as verl printed them up to 0.4.1.
    """

    step: int
    values: Mapping[str, float]
    source: str = ""
    line: int = 0
    rounded: bool = False


class Readable(Protocol):
    """A binary file, as far as reading goes on."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, b"" at the end."""


@dataclass(slots=True)
class Notes:
    """What was met beside the steps: counts, and the size of the vocabulary where a printed configuration tells it."""

    bytes: int = 0
    lines: int = 0
    damaged: int = 0
    nul: int = 0
    undecodable: int = 0
    vocabulary: int = 0
    console: int = 0
    json: int = 0
    hints: set[str] = field(default_factory=set)


def logged_steps(file: Readable, notes: Notes) -> Iterator[LoggedStep]:
    """Yield every step that the log holds, in its order, and fill `notes` on the way; holds one line at a time."""
    for raw in _lines(file, notes):
        if b"step" not in raw:
            if b"vocab_size" in raw and (found := _VOCABULARY.search(raw)):
                notes.vocabulary = int(found[1])
            continue
        text = raw.decode("utf-8", "replace")
        logged = _from_json(text, notes) if text.lstrip("\0 \ufeff").startswith("{") else _from_console(text, notes)
        if logged is not None:
            yield logged


def _lines(file: Readable, notes: Notes) -> Iterator[bytes]:
    """Yield the lines without their ends; one longer than LONGEST is cut, and the rest of it left out."""
    rest, skipping = b"", False
    while chunk := file.read(CHUNK):
        if notes.bytes < CHUNK:
            notes.nul += chunk.count(0)
            notes.undecodable += chunk.decode("utf-8", "replace").count("\ufffd")
        notes.bytes += len(chunk)
        *whole, tail = chunk.split(b"\n")
        for at, piece in enumerate(whole):
            line = rest + piece if at == 0 else piece
            if at == 0:
                rest = b""
            notes.lines += 1
            if skipping:
                skipping = False
                continue
            yield line
        rest += tail
        if len(rest) > LONGEST:
            if not skipping:
                notes.damaged += 1
            rest, skipping = b"", True
    if rest and not skipping:
        notes.lines += 1
        yield rest


def _from_console(text: str, notes: Notes) -> LoggedStep | None:
    """Return the step that a console line holds, None where it holds none."""
    if "step:" not in text:
        if "Training Progress" in text:
            notes.hints.add("progress")
        return None
    text = _ANSI.sub("", text).rstrip("\r\0 ")
    starts = list(_STEP.finditer(text))
    if not starts:
        return None
    # A progress bar or another process's words may stand before it on the same line.
    start = starts[-1]
    prefixes = list(_PREFIX.finditer(text, 0, start.start() + 1))
    source = f"{prefixes[-1][3] or ''}:{prefixes[-1][2]}" if prefixes else ""
    values: dict[str, float] = {}
    rounded = True
    name = ""
    for piece in _REPEATED.sub("", text[start.end() :]).split(" - "):
        name = f"{name} - {piece}" if name else piece
        key, _, word = name.rpartition(":")
        value = number(word) if key else None
        if value is None:
            continue
        rounded = rounded and _ROUNDED.fullmatch(word.strip()) is not None
        values[key.strip()] = value
        name = ""
    if name:
        notes.damaged += 1
    if not values:
        return None
    notes.console += 1
    return LoggedStep(step=int(start[1]), values=values, source=source, line=notes.lines, rounded=rounded)


def number(word: str) -> float | None:
    """Return the number that verl printed as `word`, plain or as numpy shows it; None where it is none."""
    word = word.strip()
    if word in _WORDS:
        return _WORDS[word]
    if match := _NUMPY.fullmatch(word):
        word = match[1].strip("'")
    if "_" in word:
        return None
    try:
        return float(word)
    except ValueError:
        return None


def _from_json(text: str, notes: Notes) -> LoggedStep | None:
    """Return the step that a line of the file logger holds, None where it is another line or cut off."""
    try:
        found = json.loads(text.lstrip("\0 \ufeff"))
    except (ValueError, RecursionError):
        notes.damaged += 1
        return None
    step, data = (found.get("step"), found.get("data")) if isinstance(found, dict) else (None, None)
    if not isinstance(step, int) or not isinstance(data, dict):
        return None
    values: dict[str, float] = {}
    for key, value in data.items():
        if value is None:
            values[key] = math.nan
        elif isinstance(value, int | float):
            values[key] = float(value)
    if not values:
        return None
    notes.json += 1
    return LoggedStep(step=step, values=values, line=notes.lines)
