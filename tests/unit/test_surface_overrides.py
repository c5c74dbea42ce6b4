"""Overrides: how a method of verl fits the method of the target that it replaces."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.surface.answer import Signature
from matrix.surface.execution.overriding import misfit, own_signature
from tests.unit.surface_case import lines, report_of


def signature(text: str, *, bound: bool = True) -> Signature:
    (node,) = ast.parse(f"def f({text}): ...").body
    assert isinstance(node, ast.FunctionDef)
    return own_signature(node, bound=bound)


SIGNATURES = [
    ("self, a, b=1, *, c, d=2", ("a", "b"), {"c", "d"}, {"a", "c"}, 0),
    ("self", (), set(), set(), 0),
    ("self, a, /, b", ("a", "b"), set(), {"a", "b"}, 1),
    ("self, a=1, b=2", ("a", "b"), set(), set(), 0),
]


@pytest.mark.parametrize(("text", "positional", "keyword_only", "required", "only"), SIGNATURES)
def test_the_signature_of_verls_own_method(
    text: str, positional: tuple[str, ...], keyword_only: set[str], required: set[str], only: int
) -> None:
    found = signature(text)
    assert (found.positional, set(found.keyword_only), set(found.required)) == (positional, keyword_only, required)
    assert found.positional_only == only
    assert signature(text, bound=False).positional[0] == "self"


MISFITS = [
    ("self, a", "self, a", "", False),
    ("self, a, b=1", "self, a", "", False),
    ("self, *args, **kwargs", "self, a, b, *, c", "", False),
    ("self, a", "self, *args", "", False),
    ("self, a", "self, a, **kwargs", "", False),
    ("self, a", "self, a, b", "cannot take `b`, which the base's callers pass", True),
    ("self, a", "self, a, *, b", "cannot take `b`, which the base's callers pass", True),
    ("self, a, **kwargs", "self, a, *, b", "", False),
    ("self, a, b", "self, a", "requires `b`, which the base's callers may not pass", False),
    ("self, a, *, b", "self, a", "requires `b`, which the base's callers may not pass", False),
    ("self, a", "self, a, b=1", "does not take `b`, which the base's callers may pass", False),
    ("self, first", "self, a", "", False),
    ("self, a, second", "self, a, b", "", False),
    ("self, x, y, z", "self, a", "", False),
    ("self", "self", "", False),
    ("self", "self, a", "cannot take `a`, which the base's callers pass", True),
]


@pytest.mark.parametrize(("ours", "theirs", "fault", "sure"), MISFITS)
def test_how_an_override_fits(ours: str, theirs: str, fault: str, sure: bool) -> None:
    assert misfit(signature(ours), signature(theirs)) == (fault, sure)


@given(st.lists(st.sampled_from("abcdef"), unique=True), st.integers(0, 6), st.booleans())
def test_what_is_written_like_the_base_always_fits_it(names: list[str], required: int, keywords: bool) -> None:
    needed = frozenset(names[:required])
    base = Signature(positional=tuple(names), required=needed)
    assert misfit(base, base) == ("", False)
    wider = Signature(positional=(*names, "more"), required=needed, var_keyword=keywords)
    assert misfit(wider, base) == ("", False)


VLLM = {
    "vllm/__init__.py": """
        class Engine:
            def receive(self, info, load): ...
            def step(self): ...
            @property
            def name(self): ...
        def helper(): ...
    """
}
CLASSES = [
    ("fits", "class Mine(Engine):\n    def receive(self, info, load): ...", []),
    (
        "added",
        "class Mine(Engine):\n    def receive(self, info): ...",
        ["breaks-feature override-mismatch vllm.Engine.receive"],
    ),
    (
        "wider",
        "class Mine(Engine):\n    def step(self, more): ...",
        ["breaks-feature? override-mismatch vllm.Engine.step"],
    ),
    ("new method", "class Mine(Engine):\n    def other(self, info): ...", []),
    ("constructor", "class Mine(Engine):\n    def __init__(self, info): ...", []),
    ("property", "class Mine(Engine):\n    @property\n    def name(self): ...", []),
    ("static", "class Mine(Engine):\n    @staticmethod\n    def step(): ...", []),
    (
        "said to override",
        "from typing import override\nclass Mine(Engine):\n    @override\n    def gone(self): ...",
        ["degrades override-orphaned vllm.Engine.gone"],
    ),
    ("rightly so", "from typing import override\nclass Mine(Engine):\n    @override\n    def step(self): ...", []),
    (
        "super",
        "class Mine(Engine):\n    def gone(self):\n        return super().gone()\nMine().gone()",
        ["breaks-feature attribute-missing vllm.Engine.gone"],
    ),
    ("super there", "class Mine(Engine):\n    def step(self):\n        return super().step()\nMine().step()", []),
    (
        "super arguments",
        "class Mine(Engine):\n    def step(self):\n        return super().step(1)\nMine().step()",
        ["breaks-feature positional-excess vllm.Engine.step()"],
    ),
    (
        "inherited call",
        "class Mine(Engine):\n    def go(self):\n        return self.step(1)\nMine().go()",
        ["breaks-feature positional-excess vllm.Engine.step()"],
    ),
    (
        "unknown base",
        "from peft import Model\nclass Mine(Model, Engine):\n    def go(self):\n        return super().gone()\nMine()",
        [],
    ),
    (
        "grandchild",
        "class Mine(Engine):\n    pass\nclass Yours(Mine):\n    def go(self):\n        return super().gone()\nYours()",
        ["breaks-feature attribute-missing vllm.Engine.gone"],
    ),
]


@pytest.mark.parametrize(("source", "expected"), [case[1:] for case in CLASSES], ids=[case[0] for case in CLASSES])
def test_classes_that_derive_from_the_target(source: str, expected: list[str]) -> None:
    assert lines(report_of(f"from vllm import Engine\n{source}\n", VLLM)) == expected
