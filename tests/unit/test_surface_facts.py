from __future__ import annotations

import gc
import json
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.surface.exporting import exported_names
from matrix.surface.facts import Bind, ModuleFacts, When, parameters
from matrix.surface.factstore import FactStore
from matrix.surface.names import named_type
from matrix.surface.reading import quiet_collector, read_module
from matrix.surface.world import World
from tests.unit.source_trees import archives


def facts_of(source: str, *, package: bool = False) -> ModuleFacts:
    return read_module(dedent(source).encode(), "p.sub.mod", package=package)


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        ("import os", "os", (Bind.MODULE, "a", "os", "")),
        ("import os.path", "os", (Bind.MODULE, "a", "os", "")),
        ("import os.path as q", "q", (Bind.MODULE, "a", "os.path", "")),
        ("from . import x", "x", (Bind.FROM, "a", "p.sub", "x")),
        ("from .. import x as y", "y", (Bind.FROM, "a", "p", "x")),
        ("from ..z import x", "x", (Bind.FROM, "a", "p.z", "x")),
        ("x = y.z", "x", (Bind.ALIAS, "a", "y.z", "")),
        ("x = f.g(1)", "x", (Bind.CALL, "a", "f.g", "")),
        ("x = -1", "x", (Bind.CONSTANT, "a", "", "")),
        ("x = [1]", "x", (Bind.VALUE, "a", "", "")),
        ("x += 1", "x", (Bind.VALUE, "a", "", "")),
        ("x: int", "x", (Bind.ANNOTATION, "a", "", "")),
        ("def x(): pass", "x", (Bind.FUNCTION, "a", "", "")),
        ("async def x(): pass", "x", (Bind.FUNCTION, "a", "", "")),
        ("class x: pass", "x", (Bind.CLASS, "a", "", "")),
        ("del x", "x", (Bind.DELETE, "a", "", "")),
        ("try:\n    x = 1\nexcept E: pass", "x", (Bind.CONSTANT, "t", "", "")),
        ("try: pass\nexcept E: x = 1", "x", (Bind.CONSTANT, "h", "", "")),
        ("try: x = 1\nexcept E: raise", "x", (Bind.CONSTANT, "a", "", "")),
        ("try: pass\nfinally: x = 1", "x", (Bind.CONSTANT, "a", "", "")),
        ("with suppress(E): x = 1", "x", (Bind.CONSTANT, "t", "", "")),
        ("if c(): x = 1", "x", (Bind.CONSTANT, "m", "", "")),
        ("if True: x = 1", "x", (Bind.CONSTANT, "a", "", "")),
        ("if typing.TYPE_CHECKING: x = 1", "x", (Bind.CONSTANT, "y", "", "")),
        ("if TYPE_CHECKING and c(): x = 1", "x", (Bind.CONSTANT, "y", "", "")),
        ("if TYPE_CHECKING or c(): x = 1", "x", (Bind.CONSTANT, "m", "", "")),
        ("if not TYPE_CHECKING: x = 1", "x", (Bind.CONSTANT, "a", "", "")),
        ("while c(): x = 1", "x", (Bind.CONSTANT, "m", "", "")),
        ("match c():\n    case 1: x = 1", "x", (Bind.CONSTANT, "m", "", "")),
    ],
)
def test_bindings(source: str, name: str, expected: tuple[Bind, str, str, str]) -> None:
    (found,) = facts_of(source).bindings(name)
    assert (found.kind, found.when.value, found.source, found.name) == expected


def test_a_package_anchors_relative_imports_at_itself() -> None:
    (found,) = facts_of("from .x import y", package=True).bindings("y")
    assert found.source == "p.sub.mod.x"


@pytest.mark.parametrize("source", ["def (", "\x00", "x = '\\", "(" * 5000])
def test_what_does_not_parse_is_opaque(source: str) -> None:
    assert facts_of(source).opaque


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("__all__ = ['a', 'b']", (["a", "b"], (), False)),
        ("__all__ = ['a']\n__all__ += ['b']\n__all__.append('c')\n__all__.extend(('d',))", (list("abcd"), (), False)),
        ("__all__ = ['a'] + sub.__all__", (["a"], ("sub.__all__",), False)),
        ("__all__ = ['a', *sub.__all__]", (["a"], ("sub.__all__",), False)),
        ("__all__ = sorted(['a'])", (["a"], (), False)),
        ("__all__ = [n for n in dir()]", ([], (), True)),
        ("__all__ = ['a', name]", (["a"], (), True)),
        ("__all__: list[str] = ['a']", (["a"], (), False)),
        ("__all__ = ['a']\n__all__.remove('a')", (["a"], (), False)),
        ("__all__ = ['a']\n__all__.insert(0, 'b')", (["a"], (), True)),
    ],
)
def test_export_lists(source: str, expected: tuple[list[str], tuple[str, ...], bool]) -> None:
    table = facts_of(source).table("__all__")
    assert table is not None
    assert (list(table.entries), table.spreads, table.open) == expected


def test_signatures_are_those_of_griffe() -> None:
    import griffe

    source = dedent(
        """
        def f(a, b: int = 1, /, c=2, *rest, d, e: str = "x", **more) -> int: pass
        async def g(): pass
        class C:
            def m(self, x=None, *, y): pass
        """
    )
    visited = griffe.visit("m", filepath=Path("m.py"), code=source)
    facts = facts_of(source)
    kinds = {
        "positional-only": "/",
        "positional or keyword": "",
        "variadic positional": "*",
        "keyword-only": "=",
        "variadic keyword": "**",
    }
    for name in ("f", "g", "C.m"):
        expected = [
            (p.name, kinds[p.kind.value], p.default is not None and not p.kind.value.startswith("variadic"))
            for p in visited[name].parameters
        ]
        (function,) = facts.functions(name)
        assert [(p.name, p.kind, p.default) for p in function.parameters] == expected


names = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)


@given(st.lists(st.tuples(names, st.sampled_from(["", "/", "*", "=", "**"]), st.booleans()), max_size=6))
def test_compact_signatures_read_back(given_parameters: list[tuple[str, str, bool]]) -> None:
    text = " ".join(f"{kind}{name}{'?' if default else ''}" for name, kind, default in given_parameters)
    assert [(p.name, p.kind, p.default) for p in parameters(text)] == given_parameters


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("X", "X"),
        ("a.X", "a.X"),
        ("Optional[X]", "X"),
        ("'X'", "X"),
        ("X | None", "X"),
        ("None | X", "X"),
        ("Union[X, None]", "X"),
        ("Union[X, Y]", ""),
        ("X | Y", ""),
        ("Annotated[X, 1]", "X"),
        ("X[int]", "X"),
        ("type[X]", ""),
        ("Callable[..., X]", ""),
        ("Optional['a.X']", "a.X"),
        ("", ""),
        ("not python (", ""),
        ("X" * 500, ""),
    ],
)
def test_the_class_an_annotation_names(annotation: str, expected: str) -> None:
    assert named_type(annotation) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("__all__ = ['A', \"B\"]", ["A", "B"]),
        ("__all__ = [\n    'A',\n    'B',\n]\n", ["A", "B"]),
        ("@requires(backends=('torch',))\nclass C(X):\n    pass", ["C"]),
        ("@requires()\n@other\ndef f(): pass", ["f"]),
        ("x = '__all__'", []),
        ("", []),
    ],
)
def test_exports_by_text(source: str, expected: list[str]) -> None:
    assert exported_names(source.encode()) == expected


def test_the_collector_is_left_as_it_was() -> None:
    assert gc.isenabled()
    with quiet_collector():
        assert not gc.isenabled()
        with quiet_collector():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


TREE = {"p/__init__.py": "from .a import X", "p/a.py": "class X:\n    def m(self, a=1): pass", "p/b.py": "Y = 1"}


def test_a_second_world_reads_no_source(tmp_path: Path) -> None:
    store = FactStore(tmp_path)
    with World(archives(TREE), {}, facts=store) as world:
        first = world.lookup("p", "X")
    made = archives(TREE)
    again = World(made, {}, facts=store)
    assert again.lookup("p", "X") == first
    assert made["p"].read_members == []
    with again:
        assert again.lookup("p.b", "Y").constant == 1
    assert sorted(store.load(made["p"].digest).lines) == sorted(TREE)


def test_a_damaged_entry_is_read_anew(tmp_path: Path) -> None:
    store = FactStore(tmp_path)
    with World(archives(TREE), {}, facts=store) as world:
        world.lookup("p", "X")
    (entry,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    entry.write_bytes(entry.read_bytes()[:-5])
    made = archives(TREE)
    assert World(made, {}, facts=store).lookup("p", "X").presence.value == "present"
    assert made["p"].read_members


def test_facts_survive_json() -> None:
    facts = facts_of(
        "from .x import *\nclass C(B):\n    y: int = 1\n    def __init__(self): self.z = 1\n__all__ = ['C']"
    )
    again = ModuleFacts(json.loads(json.dumps(facts.data)))
    assert again.stars == (("p.sub.x", When.ALWAYS),)
    assert again.classes("C") == facts.classes("C")
    assert again.table("__all__") == facts.table("__all__")
    assert again.bindings("C") == facts.bindings("C")
