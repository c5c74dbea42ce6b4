"""The way out of a failure for the versions at hand: releases that exist, and what they would bring in exchange."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.axes import Axes
from matrix.cell import Axis
from matrix.failure import Applies, Failure, Severity

_TRIED = 12
"""So many of the nearest releases are looked at for one that brings no other failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change of one package that takes a failure away.

    Attributes:
        package: what is to change.
        range: where the record says that it does not happen.
        version: the release nearest to the one at hand in that range; None where none is recorded, or the package is
            no axis.
        now: the version at hand, None where it is not known.
        brings: ids of known failures of these versions that the change would add, the gravest first.
    """

    package: str
    range: str
    version: Version | None
    now: Version | None
    brings: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """Return what to install, e.g. `vllm==0.10.0`, or `numpy>=2` where no release is named."""
        return f"{self.package}=={self.version}" if self.version is not None else f"{self.package}{self.range}"

    @property
    def line(self) -> str:
        """Return what to install, as a requirement, with what is installed now."""
        return self.requirement + (f" (now {self.now})" if self.now is not None else "")


def remedies(
    failure: Failure, versions: Mapping[str, Version | None], failures: Sequence[Failure], axes: Axes
) -> tuple[Remedy, ...]:
    """Return a remedy for each range in which the failure is mended, those that bring nothing new first.

    Whether the changed set can be installed is not asked: `verl-matrix check` says that.
    """
    found = []
    for package, wanted in failure.mended.items():
        now = versions.get(package)
        if now is not None and wanted.contains(now, prereleases=True):
            # The range holds for part of the failure only: this package is there already.
            continue
        version, brings = _nearest(failure, package, wanted, versions, failures, axes)
        found.append(Remedy(package=package, range=str(wanted), version=version, now=now, brings=brings))
    return tuple(sorted(found, key=lambda item: (len(item.brings), item.version is None, item.package)))


def _nearest(
    failure: Failure,
    package: str,
    wanted: SpecifierSet,
    versions: Mapping[str, Version | None],
    failures: Sequence[Failure],
    axes: Axes,
) -> tuple[Version | None, tuple[str, ...]]:
    if package not in {axis.value for axis in Axis}:
        return None, ()
    now = versions.get(package)
    releases = [version for version in axes[Axis(package)].releases if wanted.contains(version, prereleases=True)]
    order = _by_distance(releases, now)[:_TRIED]
    best: tuple[int, Version, tuple[str, ...]] | None = None
    for version in order:
        after = {**versions, package: version}
        if failure.applies(after) is Applies.YES:
            continue
        brings = _brings(versions, after, failures)
        if best is None or len(brings) < best[0]:
            best = len(brings), version, brings
        if not brings:
            break
    return (best[1], best[2]) if best is not None else (None, ())


def _by_distance(releases: Sequence[Version], now: Version | None) -> list[Version]:
    """Return the releases, those just above the one at hand first, else those just below; the newest where none is."""
    if now is None:
        return list(reversed(releases))
    above = [version for version in releases if version >= now]
    below = [version for version in releases if version < now]
    return above or below[::-1]


def _brings(
    before: Mapping[str, Version | None], after: Mapping[str, Version | None], failures: Iterable[Failure]
) -> tuple[str, ...]:
    """Return the failures of high or middle severity that the set after the change has and the one before had not."""
    grave = sorted(failures, key=lambda failure: list(Severity).index(failure.severity))
    return tuple(
        failure.id
        for failure in grave
        if failure.severity is not Severity.LOW
        and failure.applies(after) is Applies.YES
        and failure.applies(before) is Applies.NO
    )
