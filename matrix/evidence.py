"""The evidence that travels with the project: what was observed on other machines, and how it joins what is seen here.

Each store of it (`reports/evidence/NAME/`) has the form of any other (matrix/store.py) and is only ever read. It lies
beside this package in a checkout and in an installed wheel alike. What it says is shown with its machine and its date
and is never taken for something that was tried here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from matrix.cell import Cell
from matrix.errors import UsageError
from matrix.observe import Observation
from matrix.store import Store
from matrix.tier import Outcome, Tier

SHIPPED = Path(__file__).parents[1] / "reports" / "evidence"
"""Where the evidence of the project lies."""
NONE = "none"
"""The word for no evidence at all, where a folder of it is asked for."""


class Evidence:
    """Observations recorded on other machines, by cell; read when the first of them is asked for."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        """Take the stores in `folders`, later ones before earlier ones; raises nothing before it is read."""
        self._folders = tuple(folders)

    @functools.cached_property
    def stores(self) -> tuple[Store, ...]:
        """Return the stores, opened; raises NewerSchemaError, DataError."""
        return tuple(Store(folder) for folder in self._folders)

    def __iter__(self) -> Iterator[Observation]:
        """Yield every observation, each with the name of its store."""
        for store in self.stores:
            yield from (_marked(item, store) for item in store)

    def for_cell(self, name: str) -> tuple[Observation, ...]:
        """Return the observations of the cell of that name, each with the name of its store."""
        return tuple(_marked(item, store) for store in self.stores for item in store.for_cell(name))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a reader should know: lines that were passed over because they are no observations."""
        return tuple(
            f"{len(store.damage)} of the lines of the evidence `{store.folder.name}` passed over: not observations."
            for store in self.stores
            if store.damage
        )


def _marked(item: Observation, store: Store) -> Observation:
    return replace(item, shipped=store.folder.name)


def shipped(given: str | None = None) -> Evidence:
    """Return the evidence in the folder `given` (a store, or a folder of stores), by default that of the project.

    `none` gives no evidence. Raises UsageError for a folder that holds none.
    """
    if given == NONE:
        return Evidence()
    root = Path(given) if given else SHIPPED
    if (root / "observations.jsonl").is_file():
        return Evidence((root,))
    found = sorted(path.parent for path in root.glob("*/observations.jsonl"))
    if given and not found:
        raise UsageError(
            f"{root} holds no evidence.",
            why="Neither it nor a folder in it has an observations.jsonl.",
            then=f"Name a store, or `{NONE}` to go without.",
        )
    return Evidence(found)


def joined(cell: Cell, here: Iterable[Observation], evidence: Evidence | None) -> list[Observation]:
    """Return what was observed here of `cell`, and of what was not answered here what the evidence says.

    Of one probe the answer from here counts, whenever the other was made; an `untested` from here stands back. Of two
    recorded answers that counts which was made in the set that the cell resolves to now, else the later one.
    """
    found = list(here)
    if evidence is None:
        return found
    lock = next((item.detail.get("lock") for item in found if item.question.tier is Tier.RESOLVE), None)
    answered = {item.question.slot for item in found if item.outcome is not Outcome.UNTESTED}
    known: dict[tuple[Tier, str, str], Observation] = {}
    for item in evidence.for_cell(cell.name):
        slot = item.question.slot
        if slot not in answered and (slot not in known or _worth(item, lock) >= _worth(known[slot], lock)):
            known[slot] = item
    tiers = {tier for (tier, _, _), item in known.items() if item.outcome is not Outcome.UNTESTED}
    kept = [item for item in found if not _stands_back(item, known, tiers)]
    static = {item.question.tier for item in kept if not item.question.tier.is_deep}
    return kept + [item for item in known.values() if item.question.tier not in static]


def _worth(item: Observation, lock: object) -> tuple[bool, bool, float]:
    """Return what a recorded answer is worth beside another to the same probe."""
    return item.outcome is not Outcome.UNTESTED, item.question.reads.get("lock") == lock, item.at.timestamp()


def _stands_back(item: Observation, known: dict[tuple[Tier, str, str], Observation], tiers: set[Tier]) -> bool:
    """Return whether an observation from here says only that nothing was tried, where the evidence says something."""
    if item.outcome is not Outcome.UNTESTED or not item.question.tier.is_deep:
        return False
    return item.question.slot in known or (item.question.probe == item.question.tier.value and item.question.tier in tiers)
