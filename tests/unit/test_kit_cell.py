"""A record as a probe reads it: whether a text shows the failure, and in which of its lines."""

from __future__ import annotations

import pytest

from tests.unit.kit_import import fresh_kit

_kit = pytest.fixture(autouse=True)(fresh_kit)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("first\n  E  Timed out waiting for file x\nlast", "E  Timed out waiting for file x"),
        ("Timed out", "Timed out"),
        ("Timed out 1\nTimed out 2\n", "Timed out 1"),
        ("another", ""),
        ("", ""),
    ],
)
def test_the_line_that_shows_a_failure(text: str, line: str) -> None:
    from kit.cell import Record

    record = Record(id="some-failure", applies="yes", pattern="Timed out")
    assert record.shown(text) == line
    assert record.matches(text) is bool(line)


def test_a_silent_failure_is_shown_by_no_line() -> None:
    from kit.cell import Record

    assert not Record(id="some-failure", applies="yes", observable="a number is wrong").shown("a number is wrong")


def test_what_is_reproduced_keeps_the_line_that_shows_it() -> None:
    from kit import Cell, Trial
    from kit.cell import Record

    record = Record(id="some-failure", applies="yes", pattern="Timed out")
    trial = Trial(Cell(name="ray2.60.0", records={record.id: record}), record)
    trial.judge("Timed out waiting\n" + "x\n" * 5000)
    assert trial.seen == "reproduced"
    assert trial.detail["shown"] == "Timed out waiting"
    assert len(trial.detail["text"]) == 4000
