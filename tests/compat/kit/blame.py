"""Whose fault a fault is: a probe that runs into another known failure of its cell says so instead of guessing."""

from __future__ import annotations

import pytest

from kit.cell import Record
from kit.child import Ended
from kit.trial import Trial


def skip_hidden(trial: Trial, ended: Ended) -> Ended:
    """Return a child's end; a skip where another record that the cell predicts explains it: nothing was measured."""
    other = _explaining(trial, ended.fault)
    if other is not None:
        pytest.skip(f"hidden by {other.id}, which this cell has too")
    return ended


def judge_own(trial: Trial, ended: Ended, *, general: tuple[str, ...] = ()) -> None:
    """Judge a child's end, leaving out the faults that another record of this cell predicts and explains.

    Such a fault hides whether this one would have come: where this one is not predicted the probe has seen nothing of
    it, and where it is predicted the probe is untested. `general` names records that explain any fault of this kind,
    and so none in particular.
    """
    other = _explaining(trial, ended.fault, general)
    if other is not None and trial.record.applies == "yes":
        pytest.skip(f"hidden by {other.id}, which this cell has too")
    trial.judge(ended.fault if other is None else None)


def _explaining(trial: Trial, fault: str | None, general: tuple[str, ...] = ()) -> Record | None:
    """Return the other record that the cell predicts and the fault shows, None where it is this trial's or nobody's."""
    if fault is None or trial.record.matches(fault):
        return None
    others = (other for other in trial.cell.records.values() if other.id not in (trial.record.id, *general))
    return next((other for other in others if other.applies == "yes" and other.matches(fault)), None)
