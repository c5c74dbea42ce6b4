"""The children that try: a cell's python that takes errands and tells what happens, started ahead, ended for certain.

One child works and one stands by with everything imported and the device untouched, so that a fresh process costs no
import. A child that dies is an answer: the part it was in is the last that it told.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matrix.thresholds.trial import Ending, Part, Trial

START_S = 240.0
POLL_S = 0.02
LEAVE_S = 5.0
TAIL = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Errands:
    """How to start a child.

    Attributes:
        argv: the command, but for where its lines go (`--out FILE` is added).
        env: its whole environment.
        work: where its files lie; removed by whoever made it.
        limit_s: seconds that one errand may take, with what has to be built for it.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    work: Path
    limit_s: float = 240.0


class Child:
    """One process that tries; `served` counts the errands that it was given."""

    def __init__(self, errands: Errands, number: int) -> None:
        """Start it, in a process group of its own; it imports while others go on."""
        self.served = 0
        self._errands = errands
        self._lines = errands.work / f"child{number}.jsonl"
        self._log = errands.work / f"child{number}.log"
        self._read = 0
        self._before: list[dict[str, object]] = []
        self._greeting: Mapping[str, object] = {}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*errands.argv, "--out", str(self._lines)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(errands.env),
                cwd=errands.work,
                start_new_session=True,
            )

    @property
    def lives(self) -> bool:
        """Return whether the process still runs."""
        return self._process.poll() is None

    def ready(self) -> Mapping[str, object]:
        """Return what it told when it had imported all, {} where it died, or took too long, before that."""
        deadline = time.monotonic() + START_S
        while not self._greeting and time.monotonic() < deadline:
            lives = self.lives
            self._before += self._new()
            self._greeting = next((line for line in self._before if line["event"] == "ready"), {})
            if not lives:
                break
            time.sleep(POLL_S)
        return self._greeting

    def run(self, value: float, errand: Mapping[str, object]) -> Trial:
        """Return how an errand ended; a child that dies or hangs over it is ended and that is the answer."""
        fresh, self.served = self.served == 0, self.served + 1
        start = time.monotonic()
        told, self._before = self._before, []
        limit = self._errands.limit_s + (0.0 if self._greeting else START_S)
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(errand).encode() + b"\n")
            self._process.stdin.flush()
        while True:
            lives = self.lives
            for line in self._new():
                told.append(line)
                if line["event"] == "trial end" and line.get("trial") == errand["trial"]:
                    return _told(value, fresh, told, line)
            if not lives:
                how = _how_ended(self._process.returncode)
                return self._dead(value, fresh, told, how, time.monotonic() - start)
            if time.monotonic() - start > limit:
                self.end()
                return self._dead(value, fresh, told, "hang", time.monotonic() - start)
            time.sleep(POLL_S)

    def end(self) -> None:
        """End the process and all of its group; what it told is on the disk."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        deadline = time.monotonic() + LEAVE_S
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            # What it started dies at its own pace, and holds the device until then.
            while time.monotonic() < deadline:
                os.killpg(self._process.pid, signal.SIGKILL)
                time.sleep(POLL_S)
        self._process.wait()

    def _new(self) -> list[dict[str, object]]:
        """Return the lines that came since; half of one waits for its rest."""
        try:
            with self._lines.open("rb") as file:
                file.seek(self._read)
                block = file.read()
        except FileNotFoundError:
            return []
        whole = block[: block.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines() if line.strip()]

    def _dead(self, value: float, fresh: bool, told: list[dict[str, object]], how: str, seconds: float) -> Trial:
        unable = next((line for line in told if line["event"] == "unable"), None)
        if unable is not None:
            return Trial(
                value=value, ending=Ending.UNABLE, fresh=fresh, how=str(unable.get("kind", "")),
                text=str(unable.get("text", "")), seconds=seconds,
            )  # fmt: skip
        begun = [str(line["part"]) for line in told if line["event"] == "part"]
        # An interpreter that does not even start says nothing of memory.
        started = any(line["event"] in ("ready", "trial") for line in told)
        return Trial(
            value=value,
            ending=Ending.FAIL if started and how != "exit code 0" else Ending.UNABLE,
            fresh=fresh,
            part=begun[-1] if begun else "",
            how=how,
            text=self._tail(),
            seconds=round(seconds, 3),
            parts=_parts(told),
        )

    def _tail(self) -> str:
        text = self._log.read_bytes()[-TAIL:].decode("utf-8", "replace")
        return text.strip()


def _how_ended(code: int) -> str:
    """Return in words how a process ended that gave no answer."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return "killed" if -code == signal.SIGKILL else signal.Signals(-code).name
    return f"signal {-code}"


def _told(value: float, fresh: bool, told: list[dict[str, object]], end: Mapping[str, object]) -> Trial:
    return Trial(
        value=value,
        ending=Ending(str(end["outcome"])),
        fresh=fresh,
        part=str(end.get("part", "")),
        how=str(end.get("how", "")),
        text=str(end.get("text", "")),
        seconds=float(str(end.get("seconds", 0.0))),
        parts=_parts(told),
        more={name: value for name, value in end.items() if name not in _ENDED},
    )


_ENDED = ("event", "at", "trial", "outcome", "part", "how", "text", "seconds")


def _parts(told: list[dict[str, object]]) -> tuple[Part, ...]:
    """Return the parts that were told to have ended, well or not."""
    known = ("event", "at", "trial", "part", "ended", "seconds", "peaks")
    return tuple(
        Part.from_json(
            {
                "part": line["part"],
                "ended": line["ended"] == "passed",
                "seconds": line["seconds"],
                "peaks": line["peaks"],
                **{name: value for name, value in line.items() if name not in known},
            }
        )
        for line in told
        if line["event"] == "part end"
    )


@dataclass(slots=True, kw_only=True)
class Pair:
    """A child that works and one that stands by.

    Attributes:
        errands: how both are started.
        stands_by: whether the next child is started before it is needed; off from when an import turns out to make a
            context on the device, which would count as somebody else's memory.
    """

    errands: Errands
    stands_by: bool = True
    _working: Child | None = None
    _next: Child | None = None
    _made: int = field(default=0)

    def run(self, value: float, errand: Mapping[str, object], *, fresh: bool) -> Trial:
        """Return how an errand ended, in the child that works or, where `fresh` or that one is gone, in a new one."""
        child = self._working
        if child is None or not child.lives or (fresh and child.served):
            child = self._take()
        trial = child.run(value, errand)
        if not trial.passed:
            self._retire()
        return trial

    @property
    def is_quiet(self) -> bool:
        """Return whether a child that has imported all was seen to have taken nothing of the device."""
        return self.stands_by and self._made > 1

    def prepare(self) -> None:
        """Start the first child before there is anything to do."""
        self._next = self._next or self._start()

    def end(self) -> None:
        """End both."""
        for child in (self._working, self._next):
            if child is not None:
                child.end()
        self._working = self._next = None

    def _take(self) -> Child:
        self._retire()
        child, self._next = self._next or self._start(), None
        self._working = child
        if self.stands_by:
            self.stands_by = not child.ready().get("context", False)
        self._next = self._start() if self.stands_by else None
        return child

    def _retire(self) -> None:
        if self._working is not None:
            self._working.end()
        self._working = None

    def _start(self) -> Child:
        self._made += 1
        return Child(self.errands, self._made)
