"""Classes: their method resolution order, their attributes, and what those hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matrix.surface import bases
from matrix.surface.answer import Answer, Hierarchy, Presence, Ref
from matrix.surface.facts import Bind, Binding, Klass, When
from matrix.surface.names import MISSING, OPAQUE, PRESENT, Names
from matrix.surface.wrapping import Wrapping

_PROPERTIES = ("property", "cached_property", "abstractproperty", "classproperty", "lazy_property")


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One class in a method resolution order; `definition` is None for a base outside the world."""

    name: str
    ref: Ref | None = None
    definition: Klass | None = None

    @property
    def known(self) -> bool:
        """Return whether its attributes are known, by its source or because it belongs to Python."""
        return self.definition is not None or bases.attributes(self.name) is not None


class Classes:
    """Answers for classes of a world."""

    def __init__(self, names: Names, wrapping: Wrapping) -> None:
        """Share the lookup; nothing is read yet."""
        self._names = names
        self._wrapping = wrapping
        self._levels: dict[Ref, tuple[Level, ...]] = {}

    def definition(self, ref: Ref) -> Klass | None:
        """Return the class's facts; None when there are none or the class is defined more than once."""
        facts = self._names.facts(ref.module)
        found = facts.classes(ref.name) if facts is not None else ()
        return found[0] if len(found) == 1 else None

    def levels(self, ref: Ref) -> tuple[Level, ...]:
        """Return the method resolution order, with what is outside the world in its place; `object` left out."""
        if ref not in self._levels:
            # A class that inherits from itself by name only (a redefinition) must not recurse.
            self._levels[ref] = (Level(name=ref.dotted, ref=ref),)
            self._levels[ref] = tuple(self._linear(ref))
        return self._levels[ref]

    def _linear(self, ref: Ref) -> Sequence[Level]:
        definition = self.definition(ref)
        own = Level(name=ref.dotted, ref=ref, definition=definition)
        if definition is None:
            return [own]
        parents = [self._base(ref, base) for base in definition.bases]
        parents = [chain for chain in parents if chain and chain[0].name != "builtins.object"]
        return [own, *_merge([*map(list, parents), [chain[0] for chain in parents]])]

    def _base(self, ref: Ref, written: str) -> Sequence[Level]:
        """Return the resolution order of one base as written in the module of `ref`."""
        answer = self._names.dotted(ref.module, written) if written != "?" else OPAQUE
        target = answer.ref
        if target is not None and target.kind == "class" and target != ref:
            return self.levels(target)
        return [Level(name=self.outside(ref.module, written))]

    def outside(self, module: str, written: str) -> str:
        """Return the full dotted name of something outside the world, e.g. `enum.Enum` for `Enum`."""
        first, _, rest = written.partition(".")
        facts = self._names.facts(module)
        found = facts.bindings(first) if facts is not None else ()
        imported = [b for b in found if b.kind in (Bind.FROM, Bind.MODULE)]
        if not imported:
            return f"builtins.{written}" if not found and bases.is_builtin(written) else f"{module}.{written}"
        start = imported[0]
        stem = f"{start.source}.{start.name}" if start.kind is Bind.FROM else start.source
        return f"{stem}.{rest}" if rest else stem

    def hierarchy(self, ref: Ref) -> Hierarchy:
        """Return the method resolution order of a class as far as it is known."""
        levels = self.levels(ref)
        return Hierarchy(
            order=tuple(level.ref for level in levels if level.ref is not None),
            complete=all(level.known for level in levels),
            external=tuple(level.name for level in levels if level.definition is None),
        )

    def methods(self, ref: Ref) -> Mapping[str, Ref]:
        """Return the methods defined in the class body itself, by name."""
        definition = self.definition(ref)
        if definition is None:
            return {}
        return {
            name: _method(ref, name, ref)
            for name in definition.names
            if any(b.kind is Bind.FUNCTION for b in definition.bindings(name))
        }

    def attribute(self, ref: Ref, name: str, *, instance: bool) -> Answer:
        """Return what `C.name` gives, or `C().name` with `instance`; MISSING only when nothing is left unseen."""
        levels = self.levels(ref)
        unseen = False
        for level in levels:
            if level.definition is None:
                known = bases.attributes(level.name)
                if known is None:
                    unseen = True
                elif name in known:
                    return PRESENT
                continue
            assert level.ref is not None
            answer = self._own(level.ref, level.definition, ref, name, instance=instance)
            if answer is not None:
                # An unknown base before this one may define the name, too.
                return Answer(presence=Presence.PRESENT) if unseen else answer
            unseen |= self._hides(level.ref, level.definition, instance=instance)
        if name in (_OF_INSTANCE if instance else _OF_CLASS):
            return PRESENT
        # Python and decorators add special names (`__dataclass_fields__`) that no statement shows.
        return OPAQUE if unseen or (name.startswith("__") and name.endswith("__")) else MISSING

    def _hides(self, ref: Ref, found: Klass, *, instance: bool) -> bool:
        """Return whether a class may have attributes that are not seen in its body."""
        if found.open or "**" in found.keywords:
            return True
        hooks = ("__getattr__", "__getattribute__") if instance else ()
        if any(hook in found.names for hook in hooks):
            return True
        metaclass = found.keywords.get("metaclass", "")
        if metaclass and bases.attributes(self.outside(ref.module, metaclass)) is None:
            return True
        facts = self._names.facts(ref.module)
        if facts is not None and "*" in facts.patched(ref.name):
            return True
        return not all(self._wrapping.keeps_class(ref.module, d) for d in found.decorators)

    def _own(self, ref: Ref, found: Klass, asked: Ref, name: str, *, instance: bool) -> Answer | None:
        """Return what the class itself gives for `name`, None when it has no such attribute."""
        live = [b for b in found.bindings(name) if b.when is not When.TYPING]
        values = [b for b in live if b.kind is not Bind.ANNOTATION]
        if values:
            return self._bound(ref, asked, name, values, instance=instance)
        if live:
            note = live[0].annotation
            held = Answer(presence=Presence.PRESENT, instance_of=self._names.annotated(ref.module, note), exact=False)
            return held if instance else OPAQUE
        stored = found.stored(name)
        if stored:
            return self._stored(ref, stored) if instance else OPAQUE
        facts = self._names.facts(ref.module)
        if facts is not None and name in facts.patched(ref.name):
            return PRESENT
        if "__slots__" in found.names and name in _slots(found):
            return PRESENT
        return None

    def _bound(self, ref: Ref, asked: Ref, name: str, values: Sequence[Binding], *, instance: bool) -> Answer:
        last = values[-1]
        if any(b.kind is not last.kind for b in values):
            return PRESENT
        facts = self._names.facts(ref.module)
        if last.kind is Bind.FUNCTION:
            if self.is_property(_method(ref, name, asked)):
                functions = facts.functions(f"{ref.name}.{name}") if facts is not None else ()
                kind = self.returned(ref, asked, functions[0].returns) if functions and instance else None
                return Answer(presence=Presence.PRESENT, instance_of=kind, exact=False)
            return Answer(presence=Presence.PRESENT, ref=_method(ref, name, asked))
        if last.kind is Bind.CLASS:
            nested = Ref(kind="class", package=ref.package, module=ref.module, name=f"{ref.name}.{name}")
            return Answer(presence=Presence.PRESENT, ref=nested)
        if last.kind is Bind.ALIAS and last.source in self.methods(ref):
            return Answer(presence=Presence.PRESENT, ref=_method(ref, last.source, asked))
        if last.annotation and instance:
            held = self._names.annotated(ref.module, last.annotation)
            return Answer(presence=Presence.PRESENT, instance_of=held, exact=False)
        if last.kind is Bind.CONSTANT and len(values) == 1 and not instance:
            return Answer(presence=Presence.PRESENT, constant=last.constant, has_constant=True)
        return PRESENT

    def _stored(self, ref: Ref, stored: Sequence[Binding]) -> Answer:
        """Return what `self.x = …` statements say together: one class, or just that it is there."""
        kinds: set[Ref | None] = set()
        for store in stored:
            if store.kind is Bind.ANNOTATION:
                kinds.add(self._names.annotated(ref.module, store.annotation))
            elif store.kind is Bind.CALL:
                kinds.add(self._names.made_by(ref.module, store.source).instance_of)
            else:
                kinds.add(None)
        held = kinds.pop() if len(kinds) == 1 else None
        return Answer(presence=Presence.PRESENT, instance_of=held, exact=False)

    def returned(self, ref: Ref, asked: Ref, annotation: str) -> Ref | None:
        """Return the class that a method's return annotation names; `Self` is the class that was asked."""
        if annotation.rpartition(".")[2] == "Self":
            return asked
        return self._names.annotated(ref.module, annotation)

    def is_property(self, ref: Ref) -> bool:
        """Return whether a method is read like an attribute."""
        return any(word.rpartition(".")[2] in _PROPERTIES for word in self._decorators(ref))

    def is_classmethod(self, ref: Ref) -> bool:
        """Return whether a method gets the class as its first argument."""
        hooks = ("__init_subclass__", "__class_getitem__")
        return ref.name.rpartition(".")[2] in hooks or "classmethod" in self._decorators(ref)

    def is_staticmethod(self, ref: Ref) -> bool:
        """Return whether a method gets neither instance nor class."""
        return "staticmethod" in self._decorators(ref)

    def _decorators(self, ref: Ref) -> tuple[str, ...]:
        facts = self._names.facts(ref.module)
        functions = facts.functions(ref.name) if facts is not None else ()
        return functions[0].decorators if functions else ()


# `_abc_impl` is where abstract classes keep their registry.
_OF_INSTANCE = frozenset(dir(object)) | {"__dict__", "__module__", "__weakref__", "__annotations__", "_abc_impl"}
_OF_CLASS = _OF_INSTANCE | frozenset(dir(type)) | {"__name__", "__qualname__", "__mro__"}


def _method(ref: Ref, name: str, owner: Ref) -> Ref:
    return Ref(kind="method", package=ref.package, module=ref.module, name=f"{ref.name}.{name}", owner=owner)


def _slots(found: Klass) -> tuple[str, ...]:
    slots = found.bindings("__slots__")[-1].constant
    return tuple(map(str, slots)) if isinstance(slots, (list, tuple)) else (str(slots),)


def _merge(chains: list[list[Level]]) -> list[Level]:
    """Return the C3 linearisation of the chains; where they contradict each other, the order they came in."""
    merged: list[Level] = []
    while chains := [chain for chain in chains if chain]:
        for chain in chains:
            head = chain[0]
            if not any(head.name in (level.name for level in other[1:]) for other in chains):
                break
        else:
            head = chains[0][0]
        merged.append(head)
        chains = [[level for level in chain if level.name != head.name] for chain in chains]
    return merged
