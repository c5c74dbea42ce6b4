"""What a trial tells: JSON lines appended to a file, each on the disk before the next thing happens.

A trial that is killed has its last line naming the part that it was in. Numbers are bytes and seconds.
"""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

TEXT = 3000
"""So many characters of an error are kept, from its end."""


class Gauge(Protocol):
    """What measures the memory of this process on its device."""

    def reset(self) -> None:
        """Start a new peak."""

    def peaks(self) -> dict[str, int]:
        """Return the figures since the last reset, in bytes."""


class Teller:
    """Appends lines to the file of one child; knows the errand and the part that it is in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._trial = ""
        self.part = ""

    def tell(self, event: str, **more: Any) -> None:
        """Append one line."""
        line = {"event": event, "at": round(time.time(), 3), **more}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")

    @contextmanager
    def part_of(self, name: str, gauge: Gauge) -> Iterator[dict[str, Any]]:
        """Tell that a part begins and how it ended, with its peaks; what is put into the yielded dict is told too."""
        self.part = name
        self.tell("part", trial=self._trial, part=name)
        gauge.reset()
        start = time.monotonic()
        found: dict[str, Any] = {}
        ended = "died"
        try:
            yield found
            ended = "passed"
        finally:
            seconds = round(time.monotonic() - start, 3)
            self.tell(
                "part end",
                trial=self._trial, part=name, ended=ended, seconds=seconds, peaks=gauge.peaks(), **found,
            )  # fmt: skip

    @contextmanager
    def trial(self, errand: dict[str, Any]) -> Iterator[Verdict]:
        """Tell that an errand begins and how it ended; a memory fault in it is an answer and goes no further.

        Any other fault is told as `unable` and does not go further either: a trial that failed for another reason says
        nothing of memory, and the caller is to know the reason.
        """
        self._trial, self.part = str(errand["trial"]), ""
        self.tell("trial", trial=self._trial, knob=errand.get("knob"), value=errand.get("value"))
        start = time.monotonic()
        verdict = Verdict()
        try:
            yield verdict
        except Exception as error:
            verdict.read(error)
        end = {"outcome": verdict.outcome, "how": verdict.how, "part": self.part if verdict.how else ""}
        self.tell(
            "trial end",
            trial=self._trial, **end, text=verdict.text, seconds=round(time.monotonic() - start, 3), **verdict.more,
        )  # fmt: skip
        self._trial = ""


class Verdict:
    """How an errand ended: `pass`, `fail` (memory, with `how`) or `unable` (anything else)."""

    def __init__(self) -> None:
        self.outcome, self.how, self.text = "pass", "", ""
        self.more: dict[str, Any] = {}

    def read(self, error: BaseException, log: str = "") -> None:
        """Take the outcome from an exception, and from what its own processes left in a log."""
        text = "".join(traceback.format_exception(error))
        self.how = how_of(f"{log}\n{text}")
        self.outcome = "fail" if self.how else "unable"
        self.how = self.how or type(error).__name__
        telling = [line for line in log.splitlines() if re.search(r"Error|out of memory", line)]
        self.text = "\n".join([*telling[-10:], text])[-TEXT:]


HOW = (
    # vLLM's own refusals first: they are told together with what torch said underneath.
    ("no KV cache", r"No available memory for the cache blocks"),
    ("KV cache too small", r"to serve at least one request|larger than the available KV cache|KV cache is needed"),
    ("free memory below utilization", r"Free memory on device .* is less than desired GPU memory utilization"),
    ("cumem", r"CUDA Error: out of memory"),
    ("cuBLAS", r"CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"),
    ("NCCL", r"ncclUnhandledCudaError.*out of memory|NCCL.*out of memory"),
    ("OutOfMemoryError", r"OutOfMemoryError|CUDA out of memory"),
    ("CUDA error", r"CUDA error: out of memory|cudaErrorMemoryAllocation"),
    ("host memory", r"DefaultCPUAllocator: can't allocate memory|MemoryError"),
)  # fmt: skip
"""How memory runs out, by what is said of it; the first that fits counts."""


def how_of(text: str) -> str:
    """Return in which way memory ran out, "" where the text tells of no such thing."""
    return next((name for name, pattern in HOW if re.search(pattern, text)), "")
