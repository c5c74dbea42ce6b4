"""The night in the Common Test Report Format (ctrf.io): one test for each static tier of a cell, and for each probe."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from matrix.nightly.comparison import Kind
from matrix.nightly.record import Slot
from matrix.tier import Outcome
from reports.legend import one_line

if TYPE_CHECKING:
    from matrix.nightly.course import Held

SPEC = "0.0.0"
"""The version of the format; the published schema asks for any of this form."""
SPACE = uuid.UUID("a2a2a0a4-8f5c-5b8a-bb58-6a4a7a3f0c1e")
STATES: Mapping[Outcome, str] = {Outcome.OK: "passed", Outcome.DEGRADED: "passed", Outcome.UNTESTED: "skipped"}
"""What an outcome is called there; all others are `failed`. A degraded tier passes, and `rawStatus` says it."""


def ctrf(held: Held) -> dict[str, object]:
    """Return the night as plain JSON data of the format; times in milliseconds.

    A probe that was tried twice has both tries. A known failure that comes as its record says passes.
    """
    night = held.night
    kinds = {shift.name: shift for shift in held.comparison.shifts}
    tests = list(_tests(held))
    counts = Counter(str(test["status"]) for test in tests)
    stop = _ms(night.at)
    summary = {
        "tests": len(tests),
        **{state: counts[state] for state in ("passed", "failed", "skipped", "pending", "other")},
        "start": stop - round(night.seconds * 1000),
        "stop": stop,
    }
    snapshot = night.snapshot
    return {
        "reportFormat": "CTRF",
        "specVersion": SPEC,
        "reportId": str(uuid.uuid5(SPACE, night.stamp)),
        "timestamp": night.at.isoformat(),
        "generatedBy": "verl-matrix",
        "results": {
            "tool": {"name": "verl-matrix", "version": str((snapshot.get("tools") or {}).get("verl-matrix", ""))},
            "summary": summary,
            "tests": tests,
            "environment": {
                "reportName": "verl-matrix nightly",
                "testEnvironment": str((snapshot.get("machine") or {}).get("machine", "")),
                "healthy": not held.new_failures,
                "extra": {name: snapshot.get(name) for name in ("index", "as_of", "digest")},
            },
            "extra": {
                "cells": dict(night.counts),
                "changes": {kind.value: count for kind, count in held.comparison.counts.items()},
                "new_failures": [name for name, shift in kinds.items() if shift.kind is Kind.NEW_FAILURE],
            },
        },
    }


def _tests(held: Held) -> Iterator[dict[str, object]]:
    shifts = {shift.name: shift for shift in held.comparison.shifts}
    seconds = {
        (verdict.cell.name, item.question.tier, item.question.probe): item.seconds
        for verdict in held.result.verdicts
        for item in verdict.evidence
    }
    for cell in held.night.cells:
        shift = shifts[cell.name]
        turned = {turn.now.key for turn in shift.turns}
        for slot in cell.slots:
            took = seconds.get((cell.cell, *slot.key), 0.0) if not slot.shipped else 0.0
            test = _test(cell.name, slot, round(took * 1000))
            if slot.key in turned:
                test["tags"] = [shift.kind.value]
                if shift.cause is not None:
                    test["extra"] = {"cause": shift.cause.label.value, "facts": shift.cause.line}
            yield test


def _test(cell: str, slot: Slot, duration: int) -> dict[str, object]:
    name = cell if slot.probe == slot.tier.value else f"{cell} {slot.probe.removeprefix('compat/')}"
    test: dict[str, object] = {
        "id": str(uuid.uuid5(SPACE, f"{slot.tier} {name}")),
        "name": name,
        "status": _state(slot),
        "duration": duration,
        "suite": [slot.tier.value],
        "rawStatus": slot.outcome.value,
        "type": slot.tier.value,
    }
    if slot.at:
        stop = datetime.fromisoformat(slot.at)
        test |= {"start": _ms(stop - timedelta(milliseconds=duration)), "stop": _ms(stop)}
    if slot.reason:
        test["message"] = one_line(f"{slot.reason}{f' (shipped evidence, {slot.machine})' if slot.shipped else ''}")
    if len(slot.tries) > 1:
        earlier = [
            {"attempt": number, "status": STATES.get(outcome, "failed")}
            for number, outcome in enumerate(slot.tries[:-1], start=1)
        ]
        test |= {"retries": len(earlier), "retryAttempts": earlier, "flaky": slot.flaky}
    return test


def _state(slot: Slot) -> str:
    """Return the test's state; what another machine recorded was not tried here, so it is `other`."""
    if slot.shipped:
        return "other" if slot.answered else "skipped"
    return "passed" if slot.known else STATES.get(slot.outcome, "failed")


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
