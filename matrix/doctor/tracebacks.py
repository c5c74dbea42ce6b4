"""Tracebacks of one process, read line by line: chains, groups, Ray's wrapping, faults of the interpreter, pytest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from matrix.doctor.streams import Line

BLOCK_LINES = 400
"""So many lines of one traceback are kept: half from its beginning, half from its end."""
MESSAGE_LINES = 40
HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line (?P<line>\d+)(?:,? in (?P<function>.*))?')
_EXCEPTION = re.compile(r"(?P<name>[A-Za-z_][\w.]*(?:\([\w.]+\))?)(?::(?:\s+|$)(?P<message>.*))?$")
_FOREIGN = re.compile(r"(?:INFO|WARNING|WARN|DEBUG|ERROR|CRITICAL|NOTE|step|Note|https?|\w+/\w+)\b")
_RAY = re.compile(r"ray::\S.*\(pid=\d+")
_PYTEST = re.compile(r"E\s{3,}(?P<rest>\S.*)$")
_SEPARATOR = re.compile(r"\s*\+(?:-\+)?-+ (?:\d+|\.\.\.) -+\s*$|\s*\+-+\s*$")
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"
_CARRIER = "Error raised in subprocess"
"""How vLLM begins a message that holds the traceback of its child."""
_LOOKUPS = frozenset({"KeyError", "IndexError", "StopIteration", "StopAsyncIteration", "Empty", "CancelledError"})
"""Raised by ordinary look-ups; what is raised while one of these is handled says more."""


class Link(StrEnum):
    """How an exception came of the one before it in its chain."""

    FIRST = "first"
    CAUSE = "cause"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame of a traceback as it is printed; `function` is "" where none is."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """Return `file:line in function`."""
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """An exception of a chain: its full class name, its message, its frames (outermost first) and its lines."""

    exception: str
    message: str
    frames: tuple[Frame, ...]
    link: Link
    text: str
    number: int

    @property
    def name(self) -> str:
        """Return the class name without module; for Ray's wrapper the class that it wraps."""
        inner = re.fullmatch(r"(?:[\w.]*\.)?RayTaskError\(([\w.]+)\)", self.exception)
        return (inner[1] if inner else self.exception).rsplit(".", 1)[-1]

    @property
    def line(self) -> str:
        """Return the exception and the first line of its message, as Python prints them."""
        first = self.message.split("\n", 1)[0]
        return f"{self.exception}: {first}" if first else self.exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Exceptions that came of each other in one process, the first that was raised first; never empty."""

    process: str
    raised: tuple[Raised, ...]
    before: tuple[str, ...] = ()
    repeats: int = 0

    @property
    def root(self) -> Raised:
        """Return the exception that the others came of.

        That is the first, but for look-ups (KeyError, …) in whose handling another exception was raised.
        """
        at = 0
        while at + 1 < len(self.raised):
            here, after = self.raised[at], self.raised[at + 1]
            same = here.name == after.name == "AttributeError"
            if after.link is not Link.CONTEXT or not (here.name in _LOOKUPS or same):
                break
            at += 1
        return self.raised[at]

    @property
    def number(self) -> int:
        """Return the number of its first line in the log."""
        return min(raised.number for raised in self.raised)

    @property
    def text(self) -> str:
        """Return its lines."""
        return "\n".join(raised.text for raised in self.raised)


@dataclass(slots=True)
class _Block:
    """One traceback that is being read."""

    number: int
    link: Link
    lines: list[str] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    exception: str = ""
    message: list[str] = field(default_factory=list)
    first_called: bool = True
    """Whether the outermost frame comes first; faults of the interpreter list the innermost first."""

    def add(self, text: str) -> None:
        if len(self.lines) >= BLOCK_LINES:
            del self.lines[BLOCK_LINES // 2]
        self.lines.append(text)

    def done(self) -> Raised:
        frames = tuple(self.frames if self.first_called else reversed(self.frames))
        return Raised(
            exception=self.exception,
            message="\n".join(self.message).strip(),
            frames=frames[-BLOCK_LINES:],
            link=self.link,
            text="\n".join(self.lines),
            number=self.number,
        )


class Reader:
    """Reads the lines of one process; `feed` and `close` give the chains that are complete."""

    def __init__(self, process: str) -> None:
        """Start outside of any traceback."""
        self.process = process
        self.recent: list[str] = []
        self._block: _Block | None = None
        self._chain: list[Raised] = []
        self._before: tuple[str, ...] = ()
        self._next = Link.FIRST
        self._gap = False
        self._group = False
        self._repeats = 0
        self._passing = False
        self._carried = 0

    @property
    def active(self) -> bool:
        """Return whether a traceback is open, so that the next lines matter."""
        return self._block is not None

    def feed(self, line: Line) -> tuple[bool, list[Chain]]:
        """Return whether the line was part of a traceback, and the chains that it completed."""
        text = line.text
        if self._group or "Exception Group Traceback" in text:
            text, out = self._grouped(line, text)
            if out is not None:
                return True, out
        self._repeats = max(self._repeats, line.repeats if self.active else 0)
        done: list[Chain] = []
        taken = self._take(line.number, text, done)
        if not taken and not self.active and not self._chain:
            self.recent.append(text)
            del self.recent[:-12]
        return taken, done

    def close(self) -> list[Chain]:
        """Return what is left at the end of the log."""
        done: list[Chain] = []
        self._end_block()
        self._end_chain(done)
        return done

    def _take(self, number: int, text: str, done: list[Chain]) -> bool:
        stripped = text.strip()
        if HEADER in text or (_RAY.match(stripped) and not self._in_frames()):
            self._begin(number, text, done)
            return True
        if stripped.startswith("Fatal Python error: "):
            self._begin(number, text, done)
            assert self._block is not None
            self._block.exception, self._block.message = "Fatal Python error", [stripped[20:]]
            self._block.first_called = False
            return True
        if stripped in (_CAUSE, _CONTEXT) and (self.active or self._chain):
            self._end_block()
            self._next = Link.CAUSE if stripped == _CAUSE else Link.CONTEXT
            self._gap = False
            return True
        found = _PYTEST.match(text)
        if found is not None:
            return self._pytest(number, found["rest"], done)
        block = self._block
        if block is None:
            return self._between(number, text, stripped, done)
        return self._frames(block, text, stripped) if self._in_frames() else self._message(number, text, stripped, done)

    def _in_frames(self) -> bool:
        return self._block is not None and not self._block.exception

    def _begin(self, number: int, text: str, done: list[Chain]) -> None:
        carried = self._block is not None and _CARRIER in "\n".join(self._block.message)
        self._end_block()
        if carried:
            self._carried, self._next = len(self._chain), Link.CAUSE
        if self._next is Link.FIRST:
            self._end_chain(done)
        if not self._chain:
            self._before = tuple(self.recent)
            self.recent = []
        self._block = _Block(number=number, link=self._next)
        self._block.add(text)
        self._next = Link.FIRST
        self._gap = False

    def _frames(self, block: _Block, text: str, stripped: str) -> bool:
        frame = _FRAME.match(text)
        if frame is not None:
            block.add(text)
            block.frames.append(Frame(file=frame["file"], line=int(frame["line"]), function=frame["function"] or ""))
            return True
        if not stripped or text[0] in " \t":
            block.add(text)
            return True
        found = _EXCEPTION.match(text)
        if found is None or _FOREIGN.match(text) or not _plausible(found):
            # A line of another thread; the traceback goes on after it.
            return False
        block.add(text)
        message = found["message"] or ""
        if "RayTaskError" in found["name"] and _RAY.match(message):
            # The frames of the remote process follow, and then the exception that was raised there.
            return True
        block.exception, block.message = found["name"], [message]
        return True

    def _message(self, number: int, text: str, stripped: str, done: list[Chain]) -> bool:
        block = self._block
        assert block is not None
        if not block.first_called:
            return self._fault(block, text, stripped, done)
        if not stripped:
            self._end_block()
            self._gap = True
            return True
        if stripped == '"""' or set(stripped) <= {"^", "~", " "}:
            return True
        if _FRAME.match(text) and block.exception.startswith("ray.exceptions"):
            block.exception, block.message = "", []
            return self._frames(block, text, stripped)
        if len(block.message) >= MESSAGE_LINES or _FOREIGN.match(text):
            self._end_block()
            self._end_chain(done)
            return False
        block.add(text)
        block.message.append(text)
        return True

    def _fault(self, block: _Block, text: str, stripped: str, done: list[Chain]) -> bool:
        """Read what faulthandler writes: the threads with their innermost frame first, until something else comes."""
        frame = _FRAME.match(text)
        if frame is not None:
            block.add(text)
            block.frames.append(Frame(file=frame["file"], line=int(frame["line"]), function=frame["function"] or ""))
            return True
        if not stripped or re.match(r"(?:Current thread|Thread|Python runtime state|Extension modules|<)", stripped):
            if stripped.startswith("Thread") and block.frames:
                # The frames of the thread that crashed came first; those of the others say nothing.
                self._end_block()
                self._end_chain(done)
                self._passing = True
                return True
            block.add(text)
            return True
        self._end_block()
        self._end_chain(done)
        return False

    def _between(self, number: int, text: str, stripped: str, done: list[Chain]) -> bool:
        if self._chain:
            if not stripped or stripped == '"""':
                return True
            if self._next is Link.FIRST:
                self._end_chain(done)
            elif _FRAME.match(text) or _EXCEPTION.match(text):
                self._begin(number, text, done)
                assert self._block is not None
                return self._frames(self._block, text, stripped)
        if self._passing:
            # The other threads of a fault.
            self._passing = not stripped or _FRAME.match(text) is not None or stripped.startswith("Thread ")
            if self._passing:
                return True
        if text.startswith("  ") and _FRAME.match(text):
            # Ray says a repeated line once, later, without what came before it: frames without a header.
            self._begin(number, text, done)
            assert self._block is not None
            return self._frames(self._block, text, stripped)
        return False

    def _pytest(self, number: int, rest: str, done: list[Chain]) -> bool:
        found = _EXCEPTION.match(rest)
        block = self._block
        if block is not None and block.exception and block.lines[0].startswith("E "):
            block.add(f"E   {rest}")
            block.message.append(rest)
            return True
        if found is None or found["message"] is None or _FOREIGN.match(rest):
            return False
        self._begin(number, f"E   {rest}", done)
        assert self._block is not None
        self._block.exception, self._block.message = found["name"], [found["message"]]
        return True

    def _grouped(self, line: Line, text: str) -> tuple[str, list[Chain] | None]:
        """Return the text without the frame that is drawn around an exception group; chains at its inner borders."""
        done: list[Chain] = []
        if "Exception Group Traceback" in text:
            self._group = True
            return text, None
        if _SEPARATOR.match(text):
            self._end_block()
            self._end_chain(done)
            if re.search(r"\d", text):
                self._begin(line.number, text, done)
            return "", done
        inner = re.match(r"\s*\| ?(.*)$", text)
        if inner is None:
            self._group = bool(text.strip() in ("", _CAUSE, _CONTEXT))
            return text, None
        return inner[1], None

    def _end_block(self) -> None:
        if self._block is not None and (self._block.exception or len(self._block.frames) > 1):
            raised = self._block.done()
            self._chain.append(raised if raised.exception else _cut_short(raised))
        self._block = None

    def _end_chain(self, done: list[Chain]) -> None:
        if self._chain:
            # What a message carries was raised before it.
            raised = (*self._chain[self._carried :], *self._chain[: self._carried])
            done.append(Chain(process=self.process, raised=raised, before=self._before, repeats=self._repeats))
            self.recent = []
        self._chain = []
        self._carried = 0
        self._next = Link.FIRST
        self._repeats = 0


def _plausible(found: re.Match[str]) -> bool:
    """Return whether a line at the margin ends a traceback: a word alone does where it is written like a class."""
    return found["message"] is not None or found["name"].rsplit(".", 1)[-1][:1].isupper()


def _cut_short(raised: Raised) -> Raised:
    """Return a traceback whose exception was never written: the process ended, or the log does, before that."""
    return Raised(
        exception="(cut short)",
        message="the traceback ends before its exception is named",
        frames=raised.frames,
        link=raised.link,
        text=raised.text,
        number=raised.number,
    )


def read_chains(lines: Iterator[Line]) -> list[Chain]:
    """Return the chains of lines of any processes, as they end."""
    readers: dict[str, Reader] = {}
    found: list[Chain] = []
    for line in lines:
        found += readers.setdefault(line.process, Reader(line.process)).feed(line)[1]
    for reader in readers.values():
        found += reader.close()
    return found
