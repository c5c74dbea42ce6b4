"""The boundary: the first bad release of an axis, as far as answers that are stored tell it; nothing is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from packaging.version import Version

from matrix.axes import Axes
from matrix.bisect import Answer, Bisection, Grade, bisect, grade
from matrix.cell import Axis, Cell
from matrix.observe import Observation
from matrix.store import Store
from matrix.tier import Outcome, Tier

NAMED = 5
"""So many candidates are named one by one."""
STATIC = (Tier.RESOLVE, Tier.SURFACE)


def boundary(cell: Cell, tier: Tier, axis: Axis, axes: Axes, store: Store) -> str:
    """Return where `axis` turns bad at a static tier, in one line; "" where the stored answers do not tell.

    Searched from the newest older release that is known to be good, in cells that differ from `cell` in this axis only.
    """
    pin = cell.pin(axis)
    if tier not in STATIC or pin is None:
        return ""
    releases = [version for version in axes[axis].releases if version <= pin.version]
    known = dict(_known(cell, tier, axis, releases, store))
    good = max((version for version, answer in known.items() if answer.grade is Grade.GOOD), default=None)
    if good is None or pin.version not in known or known[pin.version].grade is not Grade.BAD:
        return ""
    hole: Answer[Observation | None] = Answer(grade=Grade.HOLE, evidence=None, reason=_UNKNOWN)
    found = bisect(axis, releases, good, pin.version, lambda version: hole, known=known)
    return f"{_line(found)} (last good: {found.last_good}; from stored answers, tier {tier})"


def between(axis: Axis, good: Version, bad: Version, axes: Axes) -> str:
    """Return where `axis` turns bad, of which one release is known to be good and a later one bad; "" for others."""
    releases = axes[axis].releases
    if good not in releases or bad not in releases or not good < bad:
        return ""
    known: dict[Version, Answer[None]] = {
        good: Answer(grade=Grade.GOOD, evidence=None),
        bad: Answer(grade=Grade.BAD, evidence=None),
    }
    hole: Answer[None] = Answer(grade=Grade.HOLE, evidence=None, reason=_UNKNOWN)
    found = bisect(axis, releases, good, bad, lambda version: hole, known=known)
    return f"{_line(found)} (last good: {found.last_good}; by the two nights)"


_UNKNOWN = "nothing is stored about it"


def _line(found: Bisection[Any]) -> str:
    """Return the bisection in one line, without the reason, which is told elsewhere; of many candidates the ends."""
    if len(found.candidates) <= NAMED:
        return found.line.partition(": ")[0]
    first, last = found.candidates[0], found.candidates[-1]
    return f"the first bad release of {found.axis.value} is one of {len(found.candidates)}, {first} to {last}"


def _known(
    cell: Cell, tier: Tier, axis: Axis, releases: list[Version], store: Store
) -> Iterator[tuple[Version, Answer[Observation | None]]]:
    for version in releases:
        item = _stored(_with(cell, axis, version), tier, store)
        if item is not None and item.outcome is not Outcome.UNTESTED:
            yield version, Answer(grade=grade(item.outcome, tier), evidence=item, reason=item.reason)


def _with(cell: Cell, axis: Axis, version: Version) -> Cell:
    pins = tuple(replace(pin, version=version) if pin.axis is axis else pin for pin in cell.pins)
    return replace(cell, pins=pins)


def _stored(cell: Cell, tier: Tier, store: Store) -> Observation | None:
    """Return the last answer about the cell at a tier, as of the night's date or, without one, as the index was."""
    found = [item for item in store.for_cell(cell.name) if item.question.tier is tier]
    return found[-1] if found else None
