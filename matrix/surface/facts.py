"""Facts of one module: what its source binds, as far as a reader that never runs it can tell.

Facts are derived once from a source text (`matrix.surface.reading`), kept on disk (`matrix.surface.factstore`) and
asked by the world. They are plain nested lists and dicts of JSON, so that a warm check decodes only what it asks for;
the dataclasses below are views of single rows. `FACTS_VERSION` goes up whenever a row's meaning changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

FACTS_VERSION = 2

# A row is a JSON list whose order is that of the fields of the dataclass it stands for; trailing defaults are cut.
Row = list[Any]


class When(StrEnum):
    """Under which circumstances a binding is executed when its module is imported."""

    ALWAYS = "a"
    TRY = "t"
    MAYBE = "m"
    HANDLER = "h"
    TYPING = "y"


class Bind(StrEnum):
    """How a name is bound."""

    FUNCTION = "f"
    CLASS = "c"
    MODULE = "m"
    FROM = "i"
    ALIAS = "a"
    CALL = "k"
    CONSTANT = "l"
    VALUE = "v"
    ANNOTATION = "n"
    DELETE = "d"


@dataclass(frozen=True, slots=True)
class Binding:
    """One binding of a name in a module or class body.

    Attributes:
        kind: how it is bound.
        line: where, 1-based.
        when: whether it is executed for sure.
        source: MODULE, FROM: the dotted module; ALIAS: the dotted expression; CALL: the callee; else "".
        name: FROM: the name taken from `source`.
        annotation: the annotation as written, "" without one.
        constant: CONSTANT: the literal.
    """

    kind: Bind
    line: int = 0
    when: When = When.ALWAYS
    source: str = ""
    name: str = ""
    annotation: str = ""
    constant: object = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function; `kind` is one of `/` (positional only), "" , `*`, `=` (keyword only), `**`."""

    name: str
    kind: str = ""
    default: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method as it is written.

    Attributes:
        line: where, 1-based.
        parameters: with `self`/`cls` where there is one.
        returns: the annotation as written.
        decorators: dotted names as written, outermost first; "?" for one that is no name or call of a name.
        wraps: what calling it as a decorator does to what it is given (`matrix.surface.wrapping`), "" unknown.
    """

    line: int
    parameters: tuple[Parameter, ...] = ()
    returns: str = ""
    decorators: tuple[str, ...] = ()
    wraps: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """An annotated name in a class body, in order; `init` and `keyword_only` as `field(...)` states them.

    `known` is False when a helper's call stands in for `field(...)`, so that there may be no default after all.
    """

    name: str
    annotation: str
    default: bool = False
    init: bool = True
    keyword_only: bool | None = None
    alias: str = ""
    known: bool = True


@dataclass(frozen=True, slots=True)
class Klass:
    """A class as it is written.

    Attributes:
        line: where, 1-based.
        bases: dotted names as written (subscripts dropped); "?" for one that is no name.
        keywords: class keywords (`metaclass`, `kw_only`, `frozen`, …) as source text.
        decorators: dotted names as written, outermost first.
        decorator_keywords: constant keywords of a decorator call, e.g. `{"dataclass.kw_only": True}`.
        names: bindings in the body.
        fields: annotated names in the body, in order.
        attributes: names stored on `self` or `cls` by its methods, as bindings (ANNOTATION, CALL, ALIAS, VALUE).
        open: whether it may get attributes in ways that are not seen (`setattr`, `__dict__.update`, `locals()`).
    """

    line: int
    bases: tuple[str, ...] = ()
    keywords: Mapping[str, str] = field(default_factory=dict)
    decorators: tuple[str, ...] = ()
    decorator_keywords: Mapping[str, object] = field(default_factory=dict)
    names: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    fields: tuple[Field, ...] = ()
    attributes: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    open: bool = False

    def bindings(self, name: str) -> tuple[Binding, ...]:
        """Return the bindings of `name` in the class body, in order."""
        return tuple(map(binding, self.names.get(name, ())))

    def stored(self, name: str) -> tuple[Binding, ...]:
        """Return the stores of `self.name` in its methods, in order."""
        return tuple(map(binding, self.attributes.get(name, ())))


@dataclass(frozen=True, slots=True)
class Table:
    """The strings of a module-level container that decides which names a module has.

    `entries` maps each key (or item) to a string, a list of strings, or None where the value is neither; `spreads`
    are dotted expressions whose contents are added (`sub.__all__`); `listings` are keys whose value lists the names of
    another module (`dir(module)`); `open` says that more may be added in ways that are not seen.
    """

    entries: Mapping[str, str | list[str] | None] = field(default_factory=dict)
    spreads: tuple[str, ...] = ()
    listings: tuple[str, ...] = ()
    open: bool = False


@dataclass(frozen=True, slots=True)
class Fallback:
    """A module's `__getattr__`: names it serves, tables it looks into, and whether any other name is refused."""

    names: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    closed: bool = False


@dataclass(frozen=True, slots=True)
class LazyModule:
    """How a module replaces itself by a lazy one.

    `tables` are its import structures (submodule to names), `derived` the subdirectories ("" for its own) whose files'
    `__all__` make up the rest, `extra` the names given as extra objects.
    """

    tables: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    open: bool = False


def binding(row: Row) -> Binding:
    """Return the binding that a row stands for."""
    kind, line, when, *rest = row
    return Binding(Bind(kind), line, When(when), *rest)


def parameters(text: str) -> tuple[Parameter, ...]:
    """Return the parameters of a compact signature such as `self prompts? =seed? **kwargs`."""
    found = []
    for word in text.split():
        name = word.rstrip("?").lstrip("/*=")
        found.append(Parameter(name, word[: len(word.rstrip("?")) - len(name)], word.endswith("?")))
    return tuple(found)


@dataclass(frozen=True)
class ModuleFacts:
    """The facts of one module; `data` is what is stored, everything else is decoded when asked."""

    data: Mapping[str, Any]

    @cached_property
    def names(self) -> Mapping[str, Sequence[Row]]:
        """Return the bindings of every name at module level, as rows."""
        found: Mapping[str, Sequence[Row]] = self.data.get("names", {})
        return found

    def bindings(self, name: str) -> tuple[Binding, ...]:
        """Return the bindings of `name` at module level, in order."""
        return tuple(map(binding, self.names.get(name, ())))

    def functions(self, qualified: str) -> tuple[Function, ...]:
        """Return every definition of a function (`f`) or method (`C.m`), in order."""
        rows = self.data.get("functions", {}).get(qualified, ())
        return tuple(Function(r[0], parameters(r[1]), r[2], tuple(r[3]), r[4]) for r in rows)

    def classes(self, qualified: str) -> tuple[Klass, ...]:
        """Return every definition of a class (`C`, `C.D`), in order."""
        found = []
        for row in self.data.get("classes", {}).get(qualified, ()):
            line, bases, keywords, decorators, options, names, fields, attributes, is_open = row
            decoded = tuple(Field(*f) for f in fields)
            found.append(
                Klass(line, tuple(bases), keywords, tuple(decorators), options, names, decoded, attributes, is_open)
            )
        return tuple(found)

    @property
    def stars(self) -> tuple[tuple[str, When], ...]:
        """Return the modules whose names are imported with `*`, and when."""
        return tuple((module, When(when)) for module, when in self.data.get("stars", ()))

    def table(self, name: str) -> Table | None:
        """Return the container of that name, when it was kept (`__all__`, import structures, `__getattr__` tables)."""
        row = self.data.get("tables", {}).get(name)
        return None if row is None else Table(row[0], tuple(row[1]), tuple(row[2]), row[3])

    @property
    def fallback(self) -> Fallback | None:
        """Return what the module's `__getattr__` does, or None without one."""
        row = self.data.get("getattr")
        return None if row is None else Fallback(tuple(row[0]), tuple(row[1]), row[2])

    @property
    def lazy(self) -> LazyModule | None:
        """Return how the module replaces itself by a lazy one, or None."""
        row = self.data.get("lazy")
        return None if row is None else LazyModule(tuple(row[0]), tuple(row[1]), tuple(row[2]), row[3])

    @property
    def opaque(self) -> bool:
        """Return whether names may appear in ways that are not seen (`globals()`, `exec`, a syntax error)."""
        return bool(self.data.get("opaque", False))

    @property
    def rebound(self) -> frozenset[str]:
        """Return the names that functions declare `global`."""
        return frozenset(self.data.get("rebound", ()))

    @property
    def registered(self) -> tuple[str, ...]:
        """Return the modules it puts into `sys.modules` under a literal name; "?" for a computed name."""
        return tuple(self.data.get("registered", ()))

    def aliases(self) -> Mapping[str, str]:
        """Return old submodule names that lazily lead to another module, relative to this package."""
        found: Mapping[str, str] = self.data.get("aliases", {})
        return found

    def patched(self, qualified: str) -> tuple[str, ...]:
        """Return the attributes that the module stores on one of its names after its definition (`C.x = …`)."""
        return tuple(self.data.get("patched", {}).get(qualified, ()))

    @property
    def exports(self) -> tuple[str, ...]:
        """Return the names that carry an export decorator (transformers' `@requires`)."""
        return tuple(self.data.get("exports", ()))
