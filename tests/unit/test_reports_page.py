"""The page: its data are whole, its policy lets nothing in, and what a package says is never markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.cell import Axis
from matrix.finding import Effect, Kind
from matrix.grid import grid_of
from matrix.tier import Outcome, Tier
from matrix.verdict import judge
from reports.document import document
from reports.packing import script_json
from reports.page import SCRIPTS, STYLES, TEMPLATES, page, policy, shown
from tests.unit.page_data import page_data
from tests.unit.report_samples import CLASH, DOUBT, EXTRA, GUARDED, HOSTILE, IMAGE, MOVED, PAIR, SWIZZLE, sample, seen
from tests.unit.run_fakes import cell, finding, observation


def test_the_page_has_every_cell_in_brief_and_in_full() -> None:
    result = sample(more=5)
    brief, full = page_data(page(result))
    names = [verdict.cell.name for verdict in result.verdicts]
    assert [item["cell"] for item in brief["cells"]] == names
    assert [item["cell"] for item in full] == names
    assert (brief["planned"], brief["counts"]) == (
        result.planned,
        {status.value: count for status, count in result.counts.items()},
    )


def test_no_text_of_a_package_is_in_the_markup() -> None:
    html = page(sample())
    assert html.count("<script") == html.count("</script>") == 2
    # What ends a script element or a line of a script is written as an escape wherever it stands in the data.
    data = html[html.index('id="data">') : html.index("</script>")]
    assert "<" not in data.removeprefix('id="data">')
    assert "\u2028" not in data
    assert "\x1b" not in html
    assert "\\u003cscript\\u003ealert(1)" in data
    assert "alert(1)" not in html.replace(data, "")


def test_the_policy_names_the_digests_of_what_stands_in_the_page() -> None:
    html = page(sample())
    style = html[html.index("<style>") + 7 : html.index("</style>")]
    script = html[html.rindex("<script>") + 8 : html.rindex("</script>")]
    told = re.findall(r"'sha256-([^']+)'", html.split("<style>")[0].replace("&#39;", "'"))
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    assert told == digests
    words = policy("", "")
    assert words.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in words


FORBIDDEN = (
    *("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function", ".style."),
    *("url(", "@import", "fetch(", "XMLHttpRequest", "localStorage", "http://"),
)


@pytest.mark.parametrize("name", [*SCRIPTS, *STYLES])
def test_scripts_make_no_markup_of_text_and_nothing_is_loaded(name: str) -> None:
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    for word in FORBIDDEN:
        assert word not in text
    assert len(text.splitlines()) <= 420
    assert text.isascii() or name.endswith(".js")


def test_the_page_tells_chain_moved_to_deviation_and_evidence() -> None:
    brief, full = page_data(page(sample()))
    text = json.dumps([brief, full], ensure_ascii=False)
    for words in (
        "vllm 0.33.0 requires transformers>=5.16.1",
        "verl-0.9.1-py3-none-any.whl METADATA",
        "vllm.model_executor.layers.fused_moe.FusedMoE",
        "deviation: no-deps (as verl's image is built)",
        "as of 2026-11-30 12:00 UTC",
        "sha256:ababababab",
        *(item.question.key[:16] for verdict in sample().verdicts for item in verdict.evidence),
    ):
        assert words in text
    assert "8 of 9 cells ran" in brief["denominator"]


def _only(*verdicts: Any, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return page_data(page(replace(sample(), verdicts=verdicts, plan={}, **more)))


def test_a_cell_with_very_many_findings_is_cut_and_says_so() -> None:
    many = tuple(finding(Effect.BREAKS_FEATURE, f"vllm.s{n}", feature="f") for n in range(230))
    guarded = tuple(finding(Effect.GUARDED, f"vllm.g{n}") for n in range(60))
    _, (full,) = _only(seen(PAIR, Outcome.OK, Outcome.DEGRADED, many + guarded))
    parts = {part["title"]: (part["total"], len(part["rows"])) for part in full["surface"]["findings"]}
    assert parts == {"Breaks when the feature is used": (230, 200), "Guarded: verl handles it": (60, 40)}


def test_what_decides_nothing_is_folded_apart_from_what_does() -> None:
    absent = replace(finding(Effect.BREAKS_FEATURE, "mooncake.engine", feature="x"), kind=Kind.PACKAGE_ABSENT)
    _, (full,) = _only(seen(PAIR, Outcome.OK, Outcome.DEGRADED, (SWIZZLE, absent, DOUBT, GUARDED)))
    assert [(part["title"], part["folded"]) for part in full["surface"]["findings"]] == [
        ("Breaks when the feature is used", False),
        ("Not certain", True),
        ("About packages that are not in this cell", True),
        ("Guarded: verl handles it", True),
    ]


def test_an_older_finding_without_some_fields_still_shows() -> None:
    bare = {"kind": "name-missing", "effect": "breaks-import", "target": "vllm", "symbol": "vllm.q",
            "used_at": {"path": "verl/q.py"}}  # fmt: skip
    verdict = judge(PAIR, [observation(PAIR.name, Tier.SURFACE, Outcome.BROKEN, detail={"findings": [bare]})])
    _, (full,) = _only(verdict)
    (row,) = full["surface"]["findings"][0]["rows"]
    assert row["used_at"] == {"line": 0, "scope": "", "path": "verl/q.py"}


def test_an_extra_and_a_deviation_go_with_the_cell() -> None:
    (first, second), _ = (
        _only(seen(EXTRA, Outcome.OK, Outcome.OK), seen(IMAGE, Outcome.CONFLICT, Outcome.OK))[0]["cells"],
        None,
    )
    assert first["extras"] == {"verl": ["vllm"]}
    assert second["differs"] == ["deviation: no-deps (as verl's image is built)"]


def test_versions_go_from_new_to_old_and_a_pair_of_a_grid_counts_too() -> None:
    verdicts = [
        seen(cell(verl="0.9.1", vllm=version), Outcome.OK, Outcome.BROKEN) for version in ("0.9.2", "0.24.0", "0.11.0")
    ]
    rows = grid_of(Axis.VERL, Axis.VLLM, replace(sample(), verdicts=tuple(verdicts))).rows
    brief, _ = _only(seen(cell(verl="0.10.0", vllm="0.9.2"), Outcome.OK, Outcome.OK), lattice=rows)
    assert brief["versions"] == {"verl": ["0.10.0", "0.9.1"], "vllm": ["0.24.0", "0.11.0", "0.9.2"]}
    assert [row["cell"] for row in brief["lattice"]] == [verdict.cell.name for verdict in verdicts]


def test_a_cell_that_clashes_has_no_command_and_says_why() -> None:
    full = {item["cell"]: item["install"] for item in page_data(page(sample()))[1]}
    assert (full[CLASH.name]["plain"], full[CLASH.name]["exact"]) == ("", "")
    assert "override" in full[CLASH.name]["why_not"]
    assert "'vllm==0.27.1'" in full[MOVED.name]["plain"] or "vllm==0.27.1" in full[MOVED.name]["plain"]
    assert full[MOVED.name]["why_not"] == ""


@pytest.mark.parametrize(
    ("value", "expected"), [(3, 3), ("a\x07b\n", "ab\n"), ("plain", "plain"), ("\ud800x", "x"), (None, None)]
)
def test_shown_leaves_what_is_no_text(value: object, expected: object) -> None:
    assert shown(value) == expected


def test_script_json_is_json_still() -> None:
    data = {"a": HOSTILE, "b": ["</script>", "\u2028 \u2029", "&amp;", '"\\u003c"', None, True, 1.5]}
    text = script_json(data)
    assert json.loads(text) == data
    assert not re.search("[<>&\u2028\u2029]", text)


def test_templates_are_all_used() -> None:
    names = {path.name for path in Path(TEMPLATES).iterdir()}
    assert {*SCRIPTS, *STYLES, "page.html.j2"} <= names


def test_the_document_of_a_run_without_cells_makes_a_page() -> None:
    empty = replace(sample(), verdicts=(), tallies=(), plan={})
    brief, full = page_data(page(empty, doc=document(empty)))
    assert (brief["cells"], full, brief["versions"]) == ([], [], {"verl": [], "vllm": []})
