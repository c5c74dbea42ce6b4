"""A project's page on a simple index, as JSON (PEP 691) or HTML (PEP 503), read into files.

What cannot be read is left out: a file whose name is none of a wheel or sdist (an egg, an installer), or whose version
is not one (PEP 440).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from matrix.index import UNKNOWN_UPLOAD, File

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_SDISTS = (".tar.gz", ".zip")


class NotAPageError(ValueError):
    """The content is neither of the two kinds of page."""


def files(project: str, url: str, content_type: str, body: bytes) -> tuple[File, ...]:
    """Return the files of the page at `url`, in its order; raises NotAPageError."""
    if "json" in content_type:
        rows: Iterable[Mapping[str, object]] = _json_rows(body)
    elif "html" in content_type or body.lstrip()[:1] == b"<":
        rows = _html_rows(body.decode("utf-8", "replace"))
    else:
        raise NotAPageError(f"a page of type {content_type or 'unknown'}")
    found = (_file(project, url, row) for row in rows)
    return tuple(file for file in found if file is not None)


def _json_rows(body: bytes) -> list[Mapping[str, object]]:
    try:
        page = json.loads(body)
        version = str(page.get("meta", {}).get("api-version", "1.0"))
        rows = page["files"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotAPageError("not a JSON page of a simple index") from error
    if version.partition(".")[0] != "1":
        raise NotAPageError(f"version {version} of the simple API, which this release does not know")
    if not isinstance(rows, list):
        raise NotAPageError("`files` is not a list")
    return [row for row in rows if isinstance(row, dict)]


def _html_rows(text: str) -> Iterator[Mapping[str, object]]:
    """Yield each link as the row that JSON would have."""
    parser = _Links()
    parser.feed(text)
    parser.close()
    for link in parser.links:
        address, fragment = urldefrag(link["href"])
        kind, _, digest = fragment.partition("=")
        metadata = link.get("data-core-metadata", link.get("data-dist-info-metadata"))
        yield {
            "filename": unquote(urlsplit(address).path.rpartition("/")[2]),
            "url": urljoin(parser.base, address),
            "hashes": {kind: digest} if digest else {},
            "requires-python": link.get("data-requires-python", ""),
            "yanked": link["data-yanked"] or True if "data-yanked" in link else False,
            "core-metadata": _html_metadata(metadata),
        }


def _html_metadata(value: str | None) -> object:
    if value is None:
        return False
    kind, _, digest = value.partition("=")
    return {kind: digest} if digest else value == "true"


class _Links(HTMLParser):
    """Collects the attributes of every link, and the page's base."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[dict[str, str]] = []
        self.base = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "base" and not self.base:
            self.base = values.get("href", "")
        if tag == "a" and values.get("href"):
            self.links.append(values)


def _file(project: str, page: str, row: Mapping[str, object]) -> File | None:
    """Return the file that a row of the page describes, None where its name or version cannot be read."""
    filename, url = row.get("filename"), row.get("url")
    if not isinstance(filename, str) or not isinstance(url, str):
        return None
    split = split_filename(project, filename)
    if split is None:
        return None
    version, tags = split
    yanked, hashes, size = row.get("yanked"), row.get("hashes"), row.get("size")
    metadata = row.get("core-metadata", row.get("dist-info-metadata", row.get("data-dist-info-metadata")))
    return File(
        filename=filename,
        url=url if url.startswith(("https://", "http://")) else urljoin(page, url),
        sha256=str(hashes.get("sha256", "")).lower() if isinstance(hashes, dict) else "",
        version=version,
        uploaded=_moment(row.get("upload-time")),
        size=size if isinstance(size, int) else None,
        requires_python=str(row.get("requires-python") or ""),
        yanked=yanked if isinstance(yanked, str) and yanked else "" if yanked else None,
        has_metadata=bool(metadata),
        metadata_sha256=str(metadata.get("sha256", "")) if isinstance(metadata, dict) else "",
        tags=tags,
    )


def split_filename(project: str, filename: str) -> tuple[Version, str] | None:
    """Return the version and tags ("" for an sdist) that a file's name states, None for a name of another kind."""
    if filename.endswith(".whl"):
        parts = filename[:-4].split("-")
        if len(parts) not in (5, 6) or not _same(project, parts[0]) or (len(parts) == 6 and not parts[2][:1].isdigit()):
            return None
        version = _version(parts[1])
        return None if version is None else (version, "-".join(parts[-3:]))
    suffix = next((suffix for suffix in _SDISTS if filename.endswith(suffix)), None)
    if suffix is None:
        return None
    stem = filename.removesuffix(suffix)
    # Old sdists keep the dashes of their names, so the name is what is left before some dash.
    for at in (at for at, letter in enumerate(stem) if letter == "-"):
        if _same(project, stem[:at]) and (version := _version(stem[at + 1 :])) is not None:
            return version, ""
    return None


@lru_cache(maxsize=4096)
def _same(project: str, name: str) -> bool:
    return bool(canonicalize_name(name) == project)


@lru_cache(maxsize=16384)
def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _moment(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return UNKNOWN_UPLOAD
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
