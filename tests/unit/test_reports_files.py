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
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from packaging.version import Version

import reports.sections
from matrix.cell import Axis
from matrix.errors import CorruptFileError, DataError, NoSpaceError, UsageError
from matrix.finding import Effect
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
from reports.page import page
from tests.unit.report_samples import (
    CLASH,
    EXPECTED,
    FEATURE,
    IMAGE,
    MOVED,
    PAIR,
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


def _grid_result(rows: int = 16) -> RunResult:
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
        for x in range(rows)
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
    assert all(address.startswith("#") for address in parsed.outside)
    assert "@import" not in text
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    labelled = {attrs["for"] for tag, attrs in parsed.tags if tag == "label"}
    for tag, attrs in parsed.tags:
        if tag in ("input", "select"):
            assert attrs.get("aria-label") or attrs.get("id") in labelled


def test_what_a_package_says_is_text_and_never_markup() -> None:
    heat = Parsed(_html("heatmap"))
    assert [tag for tag, _ in heat.tags].count("script") == 2


@pytest.mark.parametrize(
    "result", [sample(), sample(more=31), replace(sample(), verdicts=(), tallies=()), _grid_result(rows=4)]
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
    links = re.findall(r"index\.html#/cell/(\S+?)\)", files.markdown.read_text())
    assert sorted(unquote(link) for link in links) == sorted(verdict.cell.name for verdict in sample().verdicts)


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


def test_claims_that_cannot_be_read_cost_their_section_and_not_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise DataError("claims/pins.toml", "claim[3]", "`verdict` is missing.")

    monkeypatch.setattr(reports.sections, "_claims", fail)
    files = build(sample(), tmp_path)
    told = json.loads(files.json.read_text(encoding="utf-8"))
    assert "claims" not in told["sections"]
    assert "The claims are left out: claims/pins.toml: claim[3]: `verdict` is missing." in told["notes"]
    assert "claims/pins.toml: claim[3]" in files.html.read_text(encoding="utf-8")
