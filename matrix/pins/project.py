"""`pyproject.toml`: dependencies, optional groups, PEP 735 groups and uv's own tables, with the lines they stand on."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from matrix.errors import DataError, UsageError
from matrix.pins.requirements import Read
from matrix.pins.stack import Note, Statement, parsed, statement_of

ALL = "all"
"""The word that stands for every extra, or every group."""


class Project:
    """A `pyproject.toml` as far as it speaks of packages; lines are found by the text of what is stated."""

    def __init__(self, path: Path, text: str) -> None:
        """Parse it; raises DataError with the line where it is not TOML."""
        try:
            self.data: Mapping[str, object] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise DataError(path, "", f"is not TOML: {error}", then="Correct that line.") from None
        self.path = path
        self._lines = text.splitlines()
        self._from: int = 0

    def line(self, text: str) -> int:
        """Return the line on which a string stands, searched from where the last one stood; 1 where it is not found."""
        order: list[int] = [*range(self._from, len(self._lines)), *range(self._from)]
        for at in order:
            if f'"{text}"' in self._lines[at] or f"'{text}'" in self._lines[at]:
                self._from = at
                return at + 1
        return 1

    def table(self, *names: str) -> Mapping[str, object]:
        """Return the table of that path, empty where there is none; raises DataError where something else is there."""
        found: object = self.data
        for at, name in enumerate(names):
            if not isinstance(found, Mapping):
                raise DataError(self.path, ".".join(names[:at]), "is not a table")
            found = found.get(name, {})
        if not isinstance(found, Mapping):
            raise DataError(self.path, ".".join(names), "is not a table")
        return found

    def texts(self, value: object, where: str) -> Sequence[str]:
        """Return a list of strings; raises DataError for anything else."""
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise DataError(self.path, where, "is not a list of strings")
        return value


def read_project(
    path: Path,
    text: str,
    environment: Mapping[str, str],
    read: Read,
    *,
    extras: Sequence[str] = (),
    groups: Sequence[str] = (),
) -> tuple[tuple[Statement, ...], str]:
    """Add what a project asks for to `read`; return uv's overrides, and `requires-python`.

    `extras` are optional groups and `groups` PEP 735 groups that count too; `all` means each.

    Raises:
        DataError: the file is not TOML, or something in it is no requirement (the line is named).
        UsageError: there is no extra or group of that name.
    """
    project = Project(path, text)
    main = project.table("project")
    _add(project, project.texts(main.get("dependencies", []), "project.dependencies"), environment, read)
    optional = project.table("project", "optional-dependencies")
    for name in _chosen(path, "extra", optional, extras, read):
        _add(project, project.texts(optional[name], f"project.optional-dependencies.{name}"), environment, read)
    named = project.table("dependency-groups")
    for name in _chosen(path, "group", named, groups, read):
        _add(project, _group(project, named, name, ()), environment, read)
    uv = project.table("tool", "uv")
    constraints = project.texts(uv.get("constraint-dependencies", []), "tool.uv.constraint-dependencies")
    _add(project, constraints, environment, read, asks=False)
    over = Read()
    _add(
        project, project.texts(uv.get("override-dependencies", []), "tool.uv.override-dependencies"), environment, over
    )
    sources = project.table("tool", "uv", "sources")
    for package in sources:
        read.note(path.name, f"{canonicalize_name(package)} comes from tool.uv.sources, which no index pins")
    if main.get("dynamic") and "dependencies" in str(main.get("dynamic")):
        read.note(path.name, "its dependencies are dynamic: they stand elsewhere (setup.py, a requirements file)")
    if "poetry" in project.table("tool"):
        read.note(path.name, "tool.poetry.dependencies were not read: Poetry's own ranges are no PEP 508")
    return tuple(over.statements), str(main.get("requires-python", ""))


def _chosen(path: Path, what: str, there: Mapping[str, object], wanted: Sequence[str], read: Read) -> list[str]:
    """Return the groups that count; those that do not are told."""
    names = {str(canonicalize_name(name)): name for name in there}
    if ALL in wanted:
        return list(there)
    unknown = [name for name in wanted if str(canonicalize_name(name)) not in names]
    if unknown:
        then = f"They are {', '.join(there)}." if there else f"It has no {what}."
        raise UsageError(f"{path.name} has no {what} `{unknown[0]}`.", then=then)
    chosen = [names[str(canonicalize_name(name))] for name in wanted]
    left = [name for name in there if name not in chosen]
    if left:
        read.notes.append(Note(where=path.name, text=f"{what} {', '.join(left)} left out; --{what} NAME counts one"))
    return chosen


def _group(project: Project, named: Mapping[str, object], name: str, within: tuple[str, ...]) -> list[str]:
    """Return the requirements of a PEP 735 group, those that it includes too."""
    field = f"dependency-groups.{name}"
    if name in within:
        raise DataError(project.path, field, f"includes itself: {' → '.join((*within, name))}")
    items = named.get(name)
    if not isinstance(items, list):
        raise DataError(project.path, field, "is not a list" if items is not None else "does not exist")
    found: list[str] = []
    for item in items:
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, Mapping) and isinstance(item.get("include-group"), str):
            wanted = str(canonicalize_name(str(item["include-group"])))
            other = next((key for key in named if str(canonicalize_name(key)) == wanted), wanted)
            found += _group(project, named, other, (*within, name))
        else:
            raise DataError(project.path, field, f"holds {item!r}, which is no requirement")
    return found


def _add(
    project: Project, texts: Iterable[str], environment: Mapping[str, str], read: Read, *, asks: bool = True
) -> None:
    for text in texts:
        number = project.line(text)
        where = f"{project.path.name}:{number}"
        requirement = parsed(project.path, number, text)
        if requirement.marker is not None and not requirement.marker.evaluate({**environment, "extra": ""}):
            read.note(where, f"`{text}` does not hold on python {environment['python_version']}, so it was left out")
            continue
        made = statement_of(requirement, where, text, asks=asks)
        if made.url:
            read.note(where, f"{made.package} is unpinned: it comes from an address")
        read.statements.append(made)
