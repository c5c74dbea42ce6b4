"""Comparing the statements of a repository with the index: releases that are not there, and what releases ask for.

A pinned release is looked up with its metadata, and what it requires is held against what is stated beside it: a pin
that resolution would have refused, in places where nothing resolves (one command after the other, `--no-deps`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.cell import Platform
from matrix.drift.comparing import distinct, overridden
from matrix.drift.contradiction import Contradiction, Kind, Sureness
from matrix.drift.installation import Installation, Project, installations, project_of
from matrix.drift.ranges import disjoint
from matrix.errors import MatrixError, UnknownReleaseError
from matrix.index import Metadata, PackageIndex
from matrix.index import Project as Listed
from matrix.index.metadata import requirements_on
from matrix.statements.repository import Repository
from matrix.statements.statement import PYTHON, Force, Source, Statement

_AT_ONCE = 8
"""Questions to the index at a time."""
_DEFAULT_PYTHON = "3.12"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAnswer:
    """What the index says: contradictions, how many releases were looked at, and what could not be asked."""

    contradictions: tuple[Contradiction, ...]
    looked_at: int = 0
    unasked: tuple[str, ...] = ()


def compare_with_index(repository: Repository, index: PackageIndex) -> IndexAnswer:
    """Return where the repository's statements and the index contradict each other.

    Raises:
        IndexUnreachableError: the index does not answer.
    """
    project = project_of(repository.reading)
    asker = _Asker(index)
    statements = [item for item in repository.reading.statements if _is_asked(item, project)]
    asker.prefetch({item.package for item in statements})
    found = [one for item in statements for one in asker.release(item)]
    for installation in _of_project(project):
        found += [overridden(one, project) for one in asker.requires(installation)]
    for installation in installations(repository, project):
        found += asker.requires(installation)
    return IndexAnswer(
        contradictions=distinct(found), looked_at=asker.looked_at, unasked=tuple(sorted(set(asker.unasked)))
    )


def _is_asked(item: Statement, project: Project) -> bool:
    """Return whether the usual index can say something of it."""
    told = item.url or item.vague or item.elsewhere or item.package in (PYTHON, project.name)
    return not told and bool(item.specifier)


def _of_project(project: Project) -> Iterator[Installation]:
    """Yield the core and each extra of the project as places where something is installed."""
    for name in ("", *project.extras):
        items = project.core + (project.with_extras((name,)) if name else ())
        if items:
            what = f"extra {name}" if name else "the dependencies"
            yield Installation(name=what, source=Source.PYPROJECT, own=items)


class _Asker:
    """Asks the index, each project once; what fails for one project is kept and told."""

    def __init__(self, index: PackageIndex) -> None:
        self._index = index
        self._projects: dict[str, Listed | None] = {}
        self._metadata: dict[tuple[str, Version], Metadata | None] = {}
        self.unasked: list[str] = []
        self.looked_at = 0

    def prefetch(self, packages: set[str]) -> None:
        """Ask for many projects at once."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for package, listed in zip(sorted(packages), pool.map(self._ask, sorted(packages)), strict=True):
                self._projects[package] = listed

    def _ask(self, package: str) -> Listed | None:
        try:
            return self._index.project(package)
        except UnknownReleaseError:
            return None

    def _project(self, package: str) -> Listed | None:
        if package not in self._projects:
            self._projects[package] = self._ask(package)
        return self._projects[package]

    def release(self, item: Statement) -> Iterator[Contradiction]:
        """Yield what is wrong with a statement by the list of releases alone."""
        listed = self._project(item.package)
        if listed is None:
            self.unasked.append(f"{item.package} is no project of the index")
            return
        sureness = Sureness.POSSIBLE if item.force is Force.TELLS else Sureness.CERTAIN
        fitting = [version for version in listed.releases if item.specifier.contains(version, prereleases=True)]
        pin = item.pin
        if pin is not None and pin.local:
            fitting = [version for version in listed.releases if version.public == pin.public]
        if not fitting:
            newest = max(listed.releases, default=None)
            why = f"the index has no release of {item.package} in {item.specifier}; its newest is {newest}"
            yield Contradiction(kind=Kind.ABSENT, package=item.package, first=item, sureness=sureness, why=why)
        elif pin is not None and all(listed.releases[version].yanked is not None for version in fitting):
            reason = listed.releases[fitting[0]].yanked
            why = f"{item.package} {fitting[0]} was yanked" + (f": {reason}" if reason else "")
            yield Contradiction(kind=Kind.YANKED, package=item.package, first=item, sureness=sureness, why=why)

    def requires(self, installation: Installation) -> Iterator[Contradiction]:
        """Yield where a pinned release asks for what a statement beside it excludes."""
        stated = [*installation.effective.values(), *installation.taken_in]
        pythons = [item for item in stated if item.package == PYTHON]
        platform = Platform(python=_python(pythons))
        environment = platform.environment()
        # What is for other machines or pythons is not installed where these requirements hold.
        beside = [item for item in stated if item.holds(environment)]
        for item in beside:
            if item.pin is None or item.vague or item.package == PYTHON:
                continue
            metadata = self._read(item.package, item.pin)
            if metadata is None:
                continue
            for wanted in requirements_on(metadata, platform, item.extras):
                package = canonicalize_name(wanted.name)
                others = [one for one in beside if one.package == package and one is not item and not one.url]
                yield from _excluded(installation, item, str(wanted), wanted.specifier, others)
            if metadata.requires_python:
                yield from _excluded(installation, item, f"python{metadata.requires_python}", metadata.requires_python,
                                     pythons)  # fmt: skip

    def _read(self, package: str, version: Version) -> Metadata | None:
        """Return the metadata of a release, None where there is none to be had."""
        key = (package, Version(version.public))
        if key not in self._metadata:
            self._metadata[key] = self._fetch(*key)
        return self._metadata[key]

    def _fetch(self, package: str, version: Version) -> Metadata | None:
        listed = self._project(package)
        release = listed.releases.get(version) if listed is not None else None
        if release is None:
            return None
        file = self._index.best_file(release, Platform()) or next(iter(sorted(release.files, key=_preferred)), None)
        if file is None:
            return None
        try:
            found = self._index.metadata(file)
        except MatrixError as error:
            self.unasked.append(f"{package} {version}: {error.what}")
            return None
        self.looked_at += 1
        return found


def _preferred(file: object) -> tuple[bool, str]:
    return not getattr(file, "is_wheel", False), str(getattr(file, "filename", ""))


def _python(pythons: Sequence[Statement]) -> str:
    """Return the python of a place as `X.Y`, 3.12 where it states none."""
    for item in pythons:
        for part in item.specifier:
            if part.operator == "==":
                release = Version(part.version.removesuffix(".*")).release
                if len(release) >= 2:
                    return f"{release[0]}.{release[1]}"
    return _DEFAULT_PYTHON


def _excluded(
    installation: Installation, item: Statement, wanted: str, within: SpecifierSet, others: Sequence[Statement]
) -> Iterator[Contradiction]:
    """Yield the statements that exclude everything that the pinned release asks for."""
    for other in others:
        if not disjoint(within, other.specifier):
            continue
        sureness = Sureness.LIKELY if installation.source is Source.DOCS else Sureness.CERTAIN
        if other.vague:
            sureness = Sureness.LIKELY if other.force is Force.BASE else Sureness.POSSIBLE
        later = "" if item.place.file != other.place.file or other.place.line <= item.place.line else ", later"
        loose = " (installed without its dependencies)" if item.no_deps else ""
        why = f"{item.package} {item.pin} requires {wanted}{loose}; {other.text} is installed beside it{later}"
        if other.package == PYTHON:
            why = f"{item.package} {item.pin} requires {wanted}; the python there is {other.text}"
        yield Contradiction(
            kind=Kind.PYTHON if other.package == PYTHON else Kind.REQUIRES,
            package=other.package,
            first=other,
            second=item,
            sureness=sureness.weaker if item.no_deps else sureness,
            together=f"{installation.name} installs both",
            why=why,
        )
