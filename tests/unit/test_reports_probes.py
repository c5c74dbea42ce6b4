"""What the reports say of installed tiers: counts, known failures, ways out, records that are wrong, patches."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from matrix.job import RunResult, Tally
from matrix.observe import Observation
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import judge
from reports import build as building
from reports.document import document
from reports.junit import junit
from reports.markdown import summary
from reports.page import page
from reports.probes import SHOWN
from reports.terminal import Bars, Lines, verdict_text
from tests.unit.page_data import page_text
from tests.unit.report_samples import HOSTILE, PAIR, sample
from tests.unit.run_fakes import observation

SCHEMA = json.loads(Path(building.__file__).with_name("schema.json").read_text())
MACHINE = "x86_64, 2 cores, 24 GiB, no GPU"
BREAKS = {"kind": "seen", "effect": "breaks-feature", "feature": "lora", "default_path": False, "certain": True}
KNOWN = {"failure": "vllm-lora", "title": "LoRA is gone", "predicted": "yes", "seen": "reproduced",
         "way_out": ["take vllm<0.20"], "findings": [BREAKS]}  # fmt: skip
WRONG = {"failure": "vllm-swap", "title": "swap_space", "predicted": "yes", "seen": "absent", "way_out": ["x"],
         "disagreement": "predicted and not seen",
         "proposal": 'affects of vllm-swap: vllm = ">=0.9,!=0.24.0"'}  # fmt: skip
OTHER = {"failure": "vllm-z", "title": "z", "predicted": "yes", "seen": "other", "text": "Traceback\x00",
         "disagreement": "another reason", "proposal": "", "way_out": []}  # fmt: skip


def _probe(name: str, outcome: Outcome, tier: Tier = Tier.IMPORT, reason: str = "", **detail: object) -> Observation:
    return observation(
        PAIR.name,
        tier,
        outcome,
        reason,
        detail=detail,
        probe=f"compat/{name}",
        machine="x86_64, 2 cores, 24 GiB, no GPU",
    )


PROBES = (
    _probe("test_install.py::test_ok", Outcome.OK),
    _probe("test_vllm.py::test_lora", Outcome.DEGRADED, Tier.BEHAVE, "known failure vllm-lora: LoRA is gone", **KNOWN),
    _probe("test_vllm.py::test_swap", Outcome.OK, Tier.BEHAVE, "", **WRONG),
    _probe("test_vllm.py::test_z", Outcome.BROKEN, Tier.BEHAVE, "vllm-z: fails, but for another reason", **OTHER),
    _probe("test_plain.py::test_p", Outcome.BROKEN, Tier.BEHAVE, HOSTILE),
    _probe("test_fa.py::test_a", Outcome.UNTESTED, Tier.BEHAVE, "flash-attn is not installed in this cell"),
    _probe("test_fa.py::test_b", Outcome.UNTESTED, Tier.BEHAVE, "flash-attn is not installed in this cell"),
    _probe("test_ppo.py::test_step", Outcome.OK, Tier.BEHAVE, patches=["torch.cuda.empty_cache does nothing"]),
)


@pytest.fixture(scope="module")
def result() -> RunResult:
    held = [observation(PAIR.name, Tier.RESOLVE), observation(PAIR.name, Tier.SURFACE), *PROBES]
    tallies = [Tally(tier=tier, planned=1, new=1) for tier in (Tier.RESOLVE, Tier.SURFACE, Tier.IMPORT, Tier.BEHAVE)]
    return replace(sample(), verdicts=(judge(PAIR, held),), tallies=tuple(tallies))


def test_the_verdict_names_what_is_wrong_with_the_records_first(result: RunResult) -> None:
    (verdict,) = result.verdicts
    assert (verdict.status, verdict.deepest, len(verdict.disagreements)) == (Status.BROKEN, Tier.BEHAVE, 2)
    assert verdict.reasons[0] == (
        'behave: record wrong: vllm-swap: predicted and not seen; affects of vllm-swap: vllm = ">=0.9,!=0.24.0"'
    )
    assert "behave untested, 2 of 7 probes: flash-attn is not installed in this cell" in verdict.reasons
    assert verdict.features == ("lora",)
    assert verdict.machine == "x86_64, 2 cores, 24 GiB, no GPU"


def test_the_json_report_has_every_probe_and_fits_its_schema(result: RunResult) -> None:
    doc = document(result)
    jsonschema.validate(doc, SCHEMA)
    cells = doc["cells"]
    assert isinstance(cells, list)
    (shown,) = cells
    assert len(shown["probes"]) == len(PROBES)
    assert (shown["disagreements"], shown["patches"]) == (2, ["torch.cuda.empty_cache does nothing"])


@pytest.mark.parametrize(
    ("probe", "tag", "kind"),
    [
        ("test_install.py::test_ok", None, ""),
        ("test_vllm.py::test_lora", None, ""),
        ("test_vllm.py::test_swap", "failure", "record wrong"),
        ("test_vllm.py::test_z", "failure", "record wrong"),
        ("test_plain.py::test_p", "failure", "broken"),
        ("test_fa.py::test_a", "skipped", ""),
    ],
)
def test_junit_has_a_case_for_each_probe(result: RunResult, probe: str, tag: str | None, kind: str) -> None:
    (case,) = [item for item in ET.fromstring(junit(result)).iter("testcase") if item.get("name") == probe]
    assert case.get("classname", "").endswith(PAIR.name)
    marks = [child for child in case if child.tag in ("failure", "skipped")]
    assert [mark.tag for mark in marks] == ([tag] if tag else [])
    if kind:
        assert marks[0].get("type") == kind
    if probe.endswith("test_lora"):
        assert "way out: take vllm<0.20" in str(case.findtext("system-out"))


WORDS = [
    "predicted and not seen",
    "take vllm<0.20",
    "torch.cuda.empty_cache does nothing",
    "probes ran",
    "2 untested",
    "record wrong",
]


@pytest.mark.parametrize("words", WORDS)
def test_the_page_the_summary_and_the_terminal_tell_of_it(result: RunResult, words: str) -> None:
    html = page(result)
    assert words in page_text(html) or words == "record wrong"
    assert "Record wrong" in page_text(html)
    assert "<script>alert" not in html
    assert words in summary(result).replace("\\", "")
    assert words in verdict_text(result.verdicts[0])


def test_the_terminal_cuts_a_long_list_and_says_so() -> None:
    many = [
        _probe(f"test_m.py::test_{number}", Outcome.BROKEN, reason=f"reason {number}") for number in range(SHOWN + 3)
    ]
    text = verdict_text(judge(PAIR, [observation(PAIR.name, Tier.RESOLVE), *many]))
    assert "… and 3 more; the reports have all" in text


def test_a_cell_whose_probes_pass_is_not_said_to_be_read_only() -> None:
    text = verdict_text(judge(PAIR, [observation(PAIR.name, Tier.RESOLVE), PROBES[0]]))
    assert "Installed, and every probe that ran there found what it should" in text
    assert "without running it" not in text


def test_notes_are_told_as_they_come_on_one_line_each() -> None:
    written: list[str] = []
    lines = Lines(written.append)
    lines.note("a cell")
    lines.note("  import 1/2 ok\nx \x1b[31m")
    assert written == ["  a cell\n", "    import 1/2 ok x [31m\n"]


def test_bars_tell_notes_above_the_bar_and_none_where_none_is_drawn() -> None:
    out = io.StringIO()
    bars = Bars(out)
    bars.note("too early")
    bars.start(Tier.IMPORT, 1)
    bars.note("  import 1/2 [bold]ok")
    bars.end(Tier.IMPORT)
    assert "import 1/2 [bold]ok" in out.getvalue()
    assert "too early" not in out.getvalue()
