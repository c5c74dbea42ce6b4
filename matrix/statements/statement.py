"""The statement: one thing that a file says about the version of one package, and where it says so."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

PYTHON = "python"
"""The package of a statement that is about the interpreter (`requires-python`, `FROM python:3.12`)."""


class Source(StrEnum):
    """What kind of file says it."""

    SETUP = "setup.py"
    PYPROJECT = "pyproject.toml"
    REQUIREMENTS = "requirements"
    LOCK = "lock"
    CONDA = "conda"
    DOCKERFILE = "Dockerfile"
    WORKFLOW = "workflow"
    DOCS = "docs"


class Force(StrEnum):
    """What the statement does: asks for a package, installs it, only bounds it, or merely tells of it.

    `asks` is metadata of a project, `installs` a command that runs, `removes` one that uninstalls it again, `locks` an
    entry of a lock file, `bounds` a constraint that installs nothing, `overrides` what takes the place of every other
    statement, `base` what the name of an image tells of what is in it, `tells` is prose.
    """

    ASKS = "asks"
    INSTALLS = "installs"
    REMOVES = "removes"
    LOCKS = "locks"
    BOUNDS = "bounds"
    OVERRIDES = "overrides"
    BASE = "base"
    TELLS = "tells"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Place:
    """A line of a file; `file` is relative to the folder that was read, `line` counts from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        """Return `setup.py:31`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One thing that a file says about one package.

    Attributes:
        package: canonical name; `python` for the interpreter.
        specifier: the versions that it allows, all of them where it is empty.
        text: how it stands there.
        scope: with what else of that file it is installed: "" the project itself, `extra vllm`, `group test`,
            `build`, `stage base`, `job unit`, `block 12` (docs), or the name of a file of requirements.
        marker: only where this holds.
        url: where it is from, in place of the index; "" for the index.
        hashes: `sha256:…`, where it names files.
        no_deps: what the package itself asks for is not installed with it.
        vague: the version was read out of a name (an image's tag), or stands where a test decides whether it counts.
        elsewhere: it comes from an index that is named beside it, so the usual index says nothing about it.
    """

    place: Place
    package: str
    text: str
    source: Source
    force: Force
    specifier: SpecifierSet = field(default_factory=SpecifierSet)
    extras: tuple[str, ...] = ()
    scope: str = ""
    marker: Marker | None = None
    url: str = ""
    hashes: tuple[str, ...] = ()
    no_deps: bool = False
    vague: bool = False
    elsewhere: bool = False

    @property
    def pin(self) -> Version | None:
        """Return the one version that it allows, None where it allows several."""
        return exact(self.specifier)

    def holds(self, environment: Mapping[str, str]) -> bool:
        """Return whether its marker holds there, with no extra asked for; True without a marker."""
        return self.marker is None or self.marker.evaluate({"extra": "", **environment})


@dataclass(frozen=True, slots=True, kw_only=True)
class Inclusion:
    """A place where one file takes in another or the project itself.

    Attributes:
        target: path as written, relative to the file's folder or (`Source.DOCKERFILE`, workflows) to the root; "." for
            the project itself.
        extras: of the project that are asked for.
        constraint: only bounds, installs nothing (`-c`).
    """

    place: Place
    target: str
    source: Source
    scope: str = ""
    extras: tuple[str, ...] = ()
    constraint: bool = False
    no_deps: bool = False

    @property
    def is_project(self) -> bool:
        """Return whether it is the project that the repository holds, and no file of requirements."""
        return self.target in (".", "./")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What could not be read as a statement, and where."""

    place: Place
    what: str

    def __str__(self) -> str:
        """Return `setup.py:31: …`."""
        return f"{self.place}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one file says.

    Attributes:
        parents: scope to the scope that it is built on (a stage of a Dockerfile).
        apart: pairs of scopes that are declared never to be installed together (`[tool.uv] conflicts`).
    """

    statements: tuple[Statement, ...] = ()
    inclusions: tuple[Inclusion, ...] = ()
    remarks: tuple[Remark, ...] = ()
    name: str = ""
    dynamic: frozenset[str] = frozenset()
    parents: Mapping[str, str] = field(default_factory=dict)
    apart: frozenset[frozenset[str]] = frozenset()

    def __add__(self, other: Reading) -> Reading:
        """Return both readings as one, in order."""
        return Reading(
            statements=self.statements + other.statements,
            inclusions=self.inclusions + other.inclusions,
            remarks=self.remarks + other.remarks,
            name=self.name or other.name,
            dynamic=self.dynamic | other.dynamic,
            parents={**self.parents, **other.parents},
            apart=self.apart | other.apart,
        )


def exact(specifier: SpecifierSet) -> Version | None:
    """Return the version that `==` or `===` names in it, None where there is none, or one with a wildcard."""
    for part in specifier:
        if part.operator in ("==", "===") and not part.version.endswith(".*"):
            try:
                return Version(part.version)
            except InvalidVersion:
                return None
    return None


@functools.lru_cache(maxsize=4096)
def requirement(text: str) -> Requirement | None:
    """Return the PEP 508 requirement that the text is, None where it is none; nobody may change it."""
    try:
        return Requirement(text)
    except (InvalidRequirement, InvalidSpecifier):
        return None


def stated(
    text: str,
    place: Place,
    source: Source,
    force: Force,
    *,
    scope: str = "",
    hashes: tuple[str, ...] = (),
    no_deps: bool = False,
    elsewhere: bool = False,
    vague: bool = False,
) -> Statement | Remark:
    """Return the statement that a PEP 508 requirement is, or a remark that it is none."""
    found = requirement(text)
    if found is None:
        return Remark(place=place, what=f"`{text[:80]}` is no requirement")
    return Statement(
        place=place,
        package=canonicalize_name(found.name),
        text=text,
        source=source,
        force=force,
        specifier=found.specifier,
        extras=tuple(sorted(canonicalize_name(extra) for extra in found.extras)),
        scope=scope,
        marker=found.marker,
        url=found.url or "",
        hashes=hashes,
        no_deps=no_deps,
        elsewhere=elsewhere,
        vague=vague,
    )


class Notes:
    """What a reader has found so far; the one thing in a reader that changes."""

    def __init__(self, file: str, source: Source) -> None:
        """Start with nothing."""
        self.file = file
        self.source = source
        self.statements: list[Statement] = []
        self.inclusions: list[Inclusion] = []
        self.remarks: list[Remark] = []

    def place(self, line: int) -> Place:
        """Return the place in this file."""
        return Place(file=self.file, line=line)

    def say(self, text: str, line: int, force: Force, **more: object) -> None:
        """Keep a requirement, or the remark that it is none."""
        self.keep(stated(text, self.place(line), self.source, force, **more))  # type: ignore[arg-type]

    def keep(self, found: Statement | Remark | Inclusion) -> None:
        """Keep what was found."""
        match found:
            case Statement():
                self.statements.append(found)
            case Inclusion():
                self.inclusions.append(found)
            case Remark():
                self.remarks.append(found)

    def remark(self, line: int, what: str) -> None:
        """Keep a remark."""
        self.remarks.append(Remark(place=self.place(line), what=what))

    def reading(self) -> Reading:
        """Return all of it."""
        return Reading(
            statements=tuple(self.statements), inclusions=tuple(self.inclusions), remarks=tuple(self.remarks)
        )
