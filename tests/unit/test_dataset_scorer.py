"""What releases of verl score, read from code of each shape that there was; probes read the releases themselves."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from matrix.dataset.releases import scorer_installed, scorer_of_release
from matrix.dataset.scorer import GSM8K, MAIN, READER, REWARDS, Scorer, read_scorer
from matrix.errors import UnknownReleaseError
from tests.unit.fakes import FakeIndex, FakeRelease

FIRST = """
def _select_rm_score_fn(data_source):
    if data_source == 'openai/gsm8k':
        return gsm8k.compute_score
    else:
        raise NotImplementedError
"""
SECOND = '''
def helper(x):
    return x
def _default_compute_score(data_source, solution_str, ground_truth):
    """Text."""
    if data_source == 'openai/gsm8k':
        from . import gsm8k
        res = gsm8k.compute_score(solution_str, ground_truth)
    elif data_source in ['lighteval/MATH', OTHER]:
        from . import math
        res = math.compute_score(solution_str, ground_truth)
    elif data_source in ("math_dapo",) or data_source.startswith("aime"):
        from . import math_dapo
    elif secret(data_source):
        res = 1
    else:
        raise NotImplementedError
'''
RULE_FIRST = r"""
import re
def extract_solution(solution_str, method='strict'):
    assert method in ['strict', 'flexible']
    if method == 'strict':
        solution = re.search("#### (\\-?[0-9\\.\\,]+)", solution_str)
        final_answer = solution.group(0).split('#### ')[1].replace(',', '').replace('$', '')
    elif method == 'flexible':
        answer = re.findall("(\\-?[0-9\\.\\,]+)", solution_str)
    return final_answer
def compute_score(solution_str, ground_truth, method='strict', format_score=0., score=1.):
    return 0
"""
RULE_LAST = r"""
import re
_SOLUTION_CLIP_CHARS = 300
def extract_solution(solution_str, method="strict"):
    if method == "strict":
        solutions = re.findall("#### (\\-?[0-9\\.\\,]+)", solution_str)
        final_answer = solutions[-1].replace(",", "").replace("$", "")
    else:
        answer = re.findall("(\\-?[0-9\\.\\,]+)", solution_str)
def compute_score(solution_str, ground_truth, method="flexible"):
    return 0
"""
READS = """
class RLHFDataset:
    def _read(self):
        if parquet_file.endswith(".parquet"):
            pass
        elif parquet_file.endswith(".json"):
            pass
    def __getitem__(self, item):
        if "extra_info" not in row_dict or row_dict["extra_info"] is None:
            row_dict["extra_info"] = {}
"""


def _scorer(**files: str) -> Scorer:
    paths = {"main": MAIN, "rewards": REWARDS, "gsm8k": GSM8K, "reader": READER}
    texts = {paths[name]: text for name, text in files.items()}
    return read_scorer("1.0", texts.get)


def test_the_chain_of_the_first_release() -> None:
    found = _scorer(rewards="", main=FIRST, gsm8k=RULE_FIRST, reader="x.endswith('.parquet2')")
    assert (found.names, found.prefixes, found.opaque) == ({"openai/gsm8k": "gsm8k"}, {}, ())
    assert found.gsm8k is not None
    assert (found.gsm8k.last, found.gsm8k.clip, found.gsm8k.method) == (False, 0, "strict")
    assert found.gsm8k.removed == ("$", ",")
    assert (found.null_extra_info, found.suffixes) == (False, ())


def test_names_prefixes_and_what_cannot_be_read() -> None:
    found = _scorer(rewards=SECOND, gsm8k=RULE_LAST, reader=READS)
    assert found.names == {"openai/gsm8k": "gsm8k", "lighteval/MATH": "math", "math_dapo": "math_dapo"}
    assert found.prefixes == {"aime": "math_dapo"}
    assert found.opaque == ("OTHER", "secret(data_source)")
    assert [found.module(name) for name in ("openai/gsm8k", "aime2024", "data/gsm8k")] == ["gsm8k", "math_dapo", None]
    assert found.gsm8k is not None
    assert (found.gsm8k.last, found.gsm8k.clip, found.gsm8k.method) == (True, 300, "flexible")
    assert (found.null_extra_info, found.suffixes) == (True, (".parquet", ".json"))


@pytest.mark.parametrize(
    "rule",
    [None, "x = 1", "def extract_solution(a): pass\ndef compute_score(a): pass",
     RULE_FIRST.replace("method='strict', format", "format")],
)  # fmt: skip
def test_a_rule_of_another_shape_is_none_or_has_no_default(rule: str | None) -> None:
    found = _scorer(rewards=SECOND, **({"gsm8k": rule} if rule else {})).gsm8k
    assert found is None or found.method == ""


@pytest.mark.parametrize("text", ["", "x = 1", "def default_compute_score(a):\n    return 1"])
def test_code_without_a_choice_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no function that chooses"):
        _scorer(rewards=text)


TRUTHS = {
    "72": True, "-5": True, "3.5": True, "0": True, "72.": True, "1,000": False, "#### 72": False, "$5": False,
    "72 dollars": False, "\\boxed{72}": False, "": False, "+3": False, "1e3": False, " 72": False,
    "The answer is 72.": False,
}  # fmt: skip


@pytest.mark.parametrize(("truth", "reachable"), TRUTHS.items(), ids=repr)
def test_truths_that_a_response_can_equal(truth: str, reachable: bool) -> None:
    rule = _scorer(rewards=SECOND, gsm8k=RULE_LAST).gsm8k
    assert rule is not None
    assert rule.reachable(truth) is reachable


@given(st.integers(-(10**9), 10**9))
def test_every_whole_number_is_reachable(value: int) -> None:
    rule = _scorer(rewards=SECOND, gsm8k=RULE_FIRST).gsm8k
    assert rule is not None
    assert rule.reachable(str(value))


def test_a_release_is_read_from_four_members_of_its_wheel() -> None:
    files = {REWARDS: SECOND, GSM8K: RULE_LAST, "verl/other.py": "1"}
    index = FakeIndex({"verl": {"0.9.1": FakeRelease(files=files), "0.1": FakeRelease(sdist_only=True)}})
    found = scorer_of_release(index, Version("0.9.1"))
    assert (found.version, found.module("openai/gsm8k")) == ("0.9.1", "gsm8k")
    with pytest.raises(UnknownReleaseError, match=r"wheel of verl 0\.1"):
        scorer_of_release(index, Version("0.1"))
    with pytest.raises(UnknownReleaseError, match="verl 7"):
        scorer_of_release(index, Version("7"))


class _Installed:
    version = "0.9.1"

    def __init__(self, root: Path) -> None:
        self.root = root

    def locate_file(self, name: str) -> Path:
        return self.root / name


def test_the_installed_verl_is_read_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert scorer_installed() is None
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: _Installed(tmp_path))
    assert scorer_installed() is None
    (tmp_path / REWARDS).parent.mkdir(parents=True)
    (tmp_path / REWARDS).write_text(SECOND)
    found = scorer_installed()
    assert found is not None
    assert found.version == "0.9.1"
