"""The record of a launch: a line for each sample, on the disk at once, and a result that is true at every moment.

The result is written when the launch begins, with `ended` as `running`, and replaced whole whenever more is known; a
launch that is killed leaves the last one and every sample that was had.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

SCHEMA = 1
RESULT, SAMPLES = "result.json", "samples.jsonl"


class Record:
    """The two files of a launch; `result` holds what the next writing tells."""

    def __init__(self, out: Path, bench: str) -> None:
        """Begin it: what an earlier launch left there is removed."""
        self._out = out
        self._start = time.monotonic()
        out.mkdir(parents=True, exist_ok=True)
        for name in (RESULT, SAMPLES):
            (out / name).unlink(missing_ok=True)
        self.result: dict[str, Any] = {"schema": SCHEMA, "bench": bench, "ended": "running", "code": None}
        self.result |= {"fault": None, "reached": {}, "left_behind": []}
        self.save()

    @property
    def seconds(self) -> float:
        """Return how long the launch has lasted."""
        return time.monotonic() - self._start

    def sample(self, **line: Any) -> None:
        """Append one sample."""
        text = json.dumps(strict({**line, "at": round(time.time(), 3)}), default=str, allow_nan=False)
        with (self._out / SAMPLES).open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def reach(self, what: str) -> None:
        """Note that something was reached, after how many seconds; the last time counts."""
        self.result["reached"][what] = round(self.seconds, 2)
        self.save()

    def save(self) -> None:
        """Write the result as it stands, whole or not at all."""
        told = strict({**self.result, "seconds": round(self.seconds, 2)})
        new = self._out / f"{RESULT}.new"
        new.write_text(json.dumps(told, indent=1, default=str, allow_nan=False) + "\n", encoding="utf-8")
        new.replace(self._out / RESULT)

    def end(self, ended: str, code: int, fault: dict[str, Any] | None = None) -> int:
        """Write how the launch ended and return its exit code."""
        self.result |= {"ended": ended, "code": code, "fault": fault}
        self.save()
        return code


def strict(value: Any) -> Any:
    """Return a value in which no number is NaN or infinite: JSON has neither, they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): strict(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(held) for held in value]
    return value
