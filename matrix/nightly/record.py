"""What a night leaves behind: what was asked of which index when, and what every probe said, with all that it read.

A night is plain JSON (`schema = 1`), so that the next one can tell what changed from digests that were written down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from matrix.job import RunResult
from matrix.observe import Observation
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict, deciding

SCHEMA = 1
LEVELS = {Outcome.OK: 0, Outcome.UNTESTED: 0, Outcome.DEGRADED: 1}
"""How bad an outcome is; whatever is not named here is as bad as can be."""
WORST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What one probe said of a cell, and all that its answer rests on.

    Attributes:
        tier: how deep it looks.
        probe: which it is.
        outcome: what it said, as far as certain findings carry it; `ok` for a conflict that is set aside.
        reason: one line for people.
        tool: version of what asked.
        reads: what was read, with its digest.
        machine: what it ran on.
        fingerprint: digest of the GPU machine's fingerprint, "" where there is none.
        lock: digest of the set that a resolver's answer gave.
        volatile: whether the answer rests on more of the index than `reads` names.
        known: the record of a known failure that predicted just this, "" for none.
        shipped: the store of evidence it comes from, "" for what was observed here.
        at: when it was observed.
        tries: the outcomes of the night in their order; one where it was not tried again.
    """

    tier: Tier
    probe: str
    outcome: Outcome
    reason: str = ""
    tool: str = ""
    reads: Mapping[str, str] = field(default_factory=dict)
    machine: str = "static"
    fingerprint: str = ""
    lock: str = ""
    volatile: bool = False
    known: str = ""
    shipped: str = ""
    at: str = ""
    tries: tuple[Outcome, ...] = ()

    @property
    def key(self) -> tuple[Tier, str]:
        """Return what it is compared by."""
        return self.tier, self.probe

    @property
    def level(self) -> int:
        """Return 0 for what works or was not tried, 1 for `degraded`, 2 for what is worse."""
        return LEVELS.get(self.outcome, WORST)

    @property
    def answered(self) -> bool:
        """Return whether the probe said something."""
        return self.outcome is not Outcome.UNTESTED

    @property
    def flaky(self) -> bool:
        """Return whether it was bad at first, and better when it was tried again."""
        return len(self.tries) > 1 and LEVELS.get(self.tries[-1], WORST) < LEVELS.get(self.tries[0], WORST)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; what is empty is left out."""
        data: dict[str, Any] = {
            "tier": self.tier.value,
            "probe": self.probe,
            "outcome": self.outcome.value,
            "reason": self.reason,
            "tool": self.tool,
            "reads": dict(self.reads),
            "machine": self.machine,
            "fingerprint": self.fingerprint,
            "lock": self.lock,
            "volatile": self.volatile,
            "known": self.known,
            "shipped": self.shipped,
            "at": self.at,
            "tries": [outcome.value for outcome in self.tries],
        }
        return {name: value for name, value in data.items() if value not in ("", False, [], {})}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Slot:
        """Return the slot of such data; raises KeyError, ValueError, TypeError."""
        return cls(
            tier=Tier(data["tier"]),
            probe=str(data["probe"]),
            outcome=Outcome(data["outcome"]),
            reason=str(data.get("reason", "")),
            tool=str(data.get("tool", "")),
            reads={str(name): str(digest) for name, digest in dict(data.get("reads", {})).items()},
            machine=str(data.get("machine", "")),
            fingerprint=str(data.get("fingerprint", "")),
            lock=str(data.get("lock", "")),
            volatile=bool(data.get("volatile", False)),
            known=str(data.get("known", "")),
            shipped=str(data.get("shipped", "")),
            at=str(data.get("at", "")),
            tries=tuple(Outcome(word) for word in data.get("tries", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRecord:
    """What a night said of a cell.

    Attributes:
        name: the cell without the night's own snapshot date, so that nights of different dates compare.
        cell: its full name, under which the store has it.
        status: what it came to.
        reasons: lines for people.
        expected: how it is known to come out, "" where nothing is said.
        slots: what each probe said.
        carried: answers of an earlier night at what was not tried this time: the next night compares with them.
        new: the release that the cell is there for, `package version`; "" for a cell of the plan.
    """

    name: str
    cell: str
    status: Status
    reasons: tuple[str, ...] = ()
    expected: str = ""
    slots: tuple[Slot, ...] = ()
    carried: tuple[Slot, ...] = ()
    new: str = ""

    @property
    def ran(self) -> bool:
        """Return whether something was tried here."""
        return any(slot.answered and not slot.shipped for slot in self.slots)

    @property
    def baseline(self) -> dict[tuple[Tier, str], Slot]:
        """Return what is known of each probe: from this night, else from the last one that tried it."""
        known = {slot.key: slot for slot in self.carried}
        return known | {slot.key: slot for slot in self.slots if slot.answered}

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "name": self.name,
            "cell": self.cell,
            "status": self.status.value,
            "reasons": list(self.reasons),
            "expected": self.expected,
            "slots": [slot.to_json() for slot in self.slots],
            "carried": [slot.to_json() for slot in self.carried],
            "new": self.new,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CellRecord:
        """Return the record of such data; raises KeyError, ValueError, TypeError."""
        return cls(
            name=str(data["name"]),
            cell=str(data["cell"]),
            status=Status(data["status"]),
            reasons=tuple(map(str, data["reasons"])),
            expected=str(data["expected"]),
            slots=tuple(Slot.from_json(item) for item in data["slots"]),
            carried=tuple(Slot.from_json(item) for item in data["carried"]),
            new=str(data["new"]),
        )


def record_cell(verdict: Verdict, name: str, *, expected: str = "", new: str = "") -> CellRecord:
    """Return what a night keeps of a verdict; measurements that judge nothing are left out."""
    slots = (_slot(verdict, item) for item in verdict.evidence if not item.question.measures)
    return CellRecord(
        name=name,
        cell=verdict.cell.name,
        status=verdict.status,
        reasons=verdict.reasons,
        expected=expected,
        slots=tuple(slots),
        new=new,
    )


def _slot(verdict: Verdict, item: Observation) -> Slot:
    detail = item.detail
    predicted = detail.get("seen") == "reproduced" and not detail.get("disagreement")
    return Slot(
        tier=item.question.tier,
        probe=item.question.probe,
        outcome=deciding(verdict, item),
        reason=item.reason,
        tool=item.question.tool,
        reads=item.question.reads,
        machine=item.machine,
        fingerprint=str(detail.get("fingerprint") or ""),
        lock=str(detail.get("lock") or "") if item.question.tier is Tier.RESOLVE else "",
        volatile=bool(detail.get("volatile")),
        known=str(detail.get("failure") or "") if predicted else "",
        shipped=item.shipped,
        at=item.at.isoformat(),
    )


def counts_of(result: RunResult) -> dict[str, int]:
    """Return the denominators of a night: cells by status, those planned, those that were tried."""
    return {status.value: count for status, count in result.counts.items()} | {
        "planned": result.planned,
        "ran": result.ran,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """One night.

    Attributes:
        at: when it ended (UTC).
        snapshot: what it rests on (matrix/nightly/snapshot.py).
        counts: cells by status, `planned`, `ran`.
        cells: what was said of each.
        locks: digest of each resolved set to package to `version digest-of-its-files`.
        changes: what changed since the night before, as it was told; {} in a night that is being made.
        seconds: wall time.
    """

    at: datetime
    snapshot: Mapping[str, Any]
    counts: Mapping[str, int]
    cells: Sequence[CellRecord]
    locks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def stamp(self) -> str:
        """Return the word that names it, e.g. `20261201T003000.000Z`; later nights sort behind."""
        return f"{self.at:%Y%m%dT%H%M%S}.{self.at.microsecond // 1000:03}Z"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "schema": SCHEMA,
            "at": self.at.isoformat(),
            "snapshot": dict(self.snapshot),
            "counts": dict(self.counts),
            "cells": [cell.to_json() for cell in self.cells],
            "locks": {digest: dict(packages) for digest, packages in self.locks.items()},
            "changes": dict(self.changes),
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Night:
        """Return the night of such data; raises KeyError, ValueError, TypeError."""
        return cls(
            at=datetime.fromisoformat(data["at"]),
            snapshot=dict(data["snapshot"]),
            counts={str(name): int(count) for name, count in data["counts"].items()},
            cells=tuple(CellRecord.from_json(item) for item in data["cells"]),
            locks={str(digest): dict(packages) for digest, packages in data["locks"].items()},
            changes=dict(data["changes"]),
            seconds=float(data["seconds"]),
        )
