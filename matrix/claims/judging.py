"""Judging a claim: its checks are run, and what they find together is the verdict, with the evidence for it.

In a release in which every look supports it, a claim holds; what is looked at without going through releases counts for
all of them. It holds where it does in each, is false where it does in none, and depends where it does in some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from matrix.claims.checks import Check, Look
from matrix.claims.claim import Claim, ClaimVerdict, How
from matrix.claims.library import Library
from matrix.errors import IndexUnreachableError, MatrixError, NoSpaceError

SHOWN = 12
"""So many looks of a claim are kept; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A claim's verdict and what it rests on.

    Attributes:
        why: one line.
        looks: what was looked at, those that decided it first; `more` counts the ones left out.
        holds, fails: releases that were gone through.
        on: when the checks were run, or the sources read.
        tool: release of this tool that ran the checks, "" for a reading.
    """

    id: str
    verdict: ClaimVerdict
    how: How
    why: str
    looks: tuple[Look, ...] = ()
    more: int = 0
    holds: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()
    on: date | None = None
    tool: str = ""
    asked: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data; `from_json` gives it back."""
        return {
            "id": self.id,
            "verdict": self.verdict.value,
            "how": self.how.value,
            "why": self.why,
            "looks": [
                {"subject": x.subject, "supports": x.supports, "text": x.text, "place": x.place, "release": x.release}
                for x in self.looks
            ],
            "more": self.more,
            "holds": list(self.holds),
            "fails": list(self.fails),
            "on": self.on.isoformat() if self.on is not None else None,
            "tool": self.tool,
            "asked": list(self.asked),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Judged:
        """Return what `to_json` gave; raises KeyError, ValueError, TypeError for anything else."""
        looks, on = data["looks"], data["on"]
        if not isinstance(looks, list):
            raise TypeError("looks")
        return cls(
            id=str(data["id"]),
            verdict=ClaimVerdict(str(data["verdict"])),
            how=How(str(data["how"])),
            why=str(data["why"]),
            looks=tuple(Look(**item) for item in looks),
            more=int(str(data["more"])),
            holds=_texts(data["holds"]),
            fails=_texts(data["fails"]),
            on=date.fromisoformat(str(on)) if on is not None else None,
            tool=str(data["tool"]),
            asked=_texts(data["asked"]),
        )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def judge(claim: Claim, library: Library, on: date, tool: str) -> Judged:
    """Return the verdict on a claim: its checks are run now, a reading is taken as it stands.

    A check that cannot be run leaves the claim untested, and says why.

    Raises:
        IndexUnreachableError: the index does not answer; it is not the claim's fault.
        NoSpaceError: the cache cannot be written.
    """
    if not claim.checks:
        return unchecked(claim)
    looks: list[Look] = []
    asked = tuple(check.about for check in claim.checks)
    try:
        main = _package(claim.checks[0])
        for check in claim.checks:
            # Releases of one package are told apart; what another package must be like holds for all of them.
            looks += (look if _package(check) == main else replace(look, release="") for look in check.look(library))
    except (IndexUnreachableError, NoSpaceError):
        raise
    except MatrixError as error:
        why = f"a check could not be run: {error.what}"
        return Judged(id=claim.id, verdict=ClaimVerdict.UNTESTED, how=How.NONE, why=why, on=on, tool=tool, asked=asked)
    return weigh(claim, looks, on, tool, asked)


def _package(check: Check) -> str:
    """Return the package whose releases a check goes through; those that name none go through verl's."""
    inner = getattr(check, "check", check)
    return str(getattr(inner, "package", "") or "verl")


def unchecked(claim: Claim) -> Judged:
    """Return what is known of a claim without checks: what was read, or why nothing was tried."""
    if claim.reading is not None:
        reading = claim.reading
        return Judged(id=claim.id, verdict=reading.verdict, how=How.READING, why=reading.rests_on, on=reading.on)
    why = claim.untested or "its checks were not run yet"
    return Judged(id=claim.id, verdict=ClaimVerdict.UNTESTED, how=How.NONE, why=why)


def weigh(claim: Claim, looks: Sequence[Look], on: date, tool: str, asked: tuple[str, ...] = ()) -> Judged:
    """Return the verdict that the looks come to; without any the claim is untested."""
    if not looks:
        why = "nothing was found to look at"
        return Judged(id=claim.id, verdict=ClaimVerdict.UNTESTED, how=How.NONE, why=why, on=on, tool=tool, asked=asked)
    always = all(look.supports for look in looks if not look.release)
    by_release: dict[str, bool] = {}
    for look in looks:
        if look.release:
            by_release[look.release] = by_release.get(look.release, always) and look.supports
    holds = tuple(name for name, good in by_release.items() if good)
    fails = tuple(name for name, good in by_release.items() if not good)
    verdict = _verdict(always, holds, fails)
    if claim.beyond and verdict is ClaimVerdict.HOLDS:
        verdict = ClaimVerdict.DEPENDS
    # The newest release first: it is what people have.
    newest = {name: -place for place, name in enumerate(by_release, 1)}
    ordered = sorted(looks, key=lambda look: newest.get(look.release, 0))
    deciding = sorted(ordered, key=lambda look: look.supports is (verdict is ClaimVerdict.FALSE))
    if verdict is ClaimVerdict.DEPENDS:
        deciding = _mixed(ordered)
    return Judged(
        id=claim.id,
        verdict=verdict,
        how=How.COMPUTED,
        why=_why(verdict, deciding, holds, fails, claim.beyond),
        looks=tuple(deciding[:SHOWN]),
        more=max(0, len(looks) - SHOWN),
        holds=holds,
        fails=fails,
        on=on,
        tool=tool,
        asked=asked,
    )


def _verdict(always: bool, holds: Sequence[str], fails: Sequence[str]) -> ClaimVerdict:
    if not always or (fails and not holds):
        return ClaimVerdict.FALSE
    return ClaimVerdict.DEPENDS if fails else ClaimVerdict.HOLDS


def _mixed(looks: Sequence[Look]) -> list[Look]:
    """Return them with those for and those against in turn, so that the first few show both."""
    good = [look for look in looks if look.supports]
    bad = [look for look in looks if not look.supports]
    found: list[Look] = []
    while good or bad:
        found += [side.pop(0) for side in (bad, good) if side]
    return found


def _why(verdict: ClaimVerdict, looks: Sequence[Look], holds: Sequence[str], fails: Sequence[str], beyond: str) -> str:
    first = looks[0]
    place = f" ({first.place})" if first.place else ""
    shown = f"{first.subject}: {first.text}{place}"
    match verdict:
        case ClaimVerdict.HOLDS:
            count = f"in all {len(holds)} releases looked at; " if len(holds) > 1 else ""
            return f"{count}{shown}"
        case ClaimVerdict.FALSE:
            count = f"in none of {len(fails)} releases; " if len(fails) > 1 and not holds else ""
            return f"{count}{shown}"
        case _ if fails:
            return f"holds in {spans(holds)}, not in {spans(fails)}" + (f"; {beyond}" if beyond else "")
        case _:
            return beyond


def spans(releases: Sequence[str]) -> str:
    """Return a few releases by name, many by the first and the last of them."""
    if len(releases) <= 4:
        return ", ".join(releases)
    return f"{len(releases)} releases from {releases[0]} to {releases[-1]}"
