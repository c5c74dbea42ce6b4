"""The real package index: simple API pages, metadata and archives, over HTTP and through the cache on disk."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.cache import Cache
from matrix.cell import Axis, Platform
from matrix.errors import IndexUnreachableError, UnknownReleaseError, UsageError
from matrix.index import Archive, File, Metadata, Project, Release
from matrix.index.fetch import Fetcher
from matrix.index.login import shown
from matrix.index.page import ACCEPT, NotAPageError, files
from matrix.index.tags import best_wheel, why_no_wheel
from matrix.nearness import near_names, near_versions

PYPI = "https://pypi.org/simple"
PAGE_MAX_AGE = 600.0
_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """A page as it was sent, and when (seconds since the epoch)."""

    body: bytes
    content_type: str
    fetched: float
    etag: str = ""
    modified: str = ""

    def to_bytes(self) -> bytes:
        head = {"type": self.content_type, "fetched": self.fetched, "etag": self.etag, "modified": self.modified}
        return json.dumps(head).encode() + b"\n" + self.body

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        head, _, body = content.partition(b"\n")
        values = json.loads(head)
        return cls(
            body=body,
            content_type=values["type"],
            fetched=values["fetched"],
            etag=values["etag"],
            modified=values["modified"],
        )


class SimpleIndex:
    """A `PackageIndex` over one simple index (PEP 503, 592, 658, 691, 700); safe for threads.

    A project's page is asked for at most once in a process, and not at all while the copy on disk is younger than
    `page_max_age` seconds. Metadata and members are kept for ever by their file's digest. With `as_of`, files that were
    uploaded later are not there.
    """

    def __init__(
        self,
        *,
        cache_dir: Path,
        url: str = PYPI,
        page_max_age: float = PAGE_MAX_AGE,
        offline: bool = False,
        as_of: datetime | None = None,
        known: Iterable[str] = (),
        fetcher: Fetcher | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Touch neither network nor disk yet; `known` are more names to offer for one that does not exist."""
        if urlsplit(url).scheme not in ("http", "https"):
            raise UsageError(
                f"The index {shown(url)} is not an http or https address.", then="Give one like " + PYPI + "."
            )
        self.cache = Cache(cache_dir)
        self.fetcher = fetcher or Fetcher(offline=offline)
        self.url = self.fetcher.logins.remember(url).rstrip("/")
        self._offline = offline
        self._page_max_age = page_max_age
        self._as_of = as_of if as_of is None or as_of.tzinfo else as_of.replace(tzinfo=UTC)
        self._known = (*(axis.value for axis in Axis), *known)
        self._clock = clock
        self._projects: dict[str, Project | UnknownReleaseError] = {}
        self._archives: WeakValueDictionary[str, Archive] = WeakValueDictionary()
        self._metadata: dict[str, Metadata] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_environment(
        cls,
        *,
        cache_dir: Path,
        environ: Mapping[str, str] | None = None,
        offline: bool = False,
        as_of: datetime | None = None,
        page_max_age: float = PAGE_MAX_AGE,
        known: Iterable[str] = (),
        fetcher: Fetcher | None = None,
    ) -> Self:
        """Return the index that UV_DEFAULT_INDEX, UV_INDEX_URL or PIP_INDEX_URL names (the first set), else PyPI."""
        variables = os.environ if environ is None else environ
        url = next((variables[name] for name in _VARIABLES if variables.get(name)), PYPI)
        return cls(
            cache_dir=cache_dir,
            url=url,
            offline=offline,
            as_of=as_of,
            page_max_age=page_max_age,
            known=known,
            fetcher=fetcher,
        )

    def project(self, name: str) -> Project:
        """Return the project; raises UnknownReleaseError with near names, IndexUnreachableError."""
        project = str(canonicalize_name(name))
        with self._named_lock(f"project {project}"):
            if project not in self._projects:
                self._projects[project] = self._read_project(project)
            found = self._projects[project]
        if isinstance(found, UnknownReleaseError):
            raise UnknownReleaseError(name, near=found.near, then=found.then)
        return found

    def require_release(self, project: str, version: Version) -> Release:
        """Return the release; raises UnknownReleaseError with the nearest versions that exist."""
        releases = self.project(project).releases
        if (release := releases.get(version)) is not None:
            return release
        then = "" if self._as_of is None else f"Only what was there on {self._as_of:%Y-%m-%d %H:%M} UTC counts."
        raise UnknownReleaseError(f"{project} {version}", near=near_versions(version, releases), then=then)

    def best_file(self, release: Release, platform: Platform) -> File | None:
        """Return the wheel that an installer takes on the platform, else None."""
        return best_wheel(release, platform)

    def why_no_file(self, release: Release, platform: Platform) -> str:
        """Return, in one line, why `best_file` finds nothing; "" where it finds a wheel."""
        return why_no_wheel(release, platform)

    def metadata(self, file: File) -> Metadata:
        """Return the core metadata of a wheel or sdist; raises IndexUnreachableError, CorruptFileError."""
        from matrix.index.metadata import read_metadata

        with self._named_lock(f"metadata {file.key}"):
            if file.key not in self._metadata:
                self._metadata[file.key] = read_metadata(file, self.fetcher, self.cache, self.archive)
            return self._metadata[file.key]

    def archive(self, file: File) -> Archive:
        """Return the file's members for piecewise reading; the same object while somebody holds it."""
        from matrix.index.sdist import SdistArchive
        from matrix.index.wheel import WheelArchive

        with self._lock:
            archive = self._archives.get(file.key)
            if archive is None:
                kind = WheelArchive if file.is_wheel else SdistArchive
                archive = self._archives[file.key] = kind(file, self.fetcher, self.cache)
            return archive

    def _named_lock(self, name: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(name, threading.Lock())

    def _read_project(self, project: str) -> Project | UnknownReleaseError:
        url = f"{self.url}/{project}/"
        page = self._page(url)
        if page is None:
            near = near_names(project, (name for name in self._known if name != project))
            return UnknownReleaseError(
                project, near=near, then=f"{shown(url)} is not there; --index-url names another."
            )
        try:
            found = files(project, url, page.content_type, page.body)
        except NotAPageError as error:
            self.cache.drop("page", url)
            raise IndexUnreachableError(
                f"{shown(url)} is not a page of a package index: {error}.",
                why="The address may be wrong, or a proxy or login page answers in its place.",
                then="Open it in a browser; set UV_DEFAULT_INDEX to an index's simple address, like " + PYPI + ".",
            ) from error
        by_version: dict[Version, list[File]] = {}
        for file in found:
            if self._as_of is None or file.uploaded <= self._as_of:
                by_version.setdefault(file.version, []).append(file)
        releases = {
            version: Release(project=project, version=version, files=tuple(by_version[version]))
            for version in sorted(by_version)
        }
        return Project(name=project, releases=releases)

    def _page(self, url: str) -> _Page | None:
        """Return the page from disk while it is fresh, else from the index; None when there is no such project."""
        kept = self.cache.get("page", url)
        page = _Page.from_bytes(kept) if kept is not None else None
        age = self._clock() - page.fetched if page is not None else None
        if page is not None and age is not None and (self._offline or 0 <= age < self._page_max_age):
            return page
        asked = {"Accept": ACCEPT, "Accept-Encoding": "gzip"}
        if page is not None and page.etag:
            asked["If-None-Match"] = page.etag
        if page is not None and page.modified:
            asked["If-Modified-Since"] = page.modified
        reply = self.fetcher.page(url, asked)
        if reply.status in (404, 410):
            self.cache.drop("page", url)
            return None
        same = page if reply.status == 304 else None
        fresh = _Page(
            body=same.body if same is not None else reply.body,
            content_type=same.content_type if same is not None else reply.headers.get("content-type", ""),
            fetched=self._clock(),
            etag=reply.headers.get("etag", same.etag if same is not None else ""),
            modified=reply.headers.get("last-modified", same.modified if same is not None else ""),
        )
        self.cache.put("page", url, fresh.to_bytes())
        return fresh
