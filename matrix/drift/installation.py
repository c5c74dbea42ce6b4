"""The installation: statements that are meant to hold at once, with how that is known.

A repository has one for its core, one for each extra, each requirements file, each stage of a Dockerfile (with the
stages below it), each job of a workflow, each block of commands in its pages; a place that installs the project itself
holds the project's statements too.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from matrix.statements.repository import Repository
from matrix.statements.statement import Force, Inclusion, Reading, Source, Statement

METADATA = (Source.SETUP, Source.PYPROJECT)
_AT_ROOT = (Source.DOCKERFILE, Source.WORKFLOW, Source.DOCS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Statements that are installed together.

    Attributes:
        name: as people would say it, e.g. `docker/Dockerfile (stage 0)`.
        own: what stands in the place itself, in order; a later one takes the place of an earlier one.
        taken_in: what comes from files that it includes, and from the project where it installs that.
        project: how it installs the project: None where it does not.
    """

    name: str
    source: Source
    own: tuple[Statement, ...]
    taken_in: tuple[Statement, ...] = ()
    project: Inclusion | None = None

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Return all of them."""
        return self.own + self.taken_in

    @property
    def effective(self) -> Mapping[str, Statement]:
        """Return the last statement of the place on each package: what is there in the end."""
        found: dict[str, Statement] = {}
        for item in self.own:
            if item.force is Force.REMOVES:
                found.pop(item.package, None)
            else:
                found[item.package] = item
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The project of the repository: its core and extras, as far as they count for an installer.

    `dead` are statements of setup.py that setuptools ignores, because pyproject.toml states the same field.
    """

    name: str
    core: tuple[Statement, ...]
    extras: Mapping[str, tuple[Statement, ...]] = field(default_factory=dict)
    dead: tuple[Statement, ...] = ()
    overrides: tuple[Statement, ...] = ()

    def with_extras(self, names: tuple[str, ...], seen: frozenset[str] = frozenset()) -> tuple[Statement, ...]:
        """Return what is asked for with these extras, those that they name themselves (`verl[core]`) included."""
        found: list[Statement] = []
        for name in names:
            if name in seen:
                continue
            for item in self.extras.get(name, ()):
                if item.package == self.name:
                    found += self.with_extras(item.extras, seen | {name})
                else:
                    found.append(item)
        return tuple(dict.fromkeys(found))


def project_of(reading: Reading) -> Project:
    """Return the project whose metadata the reading holds.

    Where both setup.py and pyproject.toml are there, a field that `[project]` states itself is ignored in setup.py
    (setuptools' documentation, "Configuring setuptools using pyproject.toml files", on `dynamic`).
    """
    metadata = [item for item in reading.statements if item.source in METADATA]
    has_project = any(item.source is Source.PYPROJECT and item.scope not in ("build", "override") for item in metadata)
    stated = {"dependencies": False, "optional-dependencies": False}
    if has_project and reading.name:
        stated = {field: field not in reading.dynamic for field in stated}
    core, dead = [], []
    extras: dict[str, list[Statement]] = {}
    for item in metadata:
        kind = (
            "dependencies" if item.scope == "" else "optional-dependencies" if item.scope.startswith("extra ") else ""
        )
        if not kind:
            continue
        if item.source is Source.SETUP and stated[kind]:
            dead.append(item)
        elif item.scope:
            extras.setdefault(item.scope.removeprefix("extra "), []).append(item)
        else:
            core.append(item)
    return Project(
        name=reading.name,
        core=tuple(core),
        extras={name: tuple(items) for name, items in extras.items()},
        dead=tuple(dead),
        overrides=tuple(item for item in metadata if item.scope == "override"),
    )


def installations(repository: Repository, project: Project) -> Iterator[Installation]:
    """Yield the places of the repository that install something, but for the project itself."""
    reading = repository.reading
    scopes: dict[tuple[str, str, Source], list[Statement]] = {}
    for item in reading.statements:
        if item.source not in (*METADATA, Source.LOCK):
            scopes.setdefault((item.place.file, item.scope, item.source), []).append(item)
    for inclusion in reading.inclusions:
        if inclusion.source not in METADATA:
            scopes.setdefault((inclusion.place.file, inclusion.scope, inclusion.source), [])
    for (file, scope, source), own in scopes.items():
        if source is Source.DOCS and scope == "text":
            continue
        chain = [scope, *_below(scope, reading.parents)] if source is Source.DOCKERFILE else [scope]
        everything = [item for below in chain[:0:-1] for item in scopes.get((file, below, source), [])] + own
        included = [
            item
            for item in reading.inclusions
            if item.place.file == file and item.scope in chain and item.source is source
        ]
        taken_in, installed = _taken_in(repository, included, project)
        name = f"{file} ({scope})" if scope != file else file
        yield Installation(name=name, source=source, own=tuple(everything), taken_in=taken_in, project=installed)


def _below(scope: str, parents: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    while scope in parents and parents[scope] not in found:
        scope = parents[scope]
        found.append(scope)
    return found


def _taken_in(
    repository: Repository, included: list[Inclusion], project: Project
) -> tuple[tuple[Statement, ...], Inclusion | None]:
    """Return what the inclusions bring, and the one that installs the project."""
    found: list[Statement] = []
    installed = None
    seen: set[str] = set()
    waiting = list(included)
    while waiting:
        item = waiting.pop(0)
        if item.is_project:
            installed = item
            found += [*project.core, *project.with_extras(item.extras)]
            continue
        folder = "" if item.source in _AT_ROOT else posixpath.dirname(item.place.file)
        target = posixpath.normpath(posixpath.join(folder, item.target))
        if target in seen:
            continue
        seen.add(target)
        found += [one for one in repository.reading.statements if one.place.file == target]
        waiting += [one for one in repository.reading.inclusions if one.place.file == target]
    return tuple(dict.fromkeys(found)), installed
