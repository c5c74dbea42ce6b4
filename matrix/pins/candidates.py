"""The candidates: cells of the lattice around what people have and want, and those that something is recorded of."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.axes import Axes
from matrix.cell import Axis, Cell, Deviation, Pin, Platform, parse_name
from matrix.errors import MatrixError
from matrix.pins.stack import Stack
from matrix.pins.want import Want

MOST = 72
"""So many cells are resolved at most, the newest first; each is one question to uv, or none."""
_ENGINES = ("sglang", "tensorrt-llm")
_VERLS, _VLLMS, _OTHERS = 4, 14, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What candidates are made from: what is had and wanted, the axes, the target, overrides that were asked for."""

    stack: Stack
    want: Want
    axes: Axes
    platform: Platform
    as_of: datetime | None = None
    overrides: tuple[str, ...] = ()

    def releases(self, axis: Axis) -> tuple[Version, ...]:
        """Return the releases of an axis that there are (as of the date), oldest first."""
        rows = [row for row in self.axes[axis].recorded if row.yanked is None]
        return tuple(row.version for row in rows if self.as_of is None or row.uploaded < self.as_of)

    def have(self, axis: Axis) -> Version | None:
        """Return the version that people have of an axis, without what is local to a build; None where not told."""
        version = self.stack.have.get(axis.value)
        return Version(version.public) if version is not None else None

    def bound(self, axis: Axis) -> SpecifierSet:
        """Return the range that people's own statements leave an axis; an exact pin may be moved, so it is none."""
        found = SpecifierSet()
        for item in self.stack.about(axis.value):
            if item.binds and item.version is None and not item.url:
                found &= item.specifier
        return found

    def shut(self, axis: Axis) -> bool:
        """Return whether people's own ranges let in no release of an axis, and no other is wanted of it."""
        bound = self.bound(axis)
        known = self.releases(axis)
        return bool(bound) and self.wanted(axis) is None and not any(bound.contains(v, prereleases=True) for v in known)

    def wanted(self, axis: Axis) -> SpecifierSet | None:
        """Return the versions that are wanted of an axis; None where nothing is said."""
        return self.want.to.get(axis.value)


def choices(ground: Ground, axis: Axis) -> tuple[Version, ...]:
    """Return the releases of an axis that candidates pin, newest first; none where the axis is left to the resolver.

    verl stays where it is unless it is to move. Of vllm the releases from the present one on count, or those wanted.
    """
    known, have, wanted = ground.releases(axis), ground.have(axis), ground.wanted(axis)
    bound = ground.bound(axis)
    within = [version for version in known if bound.contains(version, prereleases=True)]
    if wanted is not None:
        found = [version for version in known if wanted.contains(version, prereleases=True)]
        above = [version for version in found if have is None or version >= have] or found
        return tuple(reversed(_ends(above, _VLLMS if axis is Axis.VLLM else _VERLS)))
    match axis:
        case Axis.VERL:
            if have is not None and not (ground.want.newest or ground.want.fix):
                return (have,)
            found = [version for version in within if have is None or version >= have]
            return tuple(reversed(found[-_VERLS:] if have is None else _ends(found, _VERLS)))
        case Axis.VLLM:
            if have is None and any(ground.stack.about(engine) for engine in _ENGINES):
                return ()
            found = [version for version in within if have is None or version >= have]
            if ground.want.fix or not ground.want.moves:
                found = within if have is None else _around(within, have)
            return tuple(reversed(_ends(found, _VLLMS)))
        case _:
            return tuple(reversed(within[-_OTHERS:])) if bound else ()


def _ends(found: Sequence[Version], most: int) -> list[Version]:
    """Return at most so many of the versions: the oldest few, from which little changes, and the newest."""
    few = min(3, most // 3)
    return list(found) if len(found) <= most else [*found[:few], *found[-(most - few) :]]


def _around(known: Sequence[Version], have: Version) -> list[Version]:
    above = [version for version in known if version >= have]
    below = [version for version in known if version < have]
    return [*below[-4:], *_ends(above, _VLLMS - 4)]


def recorded(names: Iterable[str], ground: Ground) -> tuple[Cell, ...]:
    """Return the cells of these names that are such a set as people want, on their platform."""
    wanted = {axis for axis in (Axis.VERL, Axis.VLLM) if choices(ground, axis)}
    if any(ground.wanted(axis) is not None for axis in {Axis.VERL, Axis.VLLM} - wanted):
        # What is wanted of it does not exist.
        return ()
    if any(ground.shut(axis) for axis in Axis):
        return ()
    cells = []
    for name in names:
        try:
            cell = parse_name(name)
        except MatrixError:
            continue
        no_deps = cell.deviation is not None and cell.deviation.no_deps
        if cell.platform != ground.platform or cell.as_of is not None or cell.open_axes or no_deps:
            continue
        pins = {pin.axis: pin for pin in cell.pins if not pin.variant}
        named = Axis.VERL in pins and (Axis.VLLM in pins) == (Axis.VLLM in wanted)
        if not named or len(pins) < len(cell.pins) or not _fits(pins, ground):
            continue
        if all(_within(pins[axis].version, axis, ground) for axis in wanted):
            cells.append(replace(cell, as_of=ground.as_of, reason="recorded"))
    return tuple(cells)


def _within(version: Version, axis: Axis, ground: Ground) -> bool:
    """Return whether a recorded version of verl or vllm is one that people may go to."""
    wanted, have = ground.wanted(axis), ground.have(axis)
    if version not in ground.releases(axis):
        return False
    if wanted is not None:
        return wanted.contains(version, prereleases=True)
    if axis is Axis.VERL and have is not None:
        return version >= have if ground.want.newest or ground.want.fix else version == have
    moved = have is None or version >= have or bool(ground.want.fix) or not ground.want.moves
    return moved and ground.bound(axis).contains(version, prereleases=True)


def _fits(pins: Mapping[Axis, Pin], ground: Ground) -> bool:
    """Return whether the other axes of a recorded cell keep people's ranges and what they want."""
    for axis, pin in pins.items():
        wanted = ground.wanted(axis)
        if wanted is not None and not wanted.contains(pin.version, prereleases=True):
            return False
        if not ground.bound(axis).contains(pin.version, prereleases=True) and wanted is None:
            return False
    return True


def lattice(ground: Ground, frames: Sequence[Cell] = ()) -> tuple[Cell, ...]:
    """Return cells of the lattice, newest first: with people's other pins kept, and with those left to the resolver.

    `frames` are recorded cells; the extras that they ask of the same release of verl are tried too, since a plain
    install may lack what that release needs.
    """
    if any(ground.shut(axis) for axis in Axis):
        return ()
    rest = tuple(axis for axis in Axis if axis not in (Axis.VERL, Axis.VLLM))
    free = {axis: found for axis in rest if (found := choices(ground, axis))}
    kept: dict[Axis, Version | None] = {
        axis: have for axis in rest if axis not in free and (have := ground.have(axis)) in ground.releases(axis)
    }
    # A flash-attn that was built is kept beside other versions of the rest: nothing but its own build depends on it.
    built: dict[Axis, Version | None] = {axis: version for axis, version in kept.items() if axis is Axis.FLASH_ATTN}
    added = tuple(f"{name}{spec}" for name, spec in ground.want.to.items() if name not in set(Axis))
    engines: tuple[Version | None, ...] = choices(ground, Axis.VLLM)
    if not engines and ground.wanted(Axis.VLLM) is None:
        engines = (None,)
    cells: dict[str, Cell] = {}
    for verl, vllm in itertools.product(choices(ground, Axis.VERL), engines):
        base: dict[Axis, Version | None] = {Axis.VERL: verl, Axis.VLLM: vllm}
        for extras, versions in itertools.product(_extras(ground, verl, frames), itertools.product(*free.values())):
            named: dict[Axis, Version | None] = {**base, **dict(zip(free, versions, strict=True))}
            frames_of: tuple[dict[Axis, Version | None], ...] = (named, {**named, **kept}, {**named, **built})
            for more in frames_of:
                cell = _cell(more, extras, added, ground)
                cells.setdefault(cell.name, cell)
    return tuple(cells.values())[:MOST]


def _extras(ground: Ground, verl: Version, frames: Sequence[Cell]) -> tuple[tuple[str, ...], ...]:
    """Return the extras of verl that are tried: what people ask for, else none and those that are recorded."""
    stated = ground.stack.extras(Axis.VERL.value)
    if stated:
        return (stated,)
    pins = [pin for cell in frames if (pin := cell.pin(Axis.VERL)) is not None and pin.version == verl]
    return tuple(dict.fromkeys([(), *(pin.extras for pin in pins)]))


def _cell(
    versions: Mapping[Axis, Version | None], extras: tuple[str, ...], added: tuple[str, ...], ground: Ground
) -> Cell:
    pins = tuple(
        Pin(axis=axis, version=version, extras=extras if axis is Axis.VERL else ground.stack.extras(axis.value))
        for axis, version in versions.items()
        if version is not None
    )
    deviation = Deviation(overrides=ground.overrides, reason="asked on the command line") if ground.overrides else None
    return Cell(
        pins=pins, added=added, platform=ground.platform, as_of=ground.as_of, deviation=deviation,
        reason="of the lattice",
    )  # fmt: skip


def with_pin(cell: Cell, axis: Axis, version: Version) -> Cell:
    """Return the cell with another version of an axis pinned, whether it pinned the axis before or not."""
    before = cell.pin(axis)
    pin = replace(before, version=version) if before is not None else Pin(axis=axis, version=version)
    return replace(cell, pins=(*(other for other in cell.pins if other.axis is not axis), pin))


def with_override(cell: Cell, *overrides: str) -> Cell:
    """Return the cell with these overrides besides its own."""
    from packaging.requirements import Requirement

    names = {Requirement(text).name for text in overrides}
    before = cell.deviation.overrides if cell.deviation is not None else ()
    kept = tuple(text for text in before if Requirement(text).name not in names)
    return replace(cell, deviation=Deviation(overrides=(*kept, *overrides), reason="so that it resolves"))
