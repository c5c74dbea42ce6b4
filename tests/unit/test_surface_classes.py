from __future__ import annotations

import pytest

from matrix.surface.answer import Presence
from tests.unit.source_trees import class_of, world_of

TREE = {
    "p/__init__.py": "",
    "p/base.py": """
        import enum, abc, outside, threading
        from collections import namedtuple
        from typing import Generic, TypeVar, NamedTuple, Protocol, TYPE_CHECKING, Optional
        from dataclasses import dataclass, field
        from outside import Mixin
        T = TypeVar("T")
        class Held: pass
        def make_held() -> Held: return Held()
        def keeps(cls): return cls
        def adds(cls):
            cls.extra = 1
            return cls
        class Root(abc.ABC):
            constant = "c"
            noted: int = 3
            bare: int
            maybe: "Optional[Held]" = None
            if TYPE_CHECKING:
                hinted: int
            class Inner: pass
            def __init__(self, given: Held):
                self.given = given
                self.made = Held()
                self.by_call = make_held()
                self.typed: Held | None = None
                self.left, (self.right, *self.rest) = 1, (2, 3)
                for self.loop in (): pass
                with open("x") as self.file: pass
                setattr(self, "by_name", 1)
                object.__setattr__(self, "frozen", 1)
                if given:
                    try:
                        self.deep = 1
                    except ValueError:
                        self.deeper = 1
            def method(self): self.late = 1
            same = method
            @classmethod
            def build(cls) -> "Root": return cls()
            @staticmethod
            def still(a): pass
            @property
            def held(self) -> Held: return self.given
            @held.setter
            def held(self, value): pass
            def __secret(self): pass
        class Child(Root, Generic[T]):
            def own(self): pass
        class Grandchild(Child[int]): pass
        class Left(Root):
            def method(self): pass
        class Right(Root):
            def method(self): pass
            def only_right(self): pass
        class Diamond(Left, Right): pass
        class Colour(enum.Enum):
            RED = 1
        class Pair(NamedTuple):
            first: int
            second: int = 0
        class Old(namedtuple("Old", "a b")): pass
        class Unknown(outside.Thing):
            def here(self): pass
        class Mixed(Mixin, Root): pass
        class Behind(Root, Mixin): pass
        class Computed(make_held()): pass
        class Dynamic:
            def __init__(self, **kw): self.__dict__.update(kw)
        class DynamicItem:
            def __init__(self, k): self.__dict__[k] = 1
        class DynamicSet:
            def __init__(self, kw):
                for k in kw: setattr(self, k, 1)
        class Getter:
            def __getattr__(self, name): return 1
        class Meta(type):
            def __getattr__(cls, name): return 1
        class WithMeta(metaclass=Meta): pass
        class WithABC(metaclass=abc.ABCMeta): pass
        @keeps
        class Kept: pass
        @adds
        class Added: pass
        @outside.decorate
        class Decorated: pass
        @dataclass(frozen=True)
        class Data:
            x: int
            y: Held = field(default_factory=Held)
        class Patched: pass
        Patched.later = 1
        class PatchedSomehow: pass
        for n in ("a", "b"): setattr(PatchedSomehow, n, 1)
        class Replaced: pass
        Replaced = outside.wrap(Replaced)
        class Slotted:
            __slots__ = ("a", "b")
        class Thread(threading.Thread): pass
        class Text(str): pass
        class Twice: pass
        class Twice:
            def second(self): pass
        class Spread(**{}): pass
        class Own(Own): pass
        class Conditional:
            if TYPE_CHECKING:
                def typed_only(self): pass
            else:
                def real(self): pass
    """,
    "p/loop.py": "from .loop2 import B\nclass A(B): pass",
    "p/loop2.py": "from .loop import A\nclass B(A): pass",
}


@pytest.mark.parametrize(
    ("owner", "name", "on_class", "on_instance"),
    [
        ("Root", "constant", "present", "present"),
        ("Root", "noted", "present", "present"),
        ("Root", "bare", "opaque", "present"),
        ("Root", "hinted", "missing", "missing"),
        ("Root", "Inner", "present", "present"),
        ("Root", "given", "opaque", "present"),
        ("Root", "rest", "opaque", "present"),
        ("Root", "loop", "opaque", "present"),
        ("Root", "file", "opaque", "present"),
        ("Root", "by_name", "opaque", "present"),
        ("Root", "frozen", "opaque", "present"),
        ("Root", "deep", "opaque", "present"),
        ("Root", "deeper", "opaque", "present"),
        ("Root", "late", "opaque", "present"),
        ("Root", "same", "present", "present"),
        ("Root", "held", "present", "present"),
        ("Root", "register", "present", "present"),
        ("Root", "nothing", "missing", "missing"),
        ("Root", "__class__", "present", "present"),
        ("Held", "__name__", "present", "opaque"),
        ("Child", "constant", "present", "present"),
        ("Child", "nothing", "missing", "missing"),
        ("Grandchild", "own", "present", "present"),
        ("Grandchild", "nothing", "missing", "missing"),
        ("Diamond", "only_right", "present", "present"),
        ("Colour", "RED", "present", "present"),
        ("Colour", "value", "present", "present"),
        ("Colour", "__members__", "present", "present"),
        ("Colour", "BLUE", "missing", "missing"),
        ("Pair", "_replace", "present", "present"),
        ("Pair", "first", "opaque", "present"),
        ("Pair", "third", "missing", "missing"),
        ("Old", "a", "opaque", "opaque"),
        ("Unknown", "here", "present", "present"),
        ("Unknown", "nothing", "opaque", "opaque"),
        ("Mixed", "constant", "present", "present"),
        ("Mixed", "nothing", "opaque", "opaque"),
        ("Behind", "nothing", "opaque", "opaque"),
        ("Computed", "nothing", "opaque", "opaque"),
        ("Dynamic", "nothing", "opaque", "opaque"),
        ("DynamicItem", "nothing", "opaque", "opaque"),
        ("DynamicSet", "nothing", "opaque", "opaque"),
        ("Getter", "nothing", "missing", "opaque"),
        ("WithMeta", "nothing", "opaque", "opaque"),
        ("WithABC", "nothing", "missing", "missing"),
        ("Kept", "nothing", "missing", "missing"),
        ("Added", "nothing", "opaque", "opaque"),
        ("Decorated", "nothing", "opaque", "opaque"),
        ("Data", "x", "opaque", "present"),
        ("Data", "z", "missing", "missing"),
        ("Data", "__dataclass_fields__", "opaque", "opaque"),
        ("Patched", "later", "present", "present"),
        ("Patched", "never", "missing", "missing"),
        ("PatchedSomehow", "a", "opaque", "opaque"),
        ("Replaced", "a", "opaque", "opaque"),
        ("Slotted", "a", "present", "present"),
        ("Slotted", "c", "missing", "missing"),
        ("Thread", "daemon", "present", "present"),
        ("Thread", "nothing", "missing", "missing"),
        ("Text", "upper", "present", "present"),
        ("Text", "nothing", "missing", "missing"),
        ("Twice", "second", "opaque", "opaque"),
        ("Spread", "nothing", "opaque", "opaque"),
        ("Own", "nothing", "opaque", "opaque"),
        ("Conditional", "typed_only", "missing", "missing"),
        ("Conditional", "real", "present", "present"),
    ],
)
def test_attributes(owner: str, name: str, on_class: str, on_instance: str) -> None:
    world = world_of(TREE)
    ref = class_of(world, f"p.base.{owner}")
    found = [world.attribute(ref, name, instance=instance).presence.value for instance in (False, True)]
    assert found == [on_class, on_instance]


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("given", "p.base.Held"),
        ("made", "p.base.Held"),
        ("by_call", "p.base.Held"),
        ("typed", "p.base.Held"),
        ("held", "p.base.Held"),
        ("maybe", "p.base.Held"),
        ("left", None),
        ("constant", None),
    ],
)
def test_what_instance_attributes_hold(name: str, held: str | None) -> None:
    world = world_of(TREE)
    answer = world.attribute(class_of(world, "p.base.Child"), name, instance=True)
    assert (answer.instance_of.dotted if answer.instance_of else None) == held
    assert not (answer.instance_of and answer.exact)


def test_class_constants_and_members() -> None:
    world = world_of(TREE)
    root = class_of(world, "p.base.Root")
    assert world.attribute(root, "constant").constant == "c"
    inner = world.attribute(root, "Inner").ref
    assert inner is not None
    assert (inner.kind, inner.dotted) == ("class", "p.base.Root.Inner")
    method = world.attribute(class_of(world, "p.base.Child"), "same").ref
    assert method is not None
    assert method.owner is not None
    assert (method.dotted, method.owner.name) == ("p.base.Root.method", "Child")


@pytest.mark.parametrize(
    ("owner", "order", "complete", "external"),
    [
        ("Root", ["Root"], True, ("abc.ABC",)),
        ("Grandchild", ["Grandchild", "Child", "Root"], True, ("abc.ABC", "typing.Generic")),
        ("Diamond", ["Diamond", "Left", "Right", "Root"], True, ("abc.ABC",)),
        ("Unknown", ["Unknown"], False, ("outside.Thing",)),
        ("Mixed", ["Mixed", "Root"], False, ("outside.Mixin", "abc.ABC")),
        ("Text", ["Text"], True, ("builtins.str",)),
        ("Computed", ["Computed"], False, ("p.base.?",)),
        ("Held", ["Held"], True, ()),
    ],
)
def test_hierarchies(owner: str, order: list[str], complete: bool, external: tuple[str, ...]) -> None:
    world = world_of(TREE)
    found = world.hierarchy(class_of(world, f"p.base.{owner}"))
    assert [ref.name for ref in found.order] == order
    assert (found.complete, found.external) == (complete, external)


def test_a_circle_of_bases_ends() -> None:
    world = world_of(TREE)
    assert not world.hierarchy(class_of(world, "p.loop.A")).complete


def test_kinds_of_methods() -> None:
    world = world_of(TREE)
    methods = world.methods(class_of(world, "p.base.Root"))
    assert {"method", "build", "still", "held", "__init__"} <= methods.keys()
    kinds = {
        name: (world.is_classmethod(ref), world.is_staticmethod(ref), world.is_property(ref))
        for name, ref in methods.items()
    }
    assert kinds["method"] == (False, False, False)
    assert kinds["build"] == (True, False, False)
    assert kinds["still"] == (False, True, False)
    assert kinds["held"] == (False, False, True)
    assert world.methods(class_of(world, "p.base.Twice")) == {}


@pytest.mark.parametrize(
    ("owner", "method", "made", "exact"),
    [("Root", "build", "Root", True), ("Child", "build", "Child", True), ("Root", "method", None, False)],
)
def test_what_methods_return(owner: str, method: str, made: str | None, exact: bool) -> None:
    world = world_of(TREE)
    ref = world.attribute(class_of(world, f"p.base.{owner}"), method).ref
    assert ref is not None
    answer = world.returns(ref)
    assert (answer.instance_of.name if answer.instance_of else None, answer.exact) == (made, exact)


def test_what_calls_of_other_things_return() -> None:
    world = world_of(TREE)
    held = class_of(world, "p.base.Held")
    function = world.lookup("p.base", "make_held").ref
    value = world.lookup("p.base", "T").ref
    assert function is not None
    assert value is not None
    assert (world.returns(held).instance_of, world.returns(function).instance_of) == (held, held)
    assert world.returns(value).presence is Presence.PRESENT
    assert world.returns(value).instance_of is None
