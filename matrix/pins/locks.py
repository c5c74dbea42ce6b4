"""Lock files that people have: `uv.lock` and `pylock.toml` (PEP 751), read as what is installed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.markers import InvalidMarker, Marker
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from matrix.errors import DataError
from matrix.pins.requirements import Read
from matrix.pins.stack import Statement

_NO_INDEX = ("git", "url", "path", "directory", "editable", "virtual", "vcs", "archive")


def read_lock(path: Path, text: str, environment: Mapping[str, str], read: Read) -> str:
    """Add the packages of a `uv.lock` or `pylock.toml` to `read`; return its `requires-python`.

    Of a package that a lock holds at several versions the one counts whose marker holds on the platform.

    Raises:
        DataError: it is not TOML, or not such a lock; the line is named where there is one.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(path, "", f"is not TOML: {error}", then="Correct that line, or lock anew.") from None
    rows = data.get("package", data.get("packages"))
    if not isinstance(rows, list):
        raise DataError(path, "", "holds no packages", then="Name a uv.lock or a pylock.toml.")
    for number, row in zip(_lines(text), rows, strict=False):
        where = f"{path.name}:{number}"
        name = row.get("name") if isinstance(row, Mapping) else None
        if not isinstance(name, str):
            raise DataError(path, f"line {number}", "a package without a name", then="Lock anew.")
        package = str(canonicalize_name(name))
        if not _holds(row, environment):
            read.note(where, f"{package} {row.get('version', '')} is locked for another platform")
            continue
        _package(path, number, where, package, row, read)
    return str(data.get("requires-python", ""))


def _package(path: Path, number: int, where: str, package: str, row: Mapping[str, object], read: Read) -> None:
    source = row.get("source")
    places = [name for name in _NO_INDEX if name in row or (isinstance(source, Mapping) and name in source)]
    text = str(row.get("version", ""))
    if not text:
        if "virtual" not in places and "editable" not in places:
            read.note(where, f"{package} has no version in the lock")
        return
    try:
        version = Version(text)
    except InvalidVersion:
        raise DataError(path, f"line {number}", f"`{text}` is not a version of {package}", then="Lock anew.") from None
    if places:
        read.note(where, f"{package} {version} is unpinned: it comes from {places[0]}")
        if places[0] in ("virtual", "editable"):
            return
    held = {item.package: item for item in read.statements}
    if package in held and held[package].version != version:
        read.note(where, f"{package} is locked at {held[package].version} and {version}; the first counts")
        return
    read.statements.append(
        Statement(
            package=package,
            where=where,
            text=f"{package}=={version}",
            specifier=SpecifierSet(f"=={version}"),
            url=places[0] if places else "",
            version=version,
            binds=False,
            asks=False,
        )
    )


def _lines(text: str) -> Iterator[int]:
    """Yield the line of each package of a lock, in order; the first line for those that are written inline."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() in ("[[package]]", "[[packages]]"):
            yield number + 1
    while True:
        yield 1


def _holds(row: Mapping[str, object], environment: Mapping[str, str]) -> bool:
    """Return whether a package is meant for the platform: its marker, or one of its forks, holds."""
    marker, forks = row.get("marker"), row.get("resolution-markers")
    texts = [str(marker)] if marker else [str(item) for item in forks] if isinstance(forks, list) else []
    try:
        return not texts or any(Marker(text).evaluate({**environment, "extra": ""}) for text in texts)
    except InvalidMarker:
        # A marker that packaging does not know yet (dependency_groups) says nothing against it.
        return True
