"""From what a log holds to a diagnosis: the errors ranked, the root first, each with record, way out and sureness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from packaging.version import Version

from matrix.axes import Axes
from matrix.doctor.classes import ErrorClass, Role, classify
from matrix.doctor.matching import Match, Sureness, distinctive, find_matches, fitting
from matrix.doctor.remedy import Remedy, remedies
from matrix.doctor.scan import Event, Scan
from matrix.doctor.tracebacks import Chain, Frame
from matrix.failure import Applies, Failure

CANDIDATES = 3
"""So many records are named where none of them is certain."""
_SHOWN_FRAMES = 6
_ROLES = {Role.ROOT: 0, Role.STOPPED: 1, Role.CONSEQUENCE: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One error of a log and what is known of it.

    Attributes:
        line: the exception with its message, or the line, as it stands in the log.
        role: whether the run may have died of it, or it follows from another.
        sureness: how sure the first of `matches`, or what is known generically, is.
        matches: records that the versions do not rule out, the best first.
        ruled_out: records whose fingerprint it shows and which these versions are not affected by.
        sort: the class of error that it is of, None where it is of none.
        facts: what the class's pattern read in it.
        remedies: ways out by the first record, for the versions at hand.
        chain: the exceptions from the root to the last, one line each.
        frames: the innermost frames of the root, the innermost last.
        processes, count, number, last: who wrote it, how often, the first and the last line.
        survived: whether the training wrote more than one step after it.
    """

    line: str
    role: Role
    sureness: Sureness
    matches: tuple[Match, ...]
    ruled_out: tuple[Match, ...]
    sort: ErrorClass | None
    facts: Mapping[str, str]
    remedies: tuple[Remedy, ...]
    chain: tuple[str, ...]
    frames: tuple[Frame, ...]
    processes: tuple[str, ...]
    count: int
    number: int
    last: int
    survived: bool

    @property
    def failure(self) -> Failure | None:
        """Return the record that it is taken for; None where it is none, or only may be."""
        sure = self.sureness in (Sureness.CONFIRMED, Sureness.LIKELY)
        return self.matches[0].failure if sure and self.matches else None

    @property
    def architecture(self) -> str:
        """Return the model whose inspection failed, "" where none did."""
        return self.facts.get("architecture", "").split(",")[0].strip("'\" ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is wrong in a log; `troubles` has the root first and is empty where nothing wrong was found.

    `told` are the versions that the log tells, `given` those that the user gave, `versions` both, as they were used.
    """

    name: str
    scan: Scan
    troubles: tuple[Trouble, ...]
    versions: Mapping[str, Version | None]
    origins: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def root(self) -> Trouble | None:
        """Return what the run most likely died of, None where nothing wrong was found."""
        return self.troubles[0] if self.troubles else None


def diagnose(
    name: str,
    scan: Scan,
    failures: Sequence[Failure],
    axes: Axes,
    given: Mapping[str, tuple[Version | None, str]] | None = None,
) -> Diagnosis:
    """Return the diagnosis of a log that was scanned.

    `given` are versions that the user vouches for, with where they come from; what the log tells goes before them.
    """
    extra = given or {}
    troubles = [_trouble(event, scan, failures, axes, extra) for event in scan.events]
    merged = _merge(troubles)
    ranked = tuple(sorted(merged, key=_order))
    at = ranked[0].number if ranked else scan.lines
    told = dict(scan.versions.at(at))
    versions: dict[str, Version | None] = {package: version for package, (version, _) in extra.items()}
    told = {package: version for package, version in told.items() if not _more_exact(versions.get(package), version)}
    versions |= told
    origins = {package: where for package, (_, where) in extra.items()} | dict.fromkeys(told, "the log")
    return Diagnosis(
        name=name,
        scan=scan,
        troubles=ranked,
        versions=versions,
        origins=origins,
        notes=_notes(scan, ranked),
    )


def _more_exact(given: Version | None, told: Version) -> bool:
    """Return whether a version given says the same as one told, and more: 3.12.1 where a path says 3.12."""
    return given is not None and len(told.release) == 2 and given.release[:2] == told.release != given.release


def _trouble(
    event: Event,
    scan: Scan,
    failures: Sequence[Failure],
    axes: Axes,
    given: Mapping[str, tuple[Version | None, str]],
) -> Trouble:
    versions: dict[str, Version | None] = {package: version for package, (version, _) in given.items()}
    versions |= scan.versions.at(event.number)
    chain = event.chain
    matches = _matches(chain, event, failures, versions)
    fits = fitting(matches)
    sort, facts, role = _sort(chain, event)
    sureness = Sureness.UNKNOWN
    if fits and fits[0].sureness is not Sureness.POSSIBLE:
        sureness = fits[0].sureness
        fits = tuple(match for match in fits if match.sureness is not Sureness.POSSIBLE)
    elif sort is not None:
        sureness = Sureness.GENERIC
    elif fits:
        sureness = Sureness.POSSIBLE
    best = fits[0].failure if fits and sureness in (Sureness.CONFIRMED, Sureness.LIKELY) else None
    return Trouble(
        line=chain.root.line if chain is not None else event.line.text.strip()[:500],
        role=role,
        sureness=sureness,
        matches=fits[:CANDIDATES],
        ruled_out=tuple(m for m in matches if m.applies is Applies.NO and distinctive(m.failure))[:CANDIDATES],
        sort=sort,
        facts=facts,
        remedies=remedies(best, versions, failures, axes) if best is not None else (),
        chain=tuple(raised.line for raised in chain.raised) if chain is not None else (),
        frames=chain.root.frames[-_SHOWN_FRAMES:] if chain is not None else (),
        processes=tuple(sorted(event.processes)),
        count=event.count,
        number=event.number,
        last=event.last,
        survived=len(scan.steps) > 1 and event.last < scan.steps[0],
    )


def _matches(
    chain: Chain | None, event: Event, failures: Sequence[Failure], versions: Mapping[str, Version | None]
) -> tuple[Match, ...]:
    if chain is None:
        return find_matches(
            failures, event.line.text, event.line.text, event.line.text, versions, framed=False, raised=False
        )
    heads = "\n".join(f"{raised.exception}: {raised.message}" for raised in chain.raised)
    root = f"{chain.root.exception}: {chain.root.message}"
    framed = any(raised.frames for raised in chain.raised)
    found = find_matches(failures, root, heads, chain.text, versions, framed=framed)
    if not fitting(found) and chain.before:
        # Native code writes its reason to the log before Python raises.
        before = "\n".join((*chain.before, heads))
        more = find_matches(failures, root, before, before, versions)
        known = {match.failure.id for match in found}
        found += tuple(match for match in more if distinctive(match.failure) and match.failure.id not in known)
    return found


def _sort(chain: Chain | None, event: Event) -> tuple[ErrorClass | None, Mapping[str, str], Role]:
    """Return the class of an error, its facts and its role: that of its root."""
    if chain is None:
        found = classify("", event.line.text)
    else:
        found = classify(chain.root.name, f"{chain.root.exception}: {chain.root.message}")
        if found is None:
            for raised in chain.raised:
                other = classify(raised.name, f"{raised.exception}: {raised.message}")
                # A wrapper's class would call its unknown root a consequence.
                if other is not None and other[0].role is Role.ROOT:
                    found = other
                    break
    if found is None:
        return None, {}, Role.ROOT
    return found[0], found[1], found[0].role


def _merge(troubles: Sequence[Trouble]) -> list[Trouble]:
    """Return the troubles without lines that say again what a traceback said: of the same class, and no traceback."""
    classes = {item.sort.id for item in troubles if item.chain and item.sort is not None}
    records = {item.failure.id for item in troubles if item.chain and item.failure is not None}
    return [
        item
        for item in troubles
        if item.chain
        or not (
            (item.sort is not None and item.sort.id in classes)
            or (item.failure is not None and item.failure.id in records)
        )
    ]


def _order(item: Trouble) -> tuple[object, ...]:
    sure = {Sureness.CONFIRMED: 0, Sureness.LIKELY: 1}.get(item.sureness, 2)
    return (item.survived, _ROLES[item.role], sure, item.number, item.line)


def _notes(scan: Scan, ranked: Sequence[Trouble]) -> tuple[str, ...]:
    notes = list(scan.notes)
    for package, versions in sorted(scan.versions.conflicting.items()):
        spelt = ", ".join(str(version) for version in versions)
        notes.append(f"the log tells several versions of {package} ({spelt}): the last one before each error was taken")
    if scan.left_out:
        notes.append(f"{scan.left_out} more errors of other kinds were met and are not listed")
    if scan.unexplained and not ranked:
        notes.append(
            f"{scan.unexplained} kinds of lines at level ERROR are no error that is known here; "
            f"the first: {scan.first_unexplained}"
        )
    return tuple(notes)
