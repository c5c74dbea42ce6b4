"""The trial: one probe's attempt at a known failure, strict both ways.

A failure that is predicted and not seen is red, and so is one that is seen and not predicted; failing for another
reason is red too. A trial that judged nothing is red: it would be a check that cannot fail.
"""

from __future__ import annotations

from typing import Any

from kit.cell import Cell, Record
from kit.child import Ended

REPRODUCED, ABSENT, OTHER = "reproduced", "absent", "other"


class DisagreementError(AssertionError):
    """What was seen is not what the record predicts for this cell."""


class Trial:
    """What a probe saw of its failure; call `judge` or `observed` once, at the end."""

    def __init__(self, cell: Cell, record: Record) -> None:
        self.cell = cell
        self.record = record
        self.seen = ""
        self.detail: dict[str, Any] = {}

    def judge(self, ended: Ended | str | None) -> None:
        """Take a child's end, a traceback's text, or None for what was seen; raises DisagreementError."""
        fault = ended.fault if isinstance(ended, Ended) else ended
        if fault is None:
            self._conclude(ABSENT, "")
        elif self.record.matches(fault):
            self.detail["shown"] = self.record.shown(fault)
            self._conclude(REPRODUCED, fault)
        else:
            self._conclude(OTHER, fault)

    def observed(self, wrong: bool, what: str, **numbers: Any) -> None:
        """Say whether a silent failure was seen, and what was measured; raises DisagreementError."""
        self.detail.update(numbers)
        self._conclude(REPRODUCED if wrong else ABSENT, what)

    def _conclude(self, seen: str, text: str) -> None:
        if self.seen:
            raise RuntimeError(f"{self.record.id} was judged twice")
        self.seen = seen
        self.detail["text"] = text[-4000:]
        predicted = self.record.applies
        if seen == OTHER:
            raise DisagreementError(f"{self.record.id}: fails, but for another reason: {_last(text)}")
        if predicted == "yes" and seen == ABSENT:
            raise DisagreementError(f"{self.record.id}: predicted for {self.cell.name} and not seen; narrow its range")
        if predicted == "no" and seen == REPRODUCED:
            raise DisagreementError(f"{self.record.id}: seen on {self.cell.name} and not predicted; widen its range")


def _last(text: str) -> str:
    """Return the line of a traceback that says what happened."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("[")]
    return lines[-1][:300] if lines else "(nothing was written)"
