"""The nightly report: what changed since the night before, as plain data, as text, and as Markdown for a CI summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from matrix.nightly.comparison import Kind
from matrix.tier import Status
from reports.legend import STATUSES
from reports.markdown import LIMIT_BYTES, escaped, within

if TYPE_CHECKING:
    from matrix.nightly.comparison import Shift
    from matrix.nightly.course import Held
    from matrix.nightly.record import Night

SHOWN = (Kind.NEW_FAILURE, Kind.FLAKY, Kind.FIXED, Kind.NOT_RUN, Kind.STILL_FAILING)
"""The kinds that are listed, what matters most first."""
HEADS: Mapping[Kind, str] = {
    Kind.NEW_FAILURE: "New failures",
    Kind.FLAKY: "Flaky",
    Kind.FIXED: "Fixed",
    Kind.NOT_RUN: "Not run",
    Kind.STILL_FAILING: "Still failing",
}
MARKS: Mapping[Kind, str] = {
    Kind.NEW_FAILURE: "✕",
    Kind.FLAKY: "≈",
    Kind.FIXED: "✓",
    Kind.NOT_RUN: "?",
    Kind.STILL_FAILING: "=",
}


def section(held: Held, history: Sequence[Night] = ()) -> dict[str, object]:
    """Return the nightly section of the report as plain JSON data; `history` are nights, this one first."""
    night = held.night
    changes = held.comparison.to_json()
    return {
        "schema": 1,
        "title": title(held),
        "at": night.at.isoformat(),
        "stamp": night.stamp,
        "kept": held.counts,
        "interrupted": held.result.interrupted,
        "first": held.comparison.before is None,
        "before_at": changes["before_at"],
        "denominator": denominator(night),
        "snapshot": {name: night.snapshot.get(name) for name in ("at", "as_of", "index", "digest", "tools", "machine")},
        "counts": dict(night.counts),
        "changed": changes["counts"],
        "shifts": changes["shifts"],
        "releases": changes["releases"],
        "dropped": changes["dropped"],
        "notes": changes["notes"],
        "seconds": round(night.seconds, 1),
        "history": [_past(item) for item in history],
    }


def _past(night: Night) -> dict[str, object]:
    return {
        "stamp": night.stamp,
        "at": night.at.isoformat(),
        "counts": dict(night.counts),
        "changed": dict(night.changes.get("counts", {})),
    }


def title(held: Held) -> str:
    """Return the night in one line: what is new, and of how many."""
    counts = held.comparison.counts
    planned = held.night.counts["planned"]
    if held.comparison.before is None:
        bad = counts[Kind.STILL_FAILING]
        return f"first night: {bad} of {_cells(planned)} fail, nothing to compare with"
    parts = [
        f"{counts[Kind.NEW_FAILURE]} new failure{'s' * (counts[Kind.NEW_FAILURE] != 1)}{_whose(held)}",
        f"{counts[Kind.FIXED]} fixed",
        *([f"{counts[Kind.FLAKY]} flaky"] if counts[Kind.FLAKY] else []),
        f"{counts[Kind.STILL_FAILING]} still failing",
        *([f"{counts[Kind.NOT_RUN]} not run"] if counts[Kind.NOT_RUN] else []),
    ]
    return f"{', '.join(parts)}, of {_cells(planned)}"


def _whose(held: Held) -> str:
    """Return in brackets whose doing the new failures are, the most first; "" where there is none."""
    labels = Counter(shift.cause.label for shift in held.comparison.of(Kind.NEW_FAILURE) if shift.cause is not None)
    if not labels:
        return ""
    return f" ({', '.join(f'{count} {label}' for label, count in labels.most_common())})"


def denominator(night: Night) -> str:
    """Return how much ran, against which index, on what and when, as one sentence."""
    counts, snapshot = night.counts, night.snapshot
    as_of = f" as of {str(snapshot['as_of'])[:16].replace('T', ' ')} UTC" if snapshot.get("as_of") else ""
    machine = (snapshot.get("machine") or {}).get("machine") or "a machine that is not known"
    works = counts[Status.WORKS] + counts[Status.DEGRADED]
    return (
        f"{counts['ran']} of {_cells(counts['planned'])} ran, {works} work as far as tried; "
        f"{snapshot['index']}{as_of}, pages {str(snapshot.get('digest', ''))[:19]}; {machine}; "
        f"{night.at:%Y-%m-%d %H:%M} UTC, {night.seconds:.0f} s."
    )


def _cells(count: int) -> str:
    return f"{count} cell" if count == 1 else f"{count} cells"


def text(held: Held) -> str:
    """Return the night for a terminal: the denominators, then every cell that changed, with its cause."""
    comparison = held.comparison
    lines = [title(held), denominator(held.night)]
    if comparison.before is not None:
        lines.append(f"compared with the night of {comparison.before.at:%Y-%m-%d %H:%M} UTC")
    lines += [f"note: {note}" for note in comparison.notes]
    if comparison.releases:
        lines += ["", "releases:", *(f"  {line}" for line in comparison.releases)]
    for kind in SHOWN:
        shifts = comparison.of(kind)
        if not shifts:
            continue
        lines += ["", f"{head(held, kind).lower()} ({len(shifts)}):"]
        folded = kind is Kind.STILL_FAILING
        for shift in shifts[:FOLDED] if folded else shifts:
            lines.append(f"  {MARKS[kind]} {shift.name}: {_statuses(shift.before, shift.now)}")
            lines += [f"      {_cut(line) if folded else line}" for line in _told(shift, short=folded)]
        if folded and len(shifts) > FOLDED:
            lines.append(f"  … and {len(shifts) - FOLDED} more: nightly.html and --json have them all")
    if comparison.dropped:
        lines += ["", f"no longer planned ({len(comparison.dropped)}): {', '.join(comparison.dropped)}"]
    return "\n".join(lines)


def head(held: Held, kind: Kind) -> str:
    """Return the heading of a kind; on a first night nobody knows whether what fails did so before."""
    return "Failing" if kind is Kind.STILL_FAILING and held.comparison.before is None else HEADS[kind]


def _statuses(before: Status | None, now: Status) -> str:
    return now.value if before in (None, now) else f"{before} → {now}"


def _told(shift: Shift, *, short: bool, caused: bool = True) -> Iterator[str]:
    """Yield what there is to say of a cell, a line each; its cause where it is `caused` to be among them."""
    lines = [turn.line for turn in shift.turns] or list(shift.why)
    yield from lines[:1] if short else lines[:_LINES]
    if not short and len(lines) > _LINES:
        yield f"and {len(lines) - _LINES} more probes"
    if shift.cause is not None and caused:
        yield f"cause: {shift.cause.line}"
    if shift.boundary:
        yield f"first bad: {shift.boundary}"
    if shift.retry:
        yield shift.retry


_LINES = 5


def markdown(held: Held, *, report_url: str = "") -> str:
    """Return the night as Markdown for a CI summary, below 1 MiB; with `report_url` cells link to the page there."""
    night, comparison = held.night, held.comparison
    counts = comparison.counts
    lines = [f"# verl-matrix nightly: {escaped(title(held))}", "", escaped(denominator(night)), ""]
    if comparison.before is not None:
        lines += [escaped(f"Compared with the night of {comparison.before.at:%Y-%m-%d %H:%M} UTC."), ""]
    lines += [
        "| " + " | ".join(f"{MARKS[kind]} {kind}" for kind in SHOWN) + " | unchanged | planned |",
        "|" + " ---: |" * (len(SHOWN) + 2),
        "| "
        + " | ".join(str(counts[kind]) for kind in SHOWN)
        + f" | {counts[Kind.UNCHANGED]} | {night.counts['planned']} |",
        "",
        "| " + " | ".join(f"{STATUSES[status].mark} {status}" for status in Status) + " | ran |",
        "|" + " ---: |" * (len(Status) + 1),
        "| " + " | ".join(str(night.counts[status]) for status in Status) + f" | {night.counts['ran']} |",
    ]
    lines += ["", *(f"> {escaped(note)}" for note in comparison.notes)] if comparison.notes else []
    for kind in SHOWN:
        lines += _table(held, kind, report_url)
    if comparison.releases:
        lines += ["", f"## Releases: {len(comparison.releases)} changes", ""]
        lines += [f"- {escaped(line)}" for line in comparison.releases]
    if comparison.dropped:
        names = ", ".join(f"`{name}`" for name in comparison.dropped)
        lines += ["", f"No longer planned: {names}"]
    tools = ", ".join(f"{name} {version}" for name, version in (night.snapshot.get("tools") or {}).items())
    return "\n".join([*within(lines, LIMIT_BYTES), "", f"<sub>{escaped(tools)}</sub>"]) + "\n"


def _table(held: Held, kind: Kind, report_url: str) -> Iterator[str]:
    """Yield the cells of a kind; those that still fail are folded, as nobody has to act on them anew."""
    shifts = held.comparison.of(kind)
    if not shifts:
        return
    heading = f"{MARKS[kind]} {head(held, kind)}: {len(shifts)} of {held.night.counts['planned']}"
    folded = kind in (Kind.STILL_FAILING, Kind.NOT_RUN)
    yield from ("", f"<details><summary>{heading}</summary>", "") if folded else ("", f"## {heading}", "")
    caused = kind in (Kind.NEW_FAILURE, Kind.FIXED)
    heads = ("cell", "status", *(("cause",) if caused else ()), "what")
    yield from (f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}")
    for shift in shifts:
        name = f"`{shift.name}`"
        if report_url:
            name = f"[{name}]({report_url}#cell-{quote(shift.cell)})"
        told = list(_told(shift, short=kind is Kind.STILL_FAILING, caused=not caused))
        cause = [escaped(_cut(shift.cause.line if shift.cause else ""))] if caused else []
        what = "<br>".join(escaped(_cut(line)) for line in told)
        columns = [name, escaped(_statuses(shift.before, shift.now)), *cause, what]
        yield f"| {' | '.join(columns)} |"
    if folded:
        yield from ("", "</details>")


_LONGEST = 240
FOLDED = 10
"""So many cells that fail as they did are listed on a terminal: what changed is to be seen."""


def _cut(words: str) -> str:
    return words if len(words) <= _LONGEST else words[: _LONGEST - 1].rstrip() + "…"
