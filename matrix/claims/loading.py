"""The records of claims: `matrix/claims/*.toml`, one file a topic, read and checked; and the guides they stand in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from matrix.claims.checks import Check, Look, Reader, readers
from matrix.claims.claim import Claim, ClaimVerdict, Guide, Reading, Topic
from matrix.datafile import Table, read

if TYPE_CHECKING:
    from matrix.claims.library import Library

FOLDER = Path(__file__).parent
GUIDES = "guides.toml"
_ID = re.compile(r"[A-Z]\d{3}")
_BY_READING = (ClaimVerdict.HOLDS, ClaimVerdict.DEPENDS, ClaimVerdict.FALSE, ClaimVerdict.NOT_CHECKABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """A check whose finding speaks against the claim: `not = true` in its table."""

    check: Check

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"it is not so that {self.check.about}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield the looks of the check, each the other way round."""
        for found in self.check.look(library):
            yield replace(found, supports=not found.supports)


def load_guides(folder: Path = FOLDER) -> Mapping[str, Guide]:
    """Return the guides by id; raises DataError, NewerSchemaError."""
    whole = read(folder / GUIDES)
    found = {}
    for table in whole.tables("guide"):
        guide = Guide(
            id=table.text("id"),
            title=table.text("title"),
            about=table.text("about"),
            published=table.text("published"),
            language=table.text("language"),
            address=table.text("address", ""),
        )
        table.end()
        found[guide.id] = guide
    whole.end()
    return found


def load_claims(paths: Sequence[Path] = (), folder: Path = FOLDER) -> tuple[Claim, ...]:
    """Return the records of the files (by default those shipped), sorted by id.

    Raises:
        DataError: a file cannot be read, a check is of no known kind, a record has neither check nor reading nor a
            reason, or an id is used twice; the message has path and field.
        NewerSchemaError: a file was written for a newer release of this tool.
    """
    guides, kinds = load_guides(folder), readers()
    found: dict[str, Claim] = {}
    for path in paths or sorted(folder / f"{topic.value}.toml" for topic in Topic):
        whole = read(path)
        topic = _topic(whole)
        for table in whole.tables("claim"):
            claim = _claim(table, topic, guides, kinds)
            if claim.id in found:
                raise table.error("id", f"`{claim.id}` is recorded twice")
            found[claim.id] = claim
        whole.end()
    return tuple(found[name] for name in sorted(found))


def _topic(whole: Table) -> Topic:
    text = whole.text("topic")
    try:
        return Topic(text)
    except ValueError:
        raise whole.error("topic", f"`{text}` is none of {', '.join(Topic)}") from None


def _claim(table: Table, topic: Topic, guides: Mapping[str, Guide], kinds: Mapping[str, Reader]) -> Claim:
    claim = Claim(
        id=table.text("id"),
        topic=topic,
        statement=table.text("statement"),
        guide=table.text("guide"),
        section=table.text("section"),
        checks=tuple(_check(inner, kinds) for inner in table.tables("check")),
        reading=_reading(table.table("reading")) if table.has("reading") else None,
        untested=table.text("untested", ""),
        beyond=table.text("beyond", ""),
        failures=table.texts("failures", ()),
        pairings=table.texts("pairings", ()),
        instead=table.text("instead", ""),
    )
    table.end()
    if not _ID.fullmatch(claim.id):
        raise table.error("id", f"`{claim.id}` is not a capital letter and three digits")
    if claim.guide not in guides:
        raise table.error("guide", f"`{claim.guide}` is none of {', '.join(guides)}")
    ways = [bool(claim.checks), claim.reading is not None, bool(claim.untested)]
    if sum(ways) != 1:
        raise table.error("check", "needs checks, or a reading, or `untested` with the reason, and one of them only")
    return claim


def _reading(table: Table) -> Reading:
    text = table.text("verdict")
    if text not in {word.value for word in _BY_READING}:
        raise table.error("verdict", f"`{text}` is none of {', '.join(_BY_READING)}")
    reading = Reading(verdict=ClaimVerdict(text), rests_on=table.text("rests_on"), on=table.moment("on").date())
    table.end()
    return reading


def _check(table: Table, kinds: Mapping[str, Reader]) -> Check:
    kind = table.text("kind")
    if kind not in kinds:
        raise table.error("kind", f"`{kind}` is none of {', '.join(sorted(kinds))}")
    denied = table.flag("not", False)
    check = kinds[kind](table)
    table.end()
    releases = getattr(check, "releases", "all")
    if releases != "all" and not all(word[:1].isdigit() for word in releases.split()):
        try:
            SpecifierSet(releases)
        except InvalidSpecifier:
            raise table.error("releases", f"`{releases}` is neither `all`, a range nor versions") from None
    return Denied(check=check) if denied else check
