"""What is known of a key beyond its name: `wiring.toml`, whose entries each have a range of releases and a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from matrix.datafile import Table, read

WIRING = Path(__file__).with_name("wiring.toml")


class Says(StrEnum):
    """What an entry says of a key: accepted and not read; another key works; it depends; it has another name."""

    INERT = "inert"
    MOVED = "moved"
    CONDITIONAL = "conditional"
    RENAMED = "renamed"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One fact on a key, and the releases of verl in which it holds; `to` is what to set instead, "" for nothing."""

    key: str
    releases: SpecifierSet
    says: Says
    why: str
    source: str
    to: str = ""

    def is_about(self, key: str, version: Version) -> bool:
        """Return whether this entry tells something of `key` in that release."""
        stem = self.key.removesuffix(".*")
        named = key == self.key or (stem != self.key and key.startswith(f"{stem}."))
        return named and self.releases.contains(version, prereleases=True)

    def instead_of(self, key: str) -> str:
        """Return what to set instead of `key`: `to`, and for an entry on a whole node what stands below it."""
        stem = self.key.removesuffix(".*")
        return self.to + key.removeprefix(stem) if stem != self.key else self.to


def load_wiring(path: Path = WIRING) -> tuple[Wire, ...]:
    """Return the entries of the file; raises DataError, NewerSchemaError."""
    whole = read(path)
    found = tuple(_wire(table) for table in whole.tables("key"))
    whole.end()
    return found


def _wire(table: Table) -> Wire:
    text, says = table.text("releases"), table.text("says")
    try:
        releases = SpecifierSet("" if text == "all" else text)
        wire = Wire(
            key=table.text("key"),
            releases=releases,
            says=Says(says),
            why=table.text("why"),
            source=table.text("source"),
            to=table.text("to", ""),
        )
    except InvalidSpecifier:
        raise table.error("releases", f"`{text}` is not a range like >=0.8,<0.9") from None
    except ValueError:
        raise table.error("says", f"`{says}` is none of {', '.join(Says)}") from None
    table.end()
    return wire


def about(key: str, version: Version, wiring: Sequence[Wire]) -> tuple[Wire, ...]:
    """Return the entries that tell something of `key` in that release."""
    return tuple(wire for wire in wiring if wire.is_about(key, version))
