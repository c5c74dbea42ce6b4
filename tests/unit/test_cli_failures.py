"""The command `failures`: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import matrix.evidence
from matrix.cli import failures as command
from matrix.errors import ToolError
from matrix.records import load_failures
from matrix.standing import Standing
from matrix.store import Store
from tests.unit.cli_stack import Said, said
from tests.unit.failure_samples import AIMV2
from tests.unit.test_standing import AGAINST, YES, _seen

RECORD = """\
schema = 1
family = "inspect"

[[failure]]
id = "inspect-aimv2"
title = "vLLM registers aimv2 twice"
affects = { vllm = ">=0.9,<0.10", transformers = ">=4.54" }
mended = { vllm = ">=0.10", transformers = "<4.54" }
fingerprint = { exception = "ValueError", pattern = "'aimv2' is already used" }
cause = "both register it"
way_out = ["take a newer vLLM"]
sources = ["vllm-project/vllm#22178"]
testable = "import"
confidence = "measured"
severity = "low"
effect = "breaks-import"
default_path = true
probe = "test_inspect.py::test_aimv2_config_clash"
checked = 2026-11-30

[[failure]]
id = "inspect-other"
title = "Something on a GPU"
affects = { vllm = ">=0.9" }
fingerprint = { pattern = "boom" }
cause = "unknown"
way_out = ["wait"]
sources = ["vllm-project/vllm#1"]
testable = "gpu"
confidence = "reported"
severity = "high"
effect = "breaks-feature"
feature = "LoRA"
needs = "LoRA is on"
unprobed = "needs a GPU"
checked = 2026-11-30
note = "doubtful"
"""


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "inspect.toml"
    path.write_text(RECORD, encoding="utf-8")
    found = load_failures([path])
    monkeypatch.setattr(command, "load_failures", lambda paths=(): load_failures(paths) if paths else found)
    monkeypatch.setattr(matrix.evidence, "SHIPPED", tmp_path / "evidence")
    return path


def _said(tmp_path: Path, line: str) -> Said:
    return said(*f"failures {line} --home {tmp_path}".split())


def test_the_list_names_every_record_by_family(records: Path, tmp_path: Path) -> None:
    assert _said(tmp_path, "").out.splitlines() == [
        "inspect",
        "  inspect-aimv2  low   import  vllm<0.10,>=0.9, transformers>=4.54",
        "  inspect-other  high  gpu     vllm>=0.9",
        "2 of 2 records; `failures show ID` tells more.",
    ]
    assert "1 of 2 records" in _said(tmp_path, "list --testable gpu").out
    assert "0 of 2 records" in _said(tmp_path, "--family ray").out
    assert [row["id"] for row in json.loads(_said(tmp_path, "list --json").out)] == ["inspect-aimv2", "inspect-other"]


def test_a_record_is_shown_whole(records: Path, tmp_path: Path) -> None:
    text = _said(tmp_path, "show inspect-other inspect-aimv2").out
    for part in ("LoRA is on", "none: needs a GPU", "doubtful", "boom", "any ordinary run", "vllm-project/vllm#22178"):
        assert part in text
    assert "\n  mended by vllm>=0.10\n" in text
    assert all(line.startswith("  ") for block in text.split("\n\n") for line in block.splitlines()[1:])
    assert json.loads(_said(tmp_path, "show inspect-aimv2 --json").out)[0]["mended"]["vllm"] == ">=0.10"


def test_what_applies_is_told_with_the_way_out(records: Path, tmp_path: Path) -> None:
    heard = _said(tmp_path, "for vllm==0.9.2 tf==4.57.6")
    assert heard.code == 1
    assert heard.out.splitlines() == [
        "high    inspect-other: Something on a GPU",
        "        when     LoRA is on",
        "        way out  wait",
        "low     inspect-aimv2: vLLM registers aimv2 twice",
        "        way out  transformers==4.53.3 or vllm==0.10.0",
        "2 of 2 records apply to vllm 0.9.2, transformers 4.57.6; 0 may, by versions not named.",
    ]
    maybe = _said(tmp_path, "for vllm==0.9.2 --testable import")
    assert maybe.code == 0
    assert "(if transformers>=4.54)" in maybe.out
    assert json.loads(_said(tmp_path, "for vllm==0.9.2 --json").out)[1]["open_on"] == ["transformers"]
    assert _said(tmp_path, "for verl==0.9.1").code == 0


def test_the_summary_counts_what_was_observed(records: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.add(_seen("cell-a", YES))
    rows = {line.split()[0]: line.split()[1:] for line in _said(tmp_path, "summary").out.splitlines()}
    assert rows["family"] == ["held", *Standing]
    assert rows["inspect"] == rows["all"] == ["2", "0", "0", "1", "0", "0", "1", "0"]
    evidence = Store(tmp_path / "evidence" / "cpu")
    evidence.add(_seen("cell-b", AGAINST))
    assert f"refuted: {AIMV2.id} on cell-b" in _said(tmp_path, "summary").out
    assert {row["standing"] for row in json.loads(_said(tmp_path, "summary --json").out)} == {"refuted", "elsewhere"}


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("show", 2, "names no record"),
        ("show inspect-aimv3", 2, "There is no record `inspect-aimv3`.\nClosest: inspect-aimv2"),
        ("show zzzzzz", 2, "There is no record `zzzzzz`.\n`failures list`"),
        ("for", 2, "No version is named"),
        ("for verl", 2, "does not say an exact version"),
        ("list inspect", 2, "takes no words"),
        ("list --family inspekt", 2, "There is no family `inspekt`"),
        ("list --testable cpu", 2, "There is no tier `cpu`"),
    ],
)
def test_words_that_make_no_sense_are_refused(records: Path, tmp_path: Path, line: str, code: int, says: str) -> None:
    heard = _said(tmp_path, line)
    assert heard.code == code
    assert says in heard.err


def test_lint_names_what_is_unsound(records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise ToolError("The probes are not here.")

    monkeypatch.setattr(command, "probes_folder", nowhere)
    assert _said(tmp_path, "lint").out == "2 records are sound.\n"
    records.write_text(RECORD.replace('vllm = ">=0.10"', 'vllm = ">=0.9.2"'), encoding="utf-8")
    heard = _said(tmp_path, f"lint {records}")
    assert heard.code == 3
    assert "vllm 0.9.2 is affected and mended at once" in heard.out
    records.write_text(RECORD.replace('sources = ["vllm-project/vllm#1"]', ""), encoding="utf-8")
    heard = _said(tmp_path, f"lint {records}")
    assert (heard.code, "failure[1].sources: is missing" in heard.err) == (3, True)
