"""A diagnosis as text for people and as JSON data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from matrix.doctor.classes import Role
from matrix.doctor.diagnosis import Diagnosis, Trouble
from matrix.doctor.matching import Match, Sureness
from matrix.doctor.remedy import Remedy
from matrix.failure import Failure

SCHEMA = 1
_OTHERS = 8
_WORDS = {
    Sureness.CONFIRMED: "confirmed: the record's fingerprint, and all its versions are these",
    Sureness.LIKELY: "likely: the record's fingerprint; not all of its versions are known here",
    Sureness.POSSIBLE: "possible: other faults show so too",
    Sureness.GENERIC: "generic: the kind of error is known, its cause is not determined",
    Sureness.UNKNOWN: "unknown: no record fits, and nothing is known of this error",
}
_ROLES = {Role.CONSEQUENCE: "follows from another error", Role.STOPPED: "ended from outside"}


def diagnosis_text(found: Diagnosis) -> str:
    """Return a diagnosis for people: the root with its cause and ways out, then the others, then what it rests on."""
    return "\n".join(_lines(found))


def _lines(found: Diagnosis) -> Iterator[str]:
    scan = found.scan
    if found.root is None:
        yield f"{found.name}: nothing wrong found in {_counted(scan.lines, 'line')}."
    else:
        root = found.root
        several = f"; {len(found.troubles) - 1} more below" if len(found.troubles) > 1 else ""
        yield f"{found.name}: {_counted(scan.lines, 'line')}, {_counted(len(found.troubles), 'error')}{several}."
        yield ""
        yield from _trouble(root)
        if root.role is Role.CONSEQUENCE:
            yield "  No error that it could follow from is in this log: look into the logs of the other processes."
        others = found.troubles[1:]
        if others:
            yield ""
            yield "Also in this log:"
        for other in others[:_OTHERS]:
            yield from _other(other)
        if len(others) > _OTHERS:
            yield f"  … and {len(others) - _OTHERS} more; --json has all"
    yield ""
    told = [
        f"{package} {version} ({found.origins.get(package, '?')})"
        for package, version in sorted(found.versions.items())
        if version is not None
    ]
    yield f"Versions: {', '.join(told) or 'none are told by the log; give them with --with PACKAGE==VERSION or --env'}"
    for note in found.notes:
        yield f"Note: {note}"


def _trouble(item: Trouble) -> Iterator[str]:
    yield f"{item.line}"
    yield f"  line {item.number}, {_who(item)}{_times(item)}"
    if item.survived:
        yield "  training steps were written after it: the run went on"
    for frame in item.frames[-3:]:
        yield f"    {frame}"
    for later in item.chain[1:] if item.chain and item.chain[0] == item.line else item.chain:
        if later != item.line:
            yield f"    then {later[:200]}"
    yield f"  {_WORDS[item.sureness]}"
    if item.architecture:
        yield f"  Next: verl-matrix doctor --env PYTHON --inspect {item.architecture} shows the child's own error"
    if item.failure is not None:
        yield from _record(item.failure, item)
    elif item.sort is not None:
        yield f"  What: {item.sort.title}."
        if item.facts:
            yield f"  Read: {', '.join(f'{name} {value}' for name, value in item.facts.items())}"
        yield f"  Known: {item.sort.known}"
        for step in item.sort.next:
            yield f"  Next: {step}"
    elif item.sureness is Sureness.UNKNOWN:
        yield "  No record of a known failure fits. What can be said is where it was raised, above."
    if item.failure is None:
        yield from _candidates(item)
    for match in item.ruled_out:
        ranges = ", ".join(f"{package} {wanted}" for package, wanted in match.failure.affects.items())
        yield f"  Not {match.failure.id}: it shows so, but is known for {ranges}"


def _record(failure: Failure, item: Trouble) -> Iterator[str]:
    yield f"  Known as {failure.id}: {failure.title}"
    yield f"  Cause: {failure.cause}"
    if failure.needs:
        yield f"  Only if: {failure.needs}"
    for remedy in item.remedies:
        yield f"  Way out: {remedy.line}{_brings(remedy)}"
    for step in failure.way_out:
        yield f"  {'Or' if item.remedies else 'Way out'}: {step}"
    unknown = item.matches[0].unknown
    if unknown:
        yield f"  Not known here: the version of {', '.join(unknown)}"
    yield f"  Sources: {', '.join(failure.sources)}"
    for match in item.matches[1:]:
        yield f"  Also fits: {match.failure.id} ({match.sureness}): {match.failure.title}"


def _brings(remedy: Remedy) -> str:
    return f"; but that brings {', '.join(remedy.brings[:3])}" if remedy.brings else ""


def _candidates(item: Trouble) -> Iterator[str]:
    for match in item.matches:
        extra = f", if {match.failure.needs}" if match.failure.needs else ""
        yield f"  May be {match.failure.id}: {match.failure.title}{extra}; nothing in the log decides that"


def _other(item: Trouble) -> Iterator[str]:
    named = item.failure.id if item.failure is not None else item.sort.id if item.sort is not None else "unknown"
    role = f", {_ROLES[item.role]}" if item.role in _ROLES else ""
    role += ", survived" if item.survived else ""
    yield f"  line {item.number}: {item.line[:160]}"
    yield f"    {named} ({item.sureness}{role}), {_who(item)}{_times(item)}"


def _who(item: Trouble) -> str:
    names = [name or "the main process" for name in item.processes]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _times(item: Trouble) -> str:
    return f", {item.count} times" if item.count > 1 else ""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def diagnosis_json(found: Diagnosis) -> dict[str, object]:
    """Return a diagnosis as plain JSON data; `schema` counts up when its shape changes."""
    return {
        "schema": SCHEMA,
        "log": found.name,
        "lines": found.scan.lines,
        "bytes": found.scan.bytes,
        "healthy": not found.troubles,
        "versions": {
            package: {"version": str(version) if version is not None else None, "from": found.origins.get(package, "")}
            for package, version in found.versions.items()
        },
        "errors": [_trouble_json(item) for item in found.troubles],
        "notes": list(found.notes),
    }


def _trouble_json(item: Trouble) -> dict[str, object]:
    return {
        "error": item.line,
        "role": item.role.value,
        "sureness": item.sureness.value,
        "record": item.failure.id if item.failure is not None else None,
        "class": item.sort.id if item.sort is not None else None,
        "known": item.sort.known if item.sort is not None else None,
        "next": list(item.sort.next) if item.sort is not None else [],
        "facts": dict(item.facts),
        "cause": item.failure.cause if item.failure is not None else None,
        "needs": item.failure.needs if item.failure is not None else "",
        "way_out": list(item.failure.way_out) if item.failure is not None else [],
        "remedies": [_remedy_json(remedy) for remedy in item.remedies],
        "sources": list(item.failure.sources) if item.failure is not None else [],
        "matches": [_match_json(match) for match in item.matches],
        "ruled_out": [_match_json(match) for match in item.ruled_out],
        "chain": list(item.chain),
        "frames": [str(frame) for frame in item.frames],
        "processes": list(item.processes),
        "count": item.count,
        "first_line": item.number,
        "last_line": item.last,
        "survived": item.survived,
    }


def _match_json(match: Match) -> Mapping[str, object]:
    return {
        "record": match.failure.id,
        "sureness": match.sureness.value,
        "applies": match.applies.value,
        "unknown": list(match.unknown),
        "title": match.failure.title,
    }


def _remedy_json(remedy: Remedy) -> Mapping[str, object]:
    return {
        "package": remedy.package,
        "range": remedy.range,
        "version": str(remedy.version) if remedy.version is not None else None,
        "now": str(remedy.now) if remedy.now is not None else None,
        "brings": list(remedy.brings),
    }
