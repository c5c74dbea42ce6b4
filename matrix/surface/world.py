"""The target world: answers questions about packages from their archives' sources, without importing them.

PRESENT and MISSING are said only when the source shows it; what is compiled, computed at run time or outside the world
is OPAQUE. Members are read when a question needs them, so that a few per cent of a wheel decide a check.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType

from packaging.version import Version

from matrix.finding import Site
from matrix.index import Archive
from matrix.surface.answer import Answer, Hierarchy, ImportFailure, Presence, Ref, Signature
from matrix.surface.classes import Classes
from matrix.surface.facts import Binding, Function, Klass
from matrix.surface.factstore import FactStore
from matrix.surface.failing import Failing
from matrix.surface.modules import Package
from matrix.surface.moved import Moves
from matrix.surface.names import PRESENT, Names
from matrix.surface.prefetch import prefetch
from matrix.surface.signatures import Signatures
from matrix.surface.wrapping import Wrapping


class World:
    """Packages by import root (`vllm`, `flash_attn`), and what their names are."""

    def __init__(
        self,
        archives: Mapping[str, Archive],
        versions: Mapping[str, Version],
        *,
        absent: frozenset[str] = frozenset(),
        facts: FactStore | None = None,
    ) -> None:
        """Read the archives' directories; `absent` are import roots that are known not to be installed."""
        self.versions = dict(versions)
        self._packages = {root: Package(root, archive, facts) for root, archive in archives.items()}
        self._names = Names(self._packages, versions, absent)
        wrapping = Wrapping(self._names)
        self._classes = Classes(self._names, wrapping)
        self._signatures = Signatures(self._names, self._classes, wrapping)
        self._moves = Moves(self._names)
        self._failing = {root: Failing(self._names, package) for root, package in self._packages.items()}

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.save()

    def save(self) -> None:
        """Keep the facts that were derived, when the world has a store; raises NoSpaceError, UsageError."""
        for package in self._packages.values():
            package.save()

    def covers(self, dotted: str) -> bool:
        """Return whether the name's root is a package of this world."""
        return dotted.partition(".")[0] in self._packages

    def prefetch(self, dotted: Iterable[str]) -> None:
        """Read the modules that these names and what they lead to will need, a few batches in all."""
        prefetch(self._names, dotted)

    def module(self, dotted: str) -> Presence:
        """Return whether a module of that name exists (namespace folders, compiled and renamed modules included)."""
        return self._names.module(dotted)

    def lookup(self, module: str, name: str) -> Answer:
        """Return what `from module import name` gives, followed to where it is defined."""
        return self._names.lookup(module, name)

    def import_failure(self, module: str, name: str = "") -> ImportFailure | None:
        """Return what another package lacks, so that `from module import name` raises; None where nothing is seen to.

        Without `name` it is asked of `import module`. Only a failure that is sure is said.
        """
        failing = self._failing.get(module.partition(".")[0])
        return failing.failure(module, name) if failing is not None else None

    def attribute(self, ref: Ref, name: str, *, instance: bool = False) -> Answer:
        """Return what `ref.name` gives: of a module, of a class, or of an instance of a class."""
        match ref.kind:
            case "module":
                return self.lookup(ref.module, name)
            case "class":
                return self._classes.attribute(ref, name, instance=instance)
        return Answer(presence=Presence.OPAQUE)

    def hierarchy(self, ref: Ref) -> Hierarchy:
        """Return the method resolution order of a class as far as it is known."""
        return self._classes.hierarchy(ref)

    def signature(self, ref: Ref, *, bound: bool = True) -> Signature | None:
        """Return how a function, method or class may be called; None where that cannot be known.

        A method is taken as bound; `bound=False` keeps its first parameter, as for `C.method(instance)`.
        """
        return self._signatures.signature(ref, bound=bound)

    def returns(self, ref: Ref) -> Answer:
        """Return what a call of `ref` gives: an instance of the class called, or what the annotation says."""
        if ref.kind == "class":
            return Answer(presence=Presence.PRESENT, instance_of=ref)
        facts = self._names.facts(ref.module)
        functions = facts.functions(ref.name) if facts is not None and ref.kind in ("function", "method") else ()
        if not functions:
            return PRESENT
        owner = ref.owner
        if owner is not None and self.is_classmethod(ref):
            made = self._classes.returned(ref, owner, functions[-1].returns)
            # `cls(...)` by another name: a constructor annotated with the class or one it inherits from.
            if made is not None and made in self.hierarchy(owner).order:
                return Answer(presence=Presence.PRESENT, instance_of=owner)
        made = self._classes.returned(ref, owner or ref, functions[-1].returns)
        return Answer(presence=Presence.PRESENT, instance_of=made, exact=False)

    def methods(self, ref: Ref) -> Mapping[str, Ref]:
        """Return the methods defined in the body of a class itself, by name."""
        return self._classes.methods(ref)

    def is_classmethod(self, ref: Ref) -> bool:
        """Return whether a method gets the class as its first argument."""
        return self._classes.is_classmethod(ref)

    def is_staticmethod(self, ref: Ref) -> bool:
        """Return whether a method gets neither instance nor class."""
        return self._classes.is_staticmethod(ref)

    def is_property(self, ref: Ref) -> bool:
        """Return whether a method is read like an attribute."""
        return self._classes.is_property(ref)

    def moved(self, dotted: str) -> tuple[str, ...]:
        """Return where a module, or a name of a module, may be found now, best first; empty when not found."""
        return self._moves.moved(dotted)

    def site(self, ref: Ref) -> Site:
        """Return where something is defined; line 0 for a module or what is not defined by a statement."""
        package = self._names.package(ref.module)
        path = package.path(ref.module) if package is not None else ref.module.replace(".", "/")
        return Site(path=path, line=self._line(ref), scope=ref.name)

    def _line(self, ref: Ref) -> int:
        facts = self._names.facts(ref.module) if ref.name else None
        if facts is None:
            return 0
        rows: tuple[Function | Klass | Binding, ...] = (
            *facts.functions(ref.name),
            *facts.classes(ref.name),
            *facts.bindings(ref.name),
        )
        return rows[0].line if rows else 0
