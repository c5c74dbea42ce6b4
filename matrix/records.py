"""The records of known failures: `matrix/failures/*.toml`, one file a family, read and checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from matrix.datafile import Table, read
from matrix.errors import DataError
from matrix.failure import Confidence, Failure, Family, Fingerprint, Reach, Severity
from matrix.finding import Effect

FAILURES = Path(__file__).with_name("failures")
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_PROBE = re.compile(r"test_[a-z_]+\.py::test_\w+")
_Word = TypeVar("_Word", bound=StrEnum)


def load_failures(paths: Sequence[Path] = ()) -> tuple[Failure, ...]:
    """Return the records of the files (by default those shipped), in file order.

    Raises:
        DataError: a file cannot be read, a record lacks a source, a range, a fingerprint or a probe, or an id is used
            twice; the message has path and field.
        NewerSchemaError: a file was written for a newer release of this tool.
    """
    found: dict[str, Failure] = {}
    for path in paths or sorted(FAILURES.glob("*.toml")):
        for where, failure in _file(path):
            if failure.id in found:
                raise DataError(path, where, f"`{failure.id}` is recorded twice")
            found[failure.id] = failure
    return tuple(found.values())


def _file(path: Path) -> Iterator[tuple[str, Failure]]:
    whole = read(path)
    family = _word(whole, "family", Family)
    for table in whole.tables("failure"):
        yield f"{table.where}.id", _failure(table, family)
    whole.end()


def _failure(table: Table, family: Family) -> Failure:
    silent = table.flag("silent", False)
    default_path = table.flag("default_path", False)
    failure = Failure(
        id=_id(table),
        family=family,
        title=table.text("title"),
        affects=_ranges(table, "affects"),
        mended=_ranges(table, "mended") if table.has("mended") else {},
        fingerprint=_fingerprint(table, silent=silent),
        cause=table.text("cause"),
        way_out=_several(table, "way_out"),
        sources=_several(table, "sources"),
        testable=_word(table, "testable", Reach),
        confidence=_word(table, "confidence", Confidence),
        severity=_word(table, "severity", Severity),
        effect=_word(table, "effect", Effect),
        checked=table.moment("checked").date(),
        needs=table.text("needs", ""),
        feature=table.text("feature", ""),
        default_path=default_path,
        silent=silent,
        planted=table.flag("planted", False),
        probe=table.text("probe", ""),
        unprobed=table.text("unprobed", ""),
        note=table.text("note", ""),
    )
    table.end()
    if bool(failure.probe) == bool(failure.unprobed):
        raise table.error("probe", "needs a probe, or `unprobed` with the reason, and not both")
    if failure.probe and not _PROBE.fullmatch(failure.probe):
        raise table.error("probe", f"`{failure.probe}` is not written like test_inspect.py::test_name")
    if bool(failure.feature) == default_path:
        raise table.error("feature", "names the part that is hurt, unless `default_path` says that any run is")
    return failure


def _id(table: Table) -> str:
    text = table.text("id")
    if not _ID.fullmatch(text):
        raise table.error("id", f"`{text}` is not lower case words joined by dashes")
    return text


def _ranges(table: Table, name: str) -> Mapping[str, SpecifierSet]:
    """Return package to range; empty, a range without an end to either side, or a malformed one is an error."""
    inner = table.table(name)
    found = {}
    for package in inner.values:
        text = inner.text(package)
        try:
            found[_package(inner, package)] = SpecifierSet(text)
        except InvalidSpecifier:
            raise inner.error(package, f"`{text}` is not a range like >=0.9,<0.10") from None
    if not found:
        raise table.error(name, "names no package, so it would apply everywhere")
    return found


def _package(table: Table, name: str) -> str:
    if canonicalize_name(name) != name:
        raise table.error(name, f"is written {canonicalize_name(name)} on the index")
    return name


def _fingerprint(table: Table, *, silent: bool) -> Fingerprint:
    inner = table.table("fingerprint")
    found = Fingerprint(
        exception=inner.text("exception", ""),
        pattern=_pattern(inner, "pattern"),
        place=_pattern(inner, "place"),
        observable=inner.text("observable", ""),
        example=inner.text("example", ""),
    )
    inner.end()
    if silent and not found.observable:
        raise inner.error("observable", "is missing: a silent failure says what is measured and comes out wrong")
    if not silent and not found.pattern:
        raise inner.error("pattern", "is missing: without one nothing could be recognised")
    if found.pattern and found.example and not found.matches(f"{found.exception} {found.place}\n{found.example}"):
        raise inner.error("example", "is not matched by the pattern")
    return found


def _pattern(table: Table, name: str) -> str:
    text = table.text(name, "")
    try:
        re.compile(text)
    except re.error as error:
        raise table.error(name, f"is not a regular expression: {error}") from None
    return text


def _several(table: Table, name: str) -> tuple[str, ...]:
    found = table.texts(name)
    if not found:
        raise table.error(name, "is empty")
    return found


def _word(table: Table, name: str, kind: type[_Word]) -> _Word:
    text = table.text(name)
    try:
        return kind(text)
    except ValueError:
        raise table.error(name, f"`{text}` is none of {', '.join(kind)}") from None
