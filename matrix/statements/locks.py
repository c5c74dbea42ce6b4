"""Reading of lock files: uv.lock, pylock.toml (PEP 751), poetry.lock, and conda's environment.yml.

A lock names one version of each package, or one for each fork: several of one package in a file are alternatives.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from packaging.markers import InvalidMarker, Marker
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from matrix.statements.installing import conda_statement
from matrix.statements.statement import PYTHON, Force, Inclusion, Notes, Reading, Source, Statement
from matrix.statements.toml_lines import error_line

if TYPE_CHECKING:
    from yaml.nodes import Node

_LOCKS = re.compile(r"(?:^|/)(?:uv\.lock|poetry\.lock|pylock(?:\.[^/.]+)?\.toml)$")
_CONDA = re.compile(r"(?:^|/)(?:environment|conda)[^/]*\.ya?ml$")


def is_lock(name: str) -> bool:
    """Return whether a file of that name is a lock of uv, Poetry or PEP 751."""
    return bool(_LOCKS.search(name))


def is_conda(name: str) -> bool:
    """Return whether a file of that name is, by convention, an environment of conda."""
    return bool(_CONDA.search(name)) and ".github/" not in name


def read_lock(text: str, file: str) -> Reading:
    """Return the packages that a lock names, each with the line of its name; the file is the scope.

    A package without version (the project itself, a git source) is left out.
    """
    notes = Notes(file, Source.LOCK)
    try:
        whole = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        notes.remark(error_line(error, text), f"this is no TOML: {error}")
        return notes.reading()
    key = "packages" if "pylock" in file.rsplit("/", 1)[-1] else "package"
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.match(rf"\s*\[\[\s*{key}\s*\]\]", line)]
    entries = whole.get(key)
    python = whole.get("requires-python") or _inner(whole, "metadata").get("python-versions")
    if isinstance(python, str):
        _python(notes, text, python)
    for number, entry in zip(lines, entries if isinstance(entries, list) else (), strict=False):
        if isinstance(entry, Mapping):
            _entry(notes, number + 1, entry, file)
    return notes.reading()


def _entry(notes: Notes, line: int, entry: Mapping[str, object], file: str) -> None:
    name, version = entry.get("name"), entry.get("version")
    source = entry.get("source")
    where = source if isinstance(source, Mapping) else {}
    if not isinstance(name, str) or not isinstance(version, str) or {"editable", "virtual", "directory"} & set(where):
        return
    try:
        within = SpecifierSet(f"=={version}")
    except InvalidSpecifier:
        notes.remark(line, f"`{name} {version}` is no version")
        return
    url = where.get("git") or where.get("url") or ""
    registry = str(where.get("registry") or entry.get("index") or "")
    marker = entry.get("marker")
    notes.keep(
        Statement(
            place=notes.place(line),
            package=canonicalize_name(name),
            text=f"{name} {version}",
            source=Source.LOCK,
            force=Force.LOCKS,
            specifier=within,
            scope=file,
            marker=_marker(marker) if isinstance(marker, str) else None,
            url=str(url),
            hashes=tuple(_hashes(entry)),
            elsewhere=bool(url) or ("pypi" not in registry and bool(registry)),
        )
    )


def _marker(text: str) -> Marker | None:
    try:
        return Marker(text)
    except InvalidMarker:
        return None


def _hashes(entry: Mapping[str, object]) -> list[str]:
    """Return the hashes of an entry's files as `algorithm:hex`, in the three spellings that there are."""
    files: list[object] = []
    for field in ("wheels", "files"):
        value = entry.get(field)
        files += value if isinstance(value, list) else []
    files.append(entry.get("sdist"))
    found = []
    for file in files:
        if not isinstance(file, Mapping):
            continue
        if isinstance(text := file.get("hash"), str):
            found.append(text)
        if isinstance(hashes := file.get("hashes"), Mapping):
            found += [f"{algorithm}:{digest}" for algorithm, digest in hashes.items()]
    return found


def _python(notes: Notes, text: str, python: str) -> None:
    try:
        within = SpecifierSet(python)
    except InvalidSpecifier:
        return
    line = next((n for n, row in enumerate(text.splitlines(), 1) if python in row), 1)
    notes.keep(
        Statement(
            place=notes.place(line),
            package=PYTHON,
            text=f"requires-python {python}",
            source=Source.LOCK,
            force=Force.LOCKS,
            specifier=within,
            scope=notes.file,
        )
    )


def _inner(holder: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = holder.get(name)
    return found if isinstance(found, Mapping) else {}


def read_conda(text: str, file: str) -> Reading:
    """Return what a conda environment says, its `pip:` list included; its channels are another index than PyPI."""
    import yaml
    from yaml.nodes import MappingNode, ScalarNode, SequenceNode

    notes = Notes(file, Source.CONDA)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        notes.remark(mark.line + 1 if mark is not None else 1, "this is no YAML")
        return notes.reading()
    listed: Node | None = None
    for key, value in root.value if isinstance(root, MappingNode) else ():
        if isinstance(key, ScalarNode) and key.value == "dependencies":
            listed = value
    for item in listed.value if isinstance(listed, SequenceNode) else ():
        line = item.start_mark.line + 1
        if isinstance(item, ScalarNode):
            found = conda_statement(notes, str(item.value), line, file, Force.INSTALLS)
            if found is not None:
                notes.keep(found)
        elif isinstance(item, MappingNode):
            for _, inner in item.value:
                for one in inner.value if isinstance(inner, SequenceNode) else ():
                    _pip(notes, str(one.value), one.start_mark.line + 1, file)
    return notes.reading()


def _pip(notes: Notes, text: str, line: int, scope: str) -> None:
    """Keep an entry of the `pip:` list, which is a line of a requirements file."""
    option, _, rest = text.partition(" ")
    if option in ("-r", "-c", "-e"):
        notes.keep(
            Inclusion(
                place=notes.place(line),
                target=rest.strip(),
                source=Source.CONDA,
                scope=scope,
                constraint=option == "-c",
            )
        )
    elif not text.startswith("-"):
        notes.say(text, line, Force.INSTALLS, scope=scope)
