"""The second try: what would be a new failure is asked once more before it is called one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from matrix.cell import Cell
from matrix.errors import BusyError, MatrixError, NewerSchemaError, NoSpaceError
from matrix.evidence import Evidence, joined
from matrix.job import RunResult
from matrix.nightly.record import CellRecord, Slot
from matrix.observe import Observation
from matrix.tier import Outcome, Tier
from matrix.verdict import Verdict, judge

FATAL = (NoSpaceError, BusyError, NewerSchemaError)
Again = Callable[[Cell, frozenset[Tier], tuple[str, ...]], RunResult]
"""Asks a cell again at these tiers, at deep ones these probes only; raises MatrixError where it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """A cell that was tried again: its verdict with both tries weighed, the outcomes of each probe, what kept it."""

    verdict: Verdict
    tries: Mapping[tuple[Tier, str], tuple[Outcome, ...]]
    refused: str = ""


def try_again(verdict: Verdict, slots: Sequence[Slot], again: Again, evidence: Evidence | None) -> Retried:
    """Return what the cell comes to when these probes are asked once more; the second answer counts.

    A second try that gives no answer says nothing: the first stands, and it is told why. Raises what ends a run (a full
    disk, a store that is locked or newer).
    """
    tiers = frozenset(slot.tier for slot in slots)
    probes = tuple(slot.probe.removeprefix("compat/") for slot in slots if slot.tier.is_deep)
    first = {slot.key: slot.outcome for slot in slots}
    try:
        result = again(verdict.cell, tiers, probes)
    except FATAL:
        raise
    except MatrixError as error:
        return Retried(verdict=verdict, tries={}, refused=" ".join(str(error).split()))
    if result.interrupted:
        raise KeyboardInterrupt
    found = [item for other in result.verdicts for item in other.evidence if _is_answer(item, first)]
    if not found:
        reasons = "; ".join(reason for other in result.verdicts for reason in other.reasons)
        return Retried(verdict=verdict, tries={}, refused=reasons or "nothing was answered")
    merged = judge(verdict.cell, joined(verdict.cell, [*_here(verdict), *found], evidence))
    tries = {(item.question.tier, item.question.probe): item for item in found}
    return Retried(
        verdict=merged, tries={key: (outcome, tries[key].outcome) for key, outcome in first.items() if key in tries}
    )


def _here(verdict: Verdict) -> list[Observation]:
    return [item for item in verdict.evidence if not item.shipped]


def _is_answer(item: Observation, asked: Mapping[tuple[Tier, str], Outcome]) -> bool:
    key = item.question.tier, item.question.probe
    return key in asked and not item.shipped and item.outcome is not Outcome.UNTESTED


def marked(record: CellRecord, retried: Retried) -> CellRecord:
    """Return the record of a cell with how often each probe was tried."""
    slots = tuple(replace(slot, tries=retried.tries.get(slot.key, ())) for slot in record.slots)
    return replace(record, slots=slots)
