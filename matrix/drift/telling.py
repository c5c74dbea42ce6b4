"""Contradictions as text for people, grouped by the place that would be corrected, and as JSON data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matrix.drift.contradiction import Contradiction, Sureness
from matrix.drift.indexing import IndexAnswer
from matrix.statements.repository import Repository
from matrix.statements.statement import Statement


def text(
    repository: Repository, found: Sequence[Contradiction], answer: IndexAnswer | None, *, everything: bool
) -> str:
    """Return the contradictions for people, with the denominators; those that may be on purpose only on demand."""
    return "\n".join(_lines(repository, found, answer, everything=everything))


def _lines(
    repository: Repository, found: Sequence[Contradiction], answer: IndexAnswer | None, *, everything: bool
) -> Iterator[str]:
    shown = [item for item in found if everything or item.counts]
    groups: dict[str, list[Contradiction]] = {}
    for item in shown:
        groups.setdefault(item.group, []).append(item)
    for group, items in groups.items():
        yield group
        for item in items:
            yield f"  {item.sureness.value}: {item.package}: {item.why}"
            yield f"    {_said(item.first)}"
            if item.second is not None:
                more = f" (also {', '.join(str(place) for place in item.also)})" if item.also else ""
                yield f"    {_said(item.second)}{more}"
            if item.together:
                yield f"    together: {item.together}"
    remarks = repository.reading.remarks
    if everything:
        yield from (f"not read: {remark}" for remark in remarks)
        yield from (f"not asked: {line}" for line in answer.unasked) if answer is not None else ()
    counts = {word: sum(item.sureness is word for item in found) for word in Sureness}
    counted = sum(item.counts for item in found)
    of = f"{counts[Sureness.CERTAIN]} certain, {counts[Sureness.LIKELY]} likely"
    hidden = f"; {counts[Sureness.POSSIBLE]} that may be on purpose" if counts[Sureness.POSSIBLE] else ""
    unread = f", {_counted(len(remarks), 'line')} not read" if remarks else ""
    tail = "" if everything or not (counts[Sureness.POSSIBLE] or remarks) else " (--all shows them)"
    yield f"{_counted(counted, 'contradiction')}: {of}{hidden}{unread}{tail}."
    statements = len(repository.reading.statements)
    asked = "the index was not asked"
    if answer is not None:
        asked = f"{_counted(answer.looked_at, 'release')} of the index looked at"
    yield f"{_counted(statements, 'statement')} in {_counted(len(repository.files), 'file')}; {asked}."


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _said(item: Statement) -> str:
    scope = f" [{item.scope}]" if item.scope and item.scope != item.place.file else ""
    return f"{item.place}{scope}  {item.text}"


def data(repository: Repository, found: Sequence[Contradiction], answer: IndexAnswer | None) -> dict[str, object]:
    """Return everything as plain JSON data."""
    return {
        "schema": 1,
        "statements": len(repository.reading.statements),
        "files": list(repository.files),
        "index": None if answer is None else {"releases": answer.looked_at, "not_asked": list(answer.unasked)},
        "counts": {word.value: sum(item.sureness is word for item in found) for word in Sureness},
        "contradictions": [item.to_json() for item in found],
        "not_read": [str(remark) for remark in repository.reading.remarks],
    }
