"""Checks of what the index and the metadata say: releases, requirements, extras, pythons, wheels, sets of pins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.cell import Platform
from matrix.claims.checks import Look, Reader
from matrix.drift.ranges import disjoint
from matrix.index.metadata import requirements_on

if TYPE_CHECKING:
    from matrix.claims.library import Library
    from matrix.datafile import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Exists:
    """Whether a release is on the index (`exists`)."""

    package: str
    version: Version

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"{self.package} {self.version} is on the index"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield one look."""
        there = library.has(self.package, self.version)
        told = "is on the index" if there else "is not on the index"
        yield Look(subject=f"{self.package} {self.version}", supports=there, text=told, place="index")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requires:
    """Whether releases require a package (`requires`), and whether that lets a version in (`admits`).

    Without `admits` the requirement being there supports the claim; with it, no requirement lets any version in.
    """

    package: str
    releases: str
    dependency: str
    admits: Version | None
    with_extra: str
    within: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        what = f" so that {self.admits} is let in" if self.admits is not None else ""
        return f"{self.package} ({self.releases}) requires {self.dependency}{what}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release."""
        for version in library.within(self.package, self.releases):
            found = [
                item
                for item in requirements_on(library.metadata(self.package, version), Platform(), [self.with_extra])
                if canonicalize_name(item.name) == canonicalize_name(self.dependency)
            ]
            told = ", ".join(str(item) for item in found) or f"nothing of {self.dependency}"
            yield Look(
                subject=f"{self.package} {version}",
                supports=self._supports(found),
                text=f"requires {told}",
                place="METADATA",
                release=str(version),
            )

    def _supports(self, found: Sequence[Requirement]) -> bool:
        if self.admits is not None:
            return all(item.specifier.contains(self.admits, prereleases=True) for item in found)
        if self.within:
            return any(self.within in str(item) for item in found)
        return bool(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Whether pinned releases let each other in, and leave a version of what they both require (`together`).

    `{release}` in a pin stands for each release of `package`. That they do is not yet that they resolve: what their
    requirements require in turn is not looked at; that they do not is final.
    """

    pins: tuple[str, ...]
    package: str
    releases: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"{', '.join(self.pins)} let each other in"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release of `package`, or one."""
        versions = [str(one) for one in library.within(self.package, self.releases)] if self.package else [""]
        for version in versions:
            pins = [Requirement(pin.replace("{release}", version)) for pin in self.pins]
            why = next(_clashes(library, pins), "")
            yield Look(
                subject=", ".join(str(pin) for pin in pins),
                supports=not why,
                text=why or "each lets the others in",
                place="METADATA",
                release=version,
            )


def _clashes(library: Library, pins: Sequence[Requirement]) -> Iterator[str]:
    wanted: dict[str, list[tuple[str, Requirement]]] = {}
    pinned = {canonicalize_name(pin.name): Version(str(pin.specifier)[2:]) for pin in pins}
    for pin in pins:
        name, version = canonicalize_name(pin.name), pinned[canonicalize_name(pin.name)]
        if not library.has(name, version):
            yield f"{name} {version} is not on the index"
            return
        for item in requirements_on(library.metadata(name, version), Platform(), pin.extras):
            wanted.setdefault(canonicalize_name(item.name), []).append((f"{name} {version}", item))
    for dependency, items in wanted.items():
        chosen = next((pinned[key] for key in pinned if key == dependency), None)
        for who, item in items:
            if chosen is not None and not item.specifier.contains(chosen, prereleases=True):
                yield f"{who} requires {item}, not {chosen}"
        for at, (who, item) in enumerate(items):
            for other, second in items[at + 1 :]:
                if disjoint(item.specifier, second.specifier):
                    yield f"{who} requires {item}, {other} requires {second}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """Whether releases have an extra of that name (`extra`)."""

    package: str
    releases: str
    name: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"{self.package} ({self.releases}) has the extra {self.name}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release."""
        for version in library.within(self.package, self.releases):
            extras = library.metadata(self.package, version).extras
            told = f"extras: {', '.join(extras) or 'none'}"
            there = canonicalize_name(self.name) in extras
            subject = f"{self.package} {version}"
            yield Look(subject=subject, supports=there, text=told, place="METADATA", release=str(version))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsOn:
    """Whether releases run on a python (`python`)."""

    package: str
    releases: str
    python: Version

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"{self.package} ({self.releases}) runs on python {self.python}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release."""
        for version in library.within(self.package, self.releases):
            wanted = library.metadata(self.package, version).requires_python
            yield Look(
                subject=f"{self.package} {version}",
                supports=wanted.contains(self.python),
                text=f"Requires-Python: {wanted or 'anything'}",
                place="METADATA",
                release=str(version),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """Whether releases have wheels, and with `pure` whether one of them is for any platform (`wheels`)."""

    package: str
    releases: str
    pure: bool

    @property
    def about(self) -> str:
        """Return what is checked."""
        what = "a wheel for any platform" if self.pure else "a wheel"
        return f"{self.package} ({self.releases}) has {what}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release."""
        for version in library.within(self.package, self.releases):
            names = [file.filename for file in library.release(self.package, version).files]
            wheels = [name for name in names if name.endswith("-none-any.whl" if self.pure else ".whl")]
            yield Look(
                subject=f"{self.package} {version}",
                supports=bool(wheels),
                text=f"files: {', '.join(wheels[:2] or names[:2])}",
                place="index",
                release=str(version),
            )


def _exists(table: Table) -> Exists:
    return Exists(package=table.text("package"), version=table.version("version"))


def _requires(table: Table) -> Requires:
    return Requires(
        package=table.text("package"),
        releases=table.text("releases"),
        dependency=table.text("dependency"),
        admits=table.version("admits") if table.has("admits") else None,
        with_extra=table.text("with_extra", ""),
        within=table.text("within", ""),
    )


def _together(table: Table) -> Together:
    return Together(pins=table.texts("pins"), package=table.text("package", ""), releases=table.text("releases", "all"))


def _extra(table: Table) -> Extra:
    return Extra(package=table.text("package"), releases=table.text("releases"), name=table.text("name"))


def _runs_on(table: Table) -> RunsOn:
    return RunsOn(package=table.text("package"), releases=table.text("releases"), python=table.version("python"))


def _wheels(table: Table) -> Wheels:
    return Wheels(package=table.text("package"), releases=table.text("releases"), pure=table.flag("pure", False))


READERS: Mapping[str, Reader] = {
    "exists": _exists,
    "requires": _requires,
    "together": _together,
    "extra": _extra,
    "python": _runs_on,
    "wheels": _wheels,
}
