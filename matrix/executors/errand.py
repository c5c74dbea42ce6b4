"""The errand: a cell on its way to another machine, and what comes back from there, line by line (JSON)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matrix import errors
from matrix.asking import Refusal
from matrix.errors import MatrixError
from matrix.executors.manner import Manner
from matrix.job import Probed
from matrix.observe import Observation
from matrix.store import from_line, to_line

BEGUN, NOTE, PLANNED, OBSERVED = "begun", "note", "planned", "observed"
DONE, REFUSED, ENDED = "done", "refused", "ended"
"""The kinds of lines: a machine has taken it; what it does; what there is to run; an observation; then all of them, or
why not; how it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """All that a machine needs to visit a cell.

    Attributes:
        cell: the cell's name.
        manner: what of it is tried.
        resolved: its answer of tier `resolve`, None for an environment that is there.
        lock: the text of its lock, "" without one.
        known: what is stored of it and counts; an answer that the machine would give too is not asked for again.
        home: the folder in which the machine keeps environments and downloads, None for its user's own.
    """

    cell: str
    manner: Manner
    resolved: Observation | None = None
    lock: str = ""
    known: tuple[Observation, ...] = ()
    home: Path | None = None

    def to_line(self) -> str:
        """Return it as one line."""
        data = {
            "cell": self.cell,
            "manner": self.manner.to_json(),
            "resolved": None if self.resolved is None else to_line(self.resolved),
            "lock": self.lock,
            "known": [to_line(item) for item in self.known],
            "home": None if self.home is None else str(self.home),
        }
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> Errand:
        """Return the errand of a line; raises KeyError, ValueError for any other text."""
        data = json.loads(line)
        return cls(
            cell=str(data["cell"]),
            manner=Manner.from_json(data["manner"]),
            resolved=from_line(data["resolved"]) if data["resolved"] else None,
            lock=str(data["lock"]),
            known=tuple(from_line(item) for item in data["known"]),
            home=Path(data["home"]) if data["home"] else None,
        )


def note(text: str) -> str:
    """Return the line that tells what is being done."""
    return _line(NOTE, text=text)


def planned(path: Path) -> str:
    """Return the line that holds what there is to run, as a machine remembers it in a file of its cache."""
    return _line(PLANNED, name=path.name, text=path.read_text(encoding="utf-8"))


def observed(item: Observation) -> str:
    """Return the line that holds an observation that was just made."""
    return _line(OBSERVED, observation=to_line(item))


def read_observed(data: Mapping[str, Any]) -> Observation:
    """Return what the line of `observed` holds; raises KeyError, ValueError for another."""
    return from_line(str(data["observation"]))


def done(probed: Probed) -> str:
    """Return the line that holds all that a visit gave, in its order."""
    return _line(DONE, found=[to_line(item) for item in probed.observations], reused=probed.reused, asked=probed.asked)


def read_done(data: Mapping[str, Any]) -> Probed:
    """Return what the line of `done` holds; raises KeyError, ValueError for another."""
    found = tuple(from_line(item) for item in data["found"])
    return Probed(observations=found, reused=int(data["reused"]), asked=int(data["asked"]))


def refused(error: MatrixError) -> str:
    """Return the line that says why the machine could not try the cell."""
    return _line(REFUSED, error=type(error).__name__, what=error.what, why=error.why, then=error.then)


def read_refused(data: Mapping[str, Any]) -> MatrixError:
    """Return the error of the line of `refused`; one of a class that is not known here is a MatrixError."""
    kind = getattr(errors, str(data["error"]), MatrixError)
    if not (isinstance(kind, type) and issubclass(kind, MatrixError)):
        kind = MatrixError
    return Refusal(error=kind, what=str(data["what"]), why=str(data["why"]), then=str(data["then"])).raised()


def _line(event: str, **more: object) -> str:
    return json.dumps({"event": event, **more}, separators=(",", ":"))
