"""The subject: its modules, and what their syntax alone tells."""

from __future__ import annotations

import ast

import pytest
from packaging.version import Version

from matrix.surface.execution.syntax import (
    Condition,
    bound_names,
    dotted_text,
    function_facts,
    last_name,
    module_facts,
)
from matrix.surface.subject import Subject
from tests.unit.source_trees import SourceArchive

SOURCES = {
    "verl/__init__.py": "from __future__ import annotations\n",
    "verl/a.py": "def __getattr__(name): ...\n",
    "verl/a/__init__.py": "x = 1\n",
    "verl/broken.py": "def (:\n",
    "verl/models/llama/megatron.py": "globals()['x'] = 1\n",
    "tests/test_a.py": "import verl\n",
    "verl/data.yaml": "a: 1\n",
}


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject.load(SourceArchive(SOURCES), Version("0.9.1"))


MODULES = [
    ("verl", "verl/__init__.py", True, True),
    ("verl.a", "verl/a/__init__.py", True, True),
    ("verl.broken", "verl/broken.py", False, False),
    ("verl.models", "verl/models", True, False),
    ("verl.models.llama", "verl/models/llama", True, False),
]


@pytest.mark.parametrize(("name", "path", "package", "parsed"), MODULES)
def test_modules(subject: Subject, name: str, path: str, package: bool, parsed: bool) -> None:
    module = subject.module(name)
    assert module is not None
    assert subject.exists(name)
    assert (module.path, module.is_package, module.tree is not None) == (path, package, parsed)


@pytest.mark.parametrize("name", ["tests.test_a", "verl.data", "verl.nothing", "vllm"])
def test_what_is_no_module_of_verl(subject: Subject, name: str) -> None:
    assert subject.module(name) is None
    assert not subject.exists(name)


def test_facts_of_modules(subject: Subject) -> None:
    facts = {name: module.facts for name in subject.sources if (module := subject.module(name)) is not None}
    assert [name for name, fact in facts.items() if fact.future_annotations] == ["verl"]
    assert sorted(name for name, fact in facts.items() if fact.dynamic) == ["verl.broken", "verl.models.llama.megatron"]
    assert module_facts(ast.parse(SOURCES["verl/a.py"])).has_getattr


RELATIVE = [
    ("verl.a", 0, "x.y", "x.y"),
    ("verl.a", 1, None, "verl.a"),
    ("verl.a", 1, "b", "verl.a.b"),
    ("verl.a", 2, "c", "verl.c"),
    ("verl.models.llama.megatron", 1, "x", "verl.models.llama.x"),
    ("verl.models.llama.megatron", 3, None, "verl"),
]


@pytest.mark.parametrize(("name", "level", "module", "expected"), RELATIVE)
def test_relative_imports(subject: Subject, name: str, level: int, module: str | None, expected: str) -> None:
    found = subject.module(name)
    assert found is not None
    assert found.absolute(level, module) == expected


def test_facts_of_a_node_are_made_once(subject: Subject) -> None:
    node = ast.parse("a.b  is\\\n None", mode="eval").body
    assert subject.text(node) == "a.b is None"
    assert subject.condition(node) is subject.condition(node)
    (function,) = ast.parse("def f(x): return x").body
    assert isinstance(function, ast.FunctionDef)
    assert subject.function(function) is subject.function(function)


BOUND = [
    ("import a.b, c as d", {"a", "d"}),
    ("from m import x, y as z\nfrom n import *", {"x", "z", "*"}),
    ("def f(): inner = 1\nclass C: inner = 1\nasync def g(): ...", {"f", "C", "g"}),
    ("a, (b, *c) = 1; d: int = 2; e += 1; f.x = g[0] = 3", {"a", "b", "c", "d", "e"}),
    ("for i in x: j = 1\nelse: k = 2", {"i", "j", "k"}),
    ("if x: a = 1\nelse: b = 2\nwhile x: c = 1", {"a", "b", "c"}),
    ("with x as a, y as (b, c): d = 1", {"a", "b", "c", "d"}),
    ("try: a = 1\nexcept E: b = 2\nelse: c = 3\nfinally: d = 4", {"a", "b", "c", "d"}),
    ("match x:\n    case 1: a = 1", {"a"}),
]


@pytest.mark.parametrize(("source", "names"), BOUND)
def test_bound_names(source: str, names: set[str]) -> None:
    assert set(bound_names(ast.parse(source).body)) == names


CONDITIONS = [
    ("config.fp8", False, False, ()),
    ("version.parse(v) >= x", True, True, ()),
    ("hasattr(a.b, 'c') and hasattr(d, 'e')", True, False, (("a.b", "c"), ("d", "e"))),
    ("x is None", True, False, ()),
    ("is_vllm_available()", True, False, ()),
    ("isinstance(x, Y)", True, False, ()),
]


@pytest.mark.parametrize(("source", "environmental", "versioned", "hasattrs"), CONDITIONS)
def test_conditions(source: str, environmental: bool, versioned: bool, hasattrs: tuple[tuple[str, str], ...]) -> None:
    found = Condition(ast.parse(source, mode="eval").body)
    assert (found.environmental, found.versioned, found.hasattrs) == (environmental, versioned, hasattrs)


FUNCTIONS = [
    ("def f(x): return x", True, frozenset(), True),
    ("def f(x): print(x)", False, frozenset(), True),
    ("def f(x): yield x", False, frozenset(), True),
    ("async def f(x): return x", False, frozenset(), True),
    ("def f():\n    def g(): return 1", False, frozenset(), True),
    ("@cache\ndef f(): return 1", True, frozenset(), True),
    ("@register('x')\ndef f(): return 1", True, frozenset(), False),
    ("def f(d, e):\n    for k, v in d.items():\n        x = f'--{k}'", False, frozenset({"d"}), True),
    ("def f(d):\n    for k, v in other.items():\n        x = f'--{k}'", False, frozenset(), True),
    ("def f(d):\n    for k in d.keys():\n        x = f'-{k}'", False, frozenset(), True),
    ("def f(d):\n    for k in make():\n        x = f'--{k}'", False, frozenset(), True),
]


@pytest.mark.parametrize(("source", "inlinable", "flags", "plain"), FUNCTIONS)
def test_facts_of_functions(source: str, inlinable: bool, flags: frozenset[str], plain: bool) -> None:
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    found = function_facts(node)
    assert (found.inlinable, found.flags, found.plain) == (inlinable, flags, plain)


def test_names() -> None:
    assert [last_name(ast.parse(text, mode="eval").body) for text in ("a", "a.b", "a.b()", "a[0]")] == [
        "a",
        "b",
        "b",
        "",
    ]
    assert [dotted_text(text) for text in ("a.b", "a", "a b.c", "a.b.C_1", "1.2", "a." * 150 + "b")] == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
