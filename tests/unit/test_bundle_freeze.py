"""What a host has by its own word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.bundle.freeze import read_freeze
from matrix.bundle.host import fit
from matrix.errors import DataError
from matrix.provision.inventory import same_release

SAME = [
    ("2.11.0", "2.11.0", True),
    ("2.11.0", "2.11.0+cu130", True),
    ("2.11.0+cu130", "2.11.0", True),
    ("2.11.0+cu130", "2.11.0+cu130", True),
    ("2.11.0+cu130", "2.11.0+cu126", False),
    ("2.11.0", "2.11.1", False),
    ("2.11.0", "2.11", True),
    ("2.11.0", "2.11.0.post1", False),
    ("1.0", "1.0rc1", False),
    ("13.3.5.0.6", "13.3.5.0.6", True),
    ("old", "old", True),
    ("old", "older", False),
]


@pytest.mark.parametrize("same", [same_release, fit.same], ids=["here", "on the host"])
@pytest.mark.parametrize(("wanted", "found", "expected"), SAME)
def test_a_local_suffix_that_one_lacks_makes_no_other_release(
    same: Callable[[str, str], bool], wanted: str, found: str, expected: bool
) -> None:
    assert same(wanted, found) is expected


@given(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_both_sides_compare_releases_alike(left: list[int], right: list[int]) -> None:
    """The host's program has no `packaging`, and says the same all the same."""
    one, other = (".".join(map(str, numbers)) for numbers in (left, right))
    assert fit.same(one, other) is same_release(one, other)


@pytest.mark.parametrize(
    ("text", "versions", "passed_over"),
    [
        ("torch==2.11.0+cu130\n", {"torch": "2.11.0+cu130"}, ()),
        ("\ufeffNVIDIA_nccl.cu13==2.28.9 \n# a word\n\n", {"nvidia-nccl-cu13": "2.28.9"}, ()),
        ("a == 1 ; python_version > '3'\nb @ file:///x\n-e .\n", {"a": "1"}, ("b @ file:///x", "-e .")),
        ("a==1\nA==1\n", {"a": "1"}, ()),
    ],
)
def test_a_freeze_is_read(tmp_path: Path, text: str, versions: dict[str, str], passed_over: tuple[str, ...]) -> None:
    path = tmp_path / "freeze.txt"
    path.write_text(text, encoding="utf-8")
    found = read_freeze(path)
    assert (dict(found.versions), found.passed_over) == (versions, passed_over)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "states no"),
        (b"torch\n", "states no"),
        (b"a==1\na==2\n", "is there twice"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_file_that_is_no_freeze_is_refused(tmp_path: Path, body: bytes, what: str) -> None:
    path = tmp_path / "freeze.txt"
    path.write_bytes(body)
    with pytest.raises(DataError, match=what):
        read_freeze(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_freeze(tmp_path / "none.txt")
