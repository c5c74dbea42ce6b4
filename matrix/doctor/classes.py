"""Classes of error that say what happened and not why (`generic.toml`): what is told where no record fits."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path

from matrix.datafile import Table, read

GENERIC = Path(__file__).with_name("generic.toml")


class Role(StrEnum):
    """What an error of a class may be to the run."""

    ROOT = "root"
    CONSEQUENCE = "consequence"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorClass:
    """A class of error; the fields are described at the head of `generic.toml`."""

    id: str
    title: str
    role: Role
    exceptions: frozenset[str]
    pattern: re.Pattern[str]
    loose: bool
    known: str
    next: tuple[str, ...]
    sample: str
    source: str
    checked: date

    def facts(self, exception: str, text: str) -> Mapping[str, str] | None:
        """Return what the pattern's groups hold where the error is of this class, None where it is not."""
        if self.exceptions and exception and exception not in self.exceptions:
            return None
        if exception == "" and not self.loose:
            return None
        found = self.pattern.search(text)
        if found is None:
            return None
        return {name: value.strip() for name, value in found.groupdict().items() if value}


@functools.cache
def load_classes(path: Path = GENERIC) -> tuple[ErrorClass, ...]:
    """Return the classes in the file's order, in which the first that fits is taken; raises DataError."""
    whole = read(path)
    found = tuple(_class(table) for table in whole.tables("class"))
    whole.end()
    return found


def _class(table: Table) -> ErrorClass:
    try:
        pattern = re.compile(table.text("pattern"), re.MULTILINE)
    except re.error as error:
        raise table.error("pattern", f"is not a regular expression: {error}") from None
    try:
        role = Role(table.text("role"))
    except ValueError:
        raise table.error("role", f"is none of {', '.join(Role)}") from None
    found = ErrorClass(
        id=table.text("id"),
        title=table.text("title"),
        role=role,
        exceptions=frozenset(table.texts("exceptions", ())),
        pattern=pattern,
        loose=table.flag("loose", False),
        known=table.text("known"),
        next=table.texts("next", ()),
        sample=table.text("sample"),
        source=table.text("source"),
        checked=table.moment("checked").date(),
    )
    table.end()
    if not found.pattern.search(found.sample):
        raise table.error("sample", "is not matched by the pattern")
    return found


def classify(exception: str, text: str) -> tuple[ErrorClass, Mapping[str, str]] | None:
    """Return the first class that an error is of, with its facts, None where none is known.

    `exception` is the class name of what was raised, "" for a line of a log that is no traceback.
    """
    for known in load_classes():
        facts = known.facts(exception, text)
        if facts is not None:
            return known, facts
    return None
