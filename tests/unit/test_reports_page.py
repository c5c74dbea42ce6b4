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
from reports import benches as gathering
from reports.document import document
from reports.markdown import summary
from reports.packing import script_json
from reports.page import SCRIPTS, STYLES, TEMPLATES, page, policy
from reports.page import shown as as_text
from reports.view import READING, brief, brief_cell
from tests.unit.bench_gathered import some
from tests.unit.page_data import page_data
from tests.unit.report_samples import CLASH, DOUBT, EXTRA, GUARDED, HOSTILE, IMAGE, MOVED, PAIR, SWIZZLE, sample, seen
from tests.unit.run_fakes import cell, finding, observation
from tests.unit.test_reports_benches import sample as made_up_benches


def test_the_page_has_every_cell_in_brief_and_in_full() -> None:
    result = sample(more=5)
    told, full = page_data(page(result))
    names = [verdict.cell.name for verdict in result.verdicts]
    assert [item["cell"] for item in told["cells"]] == names
    assert [item["cell"] for item in full] == names
    assert (told["planned"], told["counts"]) == (
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
    told, full = page_data(page(sample()))
    text = json.dumps([told, full], ensure_ascii=False)
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
    assert "8 of 9 cells ran" in told["denominator"]


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
    told, _ = _only(seen(cell(verl="0.10.0", vllm="0.9.2"), Outcome.OK, Outcome.OK), lattice=rows)
    assert told["versions"] == {"verl": ["0.10.0", "0.9.1"], "vllm": ["0.24.0", "0.11.0", "0.9.2"]}
    assert [row["cell"] for row in told["lattice"]] == [verdict.cell.name for verdict in verdicts]


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
    assert as_text(value) == expected


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
    told, full = page_data(page(empty, doc=document(empty)))
    assert (told["cells"], full, told["versions"]) == ([], [], {"verl": [], "vllm": []})


def test_a_bench_is_told_on_the_pages_of_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    benches = made_up_benches(monkeypatch)
    doc = document(sample(), sections={"benches": benches})
    html = page(sample(), doc=doc)
    told, _ = page_data(html)
    assert "benches" not in told["sections"]
    names = {cell for group in benches["groups"] for one in group["pairings"] for cell in one["cells"].values()}
    assert set(told["benched"]) == names
    assert any("checkpointing-critic on ppo-short: throughput slower" in lines for lines in told["benched"].values())
    assert '<template id="section-benches">' in html
    assert "section-benches" not in page(sample()).split("<script>")[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no-deps", "no-deps"),
        ("on A100 without a 1, b 2, c 3", "on A100 without a 1, b 2, c 3"),
        ("no-deps; on A100 without a 1, b 2, c 3, d 4", "no-deps; on A100 without 4 packages of its lock"),
    ],
)
def test_a_long_deviation_is_counted_in_brief(text: str, expected: str) -> None:
    doc: dict[str, Any] = json.loads(json.dumps(document(sample())))
    doc["cells"][0] |= {"deviation": text, "patches": ["one"]}
    told, (full, *_) = page_data(page(sample(), doc=doc))
    assert told["cells"][0]["differs"][:2] == [f"deviation: {expected}", "patched: 1 patch"]
    assert full["deviation"] == text
    doc["cells"][0]["patches"] = ["one", "two"]
    assert "patched: 2 patches" in page_data(page(sample(), doc=doc))[0]["cells"][0]["differs"]


def test_where_a_tier_was_tried_here_counts_before_the_evidence() -> None:
    shipped = {
        "tier": "import",
        "shipped": "cpu",
        "outcome": "ok",
        "machines": ["x86_64, 1 x NVIDIA H200"],
        "line": "s",
    }
    untested = {"tier": "import", "shipped": "", "outcome": "untested", "machines": [], "line": "u"}
    here = {**untested, "outcome": "broken", "machines": ["static"], "line": "h"}
    doc: dict[str, Any] = json.loads(json.dumps(document(sample())))
    for tried, expected in (
        ([untested, shipped], ("ok", "cpu", ["NVIDIA H200"])),
        ([here, shipped], ("broken", "", [READING])),
    ):
        made = brief_cell({**doc["cells"][0], "tried": tried})
        mark = next(item for item in made["marks"] if item["tier"] == "import")
        assert (mark["outcome"], mark["shipped"], mark["machines"]) == expected
    assert brief_cell({**doc["cells"][0], "tried": []})["deepest"] == ""


def test_kinds_of_gpu_are_those_where_a_probe_passed() -> None:
    doc: dict[str, Any] = json.loads(json.dumps(document(sample())))
    tried = [
        {"tier": "gpu", "shipped": "gpu", "outcome": outcome, "machines": [machine], "line": ""}
        for outcome, machine in (
            ("ok", "x86_64, 8 x NVIDIA H200"), ("broken", "x86_64, 1 x NVIDIA A100"), ("ok", "x86_64, no GPU"),
        )
    ]  # fmt: skip
    assert brief_cell({**doc["cells"][0], "tried": tried})["gpus"] == ["NVIDIA H200"]


def test_a_version_that_is_none_stands_last() -> None:
    doc: dict[str, Any] = json.loads(json.dumps(document(sample())))
    doc["cells"][0]["axes"]["vllm"] = "main"
    assert page_data(page(sample(), doc=doc))[0]["versions"]["vllm"][-1] == "main"


@pytest.mark.parametrize(
    ("digest", "shown"),
    [("sha256:" + "a" * 64, "sha256:aaaaaaaaaa"), ("0.13.9", "0.13.9"), ("x" * 40, "x" * 24), ("uv:1", "uv:1")],
)
def test_brief(digest: str, shown: str) -> None:
    assert brief(digest) == shown


def test_the_summary_has_the_benches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "gathered", lambda _: (some("chunked-prefill"),))
    held = observation(PAIR.name, Tier.BENCH, probe="launch/x")
    result = replace(sample(), benches=(held,))
    assert "## Benches" in summary(result)
    made: dict[str, Any] = document(result)
    assert made["sections"]["benches"]
    monkeypatch.setattr(gathering, "gathered", lambda _: ())
    assert "## Benches" not in summary(result)
