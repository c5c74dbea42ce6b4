"""The reports of a night: Markdown, page, data, CTRF, feed and badge, each with its denominators, nothing unescaped."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from matrix.job import RunResult
from matrix.nightly.comparison import Comparison, Kind, Shift, compare, dropped
from matrix.nightly.course import Held
from matrix.nightly.record import CellRecord, Night, record_cell
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import judge
from reports.badge import badge
from reports.build import build_nightly
from reports.ctrf import ctrf
from reports.feed import feed
from reports.nightly import FOLDED, denominator, markdown, section, text, title
from reports.nightly_page import page
from tests.unit.nightly_fakes import DAY, FIRST, NAME, night, record, slot
from tests.unit.run_fakes import cell, observation

EVIL = "<script>alert(1)</script> | `x` *y* [z](javascript:1)"
TWICE = (Outcome.BROKEN, Outcome.BROKEN)
FLAKY = (Outcome.BROKEN, Outcome.OK)
BEFORE = night(
    record(slot(reads={"vllm-0.24.0-py3-none-any.whl": "a"})),
    record(slot(outcome=Outcome.BROKEN, tool="1"), name="mended", status=Status.BROKEN),
    record(slot(outcome=Outcome.BROKEN), name="still", status=Status.BROKEN),
    record(slot(), name="flaky"),
    record(slot(), slot(Tier.GPU), name="unrun"),
    record(slot(), name="same"),
    record(slot(), name="left"),
)
NOW = night(
    record(
        slot(outcome=Outcome.BROKEN, reason=EVIL, reads={"vllm-0.24.0-py3-none-any.whl": "b"}, tries=TWICE),
        status=Status.BROKEN,
    ),
    record(slot(tool="2"), name="mended"),
    record(slot(outcome=Outcome.BROKEN, reason="as ever"), name="still", status=Status.BROKEN),
    record(slot(tries=FLAKY, at="2026-12-02T00:30:00+00:00"), name="flaky"),
    record(slot(), slot(Tier.GPU, Outcome.UNTESTED, reason="no GPU"), name="unrun"),
    record(slot(), slot(Tier.IMPORT, shipped="h200", machine="H200", reason="x"), name="same"),
    at=FIRST + DAY,
    tools={"verl-matrix": "0.1.0"},
    as_of="2026-11-21T00:00:00+00:00",
)


def held(before: Night | None = BEFORE, now: Night = NOW, **more: Any) -> Held:
    comparison = Comparison(
        before=before,
        shifts=compare(before, now),
        releases=("+ vllm 0.33.0 2026-11-25",),
        dropped=dropped(before, now),
        notes=(f"a note {EVIL}",),
        **more,
    )
    now = Night(**{name: getattr(now, name) for name in Night.__slots__} | {"changes": comparison.to_json()})
    verdict = judge(cell(verl="0.9.1", vllm="0.24.0"), [observation(NAME, Tier.SURFACE, Outcome.BROKEN)])
    return Held(night=now, comparison=comparison, result=RunResult(verdicts=(verdict,), tallies=(), at=now.at))


def test_the_title_has_what_is_new_and_of_how_many() -> None:
    assert title(held()) == "1 new failure (1 index changed), 1 fixed, 1 flaky, 1 still failing, 1 not run, of 6 cells"
    assert title(held(before=None)) == "first night: 2 of 6 cells fail, nothing to compare with"
    one = night(record(slot()))
    assert title(held(one, one)) == "0 new failures, 0 fixed, 0 still failing, of 1 cell"


def test_the_denominator_names_index_date_pages_and_machine() -> None:
    assert denominator(NOW) == (
        "6 of 6 cells ran, 4 work as far as tried; https://index.invalid/simple as of 2026-11-21 00:00 UTC, "
        "pages sha256:0123456789ab; m; 2026-12-02 00:30 UTC, 12 s."
    )
    assert "a machine that is not known" in denominator(night(record(slot()), machine={}))


def test_the_text_lists_what_changed_with_its_cause() -> None:
    told = text(held())
    assert f"  ✕ {NAME}: works → broken" in told
    assert f"      surface: ok → broken (tried twice: broken, then broken): {EVIL}" in told
    assert "      cause: index changed: other bytes under the name of vllm-0.24.0-py3-none-any.whl" in told
    assert "      cause: ours: the tool: 1 → 2" in told
    assert "      tried twice, and the tries disagree: surface broken, then ok" in told
    assert "      gpu was tried before and is not now: no GPU" in told
    assert "no longer planned (1): left" in told
    assert "  + vllm 0.33.0 2026-11-25" in told
    assert "same" not in told.split("no longer planned")[0]


def test_the_text_of_a_first_night_compares_with_nothing() -> None:
    told = text(held(before=None))
    assert "compared with" not in told
    assert "\nfailing (2):" in told


def test_a_cell_with_many_probes_is_told_in_short() -> None:
    many = [slot(Tier.IMPORT, Outcome.BROKEN, probe=f"p{number}") for number in range(7)]
    told = text(held(night(record(slot())), night(record(slot(), *many, status=Status.BROKEN))))
    assert "and 2 more probes" in told


def test_the_boundary_is_told(tmp_path: Path) -> None:
    made = held()
    (new,) = made.comparison.of(Kind.NEW_FAILURE)
    bounded = Shift(**{name: getattr(new, name) for name in Shift.__slots__} | {"boundary": "vllm 0.24.0 is the first"})
    comparison = Comparison(before=BEFORE, shifts=(bounded,))
    told = Held(night=made.night, comparison=comparison, result=made.result)
    assert "      first bad: vllm 0.24.0 is the first" in text(told)
    assert "first bad: vllm 0.24.0 is the first" in markdown(told)
    assert "first bad: vllm 0.24.0 is the first" in page(section(told))


def test_the_summary_has_every_kind_with_its_count_and_escapes_what_packages_say() -> None:
    told = markdown(held())
    assert "| ✕ new failure | ≈ flaky | ✓ fixed | ? not run | = still failing | unchanged | planned |" in told
    assert "| 1 | 1 | 1 | 1 | 1 | 1 | 6 |" in told
    assert "## ✕ New failures: 1 of 6" in told
    assert "<details><summary>= Still failing: 1 of 6</summary>" in told
    assert "<script>" not in told
    assert "](javascript" not in re.sub(r"\\.", "", told)
    assert "Compared with the night of 2026-12-01 00:30 UTC." in told
    assert told.endswith("<sub>verl-matrix 0.1.0</sub>\n")
    for line in told.splitlines():
        if line.startswith("| `"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (4, 5)


def test_the_summary_links_to_the_page_where_it_is_served() -> None:
    assert f"[`{NAME}`](https://x/index.html#cell-{NAME})" in markdown(held(), report_url="https://x/index.html")


def test_the_summary_stays_below_a_mebibyte() -> None:
    reason = "x" * 300
    cells = [
        record(slot(outcome=Outcome.BROKEN, reason=reason), name=f"{number}" + "n" * 60, status=Status.BROKEN)
        for number in range(3000)
    ]
    told = markdown(held(night(record(slot())), night(*cells)))
    assert len(told.encode()) < 2**20
    assert "more lines; the HTML page and report.json have them all." in told


class _Tags(HTMLParser):
    """Notes the tags of a page, and the scripts and addresses in it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


@pytest.mark.parametrize("before", [BEFORE, None])
def test_the_page_escapes_loads_nothing_and_has_a_row_a_cell(before: Night | None) -> None:
    history = (NOW, BEFORE)
    told = page(section(held(before), history))
    tags = _Tags()
    tags.feed(told)
    tags.close()
    assert "script" not in tags.tags
    assert not {"src", "href", "onclick"} & set(tags.attributes)
    assert "default-src 'none'" in told
    assert tags.tags.count("h1") == 1
    assert f"<code>{NAME}</code>" in told
    assert "<h2>Nights</h2>" in told


def test_the_section_is_plain_data_with_the_history() -> None:
    made = section(held(), (NOW, BEFORE))
    data = json.loads(json.dumps(made))
    assert data == made
    assert [item["stamp"] for item in data["history"]] == [NOW.stamp, BEFORE.stamp]
    assert {shift["kind"] for shift in data["shifts"]} == {kind.value for kind in Kind} - {"unchanged"}
    assert (data["first"], data["before_at"]) == (False, BEFORE.at.isoformat())
    assert section(held(before=None))["first"] is True


TEST_FIELDS = {
    "id": str, "name": str, "status": str, "duration": int, "start": int, "stop": int, "suite": list, "message": str,
    "rawStatus": str, "tags": list, "type": str, "retries": int, "retryAttempts": list, "flaky": bool, "extra": dict,
}  # fmt: skip
"""The fields of a test in the published schema (schema/ctrf.schema.json of ctrf-io/ctrf) that are written, by type."""


def test_the_ctrf_report_has_the_fields_of_the_published_schema_and_counts_that_add_up() -> None:
    data = json.loads(json.dumps(ctrf(held())))
    assert set(data) == {"reportFormat", "specVersion", "reportId", "timestamp", "generatedBy", "results"}
    assert data["reportFormat"] == "CTRF"
    assert re.fullmatch(r"\d+\.\d+\.\d+", data["specVersion"])
    results = data["results"]
    assert set(results) == {"tool", "summary", "tests", "environment", "extra"}
    summary, tests = results["summary"], results["tests"]
    states = ("passed", "failed", "skipped", "pending", "other")
    assert summary["tests"] == len(tests) == sum(summary[state] for state in states) == 8
    assert {state: summary[state] for state in states} == {
        "passed": 4, "failed": 2, "skipped": 1, "pending": 0, "other": 1,
    }  # fmt: skip
    assert summary["stop"] - summary["start"] == 12_000
    for test in tests:
        assert {"name", "status", "duration"} <= set(test) <= set(TEST_FIELDS)
        assert all(isinstance(value, TEST_FIELDS[name]) for name, value in test.items())
        assert test["status"] in states
    assert len({test["id"] for test in tests}) == len(tests)
    assert results["environment"]["healthy"] is False
    assert results["extra"]["new_failures"] == [NAME]


def test_a_probe_that_was_tried_twice_has_both_tries() -> None:
    tests = {test["name"]: test for test in ctrf(held())["results"]["tests"]}  # type: ignore[index]
    assert tests["flaky"]["retryAttempts"] == [{"attempt": 1, "status": "failed"}]
    assert (tests["flaky"]["retries"], tests["flaky"]["flaky"], tests["flaky"]["status"]) == (1, True, "passed")
    assert (tests[NAME]["flaky"], tests[NAME]["tags"]) == (False, ["new failure"])
    assert tests[NAME]["extra"]["cause"] == "index changed"
    assert tests["flaky"]["stop"] - tests["flaky"]["start"] == tests["flaky"]["duration"]


def test_a_known_failure_that_comes_as_recorded_passes_and_its_raw_status_says_what_it_is() -> None:
    known = slot(Tier.IMPORT, Outcome.BROKEN, probe="compat/test_a.py::test_a", known="f-1")
    now = night(record(slot(), known, slot(Tier.GPU, Outcome.DEGRADED), status=Status.BROKEN))
    tests = ctrf(held(night(record(slot(), known)), now))["results"]["tests"]  # type: ignore[index]
    assert [(test["status"], test["rawStatus"]) for test in tests] == [
        ("passed", "ok"), ("passed", "broken"), ("passed", "degraded"),
    ]  # fmt: skip
    assert tests[1]["name"] == f"{NAME} test_a.py::test_a"


def test_the_feed_is_json_feed_1_1_with_an_item_a_night() -> None:
    now = held().night
    made = json.loads(json.dumps(feed([now, BEFORE], url="https://x/nightly/")))
    assert made["version"] == "https://jsonfeed.org/version/1.1"
    assert made["feed_url"] == "https://x/nightly/feed.json"
    assert made["home_page_url"] == "https://x/nightly/nightly.html"
    first, second = made["items"]
    assert set(first) == {"id", "title", "content_text", "date_published", "tags", "url"}
    assert first["title"] == "1 new failure, 1 fixed, 1 still failing; 4 of 6 cells work as far as tried"
    assert f"new failure: {NAME} (index changed: other bytes" in first["content_text"]
    assert "release: + vllm 0.33.0 2026-11-25" in first["content_text"]
    assert second["title"] == "First night: 5 of 7 cells work as far as tried"
    assert first["url"].startswith("https://x/nightly/nightly.html#")
    assert first["url"] != second["url"]
    assert first["id"] == feed([now])["items"][0]["id"] != second["id"]  # type: ignore[index]
    assert "feed_url" not in feed([now])


@pytest.mark.parametrize(
    ("cells", "new", "message", "colour"),
    [
        ([(slot(), Status.WORKS)] * 3, 0, "3/3 work · 2026-12-01", "brightgreen"),
        ([(slot(), Status.WORKS), (slot(), Status.BROKEN)], 0, "1/2 work · 2026-12-01", "yellow"),
        ([(slot(), Status.WORKS), (slot(), Status.DEGRADED)], 0, "2/2 work · 2026-12-01", "brightgreen"),
        ([(slot(), Status.WORKS), (slot(), Status.BROKEN)], 1, "1/2 work · 2026-12-01", "red"),
        (
            [(slot(), Status.WORKS), (slot(outcome=Outcome.UNTESTED), Status.UNTESTED)],
            0,
            "1/1 work, 1 not judged · 2026-12-01",
            "brightgreen",
        ),
        ([(slot(outcome=Outcome.UNTESTED), Status.UNTESTED)], 0, "nothing ran · 2026-12-01", "lightgrey"),
    ],
)
def test_the_badge_has_its_denominator_and_its_day(
    cells: list[tuple[Any, Status]], new: int, message: str, colour: str
) -> None:
    held_night = night(*(record(one, status=status, name=str(n)) for n, (one, status) in enumerate(cells)))
    made = badge(held_night, new_failures=new)
    assert made == {"schemaVersion": 1, "label": "verl-matrix", "message": message, "color": colour}


def test_what_fails_as_it_did_is_folded_on_a_terminal() -> None:
    many = [record(slot(outcome=Outcome.BROKEN), status=Status.BROKEN, name=f"cell{n}") for n in range(FOLDED + 3)]
    lines = text(held(night(*many), night(*many))).splitlines()
    assert sum(line.startswith("  = cell") for line in lines) == FOLDED
    assert lines[-1] == "  … and 3 more: nightly.html and --json have them all"
    assert not any("more: nightly.html" in line for line in text(held()).splitlines())


@pytest.mark.parametrize("url", ["https://x/nightly", "https://x/nightly/index.html"])
def test_all_files_of_a_night_are_written(tmp_path: Path, url: str) -> None:
    made = held()
    verdict = made.result.verdicts[0]
    assert isinstance(record_cell(verdict, NAME), CellRecord)
    files = build_nightly(made, (made.night,), tmp_path, report_url=url)
    assert {path.name for path in files} == {
        "nightly.md", "nightly.html", "nightly.json", "ctrf.json", "feed.json", "badge.json",
        "index.html", "summary.md", "report.json", "junit.xml",
    }  # fmt: skip
    assert all(path.stat().st_size for path in files)
    json.loads((tmp_path / "nightly.json").read_text())
    assert json.loads((tmp_path / "feed.json").read_text())["feed_url"] == "https://x/nightly/feed.json"
    assert f"(https://x/nightly/index.html#cell-{NAME})" in (tmp_path / "nightly.md").read_text()
