"""What the reports say of the tier gpu and of what was observed elsewhere: in each format, never as tried here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from matrix.job import RunResult, Tally
from matrix.observe import Observation
from matrix.tier import Outcome, Tier
from matrix.verdict import judge
from reports import build as building
from reports.document import document
from reports.gpu import gpu_document, gpu_word, machine_rows, recorded_line, threshold_words
from reports.junit import junit
from reports.markdown import summary
from reports.page import page
from reports.terminal import table, verdict_text
from tests.unit import gpu_samples
from tests.unit.gpu_samples import probe, threshold, visit
from tests.unit.page_data import page_text
from tests.unit.report_samples import HOSTILE, MOVED, PAIR, sample
from tests.unit.run_fakes import AT, observation

SCHEMA = json.loads(Path(building.__file__).with_name("schema.json").read_text())
START = probe("test_ppo_gpu.py::test_start_up_is_told", detail={"reached": {"ray": 8.1, "fit": 78.4}, "prepared": 1})
EVIL = probe("test_x.py::test_evil", Outcome.BROKEN, HOSTILE, left_mib=9)
ITEMS = [*visit(), START, threshold(), EVIL]
STATIC = (observation(PAIR.name, Tier.RESOLVE), observation(PAIR.name, Tier.SURFACE))


def _result(*, shipped: str) -> RunResult:
    """Return a run of two cells of which the first has GPU probes: from here, or by the evidence of that name."""
    held = [replace(item, question=replace(item.question, cell=PAIR.name), shipped=shipped) for item in ITEMS]
    verdicts = (judge(PAIR, [*STATIC, *held]), judge(MOVED, STATIC))
    tiers = (Tier.RESOLVE, Tier.SURFACE, *((Tier.IMPORT, Tier.GPU) if not shipped else ()))
    tallies = tuple(Tally(tier=tier, planned=2, new=2) for tier in tiers)
    return replace(sample(), verdicts=verdicts, tallies=tallies)


HERE, THERE = _result(shipped=""), _result(shipped="gpu")


@pytest.mark.parametrize("result", [HERE, THERE, sample()], ids=["here", "there", "none"])
def test_the_json_report_fits_its_schema(result: RunResult) -> None:
    doc = document(result)
    jsonschema.validate(json.loads(json.dumps(doc)), SCHEMA)
    assert (doc["gpu"] is None) is (result is not HERE and result is not THERE)


def test_the_json_report_has_it_all() -> None:
    doc: dict[str, Any] = document(THERE)
    gpu = doc["gpu"]
    assert (gpu["probes"]["ran"], gpu["probes"]["planned"], gpu["probes"]["left_mib"]) == (5, 6, 9)
    (facts,) = gpu["machines"]
    assert (facts["facts"], facts["cells"], facts["shipped"]) == (gpu_samples.FACTS, [PAIR.name], "gpu")
    assert gpu["thresholds"][0]["predicted"] == 0.88
    assert gpu["starts"][0]["first_step"] == 78.4
    cell = doc["cells"][0]
    assert cell["gpu"]["surprises"]
    assert [item["shipped"] for item in cell["tried"]] == ["", "", "gpu", "gpu"]
    # What only measures is no probe.
    assert not [item for item in cell["probes"] if "::" not in item["probe"]]
    assert doc["cells"][1]["gpu"] is None


WORDS = [
    "5 of 6",
    "NVIDIA H200",
    "580.159.04",
    "qwen2.5-0.5b:512+512",
    "gpu_memory_utilization",
    "A100-80GB",
    "rollout init, no KV cache",
    "capped at 80 GiB of 139.8 GiB",
    "-2%",
    "9 MiB",
]


@pytest.mark.parametrize("words", WORDS)
def test_the_page_and_the_summary_tell_of_it(words: str) -> None:
    for result in (HERE, THERE):
        html = page(result)
        assert words in page_text(html)
        assert "<script>alert" not in html
        text = summary(result).replace("\\", "")
        assert words in text
        assert ("shipped evidence" in html and "shipped evidence" in text) is (result is THERE)


def test_the_terminal_has_a_column_and_the_verdict_its_lines() -> None:
    lines = table(THERE).splitlines()
    assert " GPU " in lines[0]
    assert "✕ 5 of 6*" in lines[1]
    recorded = "Not tried here, from the evidence that is shipped: import of 1 cell (NVIDIA H200; 2026-11-30)"
    assert any(recorded in line for line in lines)
    assert "✕ 5 of 6 " in table(HERE)
    assert "*" not in table(HERE).splitlines()[1]
    assert " GPU " not in table(sample())
    assert " 5 of 6" in table(THERE, width=200, colour=True)
    told = verdict_text(THERE.verdicts[0])
    for words in (
        "  gpu        5 of 6 probes ran, 1 untested, NVIDIA H200, 2026-11-30, shipped evidence",
        "  on GPUs    5 of 6 GPU probes ran, 1 known failures reproduced as predicted, 1 absent as predicted",
        "  thresholds",
        "  tried      resolve and surface; by reading",
    ):
        assert words in told
    assert "  gpu        5 of 6 probes ran, 1 untested\n" in verdict_text(HERE.verdicts[0])


def test_a_tier_that_was_not_tried_says_why_in_the_terminal() -> None:
    aside = observation(PAIR.name, Tier.GPU, Outcome.UNTESTED, "this machine has no GPU")
    verdict = judge(PAIR, [*STATIC, aside])
    assert "  gpu        untested: this machine has no GPU\n" in verdict_text(verdict)
    assert gpu_word(verdict) == "? untested"
    assert gpu_document([verdict]) is None
    assert recorded_line([verdict]) == ""
    assert "### Probed" not in summary(replace(THERE, verdicts=(verdict,)))


def test_junit_passes_and_fails_nothing_that_was_seen_elsewhere() -> None:
    there, here = ET.fromstring(junit(THERE)), ET.fromstring(junit(HERE))
    (suite,) = [item for item in there if item.get("name") == "shipped evidence"]
    assert (suite.get("tests"), suite.get("skipped"), suite.get("failures")) == ("2", "2", "0")
    messages = [str(mark.get("message")) for mark in suite.iter("skipped")]
    assert messages[1] == "not tried here; gpu: broken, 5 of 6 probes, NVIDIA H200, 2026-11-30, shipped evidence"
    assert there.get("failures") == "0"
    assert not [item for item in there.iter("testcase") if "::" in str(item.get("name"))]
    assert [item.get("name") for item in here if item.get("name") == "shipped evidence"] == []
    assert here.get("failures") == "1"
    names = {str(item.get("name")) for item in here.iter("testcase")}
    assert "test_x.py::test_evil" in names
    assert not {name for name in names if name.startswith(("machine", "threshold"))}
    (limit,) = [item for item in there.iter("testcase") if str(item.get("classname")).startswith("thresholds")]
    assert "not tried here; 0.9 survives, 0.91 dies" in str(limit.find("skipped").get("message"))  # type: ignore[union-attr]
    (limit,) = [item for item in here.iter("testcase") if str(item.get("classname")).startswith("thresholds")]
    assert limit.find("skipped") is None
    assert "predicted: 0.88" in str(limit.findtext("system-out"))
    told = {item.get("name"): item.get("value") for item in here.iter("property")}
    assert told["machine.driver"] == "580.159.04"
    assert not list(there.iter("property"))
    assert int(str(here.get("tests"))) == len(list(here.iter("testcase")))
    assert int(str(there.get("tests"))) == sum(int(str(item.get("tests"))) for item in there)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, {"error": "-2%", "died": "rollout init, no KV cache", "passes": "0.9", "repeats": "2 and 2"}),
        ({"error": None, "predicted": None}, {"error": "?", "predicted": "none"}),
        ({"error": 0.0}, {"error": "0%"}),
        ({"part": "", "how": "", "found": "all pass", "capped": ""}, {"died": "all pass", "capped": "not capped"}),
        ({"peaks": [None, 2**30]}, {"peaks": "? / 1.0 GiB"}),
    ],
)
def test_a_threshold_in_words(more: dict[str, object], told: dict[str, str]) -> None:
    found: dict[str, Any] = gpu_document(HERE.verdicts) or {}
    (row,) = found["thresholds"]
    words = threshold_words({**row, **more})
    assert {name: words[name] for name in told} == told


def test_a_fingerprint_that_says_little_gives_few_rows() -> None:
    assert machine_rows({}) == []
    assert dict(machine_rows({"gpus": [{"name": "X", "ecc": None}], "driver": "1"}))["modes"].startswith("ECC unknown")
    assert dict(machine_rows(gpu_samples.FACTS))["GPU"] == "NVIDIA H200, 143771 MiB, capability 9.0"


def test_several_days_and_machines_are_told() -> None:
    items: list[Observation] = []
    for day, machine in ((1, "x86_64, 1 x A"), (2, "x86_64, no GPU")):
        item = replace(probe("a.py::b", cell=PAIR.name), at=AT.replace(day=day), machine=machine, shipped="gpu")
        items.append(item)
    verdicts = [judge(PAIR, [item]) for item in items]
    where = "A; x86_64, no GPU; 2026-11-01 to 2026-11-02"
    assert recorded_line(verdicts) == f"Not tried here, from the evidence that is shipped: gpu of 2 cells ({where})."
