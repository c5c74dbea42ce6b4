"""The lattice of a nightly: its own copy of `axes.toml`, in the home, so that no installed package is edited.

The rules (which releases of an axis count) are those of the file that is shipped; the releases are those of the night
before, so that what differs is what became available since.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from matrix.atomic import replace_file
from matrix.axes import AXES, Axes, AxisRule, Recorded, load_axes
from matrix.errors import DataError, NoSpaceError
from matrix.index import PackageIndex
from matrix.update import AxesDiff, Change, ChangeKind, rendered, update

NAME = "axes.toml"


def bring_up(
    index: PackageIndex,
    folder: Path,
    *,
    given: Path | None = None,
    as_of: datetime | None = None,
    shipped: Path = AXES,
) -> AxesDiff:
    """Return what became of the releases since the night before; the file of the home, or `given`, has them now.

    In a home without one the comparison is with the file that is shipped. A release later than `as_of`, the date that
    `index` is asked about, is not told to be gone. Raises as `matrix.update.update` does.
    """
    path = given or folder / NAME
    if given is None:
        _seed(path, shipped)
    diff = update(index, path)
    return replace(diff, changes=tuple(change for change in diff.changes if not _is_later(change, as_of)))


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
