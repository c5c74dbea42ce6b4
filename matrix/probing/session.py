"""One pytest process in a cell's environment, watched: what its probes say is handed on as they end.

A probe that takes the process down, hangs, takes too much memory or leaves processes ends in an outcome with that
reason; everything it started is killed, and the others go on in a new process.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from matrix.errors import ToolError
from matrix.probing import processes
from matrix.probing.guard import Guard
from matrix.probing.lines import EndedProbe, Lost, PlannedProbe, Tail

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much probes may take.

    Attributes:
        memory: bytes that all processes of a probe may hold together.
        grace_s: seconds beyond a probe's own limit, for its children to be ended by itself.
        start_s: seconds until the first probe begins: pytest starts and reads the files.
        leave_s: seconds that what a probe started may outlive it.
        whole_s: seconds for all probes of a cell.
        poll_s: seconds between looks at what was written.
        weigh_s: seconds between looks at the memory, each of which reads all of /proc.
        asked: whether `memory` was asked for, and so holds on a GPU too.
        floor: bytes of the host's memory that must stay free, 0 for any. Memory that is pinned for a GPU is the
            driver's: it counts in no process.
    """

    memory: int = 16 * GIB
    grace_s: float = 30.0
    start_s: float = 300.0
    leave_s: float = 5.0
    whole_s: float = 7200.0
    poll_s: float = 0.1
    weigh_s: float = 0.5
    asked: bool = False
    floor: int = 0

    @classmethod
    def usual(cls) -> Limits:
        """Return the limits for this machine: 16 GiB, or 80 % of the memory that can be had where that is less."""
        available = processes.available_bytes()
        return cls(memory=min(16 * GIB, available * 8 // 10) if available else 16 * GIB)

    def on_gpu(self) -> Limits:
        """Return the limits for probes on a GPU: 80 % of the memory that can be had, unless less or more was asked for.

        What is offloaded from a card, or staged for one, is as large as what the card holds: 16 GiB are too few. What
        was written is looked at more often: the card waits meanwhile.
        """
        available = processes.available_bytes()
        memory = self.memory if self.asked else max(self.memory, available * 8 // 10)
        return replace(self, memory=memory, floor=available // 20, poll_s=min(self.poll_s, 0.02))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What pytest is started with: interpreter, folder of probes, environment, working folder, the lines' file."""

    python: Path
    folder: Path
    env: Mapping[str, str]
    work: Path
    trials: Path
    token: str
    limits: Limits = field(default_factory=Limits)

    def command(self, *words: str) -> list[str]:
        """Return the command line of pytest over the folder of probes."""
        ini = self.folder / "pytest.ini"
        return [str(self.python), "-m", "pytest", "-c", str(ini), "--rootdir", str(self.folder), "-q", *words]


def collect(given: Surroundings, where: Path | None = None) -> tuple[list[PlannedProbe], list[Lost]]:
    """Return what there is to run, in the folder or in the one file `where`, and the files that cannot be read.

    Raises:
        ToolError: pytest does not start.
    """
    log = given.work / "collect.log"
    words = ("--collect-only", "--continue-on-collection-errors", str(where or given.folder))
    code = _until_end(given, given.command(*words), log)
    planned, lost = [], []
    for line in Tail(given.trials):
        if line.get("event") == "planned":
            planned.append(PlannedProbe.from_json(line))
        elif line.get("event") == "lost":
            lost.append(Lost(file=str(line["file"]), reason=str(line["reason"])))
    given.trials.unlink(missing_ok=True)
    if code == _USAGE or (not planned and not lost):
        # What a hook of the conftest refuses ends pytest with 4, after it has said what there is.
        raise ToolError(
            "A probe's marks make no sense." if planned else "pytest found no probe in this environment.",
            why=_said(log) or f"It ended with {code}.",
            then="Run it by hand: " + " ".join(given.command("--collect-only", str(given.folder))),
        )
    return planned, lost


_USAGE = 4


def _until_end(given: Surroundings, command: Sequence[str], log: Path) -> int | None:
    """Return how a command ended, None where its time ran out; nothing that it started is left."""
    child = _start(given, command, log)
    try:
        return child.wait(given.limits.start_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        processes.end(given.token)
        child.wait()


def _start(given: Surroundings, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        try:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(given.env),
                cwd=given.work,
                start_new_session=True,
            )
        except OSError as error:
            raise ToolError(f"{command[0]} cannot be started: {error.strerror or error}.") from error


def _said(log: Path, chars: int = 600) -> str:
    """Return the end of what was written, without blank lines."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return "\n".join(line for line in text.splitlines() if line.strip())[-chars:]


class Watch:
    """Runs probes to the last one, in as many processes as it takes, and hands on each end as it comes."""

    def __init__(
        self,
        given: Surroundings,
        ended: Callable[[EndedProbe], None],
        guard: Guard | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Watch what is started with `given`; `ended` is called once for each probe.

        With a guard a probe begins when it lets it, and has ended when it says so. Once `stopped` holds, all is ended.
        """
        self._given = given
        self._tell = ended
        self._guard = guard
        self._stopped = stopped
        self._tail = Tail(given.trials)
        self._left: dict[str, PlannedProbe] = {}
        self._current = ""
        self._since = 0.0
        self._weighed = 0.0
        self._last_end: EndedProbe | None = None

    def run(self, probes: Sequence[PlannedProbe]) -> None:
        """Return once each probe has its end, or the time of all is up (the others are then `untested`).

        Raises:
            ToolError: pytest ends without having begun any probe.
            KeyboardInterrupt: the run was stopped.
        """
        # What an earlier run of the same cell wrote would be read again.
        self._given.trials.unlink(missing_ok=True)
        self._left = {probe.test: probe for probe in probes}
        until = time.monotonic() + self._given.limits.whole_s
        try:
            while self._left:
                before = len(self._left)
                reason = self._one_process(until)
                if self._current:
                    self._end_current(reason)
                self._flush()
                if self._guard is not None and self._guard.closed:
                    self._give_up(self._guard.closed)
                elif time.monotonic() > until:
                    self._give_up(self._out_of_time)
                elif len(self._left) == before:
                    raise ToolError(
                        "pytest ended and had run none of the probes that it was given.",
                        why=_said(self._given.work / "pytest.log"),
                    )
        finally:
            processes.end(self._given.token)

    def _one_process(self, until: float) -> str:
        """Run what is left in one process; return why the probe that had begun last did not end, where it did not."""
        words = [f"{self._given.folder / test}" for test in self._left]
        child = _start(self._given, self._given.command(*words), self._given.work / "pytest.log")
        self._current, self._since = "", time.monotonic()
        if self._guard is not None:
            self._guard.halted = False
        try:
            while True:
                if self._stopped():
                    raise KeyboardInterrupt
                code = child.poll()
                self._read()
                if code is not None:
                    return _how(code)
                reason = self._over(until)
                if reason:
                    return reason
                time.sleep(self._given.limits.poll_s)
        finally:
            processes.end(self._given.token)
            child.wait()
            self._read()

    def _read(self) -> None:
        for line in self._tail:
            match line.get("event"):
                case "start" if self._guard is None or not (self._guard.halted or self._guard.closed):
                    self._flush()
                    self._current = str(line["test"])
                    if self._guard is not None:
                        self._guard.admit(self._current)
                    self._since = time.monotonic()
                case "end" if line["test"] in self._left:
                    self._last_end = EndedProbe.from_json(line)
                    self._left.pop(self._last_end.test)
                    self._current, self._since = "", time.monotonic()
                    self._leftovers()

    def _leftovers(self) -> None:
        """Give what the last probe started a moment to end, then end it and say so in the probe's outcome."""
        assert self._last_end is not None
        deadline = time.monotonic() + self._given.limits.leave_s
        while True:
            left = [item for item in processes.tagged(self._given.token) if item.probe == self._last_end.test]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(self._given.limits.poll_s)
        if left:
            # Only its own: the next probe may have begun, and starts children meanwhile.
            processes.end(self._given.token, probe=self._last_end.test)
            detail = {**self._last_end.detail, "left": sorted({item.name for item in left})}
            self._last_end = replace(self._last_end, detail=detail)
        self._flush()

    def _flush(self) -> None:
        """Tell of the end that was last, with what it did to the GPUs."""
        if self._last_end is not None:
            ended, self._last_end = self._last_end, None
            self._tell(ended if self._guard is None else self._guard.settle(ended))

    def _over(self, until: float) -> str:
        """Return which limit is passed, "" for none."""
        now, limits = time.monotonic(), self._given.limits
        if self._guard is not None:
            if self._guard.closed:
                return self._guard.closed
            self._guard.look()
        probe = self._left.get(self._current)
        allowed = limits.start_s if probe is None else probe.limit + limits.grace_s
        if now - self._since > allowed:
            return f"hung: it was ended {allowed:.0f} s after it began" if probe else "pytest did not begin in time"
        if now > until:
            return self._out_of_time
        if now - self._weighed < limits.weigh_s:
            return ""
        self._weighed = now
        held = processes.weight(processes.tagged(self._given.token))
        if held > limits.memory:
            return f"took {held / GIB:.1f} GiB of memory, more than the {limits.memory / GIB:.1f} GiB allowed; ended"
        left = processes.available_bytes() if limits.floor else 0
        if probe is not None and left < limits.floor:
            return f"{left / GIB:.1f} GiB of the host's memory were left, less than {limits.floor / GIB:.1f} GiB; ended"
        return ""

    def _end_current(self, reason: str) -> None:
        """Say how the probe ended that was running when its process did."""
        self._left.pop(self._current, None)
        seconds = time.monotonic() - self._since
        text = _said(self._given.work / "pytest.log", 4000)
        self._flush()
        detail = {"text": text}
        self._last_end = EndedProbe(test=self._current, outcome="killed", reason=reason, seconds=seconds, detail=detail)
        self._flush()
        self._current = ""

    @property
    def _out_of_time(self) -> str:
        return f"the {self._given.limits.whole_s:.0f} s for all probes of the cell ran out"

    def _give_up(self, reason: str) -> None:
        for test in list(self._left):
            self._tell(EndedProbe.never_begun(test, reason))
            self._left.pop(test)


def _how(code: int) -> str:
    """Return how a process ended, in words."""
    if code >= 0:
        return f"took its process down (exit code {code})"
    try:
        return f"took its process down ({signal.Signals(-code).name})"
    except ValueError:
        return f"took its process down (signal {-code})"
