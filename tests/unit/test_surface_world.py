from __future__ import annotations

import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.surface.answer import Presence, Ref
from tests.unit.source_trees import archives, class_of, world_of

TREE = {
    "p/__init__.py": """
        from .deep.impl import Engine, make as build
        from . import deep
        import p.extra as renamed
        from .stars import *
        from .listed import *
        import os, numpy as np
        __all__ = ["Engine"]
        VERSION = "1.2"
        PAIR = ("a", 1)
        Alias = Engine
        engine = Engine()
        made = build()
        noted: Engine = object()
        unset: int
        counter = 0
        counter = 1
        flag = None
        def bump():
            global flag, born
            flag = 1
            born = 2
        gone = 1
        del gone
    """,
    "p/deep/__init__.py": "",
    "p/deep/impl.py": """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from p.types import Hint
        class Engine: pass
        def make() -> Engine: return Engine()
    """,
    "p/extra.py": "",
    "p/stars.py": "public = 1\n_private = 2\nfrom .deep.impl import Engine as ReExported",
    "p/listed.py": "__all__ = ['chosen', '_also']\nchosen = 1\n_also = 2\nleft_out = 3",
    "p/branches.py": """
        import sys
        from typing import TYPE_CHECKING
        from .platform import check
        try:
            from p.nowhere import first
        except ImportError:
            first = None
        try:
            from p.nowhere import second
        except ImportError:
            pass
        try:
            import outside
        except ImportError:
            outside = None
        try:
            from outside import third
        except ImportError:
            pass
        try:
            from p.deep.impl import Engine as guarded
        except ImportError:
            guarded = None
        try:
            from p.nowhere import fourth
        except ImportError as error:
            raise RuntimeError from error
        if check():
            def chosen(a): pass
        else:
            def chosen(a, b): pass
        if TYPE_CHECKING:
            from p.deep.impl import Engine
        else:
            runtime = 1
        if not TYPE_CHECKING:
            also_runtime = 1
        if __name__ == "__main__":
            script = 1
        for loop in range(3):
            pass
        with open("f") as handle:
            pass
        (left, (right, *rest)) = 1, (2, 3)
        if (walrus := check()):
            pass
    """,
    "p/platform.py": "def check(): return True",
    "p/dynamic.py": "import p.extra\nfor n in dir(p.extra): globals()[n] = 1",
    "p/updated.py": "globals().update(x=1)",
    "p/handed.py": "from helper import fill\nfill(globals())",
    "p/aliased.py": "G = globals()\nG['x'] = 1",
    "p/writer.py": "def put(n):\n    globals()[n] = 1\nput('x')",
    "p/broken.py": "def (",
    "p/circle_a.py": "from .circle_b import thing, other\nmine = 1",
    "p/circle_b.py": "from .circle_a import thing, mine\nother = 1",
    "p/replaced.py": "import sys\nclass M: pass\nsys.modules[__name__] = M()",
    "p/registers/__init__.py": "import sys, p.extra\nsys.modules['p.registers.old'] = p.extra",
    "p/registers_some/__init__.py": "import sys\nfor s in 'ab': sys.modules[f'{__name__}.{s}'] = sys",
    "p/registers_some/there.py": "x = 1",
    "p/starred_outside.py": "from numpy import *",
    "p/native.cpython-312-x86_64-linux-gnu.so": "",
    "p/native.py": "shadowed = 1",
    "p/_C.abi3.so": "",
    "p/data/schema.json": "{}",
}


@pytest.mark.parametrize(
    ("dotted", "expected"),
    [
        ("p", "present"),
        ("p.deep", "present"),
        ("p.deep.impl", "present"),
        ("p.nowhere", "missing"),
        ("p.extra.below", "missing"),
        ("p.native", "present"),
        ("p.native.inner", "opaque"),
        ("p._C", "present"),
        ("p.data", "present"),
        ("p.registers.old", "present"),
        ("p.registers.older", "missing"),
        ("p.registers_some.a", "opaque"),
        ("p.registers_some.a.b", "opaque"),
        ("p.registers_some.there.gone", "missing"),
        ("elsewhere", "opaque"),
        ("gone", "missing"),
        ("gone.below", "missing"),
    ],
)
def test_modules(dotted: str, expected: str) -> None:
    world = world_of(TREE, absent=["gone"])
    assert world.module(dotted).value == expected
    assert world.covers(dotted) is dotted.startswith("p")


@pytest.mark.parametrize(
    ("module", "name", "expected", "leads_to"),
    [
        ("p", "Engine", "present", "p.deep.impl.Engine"),
        ("p", "build", "present", "p.deep.impl.make"),
        ("p", "Alias", "present", "p.deep.impl.Engine"),
        ("p", "deep", "present", "p.deep"),
        ("p", "renamed", "present", "p.extra"),
        ("p", "extra", "present", "p.extra"),
        ("p", "public", "present", "p.stars.public"),
        ("p", "_private", "missing", None),
        ("p", "ReExported", "present", "p.deep.impl.Engine"),
        ("p", "chosen", "present", "p.listed.chosen"),
        ("p", "_also", "present", "p.listed._also"),
        ("p", "left_out", "missing", None),
        ("p", "np", "present", None),
        ("p", "unset", "missing", None),
        ("p", "born", "opaque", None),
        ("p", "gone", "opaque", None),
        ("p", "nothing", "missing", None),
        ("p", "__name__", "present", None),
        ("p", "__path__", "present", None),
        ("p.deep.impl", "Hint", "missing", None),
        ("p.branches", "first", "present", None),
        ("p.branches", "second", "missing", None),
        ("p.branches", "outside", "present", None),
        ("p.branches", "third", "opaque", None),
        ("p.branches", "guarded", "present", "p.deep.impl.Engine"),
        ("p.branches", "fourth", "opaque", None),
        ("p.branches", "chosen", "present", "p.branches.chosen"),
        ("p.branches", "Engine", "missing", None),
        ("p.branches", "runtime", "present", "p.branches.runtime"),
        ("p.branches", "also_runtime", "present", "p.branches.also_runtime"),
        ("p.branches", "script", "missing", None),
        ("p.branches", "loop", "present", "p.branches.loop"),
        ("p.branches", "handle", "present", "p.branches.handle"),
        ("p.branches", "rest", "present", "p.branches.rest"),
        ("p.branches", "walrus", "present", "p.branches.walrus"),
        ("p.dynamic", "x", "opaque", None),
        ("p.updated", "x", "opaque", None),
        ("p.handed", "x", "opaque", None),
        ("p.aliased", "x", "opaque", None),
        ("p.writer", "x", "opaque", None),
        ("p.broken", "x", "opaque", None),
        ("p.replaced", "x", "opaque", None),
        ("p.starred_outside", "array", "opaque", None),
        ("p.circle_b", "mine", "present", "p.circle_a.mine"),
        ("p.native", "x", "opaque", None),
        ("p.data", "x", "missing", None),
        ("p.nowhere", "x", "missing", None),
        ("p.native.inner", "x", "opaque", None),
        ("elsewhere", "x", "opaque", None),
        ("gone", "x", "missing", None),
    ],
)
def test_lookups(module: str, name: str, expected: str, leads_to: str | None) -> None:
    answer = world_of(TREE, absent=["gone"]).lookup(module, name)
    assert answer.presence.value == expected
    assert (answer.ref.dotted if answer.ref else None) == leads_to


def test_an_absent_package_is_not_taken_for_an_unknown_one() -> None:
    world = world_of(TREE, absent=["outside"])
    assert world.lookup("p.branches", "third").presence is Presence.MISSING
    assert world.lookup("p.branches", "outside").presence is Presence.PRESENT


def test_what_values_hold() -> None:
    world = world_of(TREE)
    engine = class_of(world, "p.deep.impl.Engine")
    assert (world.lookup("p", "VERSION").constant, world.lookup("p", "PAIR").constant) == ("1.2", ("a", 1))
    assert world.lookup("p", "counter").constant == 1
    assert not world.lookup("p", "flag").has_constant
    assert (world.lookup("p", "engine").instance_of, world.lookup("p", "engine").exact) == (engine, True)
    assert (world.lookup("p", "made").instance_of, world.lookup("p", "made").exact) == (engine, False)
    assert (world.lookup("p", "noted").instance_of, world.lookup("p", "noted").exact) == (engine, False)
    assert world.lookup("p", "__version__").constant == "1.0"


def test_sites_and_module_attributes() -> None:
    world = world_of(TREE)
    engine = class_of(world, "p.Engine")
    assert str(world.site(engine)) == "p/deep/impl.py:6"
    module = Ref(kind="module", package="p", module="p.deep")
    assert str(world.site(module)) == "p/deep/__init__.py"
    assert world.attribute(module, "impl").presence is Presence.PRESENT
    value = world.lookup("p", "VERSION").ref
    assert value is not None
    assert world.attribute(value, "upper").presence is Presence.OPAQUE
    assert str(world.site(value)) == "p/__init__.py:9"


def test_prefetch_reads_each_level_of_re_exports_in_one_go() -> None:
    tree = {
        "q/__init__.py": "from .a import X\nfrom .b import Y",
        "q/a.py": "from .c import X",
        "q/b.py": "from .d import Y",
        "q/c.py": "from .e import Base\nclass X(Base): pass",
        "q/d.py": "Y = 1",
        "q/e.py": "class Base: pass",
        "q/unrelated.py": "",
    }
    made = archives(tree)
    from matrix.surface.world import World

    world = World(made, {})
    world.prefetch(["q.X", "q.Y", "outside.Z", "q.a.nothing"])
    assert made["q"].batches == 4
    assert sorted(made["q"].read_members) == sorted(set(tree) - {"q/unrelated.py"})
    assert world.hierarchy(class_of(world, "q.X")).complete
    assert made["q"].batches == 4


STATEMENTS = [
    "{n} = 1",
    "{n}: int",
    "def {n}(): pass",
    "class {n}: pass",
    "from .{m} import {n}",
    "from .{m} import {n} as {o}",
    "from . import {m}",
    "from .{m} import *",
    "{o} = {n}",
    "try:\n    from .{m} import {n}\nexcept ImportError:\n    {n} = None",
    "try:\n    from .{m} import {n}\nexcept ImportError:\n    pass",
    "try:\n    {o} = {n}\nexcept NameError:\n    pass",
    "if len('{n}') > 1:\n    {n} = 2\nelse:\n    {o} = 3",
    "if False:\n    {n} = 1",
    "for {n} in (): pass",
    "globals()['{n}'] = 1",
    "__all__ = ['{n}']",
    "del {n}",
    "def _set():\n    global {o}\n    {o} = 1\n_set()",
    "def __getattr__(name):\n    if name == '{n}': return 1\n    raise AttributeError(name)",
    "def __getattr__(name):\n    if name in ('{n}', '{o}'): return 1\n    raise AttributeError(name)",
    "T = {{'{n}': 1}}\ndef __getattr__(name):\n    if name not in T: raise AttributeError(name)\n    return T[name]",
    "def __getattr__(name): return name",
]
NAMES = ["aa", "b", "cc"]
MODULES = ["x", "y", "z"]

lines = st.builds(
    lambda template, n, o, m: template.format(n=n, o=o, m=m),
    st.sampled_from(STATEMENTS),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.sampled_from(MODULES),
)
modules = st.fixed_dictionaries({name: st.lists(lines, max_size=5) for name in MODULES})


@settings(max_examples=200, deadline=None)
@given(modules)
def test_a_name_that_python_finds_is_never_called_missing(bodies: dict[str, list[str]]) -> None:
    sources = {f"pkg/{name}.py": "\n".join(body) for name, body in bodies.items()}
    world = world_of({"pkg/__init__.py": "", **sources})
    with _Importing(sources):
        for name in MODULES:
            try:
                module = __import__(f"pkg.{name}", fromlist=["_"])
            except Exception:
                continue
            for asked in (*NAMES, *MODULES):
                found = world.lookup(f"pkg.{name}", asked).presence
                if hasattr(module, asked):
                    assert found is not Presence.MISSING, (name, asked)


class _Importing:
    """Makes sources importable as the package `pkg` for the length of a block, from memory."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = {path[:-3].replace("/", "."): text for path, text in sources.items()}

    def __enter__(self) -> None:
        package = types.ModuleType("pkg")
        package.__path__ = []
        sys.modules["pkg"] = package
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        for name in [n for n in sys.modules if n == "pkg" or n.startswith("pkg.")]:
            del sys.modules[name]

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self) if name in self._sources else None  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        exec(self._sources[module.__name__], module.__dict__)
