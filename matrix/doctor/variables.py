"""Environment variables that are known to hurt a run (`variables.toml`)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from matrix.datafile import Table, read
from matrix.doctor.checkup import Check, Grade, ok
from matrix.doctor.machine import VARIABLES

_FILE = Path(__file__).with_name("variables.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Harmful:
    """A variable with the values that hurt, and of which installed versions that is known (empty: of any)."""

    name: str
    value: re.Pattern[str]
    grade: Grade
    why: str
    then: str
    versions: Mapping[str, SpecifierSet]
    source: str
    checked: date

    def hurts(self, variables: Mapping[str, str], versions: Mapping[str, Version | None]) -> bool:
        """Return whether it is set to a value that hurts the installed versions."""
        value = variables.get(self.name)
        if not value or not self.value.search(value):
            return False
        for package, wanted in self.versions.items():
            version = versions.get(package)
            if version is None or not wanted.contains(version, prereleases=True):
                return False
        return True


@functools.cache
def load_harmful(path: Path = _FILE) -> tuple[Harmful, ...]:
    """Return the variables of the file; raises DataError."""
    whole = read(path)
    found = tuple(_harmful(table) for table in whole.tables("variable"))
    whole.end()
    return found


def _harmful(table: Table) -> Harmful:
    ranges = table.table("versions") if table.has("versions") else None
    try:
        value = re.compile(table.text("value"))
        versions = {name: SpecifierSet(ranges.text(name)) for name in ranges.values} if ranges is not None else {}
        grade = Grade(table.text("grade"))
    except (re.error, InvalidSpecifier, ValueError) as error:
        raise table.error("", str(error)) from None
    found = Harmful(
        name=table.text("name"),
        value=value,
        grade=grade,
        why=table.text("why"),
        then=table.text("then"),
        versions=versions,
        source=table.text("source"),
        checked=table.moment("checked").date(),
    )
    table.end()
    return found


def check_variables(variables: Mapping[str, str], versions: Mapping[str, Version | None]) -> Iterator[Check]:
    """Yield a check for each variable that hurts, or one that says that none does."""
    hurting = [item for item in load_harmful() if item.hurts(variables, versions)]
    for item in hurting:
        value = variables[item.name]
        yield Check(topic=VARIABLES, grade=item.grade, what=f"{item.name}={value[:100]}", why=item.why, then=item.then)
    if not hurting:
        yield ok(VARIABLES, f"none of {len(load_harmful())} variables that are known to hurt is set so")
