"""Selecting cells: a table of what is typed and what it chooses, and the laws of brace expansion."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.errors import UsageError
from matrix.select import parse_patterns, select

CELLS = {
    "verl0.8.0-vllm0.12.0": ("released-pair", "ci"),
    "verl0.8.0-vllm0.24.0": ("neighbour",),
    "verl0.9.1-vllm0.24.0": ("released-pair", "ci"),
    "verl0.9.1-vllm0.26.0": ("neighbour",),
    "verl0.9.1-vllm0.26.0-nodeps": (),
    "torch2.6.0-vllm0.6.3.post1": ("guide",),
}
ALL = tuple(CELLS)

CHOSEN: list[tuple[list[str], tuple[str, ...]]] = [
    ([], ALL),
    (["*"], ALL),
    (["verl0.9.*-vllm0.{24,26}*"], ALL[2:5]),
    (["verl0.9.*-vllm0.{24,26}.0"], ALL[2:4]),
    (["group:ci"], (ALL[0], ALL[2])),
    (["group:{ci,guide}"], (ALL[0], ALL[2], ALL[5])),
    (["group:released*"], (ALL[0], ALL[2])),
    (["torch*, verl0.8*"], (ALL[0], ALL[1], ALL[5])),
    (["torch*", "verl0.8*"], (ALL[0], ALL[1], ALL[5])),
    (["!group:ci"], (ALL[1], ALL[3], ALL[4], ALL[5])),
    (["verl*", "!*-nodeps", "!verl0.8*"], ALL[2:4]),
    (["verl0.9.1-vllm0.26.0"], (ALL[3],)),
    (["verl0.[89].*-vllm0.24.?"], (ALL[1], ALL[2])),
    (["{verl0.{8.0,9.1}-vllm0.24.0,torch*}"], (ALL[1], ALL[2], ALL[5])),
]


@pytest.mark.parametrize(("words", "names"), CHOSEN, ids=[" ".join(words) or "nothing" for words, _ in CHOSEN])
def test_what_is_typed_chooses_cells_in_plan_order(words: list[str], names: tuple[str, ...]) -> None:
    assert select(CELLS, parse_patterns(words)) == names


REFUSED: list[tuple[list[str], str]] = [
    (["group:guid"], "`group:guid` matches no cell.\nDid you mean group:guide?"),
    (["group:zzz"], "Groups are: ci, guide, neighbour, released-pair."),
    (["verl0.9.1-vllm0.25*"], "Closest: verl0.9.1-vllm0.24.0, verl0.9.1-vllm0.26.0"),
    (["verl0.9.1-vllm0.26.0-tf5*"], "Closest: verl0.9.1-vllm0.26.0, verl0.9.1-vllm0.26.0-nodeps."),
    (["erl0.9.1-vllm0.24.0"], "Closest: verl0.9.1-vllm0.24.0"),
    (["zzz"], "`zzz` matches no cell.\nGroups are: ci, guide, neighbour, released-pair.\n`--list`"),
    (["group:ci", "zzz"], "`zzz` matches no cell."),
    (["!zzz"], "`!zzz` matches no cell."),
    (["VERL*"], "`VERL*` matches no cell."),
    (["group:ci", "!verl*"], "No cell is left by `group:ci !verl*`."),
    ([""], "`` is an empty pattern."),
    (["a,,b"], "`` is an empty pattern."),
    (["{,}"], "`{,}` is an empty pattern."),
    (["group:"], "`group:` is an empty pattern."),
    (["verl0.{8,9"], "A brace in `verl0.{8,9` is not closed."),
    (["9" * 251], "is longer than a pattern may be (250 characters)."),
    (["verl{1..2000}"], "expand to more than 1000 patterns"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_a_pattern_that_says_nothing_is_refused_with_what_comes_close(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        select(CELLS, parse_patterns(words))
    assert message in str(caught.value)


letters = st.text("abc", max_size=2)
choices = st.lists(letters, min_size=2, max_size=3)


@given(st.lists(st.one_of(letters.map(lambda text: [text]), choices), min_size=1, max_size=4))
def test_braces_expand_to_every_combination(pieces: list[list[str]]) -> None:
    glob = "x" + "".join(piece[0] if len(piece) == 1 else "{" + ",".join(piece) + "}" for piece in pieces)
    (pattern,) = parse_patterns([glob])
    assert set(pattern.globs) == {"x" + "".join(words) for words in itertools.product(*pieces)}


@given(st.lists(st.sampled_from(["verl*", "group:ci", "torch*", "*0.24*"]), min_size=1, max_size=3))
def test_a_pattern_and_its_exclusion_share_the_cells_between_them(texts: list[str]) -> None:
    chosen = select(CELLS, parse_patterns(texts))
    rest = {name for name in CELLS if name not in chosen}
    excluding = parse_patterns([f"!{text}" for text in texts])
    assert not rest or set(select(CELLS, excluding)) == rest
