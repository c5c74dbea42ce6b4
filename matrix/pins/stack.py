"""The stack: what people have, as statements about packages, each with the file and line where it stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from matrix.errors import DataError


class Kind(StrEnum):
    """What people's statements were read from."""

    REQUIREMENTS = "requirements"
    PYPROJECT = "pyproject"
    UV_LOCK = "uv.lock"
    PYLOCK = "pylock"
    FREEZE = "freeze"
    DOCKERFILE = "dockerfile"
    ENVIRONMENT = "environment"
    WORDS = "words"

    @property
    def is_state(self) -> bool:
        """Return whether it says what is installed rather than what is asked for, so that nothing in it binds."""
        return self in (Kind.UV_LOCK, Kind.PYLOCK, Kind.FREEZE, Kind.ENVIRONMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One package as somebody states it.

    Attributes:
        package: spelled as the index does.
        where: file and line, e.g. `requirements.txt:7`.
        url: where it is taken from instead of the index; "".
        version: the exact version, where one is told; of a file also where only its name tells it.
        binds: whether what is advised has to keep it; what is merely installed does not bind.
        asks: whether it makes the package be installed; a constraint does not.
        no_deps: whether it was installed without its dependencies.
    """

    package: str
    where: str
    text: str
    specifier: SpecifierSet
    extras: tuple[str, ...] = ()
    url: str = ""
    version: Version | None = None
    binds: bool = True
    asks: bool = True
    no_deps: bool = False

    @property
    def requirement(self) -> str:
        """Return it as a PEP 508 requirement without marker or address."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.package}{extras}{self.specifier}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something in the input that was not taken for a statement, or only in part, and where it stands."""

    where: str
    text: str

    @property
    def line(self) -> str:
        """Return it for people."""
        return f"{self.where}: {self.text}" if self.where else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What people have. Of several statements on a package all bind; the last exact version is what is installed."""

    source: str
    kind: Kind
    statements: tuple[Statement, ...] = ()
    overrides: tuple[Statement, ...] = ()
    notes: tuple[Note, ...] = ()
    python: str = ""

    @property
    def have(self) -> Mapping[str, Version]:
        """Return the exact version of each package that one is told of."""
        return {item.package: item.version for item in self.statements if item.version is not None}

    def about(self, package: str) -> tuple[Statement, ...]:
        """Return the statements on a package, in order."""
        return tuple(item for item in self.statements if item.package == package)

    def bound(self, package: str) -> SpecifierSet:
        """Return all that binds the version of a package; empty where nothing does."""
        found = SpecifierSet()
        for item in self.about(package):
            if item.binds and not item.url:
                found &= item.specifier
        return found

    def extras(self, package: str) -> tuple[str, ...]:
        """Return the extras that are asked for of a package, sorted."""
        return tuple(sorted({extra for item in self.about(package) for extra in item.extras}))

    def without(self, *packages: str) -> Stack:
        """Return this stack with nothing said of these packages."""
        kept = tuple(item for item in self.statements if item.package not in packages)
        return Stack(
            source=self.source, kind=self.kind, statements=kept, overrides=self.overrides, notes=self.notes,
            python=self.python,
        )  # fmt: skip

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data (evidence.schema.json: `input`)."""
        return {
            "source": self.source,
            "kind": self.kind.value,
            "python": self.python,
            "statements": [
                {"package": item.package, "where": item.where, "text": item.text, "binds": item.binds}
                for item in self.statements
            ],
            "overrides": [item.requirement for item in self.overrides],
            "notes": [note.line for note in self.notes],
        }


def statement_of(requirement: Requirement, where: str, text: str, **more: bool) -> Statement:
    """Return the statement that a requirement is; an address counts for the version that its file's name tells."""
    url = requirement.url or ""
    return Statement(
        package=str(canonicalize_name(requirement.name)),
        where=where,
        text=text,
        specifier=requirement.specifier,
        extras=tuple(sorted(str(canonicalize_name(extra)) for extra in requirement.extras)),
        url=url,
        version=version_of_file(url) if url else exact(requirement.specifier),
        **more,
    )


def exact(specifier: SpecifierSet) -> Version | None:
    """Return the one version that a specifier set names with `==` or `===`, None where there is none."""
    for clause in specifier:
        if clause.operator in ("==", "===") and not clause.version.endswith(".*"):
            try:
                return Version(clause.version)
            except InvalidVersion:
                continue
    return None


_TAGGED = re.compile(r"/(?P<name>[\w.-]+?)(?:\.git)?@v?(?P<version>\d+(?:\.\d+)+[\w.]*)$")


def version_of_file(url: str) -> Version | None:
    """Return the version that the name of a wheel tells, or the tag of a git address; None for anything else."""
    from urllib.parse import unquote

    address = unquote(url.partition("#")[0].partition("?")[0])
    name = address.rpartition("/")[2]
    try:
        if name.endswith(".whl"):
            return parse_wheel_filename(name)[1]
        tag = _TAGGED.search(address) if address.startswith("git+") else None
        return Version(tag["version"]) if tag else None
    except (InvalidWheelFilename, InvalidVersion):
        return None


def name_of_file(url: str) -> str:
    """Return the package whose file or repository an address or path names, spelled as the index does."""
    address = url.partition("#")[0].partition("?")[0]
    tag = _TAGGED.search(address)
    return str(canonicalize_name(tag["name"] if tag else address.rpartition("/")[2].split("-")[0]))


def parsed(path: Path | str, line: int, text: str) -> Requirement:
    """Return the requirement; raises DataError with the file, the line and what is wrong."""
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise unreadable(path, line, text, str(error).partition("\n")[0]) from None


def unreadable(path: Path | str, line: int, text: str, why: str) -> DataError:
    """Return the error for a line that cannot be read."""
    shown = text if len(text) <= 120 else f"{text[:120]}…"
    return DataError(
        path, f"line {line}", f"`{shown}` is not a requirement: {why}", then="Correct that line, or leave it out."
    )


VARIABLE = re.compile(r"\$\{\w+\}")
"""An environment variable as pip reads it in a requirements file."""
