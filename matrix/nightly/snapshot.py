"""The snapshot: which index was asked when, what it offered, with which tools, data and machine, by their digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from matrix.cell import Axis
from matrix.errors import UnknownReleaseError
from matrix.index import PackageIndex, Release
from matrix.plan import Planned

SHORT = 16
"""So many digits of a digest are kept for a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a night rests on.

    Attributes:
        at: when the index was looked at (UTC).
        as_of: the date it was asked about; None for what it offers now.
        index: its address, without any login.
        pages: package to the digest of its releases and their files, as of the date.
        releases: `package version` to what the index has of each pinned release; None for one that it lacks.
        lattice: axis to its releases: when each was uploaded, and why it is yanked (None: it is not).
        data: our own data, by file or folder, with its digest: cells, failures, evidence.
        tools: versions of the tools that took part.
        machine: facts of this machine.
        asked: what was selected: tiers, patterns.
    """

    at: datetime
    as_of: datetime | None
    index: str
    pages: Mapping[str, str]
    releases: Mapping[str, Mapping[str, Any] | None]
    lattice: Mapping[str, Mapping[str, Mapping[str, str | None]]]
    data: Mapping[str, str]
    tools: Mapping[str, str]
    machine: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return `sha256:…` of all that the index offered: equal where no page differs."""
        return digest_of([self.index, sorted(self.pages.items())])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "at": self.at.isoformat(),
            "as_of": self.as_of.isoformat() if self.as_of else None,
            "index": self.index,
            "digest": self.digest,
            "pages": dict(self.pages),
            "releases": {name: None if held is None else dict(held) for name, held in self.releases.items()},
            "lattice": {axis: dict(releases) for axis, releases in self.lattice.items()},
            "data": dict(self.data),
            "tools": dict(self.tools),
            "machine": dict(self.machine),
            "asked": dict(self.asked),
        }


def pages_of(index: PackageIndex, packages: Iterable[str]) -> dict[str, str]:
    """Return the digest of each package's releases and files; "absent" for a package that the index does not have.

    Raises:
        IndexUnreachableError: the index does not answer.
    """
    found = {}
    for package in sorted(set(packages)):
        try:
            releases = index.project(package).releases
        except UnknownReleaseError:
            found[package] = "absent"
            continue
        found[package] = digest_of([[str(version), release.digest] for version, release in releases.items()])
    return found


def releases_of(index: PackageIndex, planned: Sequence[Planned]) -> dict[str, dict[str, Any] | None]:
    """Return what the index has of every release that a cell pins: its files by name, and whether it is yanked."""
    found: dict[str, dict[str, Any] | None] = {}
    for pin in dict.fromkeys(pin for item in planned for pin in item.cell.pins):
        try:
            release = index.project(pin.package).releases.get(pin.version)
        except UnknownReleaseError:
            release = None
        found[f"{pin.package} {pin.version}"] = None if release is None else _release(release)
    return dict(sorted(found.items()))


def _release(release: Release) -> dict[str, Any]:
    files = {
        file.filename: file.sha256[:SHORT]
        + (f" metadata {file.metadata_sha256[:SHORT]}" if file.metadata_sha256 else "")
        + (" yanked" if file.yanked is not None else "")
        for file in release.files
    }
    return {"yanked": release.yanked, "files": dict(sorted(files.items()))}


def packages_of(planned: Sequence[Planned]) -> tuple[str, ...]:
    """Return the packages whose pages a night looks at: the axes, and builds under another name that are pinned."""
    return tuple(dict.fromkeys([*(axis.value for axis in Axis), *(p.package for i in planned for p in i.cell.pins)]))


def data_digest(*paths: Path) -> str:
    """Return `sha256:…` of files, and of all data files in folders, by content and name; "" where there are none."""
    files: list[Path] = []
    for path in paths:
        files += sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    body = hashlib.sha256()
    for file in files:
        if file.suffix in (".toml", ".jsonl", ".csv"):
            body.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return f"sha256:{body.hexdigest()}" if files else ""


def digest_of(data: object) -> str:
    """Return `sha256:…` of JSON data."""
    return "sha256:" + hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
