"""What the terminal shows: the table of verdicts, one verdict in full, and progress as bars or as plain lines."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from matrix.finding import Effect, Finding, Kind
from matrix.job import Progress, RunResult
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict, deviation_words
from reports import headline
from reports.document import cell_document
from reports.findings import finding_lines
from reports.legend import EFFECTS, OUTCOMES, STATUSES, one_line

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PLAIN_WIDTH = 220
FINDINGS = 12
"""So many findings of one effect are shown with a verdict."""
STYLES = {
    Status.WORKS: "green",
    Status.DEGRADED: "yellow",
    Status.BROKEN: "bold red",
    Status.CONFLICT: "magenta",
    Status.UNTESTED: "dim",
}
HEADINGS = ("status", "cell", "resolves", "works", "tier", "why")


def table(result: RunResult, *, width: int = PLAIN_WIDTH, colour: bool = False) -> str:
    """Return the verdicts as a table, and under it the counts with their denominators.

    Plain text in columns, the first reason cut to what is left of `width`; with `colour` a table for a terminal, in
    which it wraps instead. `verdict_text` and the reports have all reasons.
    """
    rows = [_row(verdict) for verdict in result.verdicts]
    body = _rich_table(result, rows, width) if colour else _plain_table(rows, width)
    counts = "  ".join(f"{STATUSES[status].mark} {count} {status}" for status, count in result.counts.items())
    notes = "".join(f"note: {note}\n" for note in result.notes)
    return f"{body}\n{counts}\n{headline.title(result)}; {headline.denominator(result)}\n{notes}"


def _row(verdict: Verdict) -> tuple[str, ...]:
    status = STATUSES[verdict.status]
    features = f" [{', '.join(verdict.features)}]" if verdict.features else ""
    return (
        f"{status.mark} {status.name}",
        verdict.cell.name,
        verdict.resolvable.value,
        verdict.works.value + features,
        verdict.deepest.value if verdict.deepest else "none",
        one_line(verdict.reasons[0]) if verdict.reasons else "",
    )


def _plain_table(rows: list[tuple[str, ...]], width: int) -> str:
    shown = [tuple(word.upper() for word in HEADINGS), *rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(HEADINGS) - 1)]
    left = max(width - sum(widths) - 2 * len(widths), 20)
    lines = []
    for row in shown:
        columns = [text.ljust(size) for text, size in zip(row[:-1], widths, strict=True)]
        lines.append("  ".join((*columns, _cut(row[-1], left))).rstrip())
    return "\n".join(lines) + "\n"


def _rich_table(result: RunResult, rows: list[tuple[str, ...]], width: int) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, expand=True, pad_edge=False)
    for heading in HEADINGS:
        ratio = {"cell": 3, "why": 4}.get(heading)
        drawn.add_column(heading, ratio=ratio, overflow="fold", no_wrap=heading in ("status", "resolves", "tier"))
    for verdict, row in zip(result.verdicts, rows, strict=True):
        # Text, not str: a package's own words must not be taken for markup.
        first, *others = (Text(word) for word in row)
        first.stylize(STYLES[verdict.status])
        drawn.add_row(first, *others)
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, legacy_windows=False).print(drawn)
    return out.getvalue()


def verdict_text(verdict: Verdict) -> str:
    """Return one cell's verdict in full: both axes, every reason, the resolver's chain, the findings that matter."""
    status = STATUSES[verdict.status]
    words = deviation_words(verdict.cell)
    tried = verdict.deepest.value if verdict.deepest else "no tier"
    lines = [f"{verdict.cell.name}: {status.mark} {status.name}"]
    lines += [f"  deviation  {words}"] if words else []
    lines += [f"  resolves   {verdict.resolvable}", f"  works      {verdict.works}"]
    lines.append(f"  tried      down to {tried}, {verdict.machine or 'on no machine'}, {_when(verdict)}")
    lines += [f"  why        {one_line(reason)}" for reason in verdict.reasons]
    detail = cell_document(verdict)
    for fact in (detail["resolve"] or {}).get("chain", ()):
        source = f"  [{fact['source']}]" if fact["source"] else ""
        lines.append(f"    - {one_line(fact['text'] + source)}")
    found = [Finding.from_json(item) for item in (detail["surface"] or {}).get("findings", ())]
    for effect, heading in EFFECTS.items():
        shown = [item for item in found if item.effect is effect and _decides(item)]
        if not shown:
            continue
        lines.append(f"  {heading} ({len(shown)}):")
        lines += [f"    {line}" for item in shown[:FINDINGS] for line in finding_lines(item)]
        if len(shown) > FINDINGS:
            lines.append(f"    … and {len(shown) - FINDINGS} more; `surface` lists all of them")
    rest = sum(not _decides(item) for item in found)
    if rest:
        lines.append(f"  {rest} more findings decide nothing: guarded, not certain, or about packages not in this cell")
    return "\n".join(lines) + "\n"


def _decides(item: Finding) -> bool:
    return item.certain and item.effect is not Effect.GUARDED and item.kind is not Kind.PACKAGE_ABSENT


def _when(verdict: Verdict) -> str:
    return f"{verdict.at:%Y-%m-%d %H:%M} UTC" if verdict.at else "never"


class Lines:
    """Progress as plain lines, for logs: each cell up to a hundred of them, then one line in twenty parts."""

    def __init__(self, write: Callable[[str], object]) -> None:
        """Send each line, with its end, to `write`."""
        self._write = write
        self._total = 0
        self._count = 0
        self._reused = 0

    def start(self, tier: Tier, total: int) -> None:
        """Say what begins."""
        self._total, self._count, self._reused = total, 0, 0
        self._write(f"{tier}: {total} cells\n")

    def done(self, tier: Tier, cell: str, outcome: Outcome, *, reused: bool) -> None:
        """Say what a cell came to."""
        self._count += 1
        self._reused += reused
        if self._total > 100 and self._count % (self._total // 20) and self._count != self._total:
            return
        stored = "  (stored)" if reused else ""
        width = len(str(self._total))
        mark = OUTCOMES[outcome].mark
        self._write(f"{tier} {self._count:>{width}}/{self._total}  {mark} {outcome:<11} {cell}{stored}\n")

    def end(self, tier: Tier) -> None:
        """Say how far it came."""
        self._write(f"{tier}: {self._count} of {self._total} cells done, {self._reused} of them from the store\n")


class Bars:
    """Progress as one bar a tier, for a terminal."""

    def __init__(self, stream: TextIO) -> None:
        """Draw on `stream`."""
        self._stream = stream
        self._drawn: RichProgress | None = None
        self._task: TaskID | None = None
        self._reused = 0

    def start(self, tier: Tier, total: int) -> None:
        """Draw the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._reused = 0
        self._drawn = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[cell]}[/dim]"),
            console=Console(file=self._stream),
        )
        self._task = self._drawn.add_task(tier.value, total=total, cell="")
        self._drawn.start()

    def done(self, tier: Tier, cell: str, outcome: Outcome, *, reused: bool) -> None:
        """Move the bar on by one cell."""
        self._reused += reused
        if self._drawn is not None and self._task is not None:
            self._drawn.update(self._task, advance=1, cell=f"{OUTCOMES[outcome].mark} {cell}")

    def end(self, tier: Tier) -> None:
        """Leave the bar as it stands."""
        if self._drawn is not None and self._task is not None:
            self._drawn.update(self._task, cell=f"{self._reused} from the store")
            self._drawn.stop()
            self._drawn = self._task = None


def progress_for(stream: TextIO) -> Progress:
    """Return bars where `stream` is a terminal, else plain lines."""
    if stream.isatty():
        return Bars(stream)

    def write(line: str) -> None:
        stream.write(line)
        stream.flush()

    return Lines(write)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"
