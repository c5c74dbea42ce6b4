"""Reading of data files: TOML with `schema = 1`, every field checked where it is read.

A reader asks a `Table` for the fields it knows and then calls `end()`, which refuses the fields nobody asked for. So
what a file may hold is said once, by the code that reads it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import TypeVar

from packaging.version import InvalidVersion, Version

from matrix.errors import DataError, NewerSchemaError
from matrix.nearness import near_names

SCHEMA = 1

_T = TypeVar("_T")
_WORDS = {str: "a string", bool: "true or false", int: "a whole number", list: "an array", dict: "a table"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of a data file, read field by field; `where` it lies is e.g. `cell[3]` ("" for the whole file).

    Every method raises DataError with the path and the field when the value is missing or of another type. A `default`
    other than None makes a field optional.
    """

    path: Path
    where: str
    values: Mapping[str, object]
    asked: set[str] = field(default_factory=set, repr=False, compare=False)

    def error(self, name: str, what: str) -> DataError:
        """Return the error to raise about the field `name` of this table ("" for the table itself)."""
        return DataError(self.path, self._named(name), what)

    def has(self, name: str) -> bool:
        """Return whether the field is there, and count it as known."""
        self.asked.add(name)
        return name in self.values

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string that is not blank (but for the default)."""
        value = self._typed(name, str, default)
        if value is not default and not value.strip():
            raise self.error(name, "must not be empty")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return a true or false."""
        return self._typed(name, bool, default)

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a whole number."""
        value = self._typed(name, int, default)
        if isinstance(value, bool):
            raise self._mistyped(name, value, _WORDS[int])
        return value

    def texts(self, name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return an array of strings."""
        value = self._typed(name, list, None if default is None else list(default))
        for at, item in enumerate(value):
            if not isinstance(item, str) or not item.strip():
                raise self._mistyped(f"{name}[{at}]", item, "a string that is not empty")
        return tuple(value)

    def version(self, name: str) -> Version:
        """Return a PEP 440 version, written as a string."""
        return self._version(name, self.text(name))

    def versions(self, name: str) -> tuple[Version, ...]:
        """Return one version, or the versions of an array; none twice."""
        if not self.has(name):
            return ()
        value = self.values[name]
        if isinstance(value, str):
            return (self.version(name),)
        if not isinstance(value, list):
            raise self._mistyped(name, value, "a version in quotes, or an array of them")
        found = tuple(self._version(f"{name}[{at}]", text) for at, text in enumerate(self.texts(name)))
        if not found or len(set(found)) != len(found):
            raise self.error(name, "is empty" if not found else "names a version twice")
        return found

    def moment(self, name: str) -> datetime:
        """Return a date and time in UTC; a date alone is its midnight, a time without zone is an error."""
        value = self._present(name)
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise self.error(name, f"{value} has no time zone; add Z for UTC")
            return value.astimezone(UTC)
        if isinstance(value, date):
            return datetime.combine(value, time(), UTC)
        raise self._mistyped(name, value, "a date, or a date and time")

    def table(self, name: str) -> Table:
        """Return the table of that name."""
        return self._table(name, self._typed(name, dict, None))

    def tables(self, name: str) -> tuple[Table, ...]:
        """Return the tables of an array of tables; empty when the field is not there."""
        rows = self._typed(name, list, [])
        return tuple(self._table(f"{name}[{at}]", row) for at, row in enumerate(rows))

    def end(self) -> None:
        """Refuse fields that were never asked for, with the known one that comes close."""
        for name in self.values:
            if name not in self.asked:
                near = near_names(name, self.asked)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(self.asked))}"
                raise self.error(name, f"unknown field; {hint}")

    def _named(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where and name else self.where or name

    def _present(self, name: str) -> object:
        if not self.has(name):
            raise self.error(name, "is missing")
        return self.values[name]

    def _typed(self, name: str, kind: type[_T], default: _T | None) -> _T:
        if not self.has(name) and default is not None:
            return default
        value = self._present(name)
        if not isinstance(value, kind):
            raise self._mistyped(name, value, _WORDS[kind])
        return value

    def _mistyped(self, name: str, value: object, wanted: str) -> DataError:
        return self.error(name, f"must be {wanted}, not {_shown(value)}")

    def _version(self, name: str, text: str) -> Version:
        try:
            return Version(text)
        except InvalidVersion:
            raise self.error(name, f"`{text}` is not a version") from None

    def _table(self, name: str, value: object) -> Table:
        if not isinstance(value, dict):
            raise self._mistyped(name, value, _WORDS[dict])
        return Table(path=self.path, where=self._named(name), values=value)


def read(path: Path) -> Table:
    """Return the whole file as a table.

    Raises:
        DataError: the file cannot be read, is not UTF-8 TOML, or does not say its schema.
        NewerSchemaError: it was written for a newer release of this tool.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(path, "", f"cannot be read: {error}", then="Check the path and its permissions.") from error
    return parse(text, path)


def read_object(path: Path, then: str) -> dict[str, object]:
    """Return the object in a file of JSON that somebody gave; raises DataError, which says `then` what to give."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise DataError(path, "", f"cannot be read: {why}", then=then) from error
    if not isinstance(data, dict):
        raise DataError(path, "", "is not an object", then=then)
    return data


def parse(text: str, path: Path) -> Table:
    """Return the text of a data file as a table; `path` is where it came from, for messages. Raises as `read` does."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(path, "", f"is not TOML: {error}") from error
    table = Table(path=path, where="", values=values)
    schema = table.integer("schema")
    if schema > SCHEMA:
        raise NewerSchemaError(
            f"{path} has schema {schema}; this release reads schema {SCHEMA}.",
            why="The file was written for a newer release of verl-matrix.",
            then="Upgrade verl-matrix, or use the file that came with this release.",
        )
    if schema < SCHEMA:
        raise table.error("schema", f"{schema} never existed; the first is {SCHEMA}")
    return table


def header(text: str) -> str:
    """Return the leading comment of a data file (its "generated by / updated by" header), newline included."""
    lines = []
    for line in text.splitlines(keepends=True):
        if not line.startswith("#"):
            break
        lines.append(line)
    return "".join(lines)


def _shown(value: object) -> str:
    """Return the value as a reader of the file would recognise it."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
