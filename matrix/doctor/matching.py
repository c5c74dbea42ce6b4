"""Which record of a known failure an error shows, and how sure that is."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from packaging.version import Version

from matrix.doctor.classes import load_classes
from matrix.failure import Applies, Failure, Severity

try:
    from re import _parser as _sre  # type: ignore[attr-defined]
except ImportError:  # pragma: no cover
    import sre_parse as _sre  # type: ignore[no-redef,unused-ignore]

DISTINCT_CHARS = 16
"""A pattern that a text with fewer fixed characters can match tells nothing for certain."""
_RUN = 3
_WORD = 8


class Sureness(StrEnum):
    """How sure a diagnosis is, surest first.

    `confirmed`: the fingerprint of a record, one that nothing else is known to show, and every version that it names is
    known and affected. `likely`: the same, but some of the versions are not known. `possible`: the versions allow it,
    but other faults show so too. `generic`: what kind of error it is; its cause is not determined. `unknown`: no record
    and no class.
    """

    CONFIRMED = "confirmed"
    LIKELY = "likely"
    POSSIBLE = "possible"
    GENERIC = "generic"
    UNKNOWN = "unknown"

    @property
    def rank(self) -> int:
        """Return 0 for `confirmed` up to 4 for `unknown`."""
        return list(Sureness).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A record that an error shows; `applies` is what its ranges say of the versions, `unknown` lists those not known.

    `in_root` is whether the exception that the others came of shows it by itself.
    """

    failure: Failure
    sureness: Sureness
    applies: Applies
    unknown: tuple[str, ...]
    in_root: bool
    weight: int


def find_matches(
    failures: Iterable[Failure],
    root: str,
    heads: str,
    whole: str,
    versions: Mapping[str, Version | None],
    *,
    framed: bool = True,
    raised: bool = True,
) -> tuple[Match, ...]:
    """Return the records whose fingerprint the error shows, the best first; those that the versions rule out last.

    `root` is the exception that the others came of with its message, `heads` all of them with theirs, `whole` the
    tracebacks too. A fingerprint that much would match must be found in the messages: a path may hold any word. Without
    frames (`framed` is off) the place of a fingerprint cannot be seen, nor in a line that is no exception (`raised` is
    off) the name of its exception: then it is `likely` at the best.
    """
    found = []
    for failure in failures:
        if failure.silent:
            continue
        if _shows(_written(failure), heads, whole):
            found.append(_match(failure, root, versions))
        elif not framed and _shows_alone(_written(failure), heads, raised=raised):
            match = _match(failure, root, versions)
            sureness = Sureness.LIKELY if match.sureness is Sureness.CONFIRMED else match.sureness
            found.append(replace(match, sureness=sureness))
    return tuple(sorted(found, key=_order))


_NOT_WRITTEN = frozenset({"SystemExit", "resolver", "CommandNotFound"})
"""What records name as an exception and no log ever does: a program's own end, a resolver's or a shell's refusal."""


def _written(failure: Failure) -> Failure:
    """Return the failure as a log can show it."""
    if failure.fingerprint.exception not in _NOT_WRITTEN:
        return failure
    return replace(failure, fingerprint=replace(failure.fingerprint, exception=""))


def shows_in_line(failure: Failure, text: str) -> bool:
    """Return whether a line that is no exception shows a failure; one that many faults show is none by itself."""
    return _shows_alone(_written(failure), text, raised=False)


def _shows_alone(failure: Failure, heads: str, *, raised: bool) -> bool:
    """Return whether the messages alone show a failure whose place, or exception, could not be seen."""
    fingerprint = failure.fingerprint
    if raised:
        return bool(fingerprint.place) and replace(fingerprint, place="").matches(heads)
    return distinctive(failure) and replace(fingerprint, place="", exception="").matches(heads)


def words_of(failure: Failure) -> frozenset[bytes]:
    """Return words without digits of which a text that shows the failure holds one; empty where none is sure."""
    words = {max(re.split(r"[\d.]+", run), key=len) for run in _runs(_sre.parse(failure.fingerprint.pattern))}
    return frozenset(word.encode() for word in words) if all(len(word) >= _WORD for word in words) else frozenset()


def _runs(parsed: Iterable[tuple[object, object]]) -> set[str]:
    """Return the longest run of fixed characters; where the pattern begins with alternatives, that of each."""
    best, run = "", ""
    for kind, value in parsed:
        if str(kind) == "BRANCH" and not best and not run:
            return set().union(*(_runs(branch) for branch in value[1]))  # type: ignore[index]
        run = f"{run}{chr(value)}" if str(kind) == "LITERAL" else ""  # type: ignore[arg-type]
        best = max(best, run, key=len)
    return {best}


def _shows(failure: Failure, heads: str, whole: str) -> bool:
    fingerprint = failure.fingerprint
    if fingerprint.matches(heads):
        return True
    if not fingerprint.matches(whole):
        return False
    in_heads = re.search(fingerprint.pattern, heads, re.MULTILINE) is not None
    return (bool(fingerprint.place) and in_heads) or (not fingerprint.place and distinctive(failure))


def fitting(matches: Sequence[Match]) -> tuple[Match, ...]:
    """Return the matches that the versions do not rule out."""
    return tuple(match for match in matches if match.applies is not Applies.NO)


def _match(failure: Failure, root: str, versions: Mapping[str, Version | None]) -> Match:
    applies = failure.applies(versions)
    unknown = tuple(package for package in failure.affects if package not in versions)
    if not distinctive(failure):
        sureness = Sureness.POSSIBLE
    elif applies is Applies.YES:
        sureness = Sureness.CONFIRMED
    else:
        sureness = Sureness.LIKELY
    return Match(
        failure=failure,
        sureness=sureness,
        applies=applies,
        unknown=unknown,
        in_root=_written(failure).fingerprint.matches(root),
        weight=_fixed(failure.fingerprint.pattern),
    )


def _order(match: Match) -> tuple[object, ...]:
    known = len(match.failure.affects) - len(match.unknown)
    return (
        match.applies is Applies.NO,
        match.sureness.rank,
        not match.in_root,
        match.failure.needs != "",
        -known,
        -match.weight,
        list(Severity).index(match.failure.severity),
        match.failure.id,
    )


def distinctive(failure: Failure) -> bool:
    """Return whether a fingerprint tells its failure from others: no class of error that has many causes shows it."""
    fingerprint = failure.fingerprint
    return _distinctive(fingerprint.exception, fingerprint.pattern, fingerprint.place)


@functools.cache
def _distinctive(exception: str, pattern: str, place: str) -> bool:
    if place:
        return True
    if _fixed(pattern) < DISTINCT_CHARS:
        return False
    return not any(re.search(pattern, known.sample, re.MULTILINE) for known in load_classes() if known.id not in _OWN)


_OWN = frozenset({"architecture-not-inspected"})
"""Classes that stand for one record of their own."""


@functools.cache
def _fixed(pattern: str) -> int:
    """Return how many fixed characters every text that `pattern` matches must hold, in runs of three and more."""
    return _count(_sre.parse(pattern))


def _count(parsed: Iterable[tuple[object, object]]) -> int:
    total = run = 0
    for kind, value in parsed:
        if str(kind) == "LITERAL":
            run += 1
            continue
        total, run = total + (run if run >= _RUN else 0), 0
        match str(kind):
            case "BRANCH":
                total += min(_count(branch) for branch in value[1])  # type: ignore[index]
            case "SUBPATTERN":
                total += _count(value[-1])  # type: ignore[index]
            case "MAX_REPEAT" | "MIN_REPEAT" if value[0] > 0:  # type: ignore[index]
                total += _count(value[2])  # type: ignore[index]
    return total + (run if run >= _RUN else 0)
