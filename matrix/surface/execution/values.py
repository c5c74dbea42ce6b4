"""The abstract values that the subject's code is executed with.

A value is either something known exactly (a Python constant, a tuple of values, a version), something that stands for a
thing in a package (a module, a definition of the target, a class or function of the subject), or `UNKNOWN`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from packaging.version import Version

from matrix.surface.answer import Ref

if TYPE_CHECKING:
    from matrix.surface.execution.state import Guard, ModuleState

Value = object
"""Any of the classes below, a Python constant, or a tuple of values."""

Names = dict[str, Value]
"""One namespace: what is bound in a module, a class body or a function."""

Env = tuple[Names, ...]
"""The namespaces that a name is looked up in, innermost first."""


class _Unknown:
    """The type of `UNKNOWN`; asking for its truth is a mistake in this package."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return `?`."""
        return "?"

    def __bool__(self) -> bool:
        """Refuse: whether an unknown value is true must be asked through `gates.truth`."""
        raise TypeError("the truth of an unknown value was asked")


UNKNOWN: Final = _Unknown()
"""A value of which nothing is known."""


@dataclass(frozen=True, slots=True)
class VersionText:
    """The installed version of the package `root` as a string; comparing it as text is a fault of the subject.

    What it reads is asked for where it matters; `text` is set only where it was cut or changed.
    """

    root: str
    text: str | None = None


class ListValue(tuple[Value, ...]):
    """The items of a list or set display; code may add to it later, so an empty one is not known to be empty."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class VersionValue:
    """A parsed version: `version`, or where that is None the installed version of the package `root`."""

    version: Version | None
    root: str = ""


@dataclass(frozen=True, slots=True)
class ModuleValue:
    """A module of the subject or of a covered target package."""

    name: str


@dataclass(frozen=True, slots=True)
class ExternalValue:
    """Something of a package outside the world, known by the dotted name under which it was reached."""

    dotted: str


@dataclass(frozen=True, slots=True)
class BuiltinValue:
    """A Python builtin that the subject did not rebind."""

    name: str


@dataclass(frozen=True, slots=True)
class RefValue:
    """A definition in a target package; `bound` tells a method that was reached through an instance or the class."""

    ref: Ref
    bound: bool = True


@dataclass(frozen=True, slots=True)
class InstanceValue:
    """An instance of a target class; not `exact` where only an annotation says so."""

    ref: Ref
    exact: bool = True


@dataclass(frozen=True, slots=True)
class SignatureValue:
    """What `inspect.signature`, `dataclasses.fields` and their like tell of a target definition: a set of names."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class TypeCheckingValue:
    """`typing.TYPE_CHECKING`: false at run time."""


@dataclass(slots=True, eq=False)
class DictValue:
    """A dict whose string keys are known; not `complete` when there may be others.

    `nodes` says where a key was set,
    `guards` under which undecided condition.
    """

    items: dict[str, Value] = field(default_factory=dict)
    complete: bool = True
    nodes: dict[str, ast.AST] = field(default_factory=dict)
    guards: dict[str, Guard] = field(default_factory=dict)

    def put(self, key: str, value: Value, node: ast.AST, guard: Guard | None) -> None:
        """Set a key at `node`; with `guard` it may not be set at all, unless it was before."""
        if guard is None:
            self.guards.pop(key, None)
        elif key not in self.items:
            self.guards[key] = guard
        self.items[key] = value
        self.nodes[key] = node

    def absorb(self, other: DictValue) -> None:
        """Take over the keys of `other`, as `dict.update` does."""
        self.items.update(other.items)
        self.nodes.update(other.nodes)
        self.guards.update(other.guards)
        self.complete = self.complete and other.complete


@dataclass(frozen=True, slots=True)
class DictItemsValue:
    """`d.items()`, `d.keys()` or `d.values()` of a dict whose keys are known."""

    owner: DictValue
    view: str


@dataclass(slots=True, eq=False)
class Edge:
    """One function of the subject refers to another: unconditionally or not, and inside which handlers.

    `caught` holds the exception names that every reference stands inside a handler of; None is a bare `except`.
    """

    callee: FunctionValue
    unconditional: bool
    caught: tuple[frozenset[str] | None, ...]
    guard: Guard | None = None


@dataclass(slots=True, eq=False)
class FunctionValue:
    """A function of the subject, with the environment it closes over.

    `plain` says that calling it runs its body (no decorator changes that); `registered` that a decorator or module
    level code got hold of it; `edges` are the functions of the subject that its body refers to.
    """

    node: ast.FunctionDef | ast.AsyncFunctionDef
    module: ModuleState
    env: Env
    owner: ClassValue | None = None
    scope: str = ""
    plain: bool = True
    registered: bool = False
    live: bool = False
    done: bool = False
    unreached: bool = False
    edges: dict[int, Edge] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class ClassValue:
    """A class of the subject; `attributes` are what its methods set on `self`.

    `fields` are the names that it declares as a dataclass: what their defaults are does not tell what an instance has.
    """

    node: ast.ClassDef
    module: ModuleState
    bases: tuple[Value, ...]
    body: Names = field(default_factory=dict)
    attributes: Names = field(default_factory=dict)
    live: bool = False
    registered: bool = False
    fields: frozenset[str] = frozenset()

    def lineage(self) -> list[ClassValue]:
        """Return this class and the subject's classes it derives from, each once, depth first."""
        found: list[ClassValue] = []
        todo: list[Value] = [self]
        while todo:
            item = todo.pop(0)
            if isinstance(item, ClassValue) and not any(item is seen for seen in found):
                found.append(item)
                todo = [*item.bases, *todo]
        return found

    def foreign_bases(self) -> list[Value]:
        """Return the bases, its own and inherited, that are not classes of the subject."""
        return [base for cls in self.lineage() for base in cls.bases if not isinstance(base, ClassValue)]


@dataclass(frozen=True, slots=True)
class SelfValue:
    """An instance of a class of the subject (`self`, or what calling the class returned)."""

    cls: ClassValue


@dataclass(frozen=True, slots=True)
class SuperValue:
    """`super()` inside a method of `cls`."""

    cls: ClassValue


@dataclass(frozen=True, slots=True)
class PartialValue:
    """`functools.partial(function, …)`: arguments already given by position and by name."""

    function: Value
    positional: int
    keywords: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MethodValue:
    """A bound builtin method of a known value, e.g. `"0.6.3".startswith`."""

    owner: Value
    name: str


STRUCTURED: Final = (
    VersionText,
    VersionValue,
    ModuleValue,
    ExternalValue,
    BuiltinValue,
    RefValue,
    InstanceValue,
    SignatureValue,
    DictValue,
    DictItemsValue,
    FunctionValue,
    ClassValue,
    SelfValue,
    SuperValue,
    PartialValue,
    MethodValue,
)
"""The classes whose instances stand for a thing, as opposed to being a known constant."""


def is_constant(value: Value) -> bool:
    """Return whether `value` is known exactly: a constant, or a tuple of such."""
    if value is UNKNOWN or isinstance(value, STRUCTURED):
        return False
    return all(is_constant(item) for item in value) if isinstance(value, tuple) else True
