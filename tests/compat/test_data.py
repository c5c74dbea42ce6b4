"""Data as verl reads and scores it: GSM8K's rule over the formats that occur, sources it knows, files good and bad.

Corrects what guides to verl say: an answer's trailing blank or line end is no trouble, a trailing full stop is; a
`data_source` of one's own is not scored at all; a text column as prompt is dropped without a word by the filter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit import Cell, Trial, run_python
from packaging.version import Version

SUBJECT = Path(__file__).parent / "subjects" / "data_verl.py"
pytestmark = [pytest.mark.tier("behave"), pytest.mark.needs("verl>=0.2")]

FIRST = "first #### 12 then #### 72"
FAR = "#### 72" + " so it is" * 40
# response, ground truth, what `strict` takes, what `flexible` takes, the score; the rule is the same in every release.
ANSWERS: dict[str, tuple[str, str, Any, Any, float]] = {
    "plain": ("#### 72", "72", "72", "72", 1.0),
    "line end": ("48 + 24 = 72\n#### 72\n", "72", "72", "72", 1.0),
    "trailing blank": ("#### 72 ", "72", "72", "72", 1.0),
    "thousands in the response": ("#### 1,000", "1000", "1000", "1,000", 1.0),
    "thousands in the truth": ("#### 1,000", "1,000", "1000", "1,000", 0.0),
    "negative": ("#### -5", "-5", "-5", "-5", 1.0),
    "decimals": ("#### 3.5", "3.5", "3.5", "3.5", 1.0),
    "trailing zero": ("#### 72.0", "72", "72.0", "72.0", 0.0),
    "full stop": ("#### 72.", "72", "72.", "72.", 0.0),
    "unit behind": ("#### 72 dollars", "72", "72", "72", 1.0),
    "dollar before": ("#### $72", "72", None, "72", 0.0),
    "no blank": ("####72", "72", None, "72", 0.0),
    "boxed": (r"\boxed{72}", "72", None, "72", 0.0),
    "in words": ("The answer is 72.", "72", None, "72.", 0.0),
    "several numbers": ("2 and 3 make 5", "5", None, "5", 0.0),
    "no number": ("I do not know", "72", None, None, 0.0),
    "truth left as it was": ("#### 72", "#### 72", "72", "72", 0.0),
    "wrong": ("#### 60", "72", "60", "60", 0.0),
}


def _asked(word: str, argument: str, timeout: float = 240) -> Any:
    ended = run_python(str(SUBJECT), word, argument, timeout=timeout)
    assert ended.code == 0, ended.last_line or ended.fault
    said = json.loads(ended.stdout.strip().splitlines()[-1])
    if isinstance(said, dict) and "untested" in said:
        pytest.skip(said["untested"])
    return said


def _release(cell: Cell) -> Version:
    version = cell.version("verl")
    assert version is not None
    return Version(version)


def test_gsm8k_takes_answers_by_its_rule(tmp_path: Path) -> None:
    """Verl's own extract_solution and compute_score give what the table says, in every release."""
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps([[text, truth] for text, truth, *_ in ANSWERS.values()]), encoding="utf-8")
    found = dict(zip(ANSWERS, _asked("answers", str(asked)), strict=True))
    assert found == {name: [strict, flexible, score] for name, (_, _, strict, flexible, score) in ANSWERS.items()}


def test_gsm8k_takes_the_last_answer_of_the_end(cell: Cell, tmp_path: Path) -> None:
    """Of two answers the last counts from 0.4.1 on, the first before; from 0.5.0 on only the last 300 characters do."""
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps([[FIRST, "72"], [FAR, "72"]]), encoding="utf-8")
    first, far = _asked("answers", str(asked))
    release = _release(cell)
    assert first[0] == ("72" if release >= Version("0.4.1") else "12")
    assert far[0] == (None if release >= Version("0.5.0") else "72")


@pytest.mark.limit(300)
def test_sources_that_no_reward_knows_raise(tmp_path: Path) -> None:
    """`openai/gsm8k` is scored; a folder's name, or one's own, raises NotImplementedError."""
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps(["openai/gsm8k", "data/gsm8k", "gsm8k", "my-data"]), encoding="utf-8")
    found = _asked("sources", str(asked))
    assert found.pop("openai/gsm8k") == 1.0
    assert {source: str(said).split(":")[0] for source, said in found.items()} == dict.fromkeys(
        ("data/gsm8k", "gsm8k", "my-data"), "NotImplementedError"
    )


@pytest.mark.failure("datasets-local-fsspec-protocol")
@pytest.mark.needs("verl>=0.4", "datasets", "fsspec", "pyarrow", "transformers")
@pytest.mark.limit(300)
def test_a_good_file_is_read(trial: Trial, tmp_path: Path) -> None:
    """RLHFDataset reads a parquet of five rows, which an old datasets beside a newer fsspec does not."""
    found = _asked("good", str(tmp_path))
    trial.judge(None if found[0] == 5 else "\n".join(map(str, found)))


def _known(cell: Cell, said: list[Any]) -> str:
    """Return the record of this cell that these errors show, "" where there is none."""
    text = "\n".join(map(str, said))
    shown = (record.id for record in cell.records.values() if record.applies == "yes" and record.matches(text))
    return next(shown, "")


@pytest.mark.needs("verl>=0.4", "pyarrow", "transformers")
@pytest.mark.limit(400)
def test_files_are_read_or_refused(cell: Cell, tmp_path: Path) -> None:
    """A good file gives its rows; what is no parquet is refused with an error that names it; a missing column is told.

    Two silent outcomes are pinned: from 0.6.1 on the filter of long prompts catches every error of a row and counts it
    as too long, so a file without prompts, or with text for prompts, becomes a dataset of no rows.
    """
    found = _asked("read", str(tmp_path), timeout=360)
    if known := _known(cell, found["good whole"]):
        pytest.skip(f"no file is read here, which is {known}")
    for way in ("whole", "filtered"):
        assert found[f"good {way}"][0] == 5, f"a good file is not read: {found[f'good {way}']}"
        keys = found[f"good {way}"][1]
        assert {"data_source", "reward_model", "index"} <= set(keys)
        for name in ("truncated", "csv", "empty"):
            assert any("arquet" in said for said in found[f"{name} {way}"]), found[f"{name} {way}"]
        assert any("FileNotFoundError" in said for said in found[f"missing {way}"]), found[f"missing {way}"]
    assert any(said.startswith("KeyError: 'prompt'") for said in found["no_prompt whole"]), found["no_prompt whole"]
    if _release(cell) >= Version("0.6.1"):
        assert found["no_prompt filtered"] == [0, []]
        assert found["text_prompt filtered"] == [0, []]
    else:
        assert any("prompt" in str(said) for said in found["no_prompt filtered"]), found["no_prompt filtered"]
