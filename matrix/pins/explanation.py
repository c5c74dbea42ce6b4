"""`pins explain PKG`: which statements bound a package, which of them set its version, and what they leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.index import PackageIndex
from matrix.pins.bounds import Bound, of_people, of_records, stated_in
from matrix.pins.judge import Judge
from matrix.pins.kept import complete
from matrix.pins.option import Option
from matrix.resolve.sdists import SdistTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a package is at its version in a set.

    Attributes:
        version: the version in the set, None where the set does not hold it.
        bounds: every statement on it.
        binding: those that keep the next newer release out; empty where it is the newest there is.
        next_newer: the release that would come next; None where there is none.
        allowed: how many releases the metadata let in, of how many there are.
    """

    package: str
    cell: str
    version: Version | None
    bounds: tuple[Bound, ...]
    binding: tuple[Bound, ...]
    next_newer: Version | None
    allowed: tuple[int, int]

    @property
    def lines(self) -> list[str]:
        """Return it for people."""
        head = f"{self.package} {self.version}" if self.version is not None else f"{self.package} is not in the set"
        lines = [f"{head}, in {self.cell}"]
        lines.append(f"metadata let in {self.allowed[0]} of {self.allowed[1]} releases")
        for bound in (bound for bound in self.bounds if bound.specifier):
            mark = "sets the upper end" if bound in self.binding else ""
            lines.append(
                f"  {bound.kind:<9}{bound.holder}: {bound.text} [{bound.where}]{'  <- ' + mark if mark else ''}"
            )
        bare = len({bound.holder for bound in self.bounds if not bound.specifier})
        lines += [f"  {bare} more ask for it at any version"] if bare else []
        if self.next_newer is None:
            lines.append("It is the newest release there is.")
        elif self.binding:
            holders = ", ".join(dict.fromkeys(bound.holder for bound in self.binding))
            lines.append(f"{self.next_newer} is kept out by {holders}.")
        else:
            lines.append(
                f"Nothing said of it keeps {self.next_newer} out; what that release asks for does, or its files."
            )
        return lines

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return {
            "schema": 1,
            "package": self.package,
            "cell": self.cell,
            "version": str(self.version) if self.version is not None else None,
            "bounds": [{**bound.to_json(), "binding": bound in self.binding} for bound in self.bounds],
            "next_newer": str(self.next_newer) if self.next_newer is not None else None,
            "allowed": list(self.allowed),
        }


def explain(package: str, option: Option, judge: Judge, index: PackageIndex, sdists: SdistTable) -> Explanation:
    """Return why a package is where it is in a set; raises UnknownReleaseError for one that the index does not have."""
    cell = option.cell
    extras = {pin.package: pin.extras for pin in cell.pins}
    metadata = stated_in(package, option.versions, index, sdists, cell.platform, extras=extras)
    known = complete(option.versions, cell.platform.python, judge.failures)
    bounds = (*of_people(package, judge.ground.stack), *metadata, *of_records(package, judge.failures, known))
    version = option.versions.get(package)
    releases = [
        release.version
        for release in index.project(package).releases.values()
        if release.yanked is None
        and not release.version.is_prerelease
        and (cell.as_of is None or release.uploaded < cell.as_of)
    ]
    newer = min((release for release in releases if version is not None and release > version), default=None)
    return Explanation(
        package=package,
        cell=cell.name,
        version=version,
        bounds=bounds,
        binding=_keeping_out(newer, bounds),
        next_newer=newer,
        allowed=(sum(_all(metadata).contains(release) for release in releases), len(releases)),
    )


def _keeping_out(version: Version | None, bounds: Sequence[Bound]) -> tuple[Bound, ...]:
    """Return the statements that do not let a version in, a record's being the other way round."""
    if version is None:
        return ()
    return tuple(
        bound
        for bound in bounds
        if bound.specifier.contains(version, prereleases=True) is (bound.kind == "record") and bound.specifier
    )


def _all(bounds: Sequence[Bound]) -> SpecifierSet:
    found = SpecifierSet()
    for bound in bounds:
        found &= bound.specifier
    return found
