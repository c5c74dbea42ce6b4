"""The section of the report about claims: statement, verdict and evidence, as plain JSON (docs/claims.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.claims.claim import TITLES, Claim, ClaimVerdict, Guide, How, Topic
from matrix.claims.judging import Judged
from matrix.claims.loading import load_claims, load_guides
from matrix.claims.results import SHIPPED, known

if TYPE_CHECKING:
    from matrix.job import RunResult


def section(result: RunResult | None = None, stored: Path | None = None) -> dict[str, object] | None:
    """Return what is known of every claim, None where none is recorded.

    `result` is not looked at: claims are about releases, and no cell of a run changes them. `stored` is a file of
    later results (`HOME/store/claims.json`).
    """
    claims = load_claims()
    if not claims:
        return None
    paths = (SHIPPED,) if stored is None else (SHIPPED, stored)
    return data(claims, known(claims, *paths), load_guides())


def data(claims: Sequence[Claim], found: Sequence[Judged], guides: Mapping[str, Guide]) -> dict[str, object]:
    """Return claims and verdicts as plain JSON data, with the counts that they are part of."""
    verdicts, hows = Counter(item.verdict for item in found), Counter(item.how for item in found)
    topics = Counter(claim.topic for claim in claims)
    days = [item.on.isoformat() for item in found if item.on is not None and item.how is How.COMPUTED]
    return {
        "schema": 1,
        "checked": max(days, default=""),
        "tool": max((item.tool for item in found), default=""),
        "counts": {word.value: verdicts[word] for word in ClaimVerdict},
        "hows": {word.value: hows[word] for word in How},
        "guides": [
            {
                "id": guide.id,
                "title": guide.title,
                "about": guide.about,
                "published": guide.published,
                "language": guide.language,
                "address": guide.address,
            }
            for guide in guides.values()
        ],
        "topics": [{"id": word.value, "title": TITLES[word], "count": topics[word]} for word in Topic],
        "claims": [_row(claim, judged) for claim, judged in zip(claims, found, strict=True)],
    }


def _row(claim: Claim, judged: Judged) -> dict[str, object]:
    return {
        "id": claim.id,
        "topic": claim.topic.value,
        "statement": claim.statement,
        "guide": claim.guide,
        "section": claim.section,
        "verdict": judged.verdict.value,
        "how": judged.how.value,
        "why": judged.why,
        "beyond": claim.beyond,
        "asked": list(judged.asked),
        "evidence": [
            {"text": look.text, "subject": look.subject, "place": look.place, "supports": look.supports}
            for look in judged.looks
        ],
        "more": judged.more,
        "releases": {"holds": list(judged.holds), "fails": list(judged.fails)},
        "failures": list(claim.failures),
        "pairings": list(claim.pairings),
        "instead": claim.instead,
        "checked": judged.on.isoformat() if judged.on is not None else "",
    }
