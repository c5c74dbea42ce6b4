"""Packed data: what goes in comes out, each value once."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.packing import pack, printable, unpack

TEXT = st.text(max_size=8).map(printable)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=30,
)


def _same(one: object, other: object) -> bool:
    """Return whether they are equal and of the same kind: 1, 1.0 and true are not one value in JSON."""
    return json.dumps(one) == json.dumps(other)


@given(DATA, st.lists(DATA, max_size=3))
def test_what_is_packed_comes_out_as_it_went_in(root: object, lazy: list[object]) -> None:
    packed = json.loads(json.dumps(pack(root, lazy)))
    assert _same(unpack(packed), root)
    assert [json.dumps(unpack(packed, place)) for place in packed["lazy"]] == [json.dumps(item) for item in lazy]


def test_each_value_stands_once_and_the_most_used_first() -> None:
    packed = pack({"a": ["x", "x", "y"], "b": ["x", "x", "y"], "c": {"a": 1, "b": "x"}})
    assert packed["nodes"][0] == "x"
    assert sorted(node for node in packed["nodes"] if isinstance(node, str)) == ["x", "y"]
    assert sum(isinstance(node, list) for node in packed["nodes"]) == 3
    assert packed["shapes"] == [["a", "b"], ["a", "b", "c"]] or len(packed["shapes"]) == 2


@pytest.mark.parametrize(
    ("text", "expected"), [("a\x1b[31m", "a[31m"), ("a\tb\nc", "a\tb\nc"), ("\ud800", ""), ("é", "é"), ("\u2028", "")]
)
def test_printable(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="set is no JSON data"):
        pack({"a": {1}})
