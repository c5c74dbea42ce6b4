"""The axes: which packages vary, and which of their releases are in the lattice (`axes.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.cell import Axis
from matrix.datafile import Table, read
from matrix.errors import UnknownReleaseError, UsageError
from matrix.nearness import near_names, near_versions

AXES = Path(__file__).with_name("axes.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A release as the file records it: `yanked` is None, or the reason ("" when the index gives none)."""

    version: Version
    uploaded: datetime
    yanked: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRule:
    """Which releases of an axis are in the lattice, why, and those recorded so far (oldest version first)."""

    axis: Axis
    within: SpecifierSet
    why: str
    recorded: tuple[Recorded, ...]

    def admits(self, version: Version) -> bool:
        """Return whether the rule takes this version: a final release (post-releases too) within the specifier."""
        return not version.is_prerelease and version.local is None and version in self.within

    @property
    def releases(self) -> tuple[Version, ...]:
        """Return the lattice: the recorded releases that are not yanked, oldest version first."""
        return tuple(release.version for release in self.recorded if release.yanked is None)

    def since(self, version: Version) -> tuple[Version, ...]:
        """Return the lattice from `version` on."""
        return tuple(release for release in self.releases if release >= version)

    def release(self, version: Version) -> Recorded:
        """Return what is recorded of `version`; raises UnknownReleaseError with the closest ones."""
        for release in self.recorded:
            if release.version == version:
                return release
        raise UnknownReleaseError(
            f"{self.axis.value}=={version}",
            near=near_versions(version, self.releases),
            then=f"The lattice holds {self.axis.value}{self.within}; `verl-matrix update` looks for new releases.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """All axes, by `Axis`, as a file records them."""

    path: Path
    rules: Mapping[Axis, AxisRule]

    def __getitem__(self, axis: Axis) -> AxisRule:
        """Return the rule of `axis`."""
        return self.rules[axis]

    def respelled(self, axis: Axis, version: Version) -> Version:
        """Return `version` as the release spells it (`0.24` → `0.24.0`), so that one release has one name."""
        return next((known for known in self.rules[axis].releases if known == version), version)


def load_axes(path: Path = AXES) -> Axes:
    """Return the axes that the file records.

    Raises:
        DataError: a field is missing, unknown or wrong, an axis is missing, or the releases are not sorted.
        NewerSchemaError: the file was written for a newer release of this tool.
    """
    return axes_of(read(path))


def axes_of(whole: Table) -> Axes:
    """Return the axes of a data file that was read; raises as `load_axes` does."""
    tables = whole.table("axis")
    rules = {axis: _rule(axis, tables.table(axis.value)) for axis in Axis}
    tables.end()
    whole.end()
    return Axes(path=whole.path, rules=rules)


def _rule(axis: Axis, table: Table) -> AxisRule:
    for name, expected in (("index", axis.value), ("module", axis.module), ("short", axis.short)):
        if table.text(name) != expected:
            raise table.error(name, f"must be `{expected}`, as matrix/cell.py has it")
    try:
        within = SpecifierSet(table.text("within"))
    except InvalidSpecifier as error:
        raise table.error("within", str(error)) from None
    rule = AxisRule(axis=axis, within=within, why=table.text("why"), recorded=_recorded(table))
    for at, release in enumerate(rule.recorded):
        if not rule.admits(release.version):
            raise table.error(f"releases[{at}].version", f"{release.version} is not a final release {within}")
    table.end()
    return rule


def _recorded(table: Table) -> tuple[Recorded, ...]:
    found: list[Recorded] = []
    for row in table.tables("releases"):
        yanked = row.text("yanked", "") if row.has("yanked") else None
        release = Recorded(version=row.version("version"), uploaded=row.moment("uploaded"), yanked=yanked)
        row.end()
        if found and release.version <= found[-1].version:
            raise row.error("version", f"{release.version} must come before {found[-1].version}, once")
        found.append(release)
    return tuple(found)


def axis_named(word: str) -> Axis:
    """Return the axis that `word` stands for: its index name, import name or short name, in any spelling.

    Raises:
        UsageError: no axis has that name; the message names the ones that come close.
    """
    known = {name: axis for axis in Axis for name in (axis.value, axis.short)}
    name = canonicalize_name(word)
    if name in known:
        return known[name]
    near = near_names(name, known)
    raise UsageError(
        f"`{word}` is not one of the axes.",
        why=f"Closest: {', '.join(near)}." if near else f"They are {', '.join(Axis)}.",
    )
