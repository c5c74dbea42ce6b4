from __future__ import annotations

import pytest

from matrix.surface.answer import Signature
from tests.unit.source_trees import class_of, world_of

TREE = {
    "p/__init__.py": "",
    "p/deco.py": """
        import functools
        def same(f): return f
        def registers(name):
            def decorate(f):
                TABLE[name] = f
                return f
            return decorate
        def kept(f):
            @functools.wraps(f)
            def inner(*args, **kwargs): return f(*args, **kwargs)
            return inner
        def renames(f):
            @functools.wraps(f)
            def inner(*args, **kwargs):
                kwargs["new"] = kwargs.pop("old", None)
                return f(*args, **kwargs)
            return inner
        def hides(f):
            def inner(*args, **kwargs): return f(1, *args, **kwargs)
            return inner
        def config(cls=None, **options): return dataclass(cls, **options)
        def patches(cls):
            def __init__(self, *, other): pass
            cls.__init__ = __init__
            return cls
    """,
    "p/m.py": """
        import enum, functools, torch, pydantic, msgspec, outside
        from dataclasses import dataclass, field, KW_ONLY
        from typing import NamedTuple, TypedDict, overload, ClassVar, Generic
        from .deco import config, hides, kept, patches, registers, renames, same
        def plain(a, b=1, /, c=2, *rest, d, e=3, **more): pass
        @same
        def f_same(a): pass
        @registers("x")
        def f_registers(a): pass
        @kept
        def f_kept(a): pass
        @renames
        def f_renames(new): pass
        @hides
        def f_hides(one, a): pass
        @torch.no_grad()
        def f_torch(a): pass
        @functools.lru_cache(maxsize=None)
        def f_cache(a): pass
        @outside.decorate
        def f_outside(a): pass
        @overload
        def f_overload(a: int): ...
        @overload
        def f_overload(a: str): ...
        def f_overload(a, b=None): pass
        if outside.x:
            def f_twice(a): pass
        else:
            def f_twice(a, b): pass
        f_after = 1
        def f_after(a): pass
        f_after = hides(f_after)
        class Plain:
            def __init__(self, a, *, b=1): pass
            def method(self, x): pass
            @classmethod
            def of(cls, x): pass
            @staticmethod
            def still(x): pass
            def private(self, __x): pass
        class Inherits(Plain): pass
        class Empty: pass
        class New:
            def __new__(cls, a): pass
        class Both:
            def __new__(cls, *args, **kwargs): pass
            def __init__(self, a): pass
        class Contradicts:
            def __new__(cls, b): pass
            def __init__(self, a): pass
        @dataclass
        class Data:
            a: int
            shared: ClassVar[int] = 0
            b: int = 1
            c: list = field(default_factory=list)
            hidden: int = field(init=False)
            d: int = field(kw_only=True, default=1)
        @dataclass
        class DataChild(Data):
            a: int = 5
            e: int = 6
        @dataclass
        class KeywordsAfter:
            a: int
            _: KW_ONLY
            b: int
        @dataclass(kw_only=True)
        class Keywords:
            a: int
        @dataclass(init=False)
        class NoInit(Plain):
            z: int
        @dataclass
        class OwnInit:
            a: int
            def __init__(self, other): pass
        class NotDecorated(Data):
            f: int = 1
        @dataclass
        class Helped:
            a: int = outside.column()
        @config
        class Config:
            a: int = 1
        @patches
        class Patched:
            def __init__(self, a): pass
        class Pair(NamedTuple):
            a: int
            b: int = 1
        class Dict(TypedDict):
            a: int
        class Struct(msgspec.Struct, kw_only=True):
            a: int
            b: int = 1
        class Placed(msgspec.Struct):
            a: int
        class Model(pydantic.BaseModel):
            a: int
            b: int = pydantic.Field(default=1)
            c: int = pydantic.Field(...)
            model_config = {}
        class Colour(enum.Enum): RED = 1
        class Error(Exception): pass
        class Unknown(outside.Thing): pass
        class UnknownAfter(outside.Thing, Plain): pass
        class OwnBeforeUnknown(outside.Thing):
            def __init__(self, a): pass
        class Hooked:
            def __init_subclass__(cls): pass
        class HookedChild(Hooked):
            def __init__(self, a): pass
        class Meta(type): pass
        class WithMeta(metaclass=Meta):
            def __init__(self, a): pass
        class Sometimes:
            if outside.x:
                def __init__(self, a): pass
        class Typed(Generic[int]): pass
    """,
}


def sig(
    *positional: str,
    kw: str = "",
    req: str = "",
    only: int = 0,
    args: bool = False,
    kwargs: bool = False,
    sure: bool = True,
) -> Signature:
    return Signature(
        positional=positional,
        keyword_only=frozenset(kw.split()),
        required=frozenset(req.split()),
        positional_only=only,
        var_positional=args,
        var_keyword=kwargs,
        certain=sure,
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", sig("a", "b", "c", kw="d e", req="a d", only=2, args=True, kwargs=True)),
        ("f_same", sig("a", req="a")),
        ("f_registers", sig("a", req="a")),
        ("f_kept", sig("a", req="a")),
        ("f_renames", sig("new", req="new", sure=False)),
        ("f_hides", sig("one", "a", req="one a", sure=False)),
        ("f_torch", sig("a", req="a")),
        ("f_cache", sig("a", req="a")),
        ("f_outside", sig("a", req="a", sure=False)),
        ("f_overload", sig("a", "b", req="a")),
        ("f_twice", sig("a", "b", req="a b", sure=False)),
        ("Plain", sig("a", kw="b", req="a")),
        ("Inherits", sig("a", kw="b", req="a")),
        ("Empty", sig()),
        ("New", sig("a", req="a")),
        ("Both", sig("a", req="a")),
        ("Contradicts", sig("a", req="a", sure=False)),
        ("Data", sig("a", "b", "c", kw="d", req="a")),
        ("DataChild", sig("a", "b", "c", "e", kw="d")),
        ("KeywordsAfter", sig("a", kw="b", req="a b")),
        ("Keywords", sig(kw="a", req="a")),
        ("NoInit", sig("a", kw="b", req="a")),
        ("OwnInit", sig("other", req="other")),
        ("NotDecorated", sig("a", "b", "c", kw="d", req="a")),
        ("Helped", sig("a", sure=False)),
        ("Config", sig("a", sure=False)),
        ("Patched", sig("a", req="a", sure=False)),
        ("Pair", sig("a", "b", req="a")),
        ("Dict", sig(kw="a", kwargs=True, sure=False)),
        ("Struct", sig(kw="a b", req="a")),
        ("Placed", sig("a", req="a")),
        ("Model", sig(kw="a b c", req="a c", kwargs=True, sure=False)),
        ("Colour", None),
        ("Error", None),
        ("Unknown", None),
        ("UnknownAfter", None),
        ("OwnBeforeUnknown", sig("a", req="a")),
        ("HookedChild", sig("a", req="a", sure=False)),
        ("WithMeta", sig("a", req="a", sure=False)),
        ("Sometimes", sig("a", req="a", sure=False)),
        ("Typed", sig(args=True, kwargs=True, sure=False)),
        ("Generic", None),
    ],
)
def test_signatures(name: str, expected: Signature | None) -> None:
    world = world_of(TREE)
    ref = world.lookup("p.m", name).ref
    assert (world.signature(ref) if ref is not None else None) == expected


@pytest.mark.parametrize(
    ("method", "bound", "unbound"),
    [
        ("method", sig("x", req="x"), sig("self", "x", req="self x")),
        ("of", sig("x", req="x"), sig("x", req="x")),
        ("still", sig("x", req="x"), sig("x", req="x")),
        ("private", sig("_Plain__x", req="_Plain__x"), sig("self", "_Plain__x", req="self _Plain__x")),
    ],
)
def test_methods(method: str, bound: Signature, unbound: Signature) -> None:
    world = world_of(TREE)
    ref = world.attribute(class_of(world, "p.m.Inherits"), method).ref
    assert ref is not None
    assert (world.signature(ref), world.signature(ref, bound=False)) == (bound, unbound)


def test_what_cannot_be_called() -> None:
    world = world_of(TREE)
    module = world.lookup("p", "m").ref
    assert module is not None
    assert world.signature(module) is None
