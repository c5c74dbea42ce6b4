"""The journal of a run: what it was asked, since when, and what it lost, so that another can go on where it was cut."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from matrix.atomic import replace_file
from matrix.errors import DataError, NewerSchemaError, NothingRanError

SCHEMA = 1
NAME = "run.json"


@dataclass(slots=True, kw_only=True)
class Journal:
    """What is known of the last run over a store; written when it begins, at each loss and when it ends.

    Attributes:
        path: where it lies, None for one that is not kept.
        words: what the command line asked for, plain JSON data.
        begun: when the run began, the first time.
        ended: whether it came to its end.
        losses: why a cell was lost with its machine, each time, by the cell's name.
    """

    path: Path | None = None
    words: Mapping[str, object] = field(default_factory=dict)
    begun: datetime
    ended: bool = False
    losses: dict[str, list[str]] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def lost(self, cell: str, reason: str) -> None:
        """Note that a cell was lost once more; safe for threads."""
        with self._guard:
            self.losses.setdefault(cell, []).append(reason)
            self._write()

    def end(self) -> None:
        """Note that the run came to its end."""
        with self._guard:
            self.ended = True
            self._write()

    def write(self) -> None:
        """Put it on the disk, whole."""
        with self._guard:
            self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        data = {
            "schema": SCHEMA,
            "words": dict(self.words),
            "begun": self.begun.isoformat(),
            "ended": self.ended,
            "losses": self.losses,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, json.dumps(data, indent=1).encode() + b"\n")


def _now() -> datetime:
    return datetime.now(UTC)


def begin(store: Path, words: Mapping[str, object], clock: Callable[[], datetime] = _now) -> Journal:
    """Return the journal of a run that begins now over the store in a folder; it takes the place of the last one."""
    journal = Journal(path=store / NAME, words=words, begun=clock())
    journal.write()
    return journal


def unfinished(store: Path) -> Journal:
    """Return the journal of the last run over a store, which did not come to its end.

    Raises:
        NothingRanError: there was none, or it came to its end.
        DataError: its file is no journal.
        NewerSchemaError: it was written by a newer release.
    """
    path = store / NAME
    try:
        data = json.loads(path.read_bytes())
        if data["schema"] > SCHEMA:
            raise NewerSchemaError(f"{path} was written with schema {data['schema']}.", then="Upgrade verl-matrix.")
        losses = {str(name): [str(reason) for reason in why] for name, why in data["losses"].items()}
        found = Journal(
            path=path,
            words=dict(data["words"]),
            begun=datetime.fromisoformat(data["begun"]),
            ended=bool(data["ended"]),
            losses=losses,
        )
    except FileNotFoundError:
        raise NothingRanError(
            "There is no run to go on with.", why=f"Nothing was begun over {store}.", then="Run without --resume."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(path, "", f"is no journal of a run ({type(error).__name__}: {error})") from error
    if found.ended:
        raise NothingRanError(
            "There is no run to go on with.",
            why=f"The one that began {found.begun:%Y-%m-%d %H:%M} UTC came to its end.",
            then="Run without --resume: what is answered is not asked again.",
        )
    return found
