"""Blame: a fault that another record of the cell explains is not this probe's; anything else is judged as it is."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

COMPAT = str(Path(__file__).parents[1] / "compat")


@pytest.fixture
def blame(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module as a probe imports it."""
    monkeypatch.syspath_prepend(COMPAT)
    for name in [name for name in sys.modules if name.partition(".")[0] == "kit"]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("kit.blame")


OWN, OTHER, WIDE = "own fault", "other fault", "fault"


@pytest.mark.parametrize(
    ("own", "other", "text", "ends"),
    [
        ("yes", "no", OWN, "reproduced"),
        ("yes", "yes", OWN, "reproduced"),
        ("no", "yes", OTHER, "absent"),
        ("no", "no", None, "absent"),
        ("yes", "yes", OTHER, "hidden by other"),
        ("no", "no", OTHER, "another reason"),
        ("no", "unknown", OTHER, "another reason"),
        ("yes", "no", None, "not seen"),
        ("no", "yes", OWN, "not predicted"),
    ],
)
def test_whose_fault_it_is(blame: ModuleType, own: str, other: str, text: str | None, ends: str) -> None:
    """A record that matches and is predicted explains a fault; a general one never does."""
    from kit import Cell, Ended, Record, Trial

    records = [
        Record(id="own", applies=own, pattern="own"),
        Record(id="other", applies=other, pattern="other"),
        Record(id="wide", applies="yes", pattern=WIDE),
    ]
    trial = Trial(Cell(name="a", records={one.id: one for one in records}), records[0])
    ended = Ended(code=0 if text is None else 1, stdout="", stderr=text or "", seconds=0.1)
    if ends in ("reproduced", "absent"):
        blame.judge_own(trial, ended, general=("wide",))
        assert trial.seen == ends
        return
    with pytest.raises((AssertionError, pytest.skip.Exception), match=ends):
        blame.judge_own(trial, ended, general=("wide",))


@pytest.mark.parametrize(
    ("other", "text", "hidden"),
    [("yes", OTHER, True), ("yes", OWN, False), ("yes", None, False), ("no", OTHER, False), ("unknown", OTHER, False)],
)
def test_what_is_measured_is_hidden_by_a_fault_that_is_predicted(
    blame: ModuleType, other: str, text: str | None, hidden: bool
) -> None:
    """Where another record explains why a subject ended early, nothing was measured; else its end is looked at."""
    from kit import Cell, Ended, Record, Trial

    records = [Record(id="own", applies="no", pattern="own"), Record(id="other", applies=other, pattern="other")]
    trial = Trial(Cell(name="a", records={one.id: one for one in records}), records[0])
    ended = Ended(code=0 if text is None else 1, stdout="", stderr=text or "", seconds=0.1)
    if hidden:
        with pytest.raises(pytest.skip.Exception, match="hidden by other"):
            blame.skip_hidden(trial, ended)
    else:
        assert blame.skip_hidden(trial, ended) is ended
