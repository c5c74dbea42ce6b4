"""Candidates: cells for the newest releases that no cell of the plan pins, so that a nightly tries what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from packaging.version import Version

from matrix.axes import Axes
from matrix.cell import Axis, Cell, Pin, Platform
from matrix.plan import Planned

GROUP = "candidate"
"""The group of these cells."""
NEWEST = 2
"""So many of the newest releases of each axis are looked at."""
PARTNER = Axis.VLLM
"""What a new verl is tried with."""


def candidates(
    axes: Axes,
    planned: Sequence[Planned],
    *,
    newest: int = NEWEST,
    platform: Platform | None = None,
    as_of: datetime | None = None,
) -> tuple[Planned, ...]:
    """Return a cell for each of the `newest` releases of every axis that no planned cell pins, newest first.

    A release of verl is tried with the newest vLLM, one of any other axis with the newest verl: the resolver finds the
    rest, or says why it cannot. None where there is no verl or no vLLM at all.
    """
    pinned = {(pin.axis, pin.version) for item in planned for pin in item.cell.pins}
    verl, partner = (_newest(axes, axis, 1) for axis in (Axis.VERL, PARTNER))
    if not verl or not partner:
        return ()
    found = []
    for axis in Axis:
        for version in _newest(axes, axis, newest):
            if (axis, version) in pinned:
                continue
            others = {Axis.VERL: verl[0]} if axis is not Axis.VERL else {PARTNER: partner[0]}
            found.append(_planned(axis, version, others, axes, platform, as_of))
    return tuple(found)


def _newest(axes: Axes, axis: Axis, count: int) -> list[Version]:
    return list(reversed(axes[axis].releases))[:count]


def _planned(
    axis: Axis,
    version: Version,
    others: dict[Axis, Version],
    axes: Axes,
    platform: Platform | None,
    as_of: datetime | None,
) -> Planned:
    pins = tuple(Pin(axis=name, version=number) for name, number in {**others, axis: version}.items())
    beside = ", ".join(f"{name.value} {number}" for name, number in others.items())
    release = axes[axis].release(version)
    cell = Cell(pins=pins, reason=f"{axis.value} {version} is among the newest; tried with {beside}.")
    return Planned(
        cell=replace(cell, platform=platform or cell.platform, as_of=as_of),
        groups=(GROUP,),
        source=f"the index, {axis.value} {version}",
        date=release.uploaded,
    )


def release_of(item: Planned) -> str:
    """Return `package version` of the release that a candidate is there for, "" for a cell of the plan."""
    return item.source.partition(", ")[2] if GROUP in item.groups else ""
