"""The front: the protocol of the command line, over the real renderers."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from matrix.cell import Axis
from matrix.cli.front import Front
from matrix.grid import grid_of
from matrix.plan import Plan, Planned
from reports.front import TerminalFront
from reports.terminal import Bars, Lines
from tests.unit.report_samples import FUSED, IMAGE, PAIR, sample


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _front(out: io.StringIO | None = None, err: io.StringIO | None = None) -> Front:
    return TerminalFront(out or io.StringIO(), err or io.StringIO())


def test_progress_goes_to_standard_error_as_it_is() -> None:
    assert isinstance(_front(err=Terminal()).progress(), Bars)
    assert isinstance(_front(out=Terminal()).progress(), Lines)


def test_the_plan_is_a_line_a_cell_with_its_deviation_and_a_count() -> None:
    plan = Plan(planned=(Planned(cell=PAIR, groups=("ci", "image")), Planned(cell=IMAGE)))
    assert _front().plan_table(plan).splitlines() == [
        "verl0.9.1-vllm0.24.0-torch2.11.0-tf5.9.0  ci, image  What verl 0.9.1's extra pins.",
        "verl0.7.1-vllm0.17.0-nodeps                          [no-deps (as verl's image is built)]",
        "2 cells planned",
    ]


def test_a_plan_of_one_cell_is_counted_as_one() -> None:
    assert _front().plan_table(Plan(planned=(Planned(cell=PAIR),))).splitlines()[-1] == "1 cell planned"


@pytest.mark.parametrize(
    ("out", "no_color", "coloured"),
    [(Terminal(), False, True), (Terminal(), True, False), (io.StringIO(), False, False)],
)
def test_colour_only_on_a_terminal_that_wants_it(
    monkeypatch: pytest.MonkeyPatch, out: io.StringIO, no_color: bool, coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    assert ("\x1b[" in _front(out).run_table(sample())) == coloured


def test_one_verdict_and_findings_are_text_and_a_run_is_plain_data() -> None:
    result = sample()
    assert json.loads(json.dumps(_front().run_json(result)))["planned"] == 9
    text = _front().verdict_text(result.verdicts[0], result)
    assert text.startswith(PAIR.name)
    assert text.endswith("made by    verl-matrix 0.1.0, python 3.12.4, uv 0.13.9")
    assert "FusedMoE" in _front().findings_text([FUSED], "annotation")


def test_files_are_written_and_named(tmp_path: Path) -> None:
    result = sample()
    files = _front().write_report(result, tmp_path)
    grid = _front().write_grid(grid_of(Axis.VERL, Axis.VLLM, result), tmp_path)
    assert {path.name for path in (*files, *grid)} == {path.name for path in tmp_path.iterdir()}
