"""The comparison of two nights: what is newly bad, fixed, still bad, flaky or was not run, each with its cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from matrix.nightly.cause import Cause, Fact, Label, Nights, cause_of, facts_of, newly_there
from matrix.nightly.record import WORST, CellRecord, Night, Slot
from matrix.tier import Status, Tier
from matrix.verdict import BAD_STATUSES


class Kind(StrEnum):
    """What became of a cell since the night before, what matters most first."""

    NEW_FAILURE = "new failure"
    FLAKY = "flaky"
    NOT_RUN = "not run"
    FIXED = "fixed"
    STILL_FAILING = "still failing"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One probe that says something else than before; `before` is None where it had never answered."""

    before: Slot | None
    now: Slot

    @property
    def line(self) -> str:
        """Return it as one line: the tier, the outcomes, the second try, the reason."""
        now, was = self.now, f"{self.before.outcome} → " if self.before else ""
        return f"{_what(now)}: {was}{now.outcome}{_tried_again(now)}" + (f": {now.reason}" if now.reason else "")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "tier": self.now.tier.value,
            "probe": self.now.probe,
            "before": self.before.outcome.value if self.before else None,
            "now": self.now.outcome.value,
            "tries": [outcome.value for outcome in self.now.tries],
            "reason": self.now.reason,
            "machine": self.now.machine,
            "line": self.line,
        }


def _what(slot: Slot) -> str:
    """Return the name of a probe, after its tier; a static tier has one of its own name."""
    return slot.tier.value if slot.probe == slot.tier.value else f"{slot.tier} {slot.probe}"


def _tried_again(slot: Slot) -> str:
    if len(slot.tries) < 2:
        return ""
    first, last = slot.tries[0], slot.tries[-1]
    return f" (tried twice: {first}, then {last})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What became of one cell.

    Attributes:
        name: the cell, without the night's date.
        cell: its full name.
        kind: which it is.
        before: its status the night before; None for a cell that was not there.
        now: its status.
        turns: the probes that say something else.
        cause: why; None where nothing changed.
        retry: what the second try came to, in words; "" where there was none.
        boundary: the first bad release, where that is known without asking anything; "" else.
        why: lines for people.
    """

    name: str
    cell: str
    kind: Kind
    before: Status | None
    now: Status
    turns: tuple[Turn, ...] = ()
    cause: Cause | None = None
    retry: str = ""
    boundary: str = ""
    why: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "name": self.name,
            "cell": self.cell,
            "kind": self.kind.value,
            "before": self.before.value if self.before else None,
            "now": self.now.value,
            "turns": [turn.to_json() for turn in self.turns],
            "cause": self.cause.to_json() if self.cause else None,
            "retry": self.retry,
            "boundary": self.boundary,
            "why": list(self.why),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What changed since the night before; `before` is None on a first night, when nothing can have changed.

    `releases` are lines about releases of the axes, `dropped` the cells that the night before had and this one has not.
    """

    before: Night | None
    shifts: tuple[Shift, ...]
    releases: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def of(self, kind: Kind) -> tuple[Shift, ...]:
        """Return the cells of which that became."""
        return tuple(shift for shift in self.shifts if shift.kind is kind)

    @property
    def counts(self) -> dict[Kind, int]:
        """Return how many cells there are of each kind."""
        return {kind: len(self.of(kind)) for kind in Kind}

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; cells that are unchanged are only counted."""
        return {
            "before": self.before.stamp if self.before else None,
            "before_at": self.before.at.isoformat() if self.before else None,
            "counts": {kind.value: count for kind, count in self.counts.items()},
            "shifts": [shift.to_json() for shift in self.shifts if shift.kind is not Kind.UNCHANGED],
            "releases": list(self.releases),
            "dropped": list(self.dropped),
            "notes": list(self.notes),
        }


Look = Callable[[Mapping[str, str]], Sequence[Fact]]
"""Looks up on the index what a set resolved to before: returns what of it is not there as it was."""


def compare(before: Night | None, now: Night, *, look: Look | None = None) -> tuple[Shift, ...]:
    """Return what became of each cell of `now`; without a night before, what fails does so for all that is known."""
    known = _by_name(before)
    return tuple(_shift(before, now, known.get(cell.name), cell, look) for cell in now.cells)


def _by_name(night: Night | None) -> dict[str, CellRecord]:
    return {cell.name: cell for cell in night.cells} if night else {}


def dropped(before: Night | None, now: Night) -> tuple[str, ...]:
    """Return the cells that the night before had and this one has not."""
    names = {cell.name for cell in now.cells}
    return tuple(cell.name for cell in before.cells if cell.name not in names) if before else ()


def suspects(before: Night | None, now: Sequence[CellRecord]) -> tuple[tuple[CellRecord, tuple[Slot, ...]], ...]:
    """Return the cells that would be new failures, each with the probes that make it one: they are tried once more."""
    if before is None:
        return ()
    found, known = [], _by_name(before)
    for cell in now:
        old = known.get(cell.name)
        worse = tuple(turn.now for turn in _turns(old, cell) if _is_worse(turn))
        if worse and not _as_expected(old, cell):
            found.append((cell, worse))
    return tuple(found)


def _shift(before: Night | None, now: Night, old: CellRecord | None, cell: CellRecord, look: Look | None) -> Shift:
    turns = tuple(_turns(old, cell))
    worse = tuple(turn for turn in turns if _is_worse(turn))
    kind = _kind(before, old, cell, turns, worse)
    told = worse if kind is Kind.NEW_FAILURE else turns
    flaky = tuple(slot for slot in cell.slots if slot.flaky)
    if kind is Kind.FLAKY:
        told = tuple(Turn(before=old.baseline.get(slot.key) if old else None, now=slot) for slot in flaky)
    return Shift(
        name=cell.name,
        cell=cell.cell,
        kind=kind,
        before=old.status if old else None,
        now=cell.status,
        turns=told if kind not in (Kind.UNCHANGED, Kind.NOT_RUN) else (),
        cause=_cause(before, now, old, cell, told, look) if kind in _CAUSED else _evidenced(old, cell, kind),
        retry=_retry(worse, flaky),
        why=tuple(_not_run(old, cell)) if kind is Kind.NOT_RUN else cell.reasons,
    )


_CAUSED = (Kind.NEW_FAILURE, Kind.FIXED)


def _kind(
    before: Night | None, old: CellRecord | None, cell: CellRecord, turns: Sequence[Turn], worse: Sequence[Turn]
) -> Kind:
    bad = cell.status in BAD_STATUSES
    if before is None:
        return Kind.STILL_FAILING if bad else Kind.UNCHANGED if cell.ran else _unrun(cell)
    if worse and not _as_expected(old, cell):
        return Kind.NEW_FAILURE
    if any(slot.flaky for slot in cell.slots):
        return Kind.FLAKY
    if any(_not_run(old, cell)):
        return Kind.NOT_RUN
    if bad:
        return Kind.STILL_FAILING
    better = any(turn.before is not None and turn.now.level < turn.before.level for turn in turns)
    return Kind.FIXED if better else Kind.UNCHANGED


def _unrun(cell: CellRecord) -> Kind:
    return Kind.NOT_RUN if any(not slot.answered for slot in cell.slots) or not cell.slots else Kind.UNCHANGED


def _turns(old: CellRecord | None, cell: CellRecord) -> Iterator[Turn]:
    """Yield the probes that say something else than when they last answered, or that answer for the first time."""
    known = old.baseline if old else {}
    for slot in cell.slots:
        if not slot.answered or slot.shipped:
            # What another machine saw, and when, is no news of this night.
            continue
        last = known.get(slot.key)
        if last is None and slot.level > _reached(old) and not slot.known:
            yield Turn(before=None, now=slot)
        elif last is not None and last.outcome is not slot.outcome:
            yield Turn(before=last, now=slot)


def _reached(old: CellRecord | None) -> int:
    """Return how bad a cell was known to be: what is tried in it for the first time is news only beyond that."""
    if old is None:
        return 0
    return WORST if old.status in BAD_STATUSES else int(old.status is Status.DEGRADED)


def _is_worse(turn: Turn) -> bool:
    """Return whether a probe is worse than before; a known failure that comes as recorded is no news."""
    if turn.before is None:
        return turn.now.level > 0
    return turn.now.level > turn.before.level


def _as_expected(old: CellRecord | None, cell: CellRecord) -> bool:
    """Return whether a cell that is new in the plan comes out as the plan says that it does."""
    return old is None and bool(cell.expected) and cell.expected == cell.status.value


def _not_run(old: CellRecord | None, cell: CellRecord) -> Iterator[str]:
    """Yield for each tier that was tried before and is not now why it is not; for a cell that never ran, why not."""
    if not cell.ran:
        yield from cell.reasons or ("nothing was asked",)
        return
    if old is None:
        return
    tried = {slot.tier for slot in old.baseline.values() if not slot.shipped}
    for tier in Tier:
        here = [slot for slot in cell.slots if slot.tier is tier and not slot.shipped]
        if tier in tried and not any(slot.answered for slot in here):
            why = "; ".join(dict.fromkeys(slot.reason for slot in here)) or "it was not asked for"
            yield f"{tier} was tried before and is not now: {why}"


def _retry(worse: Sequence[Turn], flaky: Sequence[Slot]) -> str:
    """Return what the second try came to."""
    if flaky:
        told = "; ".join(f"{slot.tier} {slot.tries[0]}, then {slot.tries[-1]}" for slot in flaky)
        return f"tried twice, and the tries disagree: {told}"
    again = [turn.now for turn in worse if len(turn.now.tries) > 1]
    if again and len(again) == len(worse):
        return "tried twice, bad both times"
    return f"tried twice at {len(again)} of {len(worse)} probes, bad both times" if again else ""


def _evidenced(old: CellRecord | None, cell: CellRecord, kind: Kind) -> Cause | None:
    """Return the cause where nothing was seen here, and a cell is bad by evidence that was not there, or not used."""
    if kind is not Kind.STILL_FAILING or old is None or old.status in BAD_STATUSES:
        return None
    return cause_of([Fact(label=Label.OURS, what="the evidence that is shipped")])


def _cause(
    before: Night | None,
    now: Night,
    old: CellRecord | None,
    cell: CellRecord,
    turns: Sequence[Turn],
    look: Look | None,
) -> Cause | None:
    if before is None:
        return None
    nights = Nights(before=before, now=now)
    if old is None:
        return newly_there(nights, cell)
    facts: list[Fact] = []
    # Where the resolver answers for the first time, or no more, what deeper tiers read follows from that.
    derived = any(turn.now.tier is Tier.RESOLVE for turn in turns)
    for turn in turns:
        if turn.before is None:
            facts.append(Fact(label=Label.OURS, what=f"{_what(turn.now)} is tried for the first time"))
            continue
        found = list(facts_of(nights, turn.before, turn.now, derived=derived))
        if not found and look is not None and turn.now.tier is Tier.RESOLVE and turn.now.volatile:
            found = list(look(before.locks.get(turn.before.lock, {})))
        facts += found
    return cause_of(facts)
