"""Gathering: what runs on other machines kept in stores of their own, brought into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.errors import NothingRanError
from matrix.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What came from a folder: observations that are new here, those that are not, lines that are none.

    One that answers a question later than the other store did is not new either: a store's last line on a question is
    what counts, so an older answer may not come after it.
    """

    folder: Path
    new: int
    held: int
    damaged: int


def stores_in(folder: Path) -> tuple[Path, ...]:
    """Return the stores that a folder is or holds at any depth, e.g. in a home; () for none."""
    name = "observations.jsonl"
    return (folder,) if (folder / name).is_file() else tuple(sorted(path.parent for path in folder.rglob(name)))


def gather(into: Store, folders: Sequence[Path]) -> tuple[Gathered, ...]:
    """Return what was added from each store in these folders; the same again adds nothing.

    Of one question several answers may come, from several machines or days: they are kept oldest first, as if they had
    been made here.

    Raises:
        NothingRanError: a folder holds no store.
        NewerSchemaError, DataError, NoSpaceError, BusyError: a store cannot be read, or the one cannot be written.
    """
    others = [Store(path) for folder in folders for path in _found(folder)]
    latest = {item.question.key: item.at for item in into}
    known = {(item.question.key, item.at) for item in into}
    told, new = [], []
    for other in others:
        came = [item for item in other if (item.question.key, item.at) not in known]
        came = [item for item in came if item.question.key not in latest or item.at > latest[item.question.key]]
        known |= {(item.question.key, item.at) for item in came}
        new += came
        told.append(
            Gathered(folder=other.folder, new=len(came), held=len(other) - len(came), damaged=len(other.damage))
        )
    into.add(*sorted(new, key=lambda item: item.at))
    return tuple(told)


def _found(folder: Path) -> tuple[Path, ...]:
    found = stores_in(folder)
    if not found:
        raise NothingRanError(
            f"{folder} holds no store.", why="No observations.jsonl is in it.", then="Give the home of a run."
        )
    return found
