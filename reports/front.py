"""All renderers behind the one protocol that the command line knows (`matrix.cli.front.Front`)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from matrix.finding import Finding
from matrix.grid import Grid
from matrix.job import Progress, RunResult
from matrix.plan import Plan, Planned
from matrix.verdict import Verdict, deviation_words
from reports.findings import Format

if TYPE_CHECKING:
    from matrix.nightly.course import Held
    from matrix.nightly.record import Night


class TerminalFront:
    """The real front: tables fit the terminal they go to, progress goes to standard error."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        """Render for `out`, tell progress to `err`; by default the streams of this process."""
        self._out = out or sys.stdout
        self._err = err or sys.stderr

    def progress(self) -> Progress:
        """Return bars where standard error is a terminal, plain lines elsewhere."""
        from reports.terminal import progress_for

        return progress_for(self._err)

    def plan_table(self, plan: Plan) -> str:
        """Return a line a cell: its name, its groups, its deviation, and why it is planned; then how many there are."""
        rows = [(item.cell.name, ", ".join(item.groups), _why(item)) for item in plan.planned]
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        lines = [f"{name:<{widths[0]}}  {groups:<{widths[1]}}  {why}".rstrip() for name, groups, why in rows]
        return "\n".join([*lines, f"{len(rows)} {'cell' if len(rows) == 1 else 'cells'} planned"])

    def run_table(self, result: RunResult) -> str:
        """Return the verdicts as a table with the denominators; in colour on a terminal that wants it."""
        from reports.terminal import PLAIN_WIDTH, table

        if self._out.isatty() and "NO_COLOR" not in os.environ:
            return table(result, width=shutil.get_terminal_size().columns, colour=True).rstrip()
        return table(result, width=shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns).rstrip()

    def verdict_text(self, verdict: Verdict, result: RunResult) -> str:
        """Return one verdict with its reasons, chain and findings, and the tools that made it."""
        from reports.headline import provenance
        from reports.terminal import verdict_text

        notes = "".join(f"  note       {note}\n" for note in result.notes)
        return f"{verdict_text(verdict)}\n{notes}  made by    {provenance(result)}"

    def run_json(self, result: RunResult) -> Mapping[str, object]:
        """Return a run as plain JSON data (schema.json); of the records, those that apply to its cells."""
        from reports.document import document, of_its_cells

        return of_its_cells(document(result))

    def findings_text(self, findings: Sequence[Finding], form: Format) -> str:
        """Return findings in one of the formats, the breaks first."""
        from reports.findings import render

        return render(findings, form)

    def write_report(self, result: RunResult, out: Path) -> Sequence[Path]:
        """Write HTML, Markdown, JSON and JUnit into `out` and return the files; raises NoSpaceError, UsageError."""
        from reports.build import build

        return build(result, out).all

    def nightly_text(self, held: Held) -> str:
        """Return what changed since the night before, with the denominators."""
        from reports.nightly import text

        return text(held)

    def write_nightly(self, held: Held, history: Sequence[Night], out: Path, *, report_url: str) -> Sequence[Path]:
        """Write the reports of the run, and what changed in every form; raises NoSpaceError, UsageError."""
        from reports.build import build_nightly

        return build_nightly(held, history, out, report_url=report_url)

    def write_grid(self, grid: Grid, out: Path) -> Sequence[Path]:
        """Write the CSV and the HTML heat map into `out` and return the files; raises NoSpaceError, UsageError."""
        from reports.build import build_grid

        files = build_grid(grid, out)
        return (files.html, files.csv)


def _why(item: Planned) -> str:
    words = deviation_words(item.cell)
    return f"[{words}] {item.cell.reason}" if words else item.cell.reason
