"""Bisection: the first bad release of an axis, between one that is good and one that is bad.

The releases are taken to be good up to some point and bad from there on. A release that cannot be judged (no wheel, a
conflict, untested) is a hole: it is passed over, and where holes touch the boundary a range is reported, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar, assert_never

from packaging.version import Version

from matrix.cell import Axis
from matrix.errors import UnknownReleaseError, UsageError
from matrix.nearness import near_versions
from matrix.tier import Outcome, Tier

EvidenceT = TypeVar("EvidenceT")


class Grade(StrEnum):
    """What one release is, for bisection."""

    GOOD = "good"
    BAD = "bad"
    HOLE = "hole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[EvidenceT]):
    """What asking about a release gave: its grade, one line that says why, and the evidence (an observation, say)."""

    grade: Grade
    evidence: EvidenceT
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection(Generic[EvidenceT]):
    """Where an axis turns bad.

    Attributes:
        axis: the axis that was searched.
        last_good: the newest release that was seen good below every release seen bad.
        lowest_bad: the oldest release that was seen bad above `last_good`.
        bad: the answer about `lowest_bad`, with its evidence.
        candidates: the releases of which one is the first bad one, oldest first; the last of them is `lowest_bad`.
        holes: the releases that were asked about and could not be judged, with the reason.
        asked: every release that was asked about, in order.
        warnings: what speaks against the assumption that good comes before bad.
    """

    axis: Axis
    last_good: Version
    lowest_bad: Version
    bad: Answer[EvidenceT]
    candidates: tuple[Version, ...]
    holes: Mapping[Version, str]
    asked: tuple[Version, ...]
    warnings: tuple[str, ...] = ()

    @property
    def first_bad(self) -> Version | None:
        """Return the first bad release, or None when holes leave several candidates."""
        return self.lowest_bad if len(self.candidates) == 1 else None

    @property
    def line(self) -> str:
        """Return the result in one line for people."""
        reason = f": {self.bad.reason}" if self.bad.reason else ""
        if self.first_bad is not None:
            return f"{self.axis.value} {self.first_bad} is the first bad release{reason}"
        among = ", ".join(map(str, self.candidates))
        return f"the first bad release of {self.axis.value} is one of {among}; {self.lowest_bad} is bad{reason}"

    @property
    def data(self) -> dict[str, object]:
        """Return plain JSON data, without the evidence, which its owner renders."""
        return {
            "axis": self.axis.value,
            "first_bad": str(self.first_bad) if self.first_bad is not None else None,
            "last_good": str(self.last_good),
            "lowest_bad": str(self.lowest_bad),
            "reason": self.bad.reason,
            "candidates": [str(version) for version in self.candidates],
            "holes": {str(version): reason for version, reason in self.holes.items()},
            "asked": [str(version) for version in self.asked],
            "warnings": list(self.warnings),
        }


def grade(outcome: Outcome, tier: Tier) -> Grade:
    """Return what an outcome at `tier` means for bisection.

    `degraded` still runs, so it is good. A conflict is the very thing searched for at tier `resolve`; at a deeper tier
    it only means that the release could not be tried.
    """
    match outcome:
        case Outcome.OK | Outcome.DEGRADED:
            return Grade.GOOD
        case Outcome.BROKEN:
            return Grade.BAD
        case Outcome.CONFLICT | Outcome.BACKTRACKED:
            return Grade.BAD if tier is Tier.RESOLVE else Grade.HOLE
        case Outcome.UNAVAILABLE | Outcome.UNTESTED:
            return Grade.HOLE
        case _:
            assert_never(outcome)


@dataclass(slots=True, kw_only=True)
class _Asker(Generic[EvidenceT]):
    """Asks about a release once; what is known beforehand is not asked again."""

    ask: Callable[[Version], Answer[EvidenceT]]
    known: dict[Version, Answer[EvidenceT]]
    asked: list[Version] = field(default_factory=list)

    def answer(self, version: Version) -> Answer[EvidenceT]:
        if version not in self.known:
            self.asked.append(version)
            self.known[version] = self.ask(version)
        return self.known[version]

    def graded(self, version: Version, wanted: Grade) -> bool:
        return version in self.known and self.known[version].grade is wanted


def bisect(
    axis: Axis,
    releases: Sequence[Version],
    good: Version,
    bad: Version,
    ask: Callable[[Version], Answer[EvidenceT]],
    *,
    known: Mapping[Version, Answer[EvidenceT]] | None = None,
) -> Bisection[EvidenceT]:
    """Return where `axis` turns bad between `good` and `bad`, which are both asked about first.

    The middle of the releases not judged yet is asked next, so of n releases in between with h holes at most
    floor(log2(n)) + 1 + h are asked about, and the two ends. `known` answers cost no question and can show that the
    assumption does not hold.

    Raises:
        UsageError: `good` is not older than `bad`, or an end is not what it was said to be.
        UnknownReleaseError: an end is not among `releases`; whatever `ask` raises passes through.
    """
    ordered = _between(axis, releases, good, bad)
    asker = _Asker(ask=ask, known=dict(known or {}))
    _verify(axis, ordered[0], Grade.GOOD, asker)
    _verify(axis, ordered[-1], Grade.BAD, asker)
    low, high = 0, len(ordered) - 1
    while open_ones := [at for at in range(low + 1, high) if not asker.graded(ordered[at], Grade.HOLE)]:
        middle = open_ones[len(open_ones) // 2]
        match asker.answer(ordered[middle]).grade:
            case Grade.GOOD:
                low = middle
            case Grade.BAD:
                high = middle
            case Grade.HOLE:
                pass
    return Bisection(
        axis=axis,
        last_good=ordered[low],
        lowest_bad=ordered[high],
        bad=asker.known[ordered[high]],
        candidates=tuple(ordered[low + 1 : high + 1]),
        holes={
            version: asker.known[version].reason
            for version in ordered[1:-1]
            if version in asker.known and asker.graded(version, Grade.HOLE)
        },
        asked=tuple(asker.asked),
        warnings=_warnings(axis, ordered, low, high, asker),
    )


def _between(axis: Axis, releases: Sequence[Version], good: Version, bad: Version) -> list[Version]:
    for end in (good, bad):
        if end not in releases:
            raise UnknownReleaseError(
                f"{axis.value}=={end}",
                near=near_versions(end, releases),
                then="Name one that axes.toml records; `verl-matrix update` looks for new releases.",
            )
    if not good < bad:
        raise UsageError(
            f"The good release must be older than the bad one; {good} is not older than {bad}.",
            then="Swap --good and --bad.",
        )
    return sorted({version for version in releases if good <= version <= bad})


def _verify(axis: Axis, version: Version, said: Grade, asker: _Asker[EvidenceT]) -> None:
    answer = asker.answer(version)
    if answer.grade is said:
        return
    what = "cannot be judged" if answer.grade is Grade.HOLE else f"is {answer.grade.value}"
    raise UsageError(
        f"{axis.value} {version} was said to be {said.value}, but it {what}.",
        why=answer.reason,
        then=f"Name another release with --{said.value}.",
    )


def _warnings(axis: Axis, ordered: Sequence[Version], low: int, high: int, asker: _Asker[EvidenceT]) -> tuple[str, ...]:
    """Return what contradicts "good up to a point, bad from there on" among all that is known."""
    found = [
        f"{axis.value} {version} is bad, though {ordered[low]} after it is good"
        for version in ordered[:low]
        if asker.graded(version, Grade.BAD)
    ]
    found += [
        f"{axis.value} {version} is good, though {ordered[high]} before it is bad"
        for version in ordered[high + 1 :]
        if asker.graded(version, Grade.GOOD)
    ]
    return tuple(found)
