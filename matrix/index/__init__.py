"""What a package index offers: projects, releases and files, and how they are read.

Types and the `PackageIndex` protocol live here so that tests can put a small fake in the place of the network
(`tests/unit/fakes.py`); `matrix.index.simple` is the real one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.cell import Platform

# HTML pages (PEP 503) carry no upload time. A file of unknown age counts as newer than any date asked about, so that
# `as_of` hides it, which is what uv's --exclude-newer does.
UNKNOWN_UPLOAD = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a release. `tags` is "" for an sdist.

    `sha256` is hex, "" where the index states none; `size` is in bytes where the index tells; `yanked` is the reason;
    `has_metadata` says that `url` + ".metadata" may be asked for (PEP 658), `metadata_sha256` what it must match.
    """

    filename: str
    url: str
    sha256: str
    version: Version
    uploaded: datetime
    size: int | None = None
    requires_python: str = ""
    yanked: str | None = None
    has_metadata: bool = False
    metadata_sha256: str = ""
    tags: str = ""

    @property
    def is_wheel(self) -> bool:
        """Return whether this is a wheel (else it is an sdist)."""
        return self.filename.endswith(".whl")

    @property
    def digest(self) -> str:
        """Return `sha256:<hex>` as the index states it, else `url:<hex of the url's digest>`."""
        return f"sha256:{self.sha256}" if self.sha256 else f"url:{hashlib.sha256(self.url.encode()).hexdigest()}"

    @property
    def key(self) -> str:
        """Return the word that names this file's content in the cache."""
        return self.digest.replace(":", "-").removeprefix("sha256-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One version of a project and its files; never without a file."""

    project: str
    version: Version
    files: tuple[File, ...]

    @property
    def uploaded(self) -> datetime:
        """Return when its first file appeared (UTC)."""
        return min(file.uploaded for file in self.files)

    @property
    def yanked(self) -> str | None:
        """Return the reason ("" when none is given) when every file is yanked, else None."""
        reasons = [file.yanked for file in self.files]
        return next((reason for reason in reasons if reason), "") if all(r is not None for r in reasons) else None

    @property
    def sdist(self) -> File | None:
        """Return the sdist, a tar.gz before a zip, or None where there are wheels only."""
        sdists = sorted((file for file in self.files if not file.is_wheel), key=lambda file: file.filename)
        return sdists[0] if sdists else None

    @property
    def digest(self) -> str:
        """Return a digest that changes when a file of this release is added, replaced or yanked."""
        lines = sorted(f"{file.filename} {file.sha256} {file.yanked is not None}" for file in self.files)
        return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """All releases of a package, by version, oldest first."""

    name: str
    releases: Mapping[Version, Release]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What resolution needs of a release's core metadata; `requires` in file order, extras still marked.

    `notes` are lines for people about what could not be read as written (an invalid requirement is left out). `static`
    is False for an sdist that does not promise that a build gives the same requirements.
    """

    name: str
    version: Version
    requires: tuple[Requirement, ...]
    requires_python: SpecifierSet
    extras: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    static: bool = True


class Archive(Protocol):
    """The members of one wheel or sdist, read piecewise; member paths are relative to site-packages."""

    @property
    def filename(self) -> str:
        """Return the file's name."""

    @property
    def digest(self) -> str:
        """Return `sha256:<hex>` of the whole file as the index states it."""

    @property
    def bytes_read(self) -> int:
        """Return how many bytes came over the network for it so far, in this process."""

    def names(self) -> Sequence[str]:
        """Return the path of every member (files only)."""

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the content of these members; raises KeyError for one that is not there."""


class PackageIndex(Protocol):
    """Where releases come from."""

    def project(self, name: str) -> Project:
        """Return the project; raises UnknownReleaseError or IndexUnreachableError."""

    def require_release(self, project: str, version: Version) -> Release:
        """Return the release; raises UnknownReleaseError with the nearest versions that exist."""

    def metadata(self, file: File) -> Metadata:
        """Return the core metadata of a wheel or sdist; raises IndexUnreachableError, CorruptFileError."""

    def archive(self, file: File) -> Archive:
        """Return the file's members for piecewise reading."""

    def best_file(self, release: Release, platform: Platform) -> File | None:
        """Return the wheel that an installer would take on `platform`, else None (an sdist is never taken)."""

    def why_no_file(self, release: Release, platform: Platform) -> str:
        """Return, in one line, why `best_file` finds nothing on `platform`; "" where it finds a wheel."""
