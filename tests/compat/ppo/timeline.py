"""The timeline: when a launch reached each of its phases, told from what verl, Ray and vLLM print as they go on.

A phase is reached with the first line that shows it; a step with its line in verl's own file of metrics. Seconds count
from the start of the process of verl. Releases print different lines: a phase whose line a release does not have is
left out, never guessed.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path

PHASES: dict[str, re.Pattern[str]] = {
    # The driver has imported verl and composed the configuration.
    "configured": re.compile(r"All configuration checks passed|^ray init kwargs:"),
    "ray": re.compile(r"Started a local Ray instance"),
    # The process that drives the run has imported what it needs.
    "runner": re.compile(r"\(TaskRunner\w* pid=\d+\)"),
    "data": re.compile(r"train and validate dataloader initialized|Size of train dataloader|Total training steps:"),
    "workers": re.compile(r"\((?:WorkerDict|\w*Worker) pid=\d+\)|worker group kwargs"),
    "critic": re.compile(r"critic model engine initialized|ForTokenClassification contains \S+ parameters"),
    "actor": re.compile(r"ForCausalLM contains \S+ parameters"),
    "trainer": re.compile(r"actor and ref model engine initialized"),
    # The server of vLLM has imported; its arguments are printed.
    "server": re.compile(r"\['serve',|vLLMHttpServer, replica_rank"),
    # In the processes of the engine.
    "engine core": re.compile(r"Initializing a V1 LLM engine|EngineCore\w* pid=\d+.*(?:Waiting for READY|INFO)"),
    "engine worker": re.compile(r"\(Worker(?:_\w+)? pid=\d+\)"),
    "engine weights": re.compile(r"Model loading took|Loading weights took"),
    "engine graphs": re.compile(r"Graph capturing finished"),
    "engine": re.compile(r"init engine \(profile"),
    "served": re.compile(r"Application startup complete|Uvicorn running|vLLM API server started"),
    "agents": re.compile(r"\(AgentLoopWorker\w* pid=\d+\)"),
    "fit": re.compile(r"all initialize finished, ready to fit|Training Progress:\s+0%|Training from scratch"),
}
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def phases(lines: Iterable[tuple[float, str]]) -> dict[str, float]:
    """Return the seconds at which each phase was first seen in stamped lines, in the order in which they were."""
    found: dict[str, float] = {}
    for seconds, line in lines:
        text = _COLOR.sub("", line)
        for name, pattern in PHASES.items():
            if name not in found and pattern.search(text):
                found[name] = seconds
    return dict(sorted(found.items(), key=lambda entry: entry[1]))


def spans(reached: dict[str, float]) -> dict[str, float]:
    """Return how long each phase took since the one before it, in seconds."""
    found, before = {}, 0.0
    for name, seconds in sorted(reached.items(), key=lambda entry: entry[1]):
        found[name] = round(seconds - before, 2)
        before = seconds
    return found


class Follower(threading.Thread):
    """Reads a growing log and a growing file of metrics, and stamps each line with the seconds since it was made."""

    def __init__(self, log: Path, metrics: Path, every: float = 0.1) -> None:
        super().__init__(daemon=True)
        self._log, self._metrics, self._every = log, metrics, every
        self._stop_asked = threading.Event()
        self._start = time.monotonic()
        self._read = {log: 0, metrics: 0}
        self.lines: list[tuple[float, str]] = []
        self.steps: list[float] = []

    def run(self) -> None:
        while not self._stop_asked.wait(self._every):
            self._look()
        self._look()

    def _look(self) -> None:
        seconds = round(time.monotonic() - self._start, 2)
        self.lines += [(seconds, line) for line in self._new(self._log)]
        self.steps += [seconds for _ in self._new(self._metrics)]

    def _new(self, path: Path) -> list[str]:
        """Return the lines that are whole and were not read before."""
        try:
            with path.open("rb") as file:
                file.seek(self._read[path])
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] += len(whole)
        return whole.decode("utf-8", "replace").splitlines()

    def stop(self) -> None:
        """Stop reading, with what has been written by now."""
        self._stop_asked.set()
        if self.is_alive():
            self.join()

    def reached(self) -> dict[str, float]:
        """Return when each phase and each step was reached."""
        steps = {f"step {number}": seconds for number, seconds in enumerate(self.steps, 1)}
        return {**phases(self.lines), **steps}

    def save(self, path: Path) -> None:
        """Write the stamped lines, so that a timeline can be told again."""
        path.write_text("".join(f"{seconds:.2f} {line}\n" for seconds, line in self.lines), encoding="utf-8")


def read_stamped(path: Path) -> list[tuple[float, str]]:
    """Return stamped lines as they were saved."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        seconds, _, text = line.partition(" ")
        found.append((float(seconds), text))
    return found
