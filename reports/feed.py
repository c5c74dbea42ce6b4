"""The feed of the nights: JSON Feed 1.1 (jsonfeed.org/version/1.1), one item a night, the last one first."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urljoin

from matrix.nightly.comparison import Kind
from matrix.nightly.record import Night
from matrix.tier import Status

VERSION = "https://jsonfeed.org/version/1.1"
SPACE = uuid.UUID("5d0c8bd5-2f0e-5f4b-9f1f-0d6c6f1f7c55")
"""The name space of the items' ids: the same night has the same id whenever the feed is made."""


def feed(nights: Sequence[Night], *, url: str = "", title: str = "verl-matrix nightly") -> dict[str, object]:
    """Return the feed as plain JSON data; with `url`, where the reports are served, it and its items link there."""
    data: dict[str, object] = {"version": VERSION, "title": title, "description": _DESCRIPTION, "language": "en"}
    if url:
        data |= {"home_page_url": urljoin(url, "nightly.html"), "feed_url": urljoin(url, "feed.json")}
    return data | {"items": [_item(night, url) for night in nights]}


_DESCRIPTION = "What changed among the combinations of verl, vLLM, torch, transformers, flash-attn, ray and tensordict."


def _item(night: Night, url: str) -> dict[str, object]:
    item: dict[str, object] = {
        "id": f"urn:uuid:{uuid.uuid5(SPACE, night.stamp)}",
        "title": _title(night),
        "content_text": "\n".join(_lines(night)),
        "date_published": night.at.isoformat(),
        "tags": sorted({str(kind) for kind, count in _counts(night).items() if count and kind != Kind.UNCHANGED}),
    }
    # Readers take items of one address for one item: each has its own.
    return item | ({"url": f"{urljoin(url, 'nightly.html')}#{night.stamp}"} if url else {})


def _counts(night: Night) -> Mapping[str, int]:
    counts = night.changes.get("counts")
    return counts if isinstance(counts, Mapping) else {}


def _title(night: Night) -> str:
    counts, planned = _counts(night), night.counts["planned"]
    works = night.counts[Status.WORKS] + night.counts[Status.DEGRADED]
    if not night.changes.get("before"):
        return f"First night: {works} of {planned} cells work as far as tried"
    new = counts.get(Kind.NEW_FAILURE, 0)
    rest = ", ".join(f"{counts.get(kind, 0)} {kind}" for kind in (Kind.FIXED, Kind.STILL_FAILING))
    return f"{new} new failure{'s' * (new != 1)}, {rest}; {works} of {planned} cells work as far as tried"


def _lines(night: Night) -> Iterator[str]:
    snapshot = night.snapshot
    as_of = f" as of {snapshot['as_of']}" if snapshot.get("as_of") else ""
    yield f"{night.counts['ran']} of {night.counts['planned']} cells ran; {snapshot.get('index')}{as_of}."
    shifts: Sequence[Mapping[str, Any]] = night.changes.get("shifts") or ()
    for shift in shifts:
        if shift["kind"] in (Kind.NEW_FAILURE, Kind.FIXED, Kind.FLAKY):
            cause = f" ({shift['cause']['line']})" if shift.get("cause") else ""
            yield f"{shift['kind']}: {shift['name']}{cause}"
    for line in night.changes.get("releases") or ():
        yield f"release: {line}"
