"""Terminal and Markdown: golden files, and what hostile text must not do."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.finding import Effect
from matrix.job import RunResult, Tally
from matrix.resolve.case import Lack
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import judge
from reports import headline
from reports.findings import Format, render
from reports.markdown import LIMIT_BYTES, escaped, summary
from reports.terminal import Bars, Lines, consequence, progress_for, table, verdict_text
from tests.unit.report_samples import DOUBT, FUSED, GUARDED, HOSTILE, PAIR, QUIET, SWIZZLE, sample, seen
from tests.unit.run_fakes import AT, cell, finding, observation

GOLDEN = Path(__file__).with_name("golden") / "reports"


def _verdicts(result: RunResult) -> str:
    return "\n".join(verdict_text(verdict) for verdict in result.verdicts)


def _findings(form: Format) -> Callable[[RunResult], str]:
    return lambda _: render(
        (GUARDED, DOUBT, SWIZZLE, QUIET, FUSED, replace(FUSED, message=HOSTILE, guard=HOSTILE)), form
    )


RENDERED: dict[str, Callable[[RunResult], str]] = {
    "findings.txt": _findings("text"),
    "findings.md": _findings("markdown"),
    "findings-annotation.txt": _findings("annotation"),
    "findings.json": _findings("json"),
    "table.txt": lambda result: table(result),
    "table-narrow.txt": lambda result: table(result, width=120),
    "table-colour.txt": lambda result: table(result, width=120, colour=True),
    "verdicts.txt": _verdicts,
    "summary.md": lambda result: summary(result),
    "summary-linked.md": lambda result: summary(result, report_url="https://ci.example/run/7/index.html"),
}


@pytest.mark.parametrize("name", RENDERED)
def test_text_is_as_agreed(name: str) -> None:
    text = RENDERED[name](sample())
    path = GOLDEN / name
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"rewrite with GOLDEN=write pytest {Path(__file__).name}"


@pytest.mark.parametrize("name", [name for name in RENDERED if name not in ("table-colour.txt", "findings.json")])
def test_hostile_text_reaches_no_terminal_and_no_page(name: str) -> None:
    text = RENDERED[name](sample())
    assert "\x1b" not in text
    assert "\x00" not in text
    if name.endswith(".md"):
        assert "<script>" not in re.sub(r"\\(.)", "", text)


def test_colour_does_not_take_a_reason_for_markup() -> None:
    verdict = seen(PAIR, Outcome.OK, Outcome.BROKEN, (), ("", "[red]not red[/red] \x1b[31m"))
    text = table(replace(sample(), verdicts=(verdict,)), width=200, colour=True)
    assert "[red]not red[/red]" in text
    assert "\x1b[31m" not in text.replace("\x1b[1;31m", "")


@given(st.text())
def test_escaped_markdown_is_one_line_without_live_characters(text: str) -> None:
    shown = escaped(text)
    assert "\n" not in shown
    assert not re.search(r"[`*_\[\]<>|]", re.sub(r"\\.", "", shown))


def test_a_table_row_of_the_summary_has_as_many_columns_as_its_head() -> None:
    rows = [line for line in summary(sample()).splitlines() if line.startswith("|")]
    assert HOSTILE.count("|") == 1
    for row in rows:
        columns = re.sub(r"\\.", "", row).count("|") - 1
        assert columns in (5, 6)


def test_a_huge_summary_stays_below_the_limit_of_a_step_summary_and_says_what_is_missing() -> None:
    base = sample()
    verdicts = tuple(
        seen(cell(verl="0.9.1", vllm=f"0.{n}.0"), Outcome.CONFLICT, None, (), (f"{n} " + "<" * 500, ""))
        for n in range(2500)
    )
    text = summary(replace(base, verdicts=verdicts))
    assert len(text.encode()) < LIMIT_BYTES + 2000
    assert re.search(r"… \d+ more lines; the HTML page and report.json have them all", text)


def test_common_reasons_are_counted() -> None:
    verdicts = tuple(
        seen(
            cell(verl="0.9.1", vllm=f"0.{n}.0"), Outcome.OK, Outcome.BROKEN, (), ("", "FusedMoE is gone" if n else "x")
        )
        for n in range(4)
    )
    assert "- 3 of 4: surface: FusedMoE is gone" in summary(replace(sample(), verdicts=verdicts))


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (sample(), "8 of 9 cells ran (resolve 8 of 9, surface 6 of 9); static analysis, nothing installed; 2026-11-30"),
        (RunResult(verdicts=(), tallies=(), at=AT), "0 of 0 cells ran; on no machine; 2026-11-30 12:00 UTC."),
        (
            RunResult(
                verdicts=(judge(PAIR, [observation(PAIR.name, Tier.GPU, machine="1x H200")]),),
                tallies=(Tally(tier=Tier.GPU, planned=1, new=1),),
                at=AT,
                interrupted=True,
            ),
            "1 of 1 cell ran (gpu 1 of 1), interrupted; 1x H200;",
        ),
    ],
)
def test_no_number_without_its_denominator(result: RunResult, words: str) -> None:
    assert words in headline.denominator(result)


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        ("w", "1 of 1 cell works as far as tried"),
        ("b", "0 of 1 cell works as far as tried"),
        ("u", "0 of 1 cell works as far as tried"),
        ("wwb", "2 of 3 cells work as far as tried"),
        ("wddc", "3 of 4 cells work as far as tried, 2 of them but for some features"),
        ("db", "1 of 2 cells works as far as tried, but for some features"),
        ("bcu", "0 of 3 cells work as far as tried"),
    ],
)
def test_the_title_counts_what_works_and_what_only_in_part(statuses: str, words: str) -> None:
    letters = {status.value[0]: status for status in Status}
    verdict = sample().verdicts[0]
    verdicts = tuple(replace(verdict, status=letters[letter]) for letter in statuses)
    assert headline.title(replace(sample(), verdicts=verdicts)) == words


def _told(total: int, *, patience_s: float = 60.0, pause_s: float = 0.0) -> str:
    lines: list[str] = []
    heard = Lines(lines.append, patience_s=patience_s)
    heard.start(Tier.RESOLVE, total)
    time.sleep(pause_s)
    for number in range(total):
        heard.done(Tier.RESOLVE, "abcd"[number], Outcome.CONFLICT if number else Outcome.OK, reused=not number)
    heard.end(Tier.RESOLVE)
    return "".join(lines)


def test_plain_progress_is_a_line_a_cell() -> None:
    assert _told(4) == (
        "resolve: 4 cells\n"
        "resolve 1/4  ✓ ok          a  (stored)\n"
        "resolve 2/4  ≠ conflict    b\n"
        "resolve 3/4  ≠ conflict    c\n"
        "resolve 4/4  ≠ conflict    d\n"
        "resolve: 4 of 4 cells done, 1 of them from the store\n"
    )


@pytest.mark.parametrize(("total", "words"), [(1, "1 cell"), (3, "3 cells")])
def test_a_few_cells_are_told_of_only_once_they_take_long(total: int, words: str) -> None:
    assert _told(total) == ""
    assert _told(total, patience_s=0.01, pause_s=0.1) == f"resolve: {words}, still at it …\n"


def test_plain_progress_over_a_lattice_is_some_twenty_lines() -> None:
    lines: list[str] = []
    heard = Lines(lines.append)
    heard.start(Tier.SURFACE, 1088)
    for number in range(1088):
        heard.done(Tier.SURFACE, str(number), Outcome.OK, reused=False)
    heard.end(Tier.SURFACE)
    assert 20 <= len(lines) <= 24
    assert lines[-2].startswith("surface 1088/1088")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_on_a_terminal_and_lines_elsewhere() -> None:
    assert isinstance(progress_for(Terminal()), Bars)
    stream = io.StringIO()
    progress_for(stream).start(Tier.RESOLVE, 4)
    assert stream.getvalue() == "resolve: 4 cells\n"


def test_bars_end_where_the_tier_ends() -> None:
    stream = Terminal()
    bars = Bars(stream)
    bars.done(Tier.RESOLVE, "before the start", Outcome.OK, reused=False)
    bars.start(Tier.RESOLVE, 4)
    bars.done(Tier.RESOLVE, "[red]a", Outcome.OK, reused=True)
    bars.done(Tier.RESOLVE, "b", Outcome.OK, reused=False)
    bars.end(Tier.RESOLVE)
    bars.end(Tier.RESOLVE)
    assert "2/4" in stream.getvalue()
    assert "1 from the store" in stream.getvalue()


def test_the_bar_of_a_few_cells_goes_away() -> None:
    stream = Terminal()
    bars = Bars(stream)
    bars.start(Tier.RESOLVE, 1)
    bars.done(Tier.RESOLVE, "a", Outcome.OK, reused=False)
    bars.end(Tier.RESOLVE)
    assert stream.getvalue().endswith("\x1b[2K")


@pytest.mark.parametrize(
    ("resolve", "surface", "words"),
    [
        (Outcome.OK, Outcome.OK, "Nothing that verl uses of the others is missing"),
        (Outcome.OK, None, "Whether the code fits was not tried,"),
        (Outcome.OK, Outcome.DEGRADED, "The code fits but for what is listed below."),
        (Outcome.OK, Outcome.BROKEN, "an ordinary run stops at what is listed below."),
        (Outcome.CONFLICT, None, "contradict each other."),
        (Outcome.CONFLICT, Outcome.DEGRADED, "contradict each other. The code fits but for"),
        (Outcome.BACKTRACKED, None, "pin it to see why."),
        (Outcome.UNAVAILABLE, None, "a wheel for this platform, does not exist."),
        (None, Outcome.OK, "without running it. Whether the set may be installed is not known."),
        (None, None, "No answer; the reasons are below."),
    ],
)
def test_what_follows_is_said_second(resolve: Outcome | None, surface: Outcome | None, words: str) -> None:
    first, second, *_ = verdict_text(seen(PAIR, resolve, surface)).splitlines()
    assert first.startswith(PAIR.name)
    assert words in second


@pytest.mark.parametrize("lacks", Lack)
def test_what_cannot_be_had_is_named(lacks: Lack) -> None:
    missing = observation(PAIR.name, Tier.RESOLVE, Outcome.UNAVAILABLE, detail={"lacks": lacks.value})
    told = consequence(judge(PAIR, [missing]))
    assert told.startswith("Cannot be installed: ")
    # Each lack has words of its own, not those for a reason that nobody knows.
    assert told != consequence(judge(PAIR, [observation(PAIR.name, Tier.RESOLVE, Outcome.UNAVAILABLE)]))


def test_no_finding_is_said_too() -> None:
    assert render((), "text") == "no finding"


def test_a_verdict_shows_so_many_findings_and_counts_the_rest() -> None:
    many = tuple(replace(FUSED, symbol=f"vllm.s{number}") for number in range(20))
    assert "… and 8 more" in verdict_text(seen(PAIR, Outcome.OK, Outcome.BROKEN, many))


@pytest.mark.parametrize("width", [40, 80, 100, 120, 200])
def test_no_line_of_a_plain_table_is_wider_than_it_may_be(width: int) -> None:
    features = tuple(finding(Effect.BREAKS_FEATURE, feature=name) for name in ("qat", "vlm", *"abcdefghijklmnopqrst"))
    verdict = seen(PAIR, Outcome.OK, Outcome.DEGRADED, features, ("", "22 features break or degrade: " + "x" * 300))
    body = table(replace(sample(), verdicts=(verdict,)), width=width).partition("\n\n")[0]
    assert max(map(len, body.splitlines())) <= width
    if width >= 100:
        assert "degraded [a, b, +20]" in body
