"""A cell made concrete: the releases its pins name, the files that would be taken, and what each asks for.

This is where `unavailable` is decided. Two rules are stricter than uv, on purpose: a release that has wheels, but none
for the platform, is unavailable (uv falls back to its sdist, which nobody can build in passing), and the upper bound of
Requires-Python counts (uv ignores it; pip does not).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.cell import Cell, Pin
from matrix.index import File, PackageIndex, Project, Release
from matrix.index.metadata import requirements_on
from matrix.index.tags import python_fits, why_no_wheel
from matrix.nearness import near_versions
from matrix.resolve.facts import Fact
from matrix.resolve.sdists import SdistTable

PIN = "the cell's pin"
"""The holder of a demand that is a pin of the cell itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A requirement that holds on the cell's platform, who states it and where; markers are gone.

    `package` is spelled as the index does; `holder` is e.g. `verl 0.9.1`.
    """

    package: str
    specifier: SpecifierSet
    extras: frozenset[str]
    url: str
    holder: str
    source: str

    @property
    def requirement(self) -> str:
        """Return the PEP 508 requirement without its marker, spelled the same for equal demands."""
        extras = f"[{','.join(sorted(self.extras))}]" if self.extras else ""
        return f"{self.package}{extras} @ {self.url}" if self.url else f"{self.package}{extras}{self.specifier}"

    @property
    def fact(self) -> Fact:
        """Return the statement with its source."""
        if self.holder == PIN:
            return Fact(text=f"the cell pins {self.package} {str(self.specifier)[2:]}", source=self.source)
        return Fact(text=f"{self.holder} requires {self.requirement}", source=self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One pin, its release, the file an installer takes, and what it demands.

    `shareable` is False where the demands may not be complete, so that equal demands do not mean equal answers.
    """

    pin: Pin
    release: Release
    file: File
    demands: tuple[Demand, ...]
    shareable: bool = True
    notes: tuple[str, ...] = ()


class Lack(StrEnum):
    """What a pin that cannot be had lacks."""

    RELEASE = "release"
    DATE = "date"
    YANKED = "yanked"
    WHEEL = "wheel"
    PYTHON = "python"
    EXTRA = "extra"
    METADATA = "metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Why a pin cannot be had: what it lacks, one line, its facts, and the versions that come close."""

    lacks: Lack
    reason: str
    facts: tuple[Fact, ...]
    near: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A cell all of whose pins can be had."""

    cell: Cell
    holdings: tuple[Holding, ...]

    @property
    def pins(self) -> Mapping[str, Version]:
        """Return the pinned version of each pinned package."""
        return {holding.pin.package: holding.pin.version for holding in self.holdings}

    @property
    def replaced(self) -> frozenset[str]:
        """Return the packages that an override speaks of: nobody else's word on them counts, not even a pin's."""
        return frozenset(str(canonicalize_name(override.name)) for override in self.overrides)

    @property
    def in_force(self) -> Mapping[str, Version]:
        """Return the pins that no override replaces."""
        replaced = self.replaced
        return {package: version for package, version in self.pins.items() if package not in replaced}

    @property
    def pinned(self) -> tuple[Demand, ...]:
        """Return the pins in force as demands."""
        requirements = [Requirement(f"{package}=={version}") for package, version in self.in_force.items()]
        return tuple(demands_of(requirements, holder=PIN, source="cell"))

    @property
    def overrides(self) -> tuple[Requirement, ...]:
        """Return the cell's overrides, parsed."""
        return tuple(Requirement(text) for text in self.cell.deviation.overrides) if self.cell.deviation else ()

    @property
    def demands(self) -> tuple[Demand, ...]:
        """Return what all pins and open axes ask for, after the cell's overrides, in the order of the pins."""
        overrides, replaced = self.overrides, self.replaced
        found = [demand for holding in self.holdings for demand in holding.demands if demand.package not in replaced]
        found += demands_of(overrides, holder="the override", source="cell")
        for axis in self.cell.open_axes:
            found += demands_of([Requirement(axis.requirement)], holder="the cell", source="cell")
        return tuple(found)


def demands_of(requirements: Iterable[Requirement], *, holder: str, source: str) -> list[Demand]:
    """Return the demands that these requirements are."""
    return [
        Demand(
            package=str(canonicalize_name(requirement.name)),
            specifier=requirement.specifier,
            extras=frozenset(str(canonicalize_name(extra)) for extra in requirement.extras),
            url=requirement.url or "",
            holder=holder,
            source=source,
        )
        for requirement in requirements
    ]


def hold(pin: Pin, cell: Cell, index: PackageIndex, sdists: SdistTable) -> Holding | Missing:
    """Return the pin made concrete on the cell's platform and date, or why it cannot be had.

    Raises UnknownReleaseError when the index has no such package at all, and what the index raises.
    """
    project = index.project(pin.package)
    name = f"{pin.package} {pin.version}"
    page = f"index: {pin.package}"
    release = project.releases.get(pin.version)
    if release is None:
        return _no_release(name, pin.version, project, cell.as_of)
    if cell.as_of is not None:
        files = tuple(file for file in release.files if file.uploaded < cell.as_of)
        if not files:
            text = f"{name} was released on {release.uploaded:%Y-%m-%d}, after {cell.as_of:%Y-%m-%d}"
            return Missing(lacks=Lack.DATE, reason=text, facts=(Fact(text=text, source=page),))
        release = replace(release, files=files)
    return _hold_release(pin, cell, release, index, sdists)


def _no_release(name: str, version: Version, project: Project, as_of: datetime | None) -> Missing:
    """Return that there is no such release, or was none by then, and what comes close and may be installed."""
    near = near_versions(version, [known for known, other in project.releases.items() if other.yanked is None])
    if as_of is None:
        fact, lacks = f"there is no {name}", "does not exist"
    else:
        lacks = f"was not released by {as_of:%Y-%m-%d %H:%M} UTC"
        fact = f"{name} {lacks}"
    closest = f"closest: {', '.join(near)}" if near else f"nothing of {project.name} was there to take instead"
    return Missing(
        lacks=Lack.RELEASE if as_of is None else Lack.DATE,
        reason=f"{name} {lacks}; {closest}",
        facts=(Fact(text=fact, source=f"index: {project.name}"),),
        near=near,
    )


def _hold_release(pin: Pin, cell: Cell, release: Release, index: PackageIndex, sdists: SdistTable) -> Holding | Missing:
    """Return a release that exists made concrete, or why it cannot be had."""
    name = f"{pin.package} {pin.version}"
    page = f"index: {pin.package}"
    if release.yanked is not None:
        text = f"{name} was yanked" + (f": {release.yanked}" if release.yanked not in ("", "True") else "")
        return Missing(lacks=Lack.YANKED, reason=text, facts=(Fact(text=text, source=page),))
    file = index.best_file(release, cell.platform)
    if file is None and any(item.is_wheel for item in release.files):
        text = why_no_wheel(release, cell.platform)
        return Missing(lacks=Lack.WHEEL, reason=text, facts=(Fact(text=text, source=page),))
    if file is None:
        return _hold_sdist(pin, cell, release, index, sdists)
    metadata = index.metadata(file)
    unknown = [extra for extra in pin.extras if canonicalize_name(extra) not in metadata.extras]
    if unknown:
        text = f"{name} has no extra {', '.join(unknown)}; it has: {', '.join(metadata.extras) or 'none'}"
        return Missing(lacks=Lack.EXTRA, reason=text, facts=(Fact(text=text, source=f"{file.filename} METADATA"),))
    requirements = requirements_on(metadata, cell.platform, pin.extras)
    return Holding(
        pin=pin,
        release=release,
        file=file,
        demands=tuple(demands_of(requirements, holder=name, source=f"{file.filename} METADATA")),
        shareable=not metadata.notes and not pin.extras,
    )


def _hold_sdist(pin: Pin, cell: Cell, release: Release, index: PackageIndex, sdists: SdistTable) -> Holding | Missing:
    """Return a release without any wheel made concrete: it may be pinned, its dependencies known without a build."""
    name = f"{pin.package} {pin.version}"
    file = next(file for file in release.files if not file.is_wheel)
    if not python_fits(file.requires_python, cell.platform.python):
        text = f"{name} needs python {file.requires_python}; this platform has python {cell.platform.python}"
        return Missing(lacks=Lack.PYTHON, reason=text, facts=(Fact(text=text, source=f"index: {pin.package}"),))
    environment = cell.platform.environment()
    listed = sdists.find(pin.package, pin.version)
    if listed is not None:
        requirements = [r for r in listed.requires if r.marker is None or r.marker.evaluate(environment)]
        source = f"{file.filename} (sdists.toml)"
    else:
        metadata = index.metadata(file)
        if not metadata.static:
            text = f"needs a build of {pin.package}=={pin.version}: it has no wheel, and its dependencies are not known"
            return Missing(lacks=Lack.METADATA, reason=text, facts=(Fact(text=text, source=file.filename),))
        requirements = list(requirements_on(metadata, cell.platform, pin.extras))
        source = f"{file.filename} PKG-INFO"
    return Holding(
        pin=pin,
        release=release,
        file=file,
        demands=tuple(demands_of(requirements, holder=name, source=source)),
        shareable=not pin.extras,
        notes=(f"{name} has no wheel on the index: it must be built from its sdist",),
    )


def read_case(cell: Cell, holdings: Iterable[Holding | Missing]) -> Case | Missing:
    """Return the cell with its pins made concrete, or the first pin that cannot be had."""
    held: list[Holding] = []
    for holding in holdings:
        if isinstance(holding, Missing):
            return holding
        held.append(holding)
    return Case(cell=cell, holdings=tuple(held))
