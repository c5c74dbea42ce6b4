"""Bringing `axes.toml` up to date with the index; nothing else rewrites it.

Only the lines between `releases = [` and `]` are written anew. Everything else in the file, comments included, stays as
a person left it.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC
from enum import StrEnum
from pathlib import Path

from matrix.atomic import replace_file
from matrix.axes import AXES, Axes, AxisRule, Recorded, axes_of
from matrix.cell import Axis
from matrix.datafile import parse, read
from matrix.errors import DataError, IndexUnreachableError, NoSpaceError
from matrix.index import UNKNOWN_UPLOAD, PackageIndex, Project


class ChangeKind(StrEnum):
    """What became of a release since the file was written."""

    NEW = "new"
    YANKED = "yanked"
    UNYANKED = "unyanked"
    GONE = "gone"
    REDATED = "redated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One release that differs: `before` as the file had it (None: new), `after` as the index has it (None: gone)."""

    axis: Axis
    kind: ChangeKind
    before: Recorded | None
    after: Recorded | None

    def __post_init__(self) -> None:
        """Refuse a change of nothing."""
        if self.before is None and self.after is None:
            raise ValueError("a change has a before or an after")

    @property
    def release(self) -> Recorded:
        """Return the release as it is now, or as it was when it is gone."""
        release = self.after or self.before
        assert release is not None
        return release

    @property
    def line(self) -> str:
        """Return one line for people: `+` enters the lattice, `-` leaves it, `~` changes within."""
        release = self.release
        text = f"{self.axis.value} {release.version} {release.uploaded:%Y-%m-%d}"
        match self.kind:
            case ChangeKind.NEW if release.yanked is None:
                return f"+ {text}"
            case ChangeKind.NEW:
                return f"~ {text} new, already yanked{_because(release.yanked)}"
            case ChangeKind.YANKED:
                return f"- {text} yanked{_because(release.yanked)}"
            case ChangeKind.UNYANKED:
                return f"+ {text} no longer yanked"
            case ChangeKind.GONE:
                return f"- {text} gone from the index"
            case ChangeKind.REDATED:
                assert self.before is not None
                return f"~ {text} was dated {self.before.uploaded:%Y-%m-%d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AxesDiff:
    """What the index has that the file had not; empty (false) when they agree. `written` says if the file was."""

    path: Path
    changes: tuple[Change, ...]
    counts: Mapping[Axis, int]
    written: bool

    def __bool__(self) -> bool:
        """Return whether anything differs."""
        return bool(self.changes)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return a line for each change, in the order of the axes and of versions."""
        return tuple(change.line for change in self.changes)

    @property
    def data(self) -> dict[str, object]:
        """Return plain JSON data."""
        return {
            "file": self.path.name,
            "written": self.written,
            "releases": {axis.value: count for axis, count in self.counts.items()},
            "changes": [
                {
                    "axis": change.axis.value,
                    "version": str(change.release.version),
                    "kind": change.kind.value,
                    "uploaded": change.release.uploaded.isoformat(),
                    "yanked": change.after.yanked if change.after else None,
                }
                for change in self.changes
            ],
        }


def update(index: PackageIndex, path: Path = AXES, *, check: bool = False) -> AxesDiff:
    """Return how the lattice on the index differs from the file, and write it there unless `check`.

    The file is replaced as a whole or not at all; asked twice with nothing new, it stays as it is, byte for byte.

    Raises:
        DataError: the file cannot be read or written, or is not laid out with one release a line.
        IndexUnreachableError: the index does not answer, or offers nothing at all for an axis that had releases.
        NoSpaceError: the disk is full.
    """
    axes = axes_of(read(path))
    found = {axis: observed(axes[axis], index.project(axis.value)) for axis in Axis}
    for axis, releases in found.items():
        if axes[axis].recorded and not releases:
            raise IndexUnreachableError(
                f"The index offers no release of {axis.value} {axes[axis].within}; the file records some.",
                why="An index that lost them all at once is more likely broken, or a partial mirror.",
                then="Try another index with --index-url. Nothing was written.",
            )
        _refuse_undated(axis, releases)
    changes = tuple(change for axis in Axis for change in changes_of(axes[axis], found[axis]))
    counts = {axis: sum(release.yanked is None for release in found[axis]) for axis in Axis}
    if changes and not check:
        _rewrite(path, axes, found)
    return AxesDiff(path=path, changes=changes, counts=counts, written=bool(changes) and not check)


def observed(rule: AxisRule, project: Project) -> tuple[Recorded, ...]:
    """Return the releases of `project` that the rule admits, oldest version first, dated to the second."""
    admitted = sorted(version for version in project.releases if rule.admits(version))
    return tuple(
        Recorded(
            version=version,
            uploaded=project.releases[version].uploaded.astimezone(UTC).replace(microsecond=0),
            yanked=_stripped(project.releases[version].yanked),
        )
        for version in admitted
    )


def _refuse_undated(axis: Axis, releases: tuple[Recorded, ...]) -> None:
    undated = [str(release.version) for release in releases if release.uploaded == UNKNOWN_UPLOAD]
    if undated:
        raise IndexUnreachableError(
            f"The index does not say when {axis.value} {undated[0]} was uploaded.",
            why="It serves no upload times (PEP 700).",
            then="Use an index that does, with --index-url https://pypi.org/simple. Nothing was written.",
        )


def changes_of(rule: AxisRule, found: tuple[Recorded, ...]) -> Iterable[Change]:
    """Yield what became of the releases that the rule records, where `found` is what there is now."""
    before = {release.version: release for release in rule.recorded}
    after = {release.version: release for release in found}
    for version in sorted(before.keys() | after.keys()):
        old, new = before.get(version), after.get(version)
        kind = _kind(old, new)
        if kind is not None:
            yield Change(axis=rule.axis, kind=kind, before=old, after=new)


def _kind(old: Recorded | None, new: Recorded | None) -> ChangeKind | None:
    if old is None or new is None:
        return ChangeKind.NEW if old is None else ChangeKind.GONE
    if (old.yanked is None) != (new.yanked is None):
        return ChangeKind.YANKED if new.yanked is not None else ChangeKind.UNYANKED
    return ChangeKind.REDATED if old.uploaded != new.uploaded else None


def _stripped(reason: str | None) -> str | None:
    return None if reason is None else reason.strip()


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def rendered(text: str, releases: Mapping[Axis, tuple[Recorded, ...]]) -> str:
    """Return the text of an axes file with the releases of each axis written anew, all other lines untouched.

    Raises:
        ValueError: an axis has no block that starts with the line `releases = [` and ends with the line `]`.
    """
    lines = text.splitlines()
    for axis, rows in releases.items():
        try:
            start = lines.index("releases = [", lines.index(f"[axis.{axis.value}]"))
            end = lines.index("]", start)
        except ValueError:
            raise ValueError(f"axis.{axis.value} has no block `releases = [` … `]`, one release a line") from None
        lines[start + 1 : end] = [f"  {_row(row)}," for row in rows]
    return "\n".join(lines) + "\n"


def _row(release: Recorded) -> str:
    # A JSON string is a TOML basic string.
    yanked = "" if release.yanked is None else f", yanked = {json.dumps(release.yanked)}"
    return f'{{ version = "{release.version}", uploaded = {release.uploaded:%Y-%m-%dT%H:%M:%SZ}{yanked} }}'


def _rewrite(path: Path, axes: Axes, found: Mapping[Axis, tuple[Recorded, ...]]) -> None:
    """Replace the file; what is written is read back first, so that a wrong layout cannot lose a release."""
    try:
        text = rendered(path.read_text(encoding="utf-8"), found)
    except ValueError as error:
        raise DataError(path, "axis", str(error)) from error
    again = axes_of(parse(text, path))
    if {axis: again[axis].recorded for axis in Axis} != dict(found):
        raise DataError(path, "axis", "what would be written does not read back as what the index has")
    _replace(path, text)


def _replace(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode("utf-8"), mode=path.stat().st_mode & 0o777)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = f"{path} cannot be written: the disk is full."
            raise NoSpaceError(what, then="Free some space; the old file is kept.") from error
        then = "Check the permissions of its folder; an installed copy is brought up to date by upgrading verl-matrix."
        raise DataError(path, "", f"cannot be written: {error}", then=then) from error
