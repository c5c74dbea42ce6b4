"""What the records say of a set of versions: which apply, the way out, and whether they are sound."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.axes import load_axes
from matrix.errors import UsageError
from matrix.failure import Applies, Failure
from matrix.known import faults, matching, parse_installed
from tests.unit.failure_samples import AIMV2, changed

AXES = load_axes()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["verl==0.8.0", "tf==5.9"], {"verl": "0.8.0", "transformers": "5.9"}),
        (["flash_attn==2.8.3"], {"flash-attn": "2.8.3"}),
        (["fa==2.8.3", "python==3.12"], {"flash-attn": "2.8.3", "python": "3.12"}),
        (["numpy==1.26.4", "numpy==1.26.4"], {"numpy": "1.26.4"}),
        (["torch==2.11.0+cu130"], {"torch": "2.11.0+cu130"}),
    ],
)
def test_words_name_versions(words: list[str], expected: dict[str, str]) -> None:
    assert parse_installed(words) == {name: Version(text) for name, text in expected.items()}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "No version is named"),
        (["verl"], "`verl` does not say an exact version"),
        (["verl>=0.8"], "does not say an exact version"),
        (["verl==0.8,==0.9"], "does not say an exact version"),
        (["verl==0.8.*"], "does not say an exact version"),
        (["verl==0.8; python_version>'3'"], "does not say an exact version"),
        (["==0.8"], "does not say an exact version"),
        (["verl==0.8", "verl==0.9"], "verl is named twice, as 0.8 and 0.9"),
    ],
)
def test_words_that_name_none_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        parse_installed(words)


def test_what_applies_comes_first_and_what_may_says_what_decides() -> None:
    other = changed(id="b", affects={"vllm": "<0.10"})
    numpy = changed(id="c", affects={"numpy": "<2"})
    found = matching((AIMV2, other, numpy), {"vllm": Version("0.9.2")})
    assert [(match.failure.id, match.applies, match.open_on) for match in found] == [
        ("b", Applies.YES, ()),
        ("inspect-aimv2", Applies.UNKNOWN, ("transformers",)),
    ]
    assert matching((AIMV2, other, numpy), {"vllm": Version("0.10.0")}) == ()


@pytest.mark.parametrize(
    ("failure", "wrong"),
    [
        (AIMV2, []),
        (changed(affects={"numpy": ">=99"}), []),
        (changed(affects={"vllm": ">=99"}), ["inspect-aimv2: no recorded release of vllm is >=99"]),
        (changed(mended={"vllm": ">=0.9.2"}), ["inspect-aimv2: vllm 0.9.2 is affected and mended at once"]),
        (changed(probe="test_x.py::test_gone"), ["inspect-aimv2: there is no probe test_x.py::test_gone"]),
        (changed(probe="test_none.py::test_a"), ["inspect-aimv2: there is no probe test_none.py::test_a"]),
        (changed(probe="", unprobed="gpu"), []),
    ],
)
def test_unsound_records_are_named(tmp_path: Path, failure: Failure, wrong: list[str]) -> None:
    for name in ("test_inspect.py", "test_x.py"):
        (tmp_path / name).write_text("def test_aimv2():\n    assert True\n", encoding="utf-8")
    assert list(faults([failure], AXES, tmp_path)) == wrong


def test_probes_that_are_not_at_hand_are_not_looked_for() -> None:
    assert list(faults([AIMV2], AXES, None)) == []
