"""What packages that come as source only depend on, from `sdists.toml`: uv is told, so that nothing is built."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from matrix.errors import DataError

PATH = Path(__file__).with_name("sdists.toml")
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdist:
    """The dependencies of some releases of one package.

    Either `versions` lists the releases, or `since` is the first of an open range; then uv is given one statement for
    every release that no other entry lists. `source` says in which files it was read, `checked` when.
    """

    name: str
    requires: tuple[Requirement, ...]
    source: str
    checked: date
    versions: tuple[Version, ...] = ()
    since: Version | None = None

    def covers(self, version: Version) -> bool:
        """Return whether this entry speaks of that release."""
        return version in self.versions or (self.since is not None and version >= self.since)


@dataclass(frozen=True, slots=True, kw_only=True)
class SdistTable:
    """The whole data file; `digest` changes whenever a statement does."""

    sdists: tuple[Sdist, ...]
    digest: str

    def find(self, name: str, version: Version) -> Sdist | None:
        """Return the entry for that release of `name` (as the index spells it), or None."""
        return next((entry for entry in self.sdists if entry.name == name and entry.covers(version)), None)

    def uv_config(self) -> str:
        """Return the entries as uv's `dependency-metadata` tables (uv.toml)."""
        blocks = []
        for entry in self.sdists:
            requires = json.dumps([str(requirement) for requirement in entry.requires])
            for version in entry.versions or (None,):
                lines = ["[[dependency-metadata]]", f"name = {json.dumps(entry.name)}"]
                lines += [f"version = {json.dumps(str(version))}"] if version is not None else []
                blocks.append("\n".join([*lines, f"requires-dist = {requires}"]))
        return "\n\n".join(blocks) + "\n"


def load_sdists(path: Path = PATH) -> SdistTable:
    """Return the table in `path`; raises DataError with the path and the field for whatever is wrong in it."""
    try:
        text = path.read_bytes()
        data = tomllib.loads(text.decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(path, "", str(error)) from error
    if data.get("schema") != SCHEMA:
        raise DataError(path, "schema", f"expected {SCHEMA}, found {data.get('schema')!r}")
    entries = data.get("sdist", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(path, "sdist", "expected tables")
    sdists = tuple(_sdist(path, f"sdist[{at}]", entry) for at, entry in enumerate(entries))
    return SdistTable(sdists=sdists, digest="sha256:" + hashlib.sha256(text).hexdigest())


def _sdist(path: Path, where: str, entry: Mapping[str, object]) -> Sdist:
    """Return one checked entry."""
    unknown = set(entry) - {"name", "versions", "since", "requires", "source", "checked"}
    if unknown:
        raise DataError(path, where, f"unknown fields: {', '.join(sorted(unknown))}")
    checked = entry.get("checked")
    if not isinstance(checked, date):
        raise DataError(path, f"{where}.checked", f"expected a date, found {checked!r}")
    if ("versions" in entry) == ("since" in entry):
        raise DataError(path, where, "expected either `versions` or `since`")
    try:
        versions = tuple(Version(text) for text in _texts(path, f"{where}.versions", entry.get("versions", [])))
        since = Version(_text(path, f"{where}.since", entry["since"])) if "since" in entry else None
        requires = tuple(Requirement(text) for text in _texts(path, f"{where}.requires", entry.get("requires")))
    except (InvalidVersion, InvalidRequirement) as error:
        raise DataError(path, where, str(error)) from error
    return Sdist(
        name=_text(path, f"{where}.name", entry.get("name")),
        requires=requires,
        source=_text(path, f"{where}.source", entry.get("source")),
        checked=checked,
        versions=versions,
        since=since,
    )


def _text(path: Path, where: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise DataError(path, where, f"expected text, found {value!r}")
    return value


def _texts(path: Path, where: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DataError(path, where, f"expected a list of texts, found {value!r}")
    return value
