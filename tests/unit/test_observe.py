"""Questions: equal ones have one key, and everything the answer depends on is in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.observe import Question
from matrix.tier import Tier

ASKED = Question(cell="verl0.9.1", probe="uv", tier=Tier.RESOLVE, tool="0.1.0", reads={"uv": "1", "index": "2"})


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_the_order_of_what_is_read_does_not_matter(reads: dict[str, str]) -> None:
    backwards = dict(reversed(tuple(reads.items())))
    assert replace(ASKED, reads=reads).key == replace(ASKED, reads=backwards).key


@pytest.mark.parametrize(
    "other",
    [
        replace(ASKED, cell="verl0.9.0"),
        replace(ASKED, probe="other"),
        replace(ASKED, tool="0.2.0"),
        replace(ASKED, reads={"uv": "2", "index": "2"}),
        replace(ASKED, reads={"uv": "1"}),
    ],
)
def test_a_question_that_differs_has_another_key(other: Question) -> None:
    assert other.key != ASKED.key


def test_the_key_is_stable_between_releases() -> None:
    # A key that changes makes every stored answer void: if this fails, the schema must change with it.
    assert ASKED.key == "da59c7dea3e60613b164abbd1aef27c4b28ca06290e7577af9d1ce320e043889"
