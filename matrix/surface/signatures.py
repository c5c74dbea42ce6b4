"""Signatures of functions, methods and class constructors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from matrix.surface.answer import Ref, Signature
from matrix.surface.classes import Classes, Level
from matrix.surface.facts import Field, Function, Klass, When
from matrix.surface.names import Names
from matrix.surface.wrapping import Wrapping

_NAMED_TUPLES = ("typing.NamedTuple", "typing_extensions.NamedTuple")
_TYPED_DICTS = ("typing.TypedDict", "typing_extensions.TypedDict")
_PYDANTIC = ("pydantic.BaseModel", "pydantic_settings.BaseSettings")
_STRUCT = "msgspec.Struct"
_GENERIC = ("typing.Generic", "typing.Protocol", "abc.ABC", "typing_extensions.Protocol", "typing_extensions.Generic")


class Signatures:
    """Answers how callables of a world may be called."""

    def __init__(self, names: Names, classes: Classes, wrapping: Wrapping) -> None:
        """Share the lookups; nothing is read yet."""
        self._names = names
        self._classes = classes
        self._wrapping = wrapping

    def signature(self, ref: Ref, *, bound: bool = True) -> Signature | None:
        """Return how `ref` may be called, None where that cannot be known.

        A method is taken as bound to its instance or class, so its first parameter is left out; `bound=False` keeps
        it, as for `C.method(instance)`.
        """
        if ref.kind == "class":
            return self._constructor(ref)
        if ref.kind not in ("function", "method"):
            return None
        facts = self._names.facts(ref.module)
        functions = facts.functions(ref.name) if facts is not None else ()
        if not functions:
            return None
        drop = ref.kind == "method" and not self._classes.is_staticmethod(ref)
        if not bound:
            drop = drop and self._classes.is_classmethod(ref)
        found = [self._of(ref.module, function, drop=drop) for function in functions]
        # The last definition is the one that stays, unless they stand in different branches.
        return replace(found[-1], certain=found[-1].certain and all(f == found[-1] for f in found))

    def _of(self, module: str, function: Function, *, drop: bool) -> Signature:
        kept = all(self._wrapping.keeps_signature(module, d) for d in function.decorators)
        return from_function(function, drop=drop, certain=kept)

    def _constructor(self, ref: Ref) -> Signature | None:
        levels = self._classes.levels(ref)
        if any(level.name.startswith("enum.") for level in levels):
            # Calling an enumeration looks a member up; its `__init__` is not what the caller reaches.
            return None
        found = self._first(ref, levels)
        if found is None:
            return None
        shaken = any(self._reshapes(level) for level in levels)
        return replace(found, certain=found.certain and not shaken)

    def _reshapes(self, level: Level) -> bool:
        """Return whether a class may change how it or its subclasses are called, in ways that are not followed."""
        found = level.definition
        if found is None or level.ref is None:
            return False
        metaclass = found.keywords.get("metaclass", "")
        plain = not metaclass or metaclass.rpartition(".")[2] in ("ABCMeta", "EnumMeta", "EnumType")
        kept = all(self._wrapping.keeps_class(level.ref.module, d) or _is_dataclass(d) for d in found.decorators)
        return not plain or not kept or "__init_subclass__" in found.names

    def _first(self, ref: Ref, levels: Sequence[Level]) -> Signature | None:
        """Return the signature of the first level that decides how the class is called."""
        creator: Signature | None = None
        for at, level in enumerate(levels):
            if level.definition is None:
                return self._outside(level.name, levels[:at], creator)
            assert level.ref is not None
            if creator is None and "__new__" in level.definition.names:
                creator = self._method(level.ref, "__new__")
            if "__init__" in level.definition.names:
                own = self._method(level.ref, "__init__")
                if own is None:
                    return None
                if all(b.when is not When.ALWAYS for b in level.definition.bindings("__init__")):
                    own = replace(own, certain=False)
                if creator is None:
                    return own
                return replace(own, certain=own.certain and _loose(creator))
            if self._makes_init(level):
                return _dataclass(
                    [lv.definition for lv in levels if lv.definition is not None and self._makes_init(lv)]
                )
        return creator or Signature(positional=())

    def _method(self, ref: Ref, name: str) -> Signature | None:
        method = Ref(kind="method", package=ref.package, module=ref.module, name=f"{ref.name}.{name}", owner=ref)
        return self.signature(method)

    def _makes_init(self, level: Level) -> bool:
        found = level.definition
        if found is None or level.ref is None or found.decorator_keywords.get("dataclass.init") is False:
            return False
        return any(_is_dataclass(d) or self._is_dataclass_like(level.ref.module, d) for d in found.decorators)

    def _is_dataclass_like(self, module: str, decorator: str) -> bool:
        """Return whether a decorator of the world makes a dataclass (vLLM's `config`)."""
        return decorator.rpartition(".")[2] == "config" and self._names.package(module) is not None

    def _outside(self, base: str, before: Sequence[Level], creator: Signature | None) -> Signature | None:
        """Return the constructor that a base outside the world gives to the classes `before` it."""
        definitions = [level.definition for level in before if level.definition is not None]
        if base in _NAMED_TUPLES:
            return _dataclass(definitions)
        if base == _STRUCT:
            return _struct(definitions)
        if base in _PYDANTIC:
            return _pydantic(definitions)
        if base in _TYPED_DICTS:
            names = [field.name for definition in definitions for field in definition.fields]
            # A dict of that type is not checked when it is made.
            return Signature(positional=(), keyword_only=frozenset(names), var_keyword=True, certain=False)
        if base in _GENERIC:
            return creator or Signature(positional=(), var_keyword=True, var_positional=True, certain=False)
        return None


def from_function(function: Function, *, drop: bool, certain: bool) -> Signature:
    """Return the signature of a function as written; `drop` leaves out its first positional parameter."""
    placed = [p for p in function.parameters if p.kind in ("", "/")]
    if drop and placed:
        placed = placed[1:]
    named = [p for p in function.parameters if p.kind == "="]
    return Signature(
        positional=tuple(p.name for p in placed),
        keyword_only=frozenset(p.name for p in named),
        required=frozenset(p.name for p in [*placed, *named] if not p.default),
        positional_only=sum(p.kind == "/" for p in placed),
        var_positional=any(p.kind == "*" for p in function.parameters),
        var_keyword=any(p.kind == "**" for p in function.parameters),
        certain=certain,
    )


def _dataclass(definitions: Sequence[Klass]) -> Signature:
    """Return the generated `__init__` of a dataclass from its own and its inherited fields, base last."""
    fields: dict[str, tuple[Field, bool]] = {}
    for definition in reversed(definitions):
        keyword = definition.decorator_keywords.get("dataclass.kw_only") is True
        for field in definition.fields:
            if field.name == "*":
                keyword = True
                continue
            only = keyword if field.keyword_only is None else field.keyword_only
            fields[field.name] = field, only
    live = [(f, only) for f, only in fields.values() if f.init]
    known = all(f.known for f, _ in live)
    return _generated(((f.name, f.default, only) for f, only in live), certain=known)


def _struct(definitions: Sequence[Klass]) -> Signature:
    fields: dict[str, tuple[bool, bool]] = {}
    for definition in reversed(definitions):
        only = definition.keywords.get("kw_only") == "True"
        for field in definition.fields:
            fields[field.name] = field.default, only
    return _generated(((name, default, only) for name, (default, only) in fields.items()), certain=True)


def _pydantic(definitions: Sequence[Klass]) -> Signature:
    """Return a model's constructor; uncertain, since aliases, `extra` and validators decide what it takes."""
    fields: dict[str, Field] = {}
    for definition in reversed(definitions):
        fields.update((f.name, f) for f in definition.fields if not f.name.startswith("_") and f.name != "model_config")
    rows = ((f.name, f.default, True) for f in fields.values())
    return replace(_generated(rows, certain=False), var_keyword=True)


def _generated(fields: Iterable[tuple[str, bool, bool]], *, certain: bool) -> Signature:
    rows = list(fields)
    return Signature(
        positional=tuple(name for name, _, only in rows if not only),
        keyword_only=frozenset(name for name, _, only in rows if only),
        required=frozenset(name for name, default, _ in rows if not default),
        certain=certain,
    )


def _is_dataclass(decorator: str) -> bool:
    return decorator.rpartition(".")[2] in ("dataclass", "pydantic_dataclass")


def _loose(signature: Signature) -> bool:
    return signature.var_positional and signature.var_keyword
