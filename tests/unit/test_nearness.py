from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from matrix.nearness import near_names, near_versions

NUMBERS = st.builds(
    lambda release, post: Version(".".join(map(str, release)) + (f".post{post}" if post else "")),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.integers(0, 2),
)


@pytest.mark.parametrize(
    ("wanted", "known", "expected"),
    [
        (
            "0.5.4.post1",
            ["0.5.3.post1", "0.6.0", "0.5.5", "0.5.4", "0.5.3"],
            ("0.5.4", "0.5.5", "0.5.3.post1", "0.5.3"),
        ),
        ("0.34.0", ["0.33.0", "0.32.0", "1.0", "0.3.4"], ("0.33.0", "0.32.0", "0.3.4", "1.0")),
        ("0.9", ["0.9.1", "0.9.2rc1", "0.8"], ("0.9.1", "0.9.2rc1", "0.8")),
        ("2.0", [], ()),
        ("9.9.9", ["0.0.1", "0.1.0", "0.24.0", "0.9.2", "0.10.0", "0.25.0rc1"], ("0.24.0", "0.10.0", "0.9.2", "0.1.0")),
        ("99", ["0.2.0", "0.9.1", "0.8.0", "0.10.0"], ("0.10.0", "0.9.1", "0.8.0", "0.2.0")),
        ("0.1", ["2.0", "1.9", "1.10", "1.2", "3.0"], ("1.2", "1.9", "1.10", "2.0")),
        ("1!1.0", ["1.0"], ("1.0",)),
        ("1.post1", ["1.0", "1.post1"], ("1.post1", "1.0")),
    ],
)
def test_near_versions(wanted: str, known: list[str], expected: tuple[str, ...]) -> None:
    assert near_versions(Version(wanted), [Version(text) for text in known]) == expected


@given(NUMBERS, st.sets(NUMBERS, max_size=12))
def test_near_versions_are_some_of_the_known_and_the_equal_one_is_first(wanted: Version, known: set[Version]) -> None:
    near = near_versions(wanted, known)
    assert len(near) == min(4, len(known))
    assert {Version(text) for text in near} <= known
    if wanted in known:
        assert Version(near[0]) == wanted


@pytest.mark.parametrize(
    ("name", "expected"),
    [("vlm", ("vllm",)), ("transformer", ("transformers",)), ("flash_attn", ("flash-attn",)), ("zzz", ())],
)
def test_near_names(name: str, expected: tuple[str, ...]) -> None:
    assert near_names(name, ["vllm", "verl", "transformers", "flash-attn"]) == expected
