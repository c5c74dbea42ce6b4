"""The plan: which cells a run tries, from data files, selectors and the target platform."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from packaging.version import Version

from matrix.cell import VARIANTS, Axis, Cell, Deviation, Pin, Platform
from matrix.datafile import Table, read
from matrix.errors import NothingRanError
from matrix.select import parse_patterns, select
from matrix.tier import Status

CELLS = Path(__file__).with_name("cells.toml")
REPRODUCTIONS = Path(__file__).with_name("reproductions.toml")
SHIPPED = (CELLS, REPRODUCTIONS)
"""The files whose cells a run tries by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A cell and why it is planned.

    Attributes:
        cell: the combination; its `reason` says why it is in the matrix.
        groups: words to select it by, sorted.
        source: where its versions are stated ("" when somebody just asked).
        date: as of when the source says so.
        targeted: the file itself says platform or snapshot, so the command line does not replace them.
        expected: how the cell is known to come out, where that is bad; None where nothing is said.
    """

    cell: Cell
    groups: tuple[str, ...] = ()
    source: str = ""
    date: datetime | None = None
    targeted: bool = False
    expected: Status | None = None

    @property
    def data(self) -> dict[str, object]:
        """Return plain JSON data; a field that does not apply is null or empty."""
        cell = self.cell
        deviation = cell.deviation
        return {
            "name": cell.name,
            "pins": {pin.axis.value: str(pin.version) for pin in cell.pins},
            "open": {axis.axis.value: str(axis.specifier) for axis in cell.open_axes},
            "extras": {pin.axis.value: list(pin.extras) for pin in cell.pins if pin.extras}
            | {axis.axis.value: list(axis.extras) for axis in cell.open_axes if axis.extras},
            "variants": {pin.axis.value: pin.variant for pin in cell.pins if pin.variant},
            "added": list(cell.added),
            "requirements": list(cell.requirements),
            "platform": {
                "python": cell.platform.python,
                "machine": cell.platform.machine,
                "glibc": cell.platform.glibc,
            },
            "as_of": cell.as_of.isoformat() if cell.as_of else None,
            "deviation": None
            if deviation is None
            else {
                "overrides": list(deviation.overrides),
                "no_deps": deviation.no_deps,
                "reason": deviation.reason,
            },
            "groups": list(self.groups),
            "reason": cell.reason,
            "source": self.source,
            "date": self.date.date().isoformat() if self.date else None,
            "expected": self.expected.value if self.expected else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The cells of a run, in file order, none twice; never empty."""

    planned: tuple[Planned, ...]

    def __post_init__(self) -> None:
        """Refuse an empty plan: a run of nothing would look like a pass."""
        if not self.planned:
            raise NothingRanError("No cell is planned.", why="The cells file holds none.", then="Add one, or name one.")

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Return the cells alone."""
        return tuple(planned.cell for planned in self.planned)

    @property
    def data(self) -> list[dict[str, object]]:
        """Return the plan as plain JSON data, one object a cell."""
        return [planned.data for planned in self.planned]

    def find(self, name: str) -> Planned | None:
        """Return the planned cell of that name."""
        return next((planned for planned in self.planned if planned.cell.name == name), None)


def plan(
    planned: Iterable[Planned],
    *,
    selectors: Sequence[str] = (),
    platform: Platform | None = None,
    as_of: datetime | None = None,
    extra: Iterable[Cell] = (),
) -> Plan:
    """Return the plan of a run.

    `selectors` choose among `planned` (see `matrix.select`), by the names the cells have in the file or on `platform`;
    `platform` and `as_of` replace the defaults of the cells that do not say their own; `extra` cells are added as they
    are, selected or not.

    Raises:
        UsageError: a selector is malformed or matches nothing.
        NothingRanError: there is no cell at all.
    """
    before = merged(planned)
    after = tuple(_targeted(item, platform, as_of) for item in before)
    if selectors:
        groups = {item.cell.name: item.groups for item in after}
        also = {new.cell.name: old.cell.name for new, old in zip(after, before, strict=True)}
        chosen = set(select(groups, parse_patterns(selectors), also=also))
        after = tuple(item for item in after if item.cell.name in chosen)
    return Plan(planned=merged((*after, *(Planned(cell=cell) for cell in extra))))


def merged(planned: Iterable[Planned]) -> tuple[Planned, ...]:
    """Return the cells, each once, where it first stood: its first reason and source are kept, the groups united."""
    found: dict[str, Planned] = {}
    for item in planned:
        first = found.setdefault(item.cell.name, item)
        found[item.cell.name] = replace(first, groups=tuple(sorted({*first.groups, *item.groups})))
    return tuple(found.values())


def _targeted(item: Planned, platform: Platform | None, as_of: datetime | None) -> Planned:
    if item.targeted:
        return item
    cell = replace(item.cell, platform=platform or item.cell.platform, as_of=as_of or item.cell.as_of)
    return replace(item, cell=cell)


def load_cells(paths: Sequence[Path] = SHIPPED) -> tuple[Planned, ...]:
    """Return the cells of the files, in order, each once.

    Raises:
        DataError: a file cannot be read, or a field of it is wrong; the message has the path and the field.
        NewerSchemaError: it was written for a newer release of this tool.
    """
    return merged(planned for path in paths for planned in _file_cells(path))


def _file_cells(path: Path) -> Iterator[Planned]:
    whole = read(path)
    for table in whole.tables("cell"):
        yield from _entry(table)
    whole.end()


def _entry(table: Table) -> Iterator[Planned]:
    """Yield the cells of one `[[cell]]`: the cross of the versions it lists for each axis."""
    versions = {axis: table.versions(axis.value) for axis in Axis}
    named = {axis: found for axis, found in versions.items() if found}
    if not named:
        raise table.error("", f"names no version of any axis ({', '.join(Axis)})")
    extras, variants = _extras(table, named), _variants(table, named)
    platform = _platform(table)
    as_of = _as_of(table)
    deviation = _deviation(table)
    groups = tuple(sorted(table.texts("groups", ())))
    added = table.texts("with", ())
    reason, source = table.text("reason"), table.text("source")
    date = table.moment("date")
    expected = _expected(table)
    table.end()
    for combination in itertools.product(*named.values()):
        pins = tuple(
            Pin(axis=axis, version=version, extras=extras.get(axis, ()), variant=variants.get(axis, ""))
            for axis, version in zip(named, combination, strict=True)
        )
        try:
            cell = Cell(
                pins=pins,
                added=added,
                platform=platform or Platform(),
                as_of=as_of,
                deviation=deviation,
                reason=reason,
            )
        except ValueError as error:
            raise table.error("with", str(error)) from error
        yield Planned(
            cell=cell,
            groups=groups,
            source=source,
            date=date,
            targeted=platform is not None or as_of is not None,
            expected=expected,
        )


def _extras(table: Table, named: dict[Axis, tuple[Version, ...]]) -> dict[Axis, tuple[str, ...]]:
    if not table.has("extras"):
        return {}
    inner = table.table("extras")
    found = {axis: inner.texts(axis.value) for axis in named if inner.has(axis.value)}
    inner.end()
    return found


def _variants(table: Table, named: dict[Axis, tuple[Version, ...]]) -> dict[Axis, str]:
    if not table.has("variants"):
        return {}
    inner = table.table("variants")
    found = {axis: inner.text(axis.value) for axis in named if inner.has(axis.value)}
    inner.end()
    for axis, variant in found.items():
        if variant not in VARIANTS.get(axis, ()):
            raise inner.error(axis.value, f"{axis.value} has no variant `{variant}`")
    return found


def _expected(table: Table) -> Status | None:
    """Return the status that a cell is known to have; one that is expected to work needs no such word."""
    text = table.text("expected", "")
    if not text:
        return None
    if text not in (Status.BROKEN, Status.CONFLICT, Status.DEGRADED):
        raise table.error("expected", f"is broken, conflict or degraded, not `{text}`")
    return Status(text)


def _as_of(table: Table) -> datetime | None:
    if not table.has("as_of"):
        return None
    if not isinstance(table.values["as_of"], datetime):
        # A bare date would leave open whether files of that day count.
        raise table.error("as_of", "must be a date and time, e.g. 2026-06-01T00:00:00Z")
    return table.moment("as_of")


def _platform(table: Table) -> Platform | None:
    default = Platform()
    if not [name for name in ("python", "machine", "glibc") if table.has(name)]:
        return None
    try:
        return Platform(
            python=table.text("python", default.python),
            machine=table.text("machine", default.machine),
            glibc=table.text("glibc", default.glibc),
        )
    except ValueError as error:
        raise table.error("", str(error)) from error


def _deviation(table: Table) -> Deviation | None:
    overrides, no_deps = table.texts("overrides", ()), table.flag("no_deps", False)
    if not overrides and not no_deps:
        if table.has("deviation"):
            raise table.error("deviation", "says why, but there are no overrides and no no_deps to explain")
        return None
    reason = table.text("deviation")
    try:
        return Deviation(overrides=overrides, no_deps=no_deps, reason=reason)
    except ValueError as error:
        raise table.error("overrides", str(error)) from error
