"""The evidence that travels with the project: what was observed on other machines, and how it joins what is seen here.

Each store of it (`reports/evidence/NAME/`) has the form of any other (matrix/store.py) and is only ever read. It lies
beside this package in a checkout and in an installed wheel alike. What it says is shown with its machine and its date
and is never taken for something that was tried here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from matrix.cell import Axis, Cell, parse_name
from matrix.errors import UsageError
from matrix.failure import Failure
from matrix.known import contradicts
from matrix.observe import Observation
from matrix.records import load_failures
from matrix.store import Store
from matrix.tier import Outcome, Tier
from matrix.tried import tried

SHIPPED = Path(__file__).parents[1] / "reports" / "evidence"
"""Where the evidence of the project lies."""
NONE = "none"
"""The word for no evidence at all, where a folder of it is asked for."""
ALIKE = 5
"""So many other cells that hold the same versions are told of."""


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
            yield from (self._marked(item, store) for item in store)

    def of_tier(self, tier: Tier) -> Iterator[Observation]:
        """Yield the observations of a tier, each with the name of its store."""
        for store in self.stores:
            yield from (self._marked(item, store) for item in store.find(tier=tier))

    def for_cell(self, name: str) -> tuple[Observation, ...]:
        """Return the observations of the cell of that name, each with the name of its store."""
        return tuple(self._marked(item, store) for store in self.stores for item in store.for_cell(name))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a reader should know: lines that were passed over because they are no observations."""
        return tuple(
            f"{len(store.damage)} of the lines of the evidence `{store.folder.name}` passed over: not observations."
            for store in self.stores
            if store.damage
        )

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the names of the cells that something is recorded of, each once."""
        return tuple(dict.fromkeys(name for store in self.stores for name in store.cells))

    @functools.cached_property
    def _records(self) -> Mapping[str, Failure]:
        """Return the records by id; read only where an observation contradicts one."""
        return {failure.id: failure for failure in load_failures()}

    def _marked(self, item: Observation, store: Store) -> Observation:
        """Return the observation with its store's name, and no contradiction to a record that was put right since."""
        marked = replace(item, shipped=store.folder.name)
        failure = self._records.get(str(item.detail.get("failure"))) if item.detail.get("disagreement") else None
        if failure is None or contradicts(failure, item) is not False:
            return marked
        detail = {key: value for key, value in item.detail.items() if key not in ("disagreement", "proposal")}
        return replace(marked, detail={**detail, "predicted_then": item.detail.get("predicted")})


def alike(cell: Cell, evidence: Evidence) -> tuple[str, ...]:
    """Return what is recorded of other cells that hold all versions of this one and more, the deepest tier of each.

    It says nothing of the cell itself: what it leaves open may be other versions there. Those tried deepest first.
    """
    asked = {(pin.axis, pin.version, pin.variant) for pin in cell.pins}
    found = []
    for name in evidence.cells:
        if name == cell.name or not asked <= _pins(name):
            continue
        told = [item for item in tried(evidence.for_cell(name)) if item.ran and item.tier.is_deep]
        if told:
            found.append((-told[-1].tier.depth, name, told[-1].line))
    return tuple(f"{name}, which holds these versions: {line}" for _, name, line in sorted(found)[:ALIKE])


def _pins(name: str) -> set[tuple[Axis, Version, str]]:
    try:
        return {(pin.axis, pin.version, pin.variant) for pin in parse_name(name).pins}
    except UsageError:
        return set()


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
    whole = item.question.probe == item.question.tier.value
    return item.question.slot in known or (whole and item.question.tier in tiers)
