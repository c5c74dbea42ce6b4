"""Whose fault a fault is: a probe that runs into another known failure of its cell says so instead of guessing."""

from __future__ import annotations

import pytest

from kit.child import Ended
from kit.trial import Trial


def skip_hidden(trial: Trial, ended: Ended) -> Ended:
    """Return a child's end; a skip where another record that the cell predicts explains it: nothing was measured."""
    fault = ended.fault
    if fault is not None and not trial.record.matches(fault):
        for other in trial.cell.records.values():
            if other.id != trial.record.id and other.applies == "yes" and other.matches(fault):
                pytest.skip(f"hidden by {other.id}, which this cell has too")
    return ended


def judge_own(trial: Trial, ended: Ended, *, general: tuple[str, ...] = ()) -> None:
    """Judge a child's end, leaving out the faults that another record of this cell predicts and explains.

    Such a fault hides whether this one would have come: where this one is not predicted the probe has seen nothing of
    it, and where it is predicted the probe is untested. `general` names records that explain any fault of this kind,
    and so none in particular.
    """
    fault = ended.fault
    if fault is not None and not trial.record.matches(fault):
        for other in trial.cell.records.values():
            if other.id in (trial.record.id, *general) or other.applies != "yes" or not other.matches(fault):
                continue
            if trial.record.applies == "yes":
                pytest.skip(f"hidden by {other.id}, which this cell has too")
            fault = None
            break
    trial.judge(fault)
