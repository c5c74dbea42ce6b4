"""Reading of pyproject.toml: `[project]`, `[dependency-groups]`, `[build-system]`, `[tool.uv]`, `[tool.poetry]`.

Sources: PEP 621, PEP 735, PEP 518; uv's reference (settings); Poetry's documentation (dependency specification).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from matrix.statements.statement import PYTHON, Force, Inclusion, Notes, Reading, Source, Statement
from matrix.statements.toml_lines import Lines, error_line


def read_pyproject(text: str, file: str) -> Reading:
    """Return what a pyproject.toml says; scopes are "", `extra NAME`, `group NAME`, `build`, `override`, `constraint`.

    A file that is no TOML is a remark with its line. `dynamic` holds the fields that another file states.
    """
    notes = Notes(file, Source.PYPROJECT)
    try:
        whole = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        notes.remark(error_line(error, text), f"this is no TOML: {error}")
        return notes.reading()
    lines = Lines(text)
    project = _table(whole, "project")
    _project(notes, lines, project)
    _groups(notes, lines, _table(whole, "dependency-groups"))
    for item in _texts(_table(whole, "build-system").get("requires")):
        notes.say(item, lines.value(item, lines.table("build-system")), Force.ASKS, scope="build")
    uv = _table(_table(whole, "tool"), "uv")
    _uv(notes, lines, uv)
    poetry = _table(_table(whole, "tool"), "poetry")
    _poetry(notes, lines, poetry)
    sources = frozenset(canonicalize_name(package) for package in _table(uv, "sources"))
    notes.statements[:] = [replace(s, elsewhere=True) if s.package in sources else s for s in notes.statements]
    name = project.get("name") or poetry.get("name")
    return replace(
        notes.reading(),
        name=canonicalize_name(name) if isinstance(name, str) else "",
        dynamic=frozenset(_texts(project.get("dynamic"))),
        apart=frozenset(_conflicts(uv)),
    )


def _project(notes: Notes, lines: Lines, project: Mapping[str, object]) -> None:
    start = lines.table("project")
    python = project.get("requires-python")
    if isinstance(python, str):
        _python(notes, python, lines.key("requires-python", start))
    at = lines.key("dependencies", start)
    for item in _texts(project.get("dependencies")):
        at = lines.value(item, at)
        notes.say(item, at, Force.ASKS)
    extras = _table(project, "optional-dependencies")
    header = lines.table("project.optional-dependencies", start)
    for name, items in extras.items():
        at = lines.key(name, header if header > 1 else lines.key("optional-dependencies", start))
        for item in _texts(items):
            at = lines.value(item, at)
            notes.say(item, at, Force.ASKS, scope=f"extra {canonicalize_name(name)}")


def _python(notes: Notes, text: str, line: int) -> None:
    try:
        within = SpecifierSet(text)
    except InvalidSpecifier:
        notes.remark(line, f"requires-python `{text}` is no range")
        return
    notes.keep(
        Statement(
            place=notes.place(line),
            package=PYTHON,
            text=f"requires-python = {text}",
            source=Source.PYPROJECT,
            force=Force.ASKS,
            specifier=within,
        )
    )


def _groups(notes: Notes, lines: Lines, groups: Mapping[str, object]) -> None:
    header = lines.table("dependency-groups")
    for name, items in groups.items():
        at = lines.key(name, header)
        scope = f"group {canonicalize_name(name)}"
        for item in items if isinstance(items, list) else ():
            if isinstance(item, str):
                at = lines.value(item, at)
                notes.say(item, at, Force.ASKS, scope=scope)
            elif isinstance(item, dict) and isinstance(included := item.get("include-group"), str):
                target = f"group {canonicalize_name(included)}"
                place = notes.place(lines.value(included, at))
                notes.keep(Inclusion(place=place, target=target, source=Source.PYPROJECT, scope=scope))


def _uv(notes: Notes, lines: Lines, uv: Mapping[str, object]) -> None:
    start = lines.table("tool.uv")
    fields = (
        ("override-dependencies", Force.OVERRIDES, "override"),
        ("constraint-dependencies", Force.BOUNDS, "constraint"),
        ("dev-dependencies", Force.ASKS, "group dev"),
    )
    for field, force, scope in fields:
        at = lines.key(field, start)
        for item in _texts(uv.get(field)):
            at = lines.value(item, at)
            notes.say(item, at, force, scope=scope)


def _conflicts(uv: Mapping[str, object]) -> Iterator[frozenset[str]]:
    """Yield the pairs of extras and groups that are declared never to be installed together."""
    declared = uv.get("conflicts")
    for items in declared if isinstance(declared, list) else ():
        scopes = [
            f"{kind} {canonicalize_name(item[kind])}"
            for item in (items if isinstance(items, list) else ())
            for kind in ("extra", "group")
            if isinstance(item, dict) and isinstance(item.get(kind), str)
        ]
        for at, one in enumerate(scopes):
            for other in scopes[at + 1 :]:
                yield frozenset({one, other})


def _poetry(notes: Notes, lines: Lines, poetry: Mapping[str, object]) -> None:
    named = [("tool.poetry.dependencies", "", _table(poetry, "dependencies"))]
    named.append(("tool.poetry.dev-dependencies", "group dev", _table(poetry, "dev-dependencies")))
    for group, content in _table(poetry, "group").items():
        inner = _table(content, "dependencies") if isinstance(content, Mapping) else {}
        named.append((f"tool.poetry.group.{group}.dependencies", f"group {canonicalize_name(group)}", inner))
    for header, scope, table in named:
        start = lines.table(header)
        for name, value in table.items():
            line = lines.key(name, start)
            text = value.get("version") if isinstance(value, Mapping) else value
            if not isinstance(text, str):
                continue
            within = poetry_range(text)
            if within is None:
                notes.remark(line, f"`{name} = {text}` is no range of Poetry")
                continue
            package = PYTHON if name == "python" else canonicalize_name(name)
            notes.keep(
                Statement(
                    place=notes.place(line),
                    package=package,
                    text=f"{name} = {text}",
                    source=Source.PYPROJECT,
                    force=Force.ASKS,
                    specifier=within,
                    scope="" if package == PYTHON else scope,
                )
            )


def poetry_range(text: str) -> SpecifierSet | None:
    """Return the PEP 440 range of a Poetry constraint (`^1.2`, `~1.2`, `1.2.*`, `1.2`), None for one with `||`."""
    parts = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"([\^~])\s*(\d+(?:\.\d+)*)", part)
        if match is not None:
            parts.append(f">={match[2]},<{_above(match[1], match[2])}")
        elif part == "*":
            continue
        else:
            parts.append(part if part[0] in "<>=!~" else f"=={part}")
    try:
        return SpecifierSet(",".join(parts))
    except InvalidSpecifier:
        return None


def _above(sign: str, version: str) -> str:
    """Return the first version that a caret or tilde no longer allows."""
    numbers = [int(part) for part in version.split(".")]
    if sign == "~":
        return str(numbers[0] + 1) if len(numbers) == 1 else f"{numbers[0]}.{numbers[1] + 1}"
    at = next((place for place, number in enumerate(numbers) if number), len(numbers) - 1)
    return ".".join(str(number) for number in [*numbers[:at], numbers[at] + 1])


def _table(holder: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = holder.get(name)
    return found if isinstance(found, Mapping) else {}


def _texts(value: object) -> Iterator[str]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, str):
            yield item
