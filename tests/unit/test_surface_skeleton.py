"""Texts without the bodies of their functions: what is left, and when it is better left alone."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.surface import importing, names, reading, skeleton, tables, world
from matrix.surface.importing import read_imports

TEXTS = [
    ("", ""),
    ("import a\nX = 1\n", "import a\nX = 1\n"),
    ("def f():\n    import b\n    return 1\nimport c\n", "def f():\n ...\n\nimport c\n"),
    ("def f():\n    import b", "def f():\n ..."),
    ("async def f(a,\n      b=(1, 2)):  # why\n    x\n\n\ny", "async def f(a,\n      b=(1, 2)):  # why\n ...\n\n\ny"),
    ("class A:\n    def f(self):\n        x\n    b = 1\n", "class A:\n    def f(self):\n     ...\n    b = 1\n"),
    ("def f():\n    def g():\n        x\n    y\nz", "def f():\n ...\n\n\nz"),
    ("def f():\n    x\n# at the margin\n    y\nz", "def f():\n ...\n\n\nz"),
    ("if x:\n  def f():\n    y\n  z\n", "if x:\n  def f():\n   ...\n  z\n"),
    # On one line it is left as it is.
    ("def f(): return 1\nclass A:\n    x = 1\n", "def f(): return 1\nclass A:\n    x = 1\n"),
    ("def f(): return 1", "def f(): return 1"),
    ("def f(a", "def f(a"),
    ("def f(\n" + "a,\n" * 90 + "): x\ny", "def f(\n" + "a,\n" * 90 + "): x\ny"),
    # A string that reaches the margin.
    ('def f():\n    x = """\nimport a\n"""\n', None),
    ("def f():\n    x = '''\nimport a\n'''\n", None),
    ("def f():\r\n    x\r\n", None),
]


@pytest.mark.parametrize(("text", "left"), TEXTS)
def test_what_is_left(text: str, left: str | None) -> None:
    found = skeleton.skeleton(text.encode())
    assert (found.decode() if found is not None else None) == left


# Of this project: the standard library's sources differ from one Python to the next.
MODULES = (importing, names, reading, tables, world)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_real_modules_read_the_same(module: ModuleType) -> None:
    source = inspect.getsource(module)
    left = skeleton.skeleton(source.encode())
    assert left is not None
    assert left.count(b"\n") == source.count("\n")
    assert heads(left.decode()) == heads(source)


def heads(source: str) -> list[tuple[int, str]]:
    """Return the line and kind of every statement outside of functions."""
    found: list[tuple[int, str]] = []
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                found.append((child.lineno, type(child).__name__))
                if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    todo.append(child)
    return sorted(found)


def test_an_unsafe_text_is_read_whole() -> None:
    text = b'def f():\n    x = """\nimport wrong\n"""\nimport right\n'
    assert read_imports(text, "m", package=False).data["imports"] == [["import", 5, "right"]]
    # Cut at the wrong place: what is left does not parse, so the whole is read.
    text = b"def f(a='(', b=')'  # (:\n    ):\n    x\nimport right\n"
    assert read_imports(text, "m", package=False).data["imports"] == [["import", 4, "right"]]


@given(st.text(alphabet="def f():\n\t\"'#(x", max_size=60))
def test_any_text_keeps_its_lines(text: str) -> None:
    left = skeleton.skeleton(text.encode())
    assert left is None or left.count(b"\n") == text.count("\n")
