"""The lattice of a nightly: its own copy of `axes.toml`, in the home, so that no installed package is edited.

The rules (which releases of an axis count) are those of the file that is shipped. What became available is told by the
snapshot of the night before, so that a night that was cut short takes nothing from the next one.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from packaging.version import Version

from matrix.atomic import replace_file
from matrix.axes import AXES, Axes, AxisRule, Recorded, load_axes
from matrix.errors import DataError, NoSpaceError
from matrix.index import PackageIndex
from matrix.update import Change, ChangeKind, changes_of, rendered, update

NAME = "axes.toml"


def bring_up(
    index: PackageIndex,
    folder: Path,
    *,
    given: Path | None = None,
    shipped: Path = AXES,
) -> Axes:
    """Return the lattice as the index has it now, which the file of the home, or `given`, records too.

    Raises as `matrix.update.update` does.
    """
    path = given or folder / NAME
    if given is None:
        _seed(path, shipped)
    update(index, path)
    return load_axes(path)


def recorded(axes: Axes) -> dict[str, dict[str, dict[str, str | None]]]:
    """Return the releases of every axis as a snapshot keeps them: when each was uploaded, and why it is yanked."""
    return {
        axis.value: {
            str(item.version): {"uploaded": item.uploaded.isoformat(), "yanked": item.yanked} for item in rule.recorded
        }
        for axis, rule in axes.rules.items()
    }


def since(
    before: Mapping[str, Mapping[str, Mapping[str, str | None]]] | None, now: Axes, *, as_of: datetime | None = None
) -> tuple[str, ...]:
    """Return a line for each release that differs from the night before, whose snapshot recorded `before`.

    Without a night before, nothing can have changed. A release later than `as_of`, the date that this night is asked
    about, is not told to be gone.
    """
    changes = (
        change
        for axis, rule in now.rules.items()
        if before is not None and axis.value in before
        for change in changes_of(replace(rule, recorded=_read(before[axis.value])), rule.recorded)
    )
    return tuple(change.line for change in changes if not _is_later(change, as_of))


def _read(releases: Mapping[str, Mapping[str, str | None]]) -> tuple[Recorded, ...]:
    return tuple(
        Recorded(
            version=Version(version), uploaded=datetime.fromisoformat(str(held["uploaded"])), yanked=held["yanked"]
        )
        for version, held in releases.items()
    )


def _is_later(change: Change, as_of: datetime | None) -> bool:
    return as_of is not None and change.kind is ChangeKind.GONE and change.release.uploaded > as_of


def _seed(path: Path, shipped: Path) -> None:
    """Write the home's file: the text that is shipped, with the releases that the home had so far."""
    text = shipped.read_text(encoding="utf-8")
    if path.exists():
        before, rules = load_axes(path), load_axes(shipped)
        kept = {axis: _admitted(rules[axis], before) for axis in rules.rules}
        text = rendered(text, kept)
        if text == path.read_text(encoding="utf-8"):
            return
    try:
        replace_file(path, text.encode())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise NoSpaceError(f"{path} cannot be written: no room is left.", then="Free some space.") from error
        raise DataError(path, "", f"cannot be written: {error}", then="Check the rights of the home.") from error


def _admitted(rule: AxisRule, before: Axes) -> tuple[Recorded, ...]:
    return tuple(release for release in before[rule.axis].recorded if rule.admits(release.version))
