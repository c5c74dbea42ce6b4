"""The stage of the rollout engine, as its probes read it: one launch for a cell, a section for each question."""

from __future__ import annotations

import os
from typing import Any

import pytest

from kit.cell import Cell, Record
from kit.stage import Part, stage
from kit.trial import Trial

SCENES = "VERL_MATRIX_ENGINE_SCENES"
"""The variable that names the scenes to run, `main,cold`; all of them without it."""
SECONDS = 420.0
"""So long the stage may take, the start of five engines in it; a probe that may be the first to ask needs more."""


def part(cell: Cell, name: str) -> Part:
    """Return what a section found, whether or not it ended well; a skip with the reason where it was not reached."""
    scenes = os.environ.get(SCENES, "")
    argv = [str(cell.scratch / "engine"), *(["--scenes", scenes] if scenes else [])]
    found = stage(cell, "engine_rollout.py", *argv, limit=SECONDS).part(name)
    if not found.reached:
        pytest.skip(f"{name} was not reached: {found.last_line}")
    return found


def measured(cell: Cell, name: str) -> dict[str, Any]:
    """Return the data of a section; a skip where a known failure of the cell explains its fault, else an error."""
    found = part(cell, name)
    if found.fault is not None:
        known = explaining(cell, found.fault)
        if known is not None:
            pytest.skip(f"hidden by {known.id}, which this cell has")
        raise AssertionError(f"{name}: {found.last_line}")
    return found.data


def explaining(cell: Cell, fault: str, but: str = "") -> Record | None:
    """Return a record that the cell predicts and the fault shows, None where there is none; `but` is not looked at."""
    known = (one for one in cell.records.values() if one.id != but and one.applies == "yes")
    return next((one for one in known if one.matches(fault)), None)


def judge(trial: Trial, found: Part) -> None:
    """Judge what a section ended with, leaving it out where another record of the cell explains the fault."""
    trial.detail.update(found.found)
    trial.detail["seconds"] = found.seconds
    if found.fault is not None and not trial.record.matches(found.fault):
        other = explaining(trial.cell, found.fault, but=trial.record.id)
        if other is not None:
            pytest.skip(f"hidden by {other.id}, which this cell has too")
    trial.judge(found.fault)
