"""What the command line asks of whoever renders: `reports.front` in the real thing, a fake in tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from matrix.finding import Finding
from matrix.grid import Grid
from matrix.job import Progress, RunResult
from matrix.plan import Plan
from matrix.verdict import Verdict

if TYPE_CHECKING:
    from matrix.nightly.course import Held
    from matrix.nightly.record import Night

FindingFormat = Literal["text", "markdown", "annotation", "json"]


class Front(Protocol):
    """Objects in, text or files out; prints nothing itself but progress, and that to standard error."""

    def progress(self) -> Progress:
        """Return who draws the progress: bars on a terminal, plain lines elsewhere."""

    def plan_table(self, plan: Plan) -> str:
        """Return the plan as a table for people."""

    def run_table(self, result: RunResult) -> str:
        """Return the verdicts of a run as a table for people, with the denominators."""

    def verdict_text(self, verdict: Verdict, result: RunResult) -> str:
        """Return one verdict of a run with its reasons, for people."""

    def run_json(self, result: RunResult) -> Mapping[str, object]:
        """Return a run as plain JSON data (reports/schema.json)."""

    def findings_text(self, findings: Sequence[Finding], form: FindingFormat) -> str:
        """Return findings in one of the formats, the breaks first."""

    def write_report(self, result: RunResult, out: Path) -> Sequence[Path]:
        """Write HTML, Markdown, JSON and JUnit into `out` and return the files; raises NoSpaceError."""

    def nightly_text(self, held: Held) -> str:
        """Return what changed since the night before, for people."""

    def write_nightly(self, held: Held, history: Sequence[Night], out: Path, *, report_url: str) -> Sequence[Path]:
        """Write every form of a night into `out`; `history` are the last nights, this one first."""

    def write_grid(self, grid: Grid, out: Path) -> Sequence[Path]:
        """Write the CSV and the HTML heat map into `out` and return the files; raises NoSpaceError."""
