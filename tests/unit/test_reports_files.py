"""JSON, JUnit and HTML: they parse, they are complete, and nothing a package says becomes markup."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from packaging.version import Version

from matrix.cell import Axis
from matrix.errors import CorruptFileError, NoSpaceError, UsageError
from matrix.finding import Effect, Kind
from matrix.grid import grid_of
from matrix.job import RunResult
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import judge
from reports import build as building
from reports.build import build, build_grid
from reports.document import document
from reports.heatmap import heatmap
from reports.junit import junit
from reports.legend import EFFECTS, OUTCOMES, STATUSES, TIERS
from reports.page import brief, page, printable
from tests.unit.report_samples import (
    CLASH,
    DOUBT,
    EXPECTED,
    EXTRA,
    FEATURE,
    GUARDED,
    IMAGE,
    MOVED,
    PAIR,
    SWIZZLE,
    UNREAD,
    sample,
    seen,
)
from tests.unit.run_fakes import cell, finding, observation

SCHEMA = json.loads((Path(building.__file__).with_name("schema.json")).read_text())
VOID = {"meta", "input", "br", "link", "img", "hr", "wbr"}


class Parsed(HTMLParser):
    """An HTML page taken apart: open elements, ids, what is loaded from outside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.outside: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.script = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag not in VOID:
            self.stack.append(tag)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        self.outside += [str(found[name]) for name in ("src", "href") if name in found]

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] == "script":
            self.script += data


def _grid_result() -> RunResult:
    verdicts = tuple(
        seen(
            cell(verl=f"0.{x}.0", vllm=f"0.{y}.{z}"),
            Outcome.CONFLICT if (x + y) % 3 == 0 else Outcome.OK,
            Outcome.BROKEN if y > 8 else Outcome.OK,
            (),
            (
                f"vllm 0.{y}.{z} requires transformers>=5.{y}.1 </script><b>, verl 0.{x}.0 less than 5.11",
                f"reason {x} {y} {z} " * 9,
            ),
        )
        for x in range(16)
        for y in range(17)
        for z in range(4)
    )
    return replace(sample(), verdicts=verdicts, notes=())


def _html(kind: str) -> str:
    return page(sample(more=31)) if kind == "page" else heatmap(grid_of(Axis.VERL, Axis.VLLM, _grid_result()))


@pytest.mark.parametrize("kind", ["page", "heatmap"])
def test_html_is_balanced_self_contained_and_its_ids_are_unique(kind: str) -> None:
    text = _html(kind)
    parsed = Parsed(text)
    assert parsed.stack == []
    assert len(parsed.ids) == len(set(parsed.ids)) >= 4
    assert parsed.outside == []
    assert "@import" not in text
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    labelled = {attrs["for"] for tag, attrs in parsed.tags if tag == "label"}
    for tag, attrs in parsed.tags:
        if tag in ("input", "select"):
            assert attrs.get("aria-label") or attrs.get("id") in labelled


def test_the_page_shows_every_cell_by_word_and_mark_not_by_colour_alone() -> None:
    result = sample()
    text = page(result)
    for verdict in result.verdicts:
        assert f'id="cell-{verdict.cell.name}"' in text
    for status, entry in STATUSES.items():
        if result.counts[status]:
            assert f'<span class="mark" aria-hidden="true">{entry.mark}</span>{status}</span>' in text
    assert len({entry.mark for entry in STATUSES.values()}) == len(STATUSES)
    assert len({entry.mark for entry in OUTCOMES.values()}) == len(OUTCOMES)


def test_what_a_package_says_is_text_and_never_markup() -> None:
    parsed = Parsed(page(sample()))
    assert "alert(1)" not in parsed.script
    assert [tag for tag, _ in parsed.tags].count("script") == 1
    assert "\x1b" not in page(sample())
    heat = Parsed(_html("heatmap"))
    assert [tag for tag, _ in heat.tags].count("script") == 2


def test_the_page_tells_chain_moved_to_deviation_and_evidence() -> None:
    result = sample()
    text = re.sub("<wbr>", "", page(result))
    for words in (
        "vllm 0.33.0 requires transformers&gt;=5.16.1",
        "verl-0.9.1-py3-none-any.whl METADATA",
        "verl/workers/rollout/vllm_rollout/utils.py:31",
        "vllm.model_executor.layers.fused_moe.FusedMoE",
        "deviation: no-deps (as verl&#39;s image is built)",
        "Not certain (1)",
        "Guarded: verl handles it (1)",
        "as of 2026-11-30 12:00 UTC",
        "sha256:ababababab",
        "8 of 9 cells ran",
        *(item.question.key[:16] for verdict in result.verdicts for item in verdict.evidence),
    ):
        assert words in text


def test_a_cell_with_very_many_findings_is_cut_and_says_so() -> None:
    many = tuple(finding(Effect.BREAKS_FEATURE, f"vllm.s{n}", feature="f") for n in range(230))
    guarded = tuple(finding(Effect.GUARDED, f"vllm.g{n}") for n in range(60))
    verdict = seen(PAIR, Outcome.OK, Outcome.DEGRADED, many + guarded)
    text = page(replace(sample(), verdicts=(verdict,)))
    assert "30 more in report.json" in text
    assert "20 more in report.json" in text


def test_an_extra_is_shown_with_its_axis() -> None:
    text = page(replace(sample(), verdicts=(seen(EXTRA, Outcome.OK, Outcome.OK),)))
    assert "<b>verl[vllm] 0.9.1</b><span>vllm 0.24.0</span>" in text


def test_what_decides_nothing_is_folded_apart_from_what_does() -> None:
    absent = replace(finding(Effect.BREAKS_FEATURE, "mooncake.engine", feature="x"), kind=Kind.PACKAGE_ABSENT)
    verdict = seen(PAIR, Outcome.OK, Outcome.DEGRADED, (SWIZZLE, absent, DOUBT, GUARDED))
    text = page(replace(sample(), verdicts=(verdict,)))
    assert re.findall(r'<details class="more"><summary>(.*?)</summary>', text) == [
        "Not certain (1)",
        "About packages that are not in this cell (1)",
        "Guarded: verl handles it (1)",
    ]
    assert re.findall(r"<h4>(.*?) <span", text) == ["Breaks when the feature is used"]
    assert "not in this cell</span>" in text


def test_an_older_finding_without_some_fields_still_shows() -> None:
    bare = {
        "kind": "name-missing",
        "effect": "breaks-import",
        "target": "vllm",
        "symbol": "vllm.q",
        "used_at": {"path": "verl/q.py"},
    }
    verdict = judge(PAIR, [observation(PAIR.name, Tier.SURFACE, Outcome.BROKEN, detail={"findings": [bare]})])
    assert "verl/<wbr>q.<wbr>py" in page(replace(sample(), verdicts=(verdict,), plan={}))


@pytest.mark.parametrize(
    "result", [sample(), sample(more=31), replace(sample(), verdicts=(), tallies=()), _grid_result()]
)
def test_the_json_report_fits_its_schema(result: RunResult) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    data = json.loads(json.dumps(document(result)))
    jsonschema.validate(data, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert len(data["cells"]) == data["planned"]
    assert sum(data["counts"].values()) == data["planned"]


def test_the_schema_knows_the_words_of_the_vocabulary() -> None:
    words = {name: set(SCHEMA["$defs"][name]["enum"]) for name in ("tier", "outcome", "status")}
    assert words == {"tier": set(Tier), "outcome": set(Outcome), "status": set(Status)}
    assert set(SCHEMA["$defs"]["finding"]["properties"]["effect"]["enum"]) == set(Effect)
    assert set(SCHEMA["$defs"]["finding"]["properties"]) == set(finding().to_json())
    assert (set(STATUSES), set(OUTCOMES), set(EFFECTS), set(TIERS)) == (
        set(Status),
        set(Outcome),
        set(Effect),
        set(Tier),
    )


@pytest.mark.parametrize("field", ["status", "evidence"])
def test_the_schema_refuses_what_is_wrong(field: str) -> None:
    data: Any = json.loads(json.dumps(document(sample())))
    data["cells"][0][field] = "green"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA)


def test_the_json_report_reads_plain_facts_too() -> None:
    detail = {"chain": ["a plain line", {"text": "t", "source": "s"}], "versions": None, "notes": "no list"}
    verdict = judge(PAIR, [observation(PAIR.name, Tier.RESOLVE, Outcome.CONFLICT, detail=detail)])
    data: Any = document(replace(sample(), verdicts=(verdict,)))
    resolve = data["cells"][0]["resolve"]
    assert resolve["chain"] == [{"text": "a plain line", "source": ""}, {"text": "t", "source": "s"}]
    assert (resolve["packages"], resolve["notes"], data["cells"][0]["surface"]) == (0, [], None)


def _cases(result: RunResult) -> dict[tuple[str, str], str]:
    root = ET.fromstring(junit(result))
    found = {}
    for case in root.iter("testcase"):
        kinds = [child.tag for child in case if child.tag != "system-out"]
        found[case.attrib["classname"], case.attrib["name"]] = kinds[0] if kinds else "passed"
    return found


@pytest.mark.parametrize(
    ("tier", "name", "kind"),
    [
        ("resolve", PAIR.name, "passed"),
        ("surface", PAIR.name, "passed"),
        ("surface", FEATURE.name, "passed"),
        ("resolve", MOVED.name, "passed"),
        ("surface", MOVED.name, "failure"),
        ("resolve", CLASH.name, "failure"),
        ("surface", CLASH.name, "failure"),
        ("resolve", IMAGE.name, "passed"),
        ("resolve", UNREAD.name, "skipped"),
    ],
)
def test_junit_cases(tier: str, name: str, kind: str) -> None:
    assert _cases(sample())[tier, name] == kind


@pytest.mark.parametrize(
    ("tier", "name", "kind"),
    [
        # Expected and seen: no failure. Expected and not seen: red.
        ("resolve", CLASH.name, "passed"),
        ("surface", MOVED.name, "passed"),
        ("surface", PAIR.name, "failure"),
        ("resolve", PAIR.name, "passed"),
    ],
)
def test_junit_expectations_are_strict_both_ways(tier: str, name: str, kind: str) -> None:
    assert _cases(replace(sample(), expected=EXPECTED))[tier, name] == kind


def test_junit_counts_its_cases_and_an_uncertain_break_does_not_fail() -> None:
    doubt = seen(PAIR, Outcome.OK, Outcome.BROKEN, (finding(certain=False),))
    assert _cases(replace(sample(), verdicts=(doubt,)))["surface", PAIR.name] == "passed"
    root = ET.fromstring(junit(sample()))
    for suite in root:
        assert int(suite.attrib["tests"]) == len(suite.findall("testcase")) == 9
        assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
        assert int(suite.attrib["skipped"]) == len(suite.findall("testcase/skipped"))
    assert int(root.attrib["tests"]) == 18
    nothing = replace(sample(), verdicts=(judge(PAIR, []),))
    assert _cases(nothing)["resolve", PAIR.name] == "skipped"


def test_build_writes_all_four_and_leaves_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "reports" / "out"
    files = build(sample(), out, report_url="https://ci.example/index.html")
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "junit.xml", "report.json", "summary.md"]
    assert set(files.all) == set(out.iterdir())
    umask = os.umask(0)
    os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in files.all} == {0o666 & ~umask}
    assert json.loads(files.json.read_text())["planned"] == 9
    anchors = re.findall(r"index\.html#(\S+?)\)", files.markdown.read_text())
    assert len(anchors) == 9
    assert set(anchors) <= set(Parsed(files.html.read_text()).ids)


def test_a_report_that_cannot_be_written_leaves_the_last_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = build(sample(), tmp_path).html.read_text()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(NoSpaceError):
            build(sample(more=3), tmp_path)
    assert (tmp_path / "index.html").read_text() == before
    assert len(list(tmp_path.iterdir())) == 4
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError):
        build(sample(), tmp_path / "file")


def test_a_lone_surrogate_from_a_log_does_not_stop_the_report(tmp_path: Path) -> None:
    verdict = seen(PAIR, Outcome.OK, Outcome.BROKEN, (), ("", "odd \udcff name"))
    files = build(replace(sample(), verdicts=(verdict,)), tmp_path)
    for path in files.all:
        assert "odd" in path.read_text(encoding="utf-8")
    ET.fromstring(files.junit.read_text(encoding="utf-8"))


def test_a_detail_that_is_gone_is_told(tmp_path: Path) -> None:
    from matrix.store import Store

    store = Store(tmp_path)
    store.add(observation(PAIR.name, Tier.SURFACE, Outcome.OK, findings=[finding(certain=False)] * 20))
    (path,) = tmp_path.rglob("*.json.gz")
    path.unlink()
    with pytest.raises(CorruptFileError):
        document(replace(sample(), verdicts=(judge(PAIR, store.for_cell(PAIR.name)),)))


def test_the_heat_map_of_a_thousand_cells_is_small_and_has_each_cell_once(tmp_path: Path) -> None:
    grid = grid_of(Axis.VERL, Axis.VLLM, _grid_result())
    files = build_grid(grid, tmp_path)
    assert [path.name for path in (files.html, files.csv)] == ["grid-verl-vllm.html", "grid-verl-vllm.csv"]
    assert files.html.stat().st_size < 1_500_000
    parsed = Parsed(files.html.read_text())
    cells = [attrs for tag, attrs in parsed.tags if tag == "td" and "data-n" in attrs]
    assert len(cells) == 1088
    # One stop for the tab key; the arrow keys do the rest.
    assert [attrs["tabindex"] for attrs in cells].count("0") == 1
    # Newest first, both ways: the oldest pair is the last cell.
    assert cells[-1]["aria-label"] == "verl 0.0.0, vllm 0.0.0: conflict; resolves conflict, works ok"
    data = json.loads(parsed.script[: parsed.script.index("(() =>")])
    last = data["cells"][-1]
    assert data["texts"][last[5]].startswith("vllm 0.0.0 requires")
    assert len(list(csv.DictReader(io.StringIO(files.csv.read_text())))) == 1088


def test_a_pair_that_is_not_there_is_an_empty_place_and_only_filters() -> None:
    grid = grid_of(Axis.VERL, Axis.VLLM, _grid_result())
    partial = replace(
        grid, rows=tuple(row for row in grid.rows if row.y != Version("0.3.1") or row.x != Version("0.5.0"))
    )
    assert heatmap(partial).count("<td></td>") == 1
    assert len(grid.only({Status.BROKEN}).rows) == grid.run.counts[Status.BROKEN]


@pytest.mark.parametrize(
    ("digest", "shown"),
    [("sha256:" + "a" * 64, "sha256:aaaaaaaaaa"), ("0.13.9", "0.13.9"), ("x" * 40, "x" * 24), ("uv:1", "uv:1")],
)
def test_brief(digest: str, shown: str) -> None:
    assert brief(digest) == shown


def test_printable_leaves_what_is_no_text() -> None:
    assert (printable(3), printable("a\x07b\n"), printable("plain")) == (3, "ab\n", "plain")
