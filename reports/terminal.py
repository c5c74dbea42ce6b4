"""What the terminal shows: the table of verdicts, one verdict in full, and progress as bars or as plain lines."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO, assert_never

from matrix.finding import Finding
from matrix.job import Progress, RunResult
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict, deviation_words
from reports import headline
from reports.document import cell_document
from reports.findings import finding_lines
from reports.gpu import gpu_column, recorded_line
from reports.legend import EFFECTS, OUTCOMES, STATUSES, one_line
from reports.probes import probe_lines

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PLAIN_WIDTH = 220
"""As wide as a table is where nobody says how much fits."""
LEAST_REASON = 20
"""With less room than this a reason goes on a line of its own."""
FEATURES = 2
"""So many features are named in a table; the verdict in full and the reports name all."""
FINDINGS = 12
"""So many findings of one effect are shown with a verdict."""
FEW = 3
"""A tier of no more cells is over before anybody wants to know how far it is."""
PATIENCE_S = 3.0
"""After so long it is said that a tier of a few cells is still at it."""
STYLES = {
    Status.WORKS: "green",
    Status.DEGRADED: "yellow",
    Status.BROKEN: "bold red",
    Status.CONFLICT: "magenta",
    Status.UNTESTED: "dim",
}
HEADINGS = ("status", "cell", "resolves", "works", "tier", "gpu", "why")


def table(result: RunResult, *, width: int = PLAIN_WIDTH, colour: bool = False) -> str:
    """Return the verdicts as a table, and under it the counts with their denominators.

    Plain text in columns, the first reason cut to what is left of `width` characters; with `colour` a table for a
    terminal, in which it wraps instead. `verdict_text` and the reports have all reasons.
    """
    gpu = gpu_column(result.verdicts)
    rows = [_row(verdict, gpu) for verdict in result.verdicts]
    heads = HEADINGS if gpu else tuple(word for word in HEADINGS if word != "gpu")
    body = _rich_table(result, rows, heads, width) if colour else _plain_table(rows, heads, width)
    counts = "  ".join(f"{STATUSES[status].mark} {count} {status}" for status, count in result.counts.items())
    notes = "".join(f"note: {note}\n" for note in result.notes)
    recorded = recorded_line(result.verdicts)
    more = f"{recorded}{' * by that evidence.' if gpu else ''}\n" if recorded else ""
    return f"{body}\n{counts}\n{headline.title(result)}; {headline.denominator(result)}\n{more}{notes}"


def _row(verdict: Verdict, gpu: Mapping[str, str]) -> tuple[str, ...]:
    status = STATUSES[verdict.status]
    return (
        f"{status.mark} {status.name}",
        verdict.cell.name,
        verdict.resolvable.value,
        verdict.works.value + _few(verdict.features),
        verdict.deepest.value if verdict.deepest else "none",
        *([gpu.get(verdict.cell.name, "")] if gpu else []),
        one_line(verdict.reasons[0]) if verdict.reasons else "",
    )


def _plain_table(rows: list[tuple[str, ...]], heads: Sequence[str], width: int) -> str:
    """Return the rows in columns, no line longer than `width`; where little room is left a reason has its own line."""
    shown = [tuple(word.upper() for word in heads), *rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(heads) - 1)]
    left = width - sum(widths) - 2 * len(widths)
    lines = []
    for row in shown:
        columns = [text.ljust(size) for text, size in zip(row[:-1], widths, strict=True)]
        if left >= LEAST_REASON:
            lines.append("  ".join((*columns, _cut(row[-1], left))).rstrip())
            continue
        lines.append(_cut("  ".join(columns).rstrip(), width))
        if row in rows and row[-1]:
            lines.append(_cut(f"    {row[-1]}", width))
    return "\n".join(lines) + "\n"


def _few(features: Sequence[str]) -> str:
    """Return the features in brackets, the first few of many and how many more there are."""
    if not features:
        return ""
    more = [f"+{len(features) - FEATURES}"] if len(features) > FEATURES else []
    return f" [{', '.join([*features[:FEATURES], *more])}]"


def _rich_table(result: RunResult, rows: list[tuple[str, ...]], heads: Sequence[str], width: int) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, expand=True, pad_edge=False)
    for heading in heads:
        ratio = {"cell": 3, "why": 4}.get(heading)
        drawn.add_column(
            heading, ratio=ratio, overflow="fold", no_wrap=heading in ("status", "resolves", "tier", "gpu")
        )
    for verdict, row in zip(result.verdicts, rows, strict=True):
        # Text, not str: a package's own words must not be taken for markup.
        first, *others = (Text(word) for word in row)
        first.stylize(STYLES[verdict.status])
        drawn.add_row(first, *others)
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, legacy_windows=False).print(drawn)
    return out.getvalue()


def verdict_text(verdict: Verdict) -> str:
    """Return one cell's verdict in full: what it is and what follows, then both axes with their reasons, then findings.

    Ends with a newline. Reasons come from packages and logs, so each is put on one line without control characters.
    """
    status = STATUSES[verdict.status]
    detail = cell_document(verdict)
    resolve, surface = detail["resolve"] or {}, detail["surface"] or {}
    ran = dict.fromkeys(item.tier for item in verdict.tried if item.ran and not item.shipped)
    tiers = " and ".join(ran)
    lines = [f"{verdict.cell.name}: {status.mark} {status.name}", f"  {consequence(verdict)}", ""]
    words = deviation_words(verdict.cell, verdict.evidence)
    lines += [f"  deviation  {words}"] if words else []
    lines += _entry("resolves", verdict.resolvable, _resolve_lines(verdict, resolve))
    lines += _entry("works", verdict.works, _surface_lines(verdict))
    unlooked = ", ".join(verdict.unlooked)
    lines += [f"             not looked at, as no version is known: {unlooked}"] if unlooked else []
    lines += probe_lines(verdict)
    lines.append(f"  tried      {tiers or 'nothing'}{_on(verdict)}, {_when(verdict)}")
    lines += [f"  recorded   {one_line(item.line)}" for item in verdict.recorded if not item.tier.is_deep]
    found = [Finding.from_json(item) for item in surface.get("findings", ())]
    return "\n".join(lines + _finding_lines(verdict, found, surface)) + "\n"


def consequence(verdict: Verdict) -> str:
    """Return what follows from a verdict for somebody who wants to use the set, as a sentence or two."""
    fits = _FITS[verdict.works]
    if verdict.works is Outcome.OK and verdict.deepest is not None and verdict.deepest.is_deep:
        fits = "Installed, and every probe that ran there found what it should; what was not tried is named below."
    if verdict.features and verdict.status is Status.DEGRADED:
        fits = f"Usable where none of these is used: {', '.join(verdict.features)}."
    match verdict.status:
        case Status.WORKS | Status.DEGRADED | Status.BROKEN:
            unsure = verdict.resolvable is Outcome.UNTESTED
            return f"{fits} Whether the set may be installed is not known." if unsure else fits
        case Status.CONFLICT:
            return f"{_forbidden(verdict)} {fits}".rstrip()
        case Status.UNTESTED if verdict.deepest is None:
            return "No answer; the reasons are below."
        case Status.UNTESTED:
            return "May be installed. Whether the code fits was not tried, so nothing is known of whether it works."
        case _:
            assert_never(verdict.status)


_FITS = {
    Outcome.OK: "Nothing that verl uses of the others is missing, as far as their code tells without running it.",
    Outcome.DEGRADED: "The code fits but for what is listed below.",
    Outcome.BROKEN: "The code does not fit: an ordinary run stops at what is listed below.",
    Outcome.UNTESTED: "",
}


def _forbidden(verdict: Verdict) -> str:
    """Return why the set may not be installed: where something cannot be had, what that is."""
    observation = verdict.observation(Tier.RESOLVE)
    lacks = observation.detail.get("lacks") if observation is not None else None
    if verdict.resolvable is Outcome.UNAVAILABLE and isinstance(lacks, str) and lacks in _LACKING:
        return f"Cannot be installed: {_LACKING[lacks]}"
    return _FORBIDDEN.get(verdict.resolvable, _FORBIDDEN[Outcome.CONFLICT])


_LACKING = {
    "release": "there is no such release.",
    "date": "a release was not there by the date that was asked about.",
    "yanked": "a release was withdrawn.",
    "wheel": "a release has no wheel for this platform and python.",
    "python": "a release is not for this python.",
    "extra": "a release has no such extra.",
    "metadata": "a release has no wheel, and what it depends on is not known without building it.",
}
"""What a pin lacks, by the word that the resolver's observation has for it (`matrix.resolve.case.Lack`)."""
_FORBIDDEN = {
    Outcome.CONFLICT: "Cannot be installed together: these statements of the packages contradict each other.",
    Outcome.BACKTRACKED: "Resolves only with an old release where a version was left open; pin it to see why.",
    Outcome.UNAVAILABLE: "Cannot be installed: a release, or a wheel for this platform, does not exist.",
}


def _entry(name: str, outcome: Outcome, more: list[str]) -> list[str]:
    first, *others = [*more, ""]
    head = f"  {name:<9}  {outcome}" + (f": {first}" if first else "")
    return [head, *(f"             {line}" for line in others if line)]


def _resolve_lines(verdict: Verdict, resolve: Mapping[str, Any]) -> list[str]:
    """Return the versions that were resolved, or why not: the chain of facts stands for the reason that joins them."""
    observation = verdict.observation(Tier.RESOLVE)
    if observation is None:
        return ["not asked"]
    chain = [f"{fact['text']}  [{fact['source']}]" if fact["source"] else fact["text"] for fact in resolve["chain"]]
    reason = one_line(observation.reason)
    if chain:
        lead, joint, _ = reason.partition(one_line(resolve["chain"][0]["text"]))
        reason = lead.rstrip(" :;") if joint else reason
    pinned = {pin.axis.value for pin in verdict.cell.pins}
    chosen = ", ".join(f"{name} {version}" for name, version in resolve["axes"].items() if name not in pinned)
    if resolve["outcome"] == Outcome.OK and resolve["packages"]:
        reason = f"{resolve['packages']} packages" + (f", with {chosen}" if chosen else "")
    notes = [f"note: {note}" for note in resolve["notes"]]
    return [reason, *(one_line(line) for line in (*(f"- {fact}" for fact in chain), *notes))]


def _surface_lines(verdict: Verdict) -> list[str]:
    observation = verdict.observation(Tier.SURFACE)
    if observation is None:
        return ["not checked"]
    lines = [one_line(reason.partition(": ")[2]) for reason in verdict.reasons if reason.startswith(f"{Tier.SURFACE}")]
    return lines or [one_line(observation.reason)]


def _finding_lines(verdict: Verdict, found: Sequence[Finding], surface: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    cut = False
    for effect, heading in EFFECTS.items():
        shown = [item for item in found if item.effect is effect and item.decides]
        if not shown:
            continue
        lines += ["", f"  {heading} ({len(shown)}):"]
        lines += [f"    {line}" for item in shown[:FINDINGS] for line in finding_lines(item)]
        if len(shown) > FINDINGS:
            lines.append(f"    … and {len(shown) - FINDINGS} more")
            cut = True
    rest = sum(not item.decides for item in found)
    if rest:
        counted = f"{rest} more" if lines else f"{rest} {'finding' if rest == 1 else 'findings'}"
        verb = "decides" if rest == 1 else "decide"
        lines += ["", f"  {counted} {verb} nothing: guarded, not certain, or about packages not in this cell"]
    if rest or cut:
        specs = " ".join(f"{name}=={version}" for name, version in surface["versions"].items())
        lines.append(f"  to list all {len(found)}: verl-matrix surface --all {specs}")
    return lines


def _on(verdict: Verdict) -> str:
    if verdict.machine == "static":
        return "; by reading, nothing was installed or run"
    return f"; on {verdict.machine}" if verdict.machine else ""


def _when(verdict: Verdict) -> str:
    return f"{verdict.at:%Y-%m-%d %H:%M} UTC" if verdict.at else "never"


class Lines:
    """Progress as plain lines, for logs: each cell up to a hundred of them, then one line in twenty parts.

    A tier of a few cells is told only once it takes long: its answer says all that its progress would.
    """

    def __init__(self, write: Callable[[str], object], *, patience_s: float = PATIENCE_S) -> None:
        """Send each line, with its end, to `write`."""
        self._write = write
        self._patience_s = patience_s
        self._timer: threading.Timer | None = None
        self._total = 0
        self._count = 0
        self._reused = 0

    def start(self, tier: Tier, total: int) -> None:
        """Say what begins."""
        self._total, self._count, self._reused = total, 0, 0
        text = f"{tier}: {total} {'cell' if total == 1 else 'cells'}"
        if total > FEW:
            self._write(f"{text}\n")
            return
        self._timer = threading.Timer(self._patience_s, self._write, (f"{text}, still at it …\n",))
        self._timer.daemon = True
        self._timer.start()

    def done(self, tier: Tier, cell: str, outcome: Outcome, *, reused: bool) -> None:
        """Say what a cell came to."""
        self._count += 1
        self._reused += reused
        if self._total <= FEW:
            return
        if self._total > 100 and self._count % (self._total // 20) and self._count != self._total:
            return
        stored = "  (stored)" if reused else ""
        width = len(str(self._total))
        mark = OUTCOMES[outcome].mark
        self._write(f"{tier} {self._count:>{width}}/{self._total}  {mark} {outcome:<11} {cell}{stored}\n")

    def note(self, text: str) -> None:
        """Say it: an installation or a probe takes long enough for everybody to want to know."""
        self._write(f"  {_indented(text)}\n")

    def end(self, tier: Tier) -> None:
        """Say how far it came."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._total > FEW:
            self._write(f"{tier}: {self._count} of {self._total} cells done, {self._reused} of them from the store\n")


class Bars:
    """Progress as one bar a tier, for a terminal; that of a few cells goes away when it is through."""

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
            transient=total <= FEW,
        )
        self._task = self._drawn.add_task(tier.value, total=total, cell="")
        self._drawn.start()

    def done(self, tier: Tier, cell: str, outcome: Outcome, *, reused: bool) -> None:
        """Move the bar on by one cell."""
        self._reused += reused
        if self._drawn is not None and self._task is not None:
            self._drawn.update(self._task, advance=1, cell=f"{OUTCOMES[outcome].mark} {cell}")

    def note(self, text: str) -> None:
        """Say it above the bar."""
        from rich.text import Text

        if self._drawn is not None:
            self._drawn.console.print(Text(_indented(text), style="dim"))

    def end(self, tier: Tier) -> None:
        """Leave the bar as it stands."""
        if self._drawn is not None and self._task is not None:
            self._drawn.update(self._task, cell=f"{self._reused} from the store")
            self._drawn.stop()
            self._drawn = self._task = None


def _indented(text: str) -> str:
    """Return a note on one line, as far in as it was."""
    return " " * (len(text) - len(text.lstrip(" "))) + one_line(text)


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
