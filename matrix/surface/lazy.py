"""Names that a module serves lazily: transformers' `_LazyModule`, module `__getattr__`, renamed modules."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from matrix.surface.answer import Answer, Presence, Ref
from matrix.surface.exports import Exports
from matrix.surface.facts import ModuleFacts
from matrix.surface.modules import ModuleKind, Package

if TYPE_CHECKING:
    from matrix.surface.names import Names

PRESENT = Answer(presence=Presence.PRESENT)
MISSING = Answer(presence=Presence.MISSING)
OPAQUE = Answer(presence=Presence.OPAQUE)

# transformers 5 answers for these suffixes with another class when the name itself is gone (`_LazyModule.__getattr__`).
_FALLBACK_SUFFIXES = ("TokenizerFast", "ImageProcessorFast", "Tokenizer")
_TARGET = re.compile(r"(?P<dots>\.*)(?P<module>[A-Za-z_][\w.]*)?(?::(?P<name>\w+))?")


class LazyNames:
    """The part of name lookup that follows tables instead of statements."""

    def __init__(self, names: Names) -> None:
        """Share the lookup that asks; nothing is read yet."""
        self._names = names
        self._exports: dict[str, Exports] = {}

    def alias(self, dotted: str) -> str:
        """Return the module that an old module name leads to, "" when it leads nowhere."""
        root = dotted.partition(".")[0]
        package = self._names.packages.get(root)
        facts = package.facts(root) if package is not None else None
        if package is None or facts is None or "." not in dotted:
            return ""
        tail = dotted.partition(".")[2]
        for old, new in facts.aliases().items():
            if fnmatch.fnmatchcase(tail, old):
                target = f"{root}.{tail.removesuffix('_fast') if '*' in old else new}"
                return target if package.kind(target) is not None else ""
        return ""

    def through_alias(self, target: str, name: str) -> Answer:
        """Return what an old module name gives for `name`; classes ending in `Fast` lost that ending."""
        answer = self._names.lookup(target, name)
        if answer.presence is Presence.MISSING and name.endswith("Fast"):
            return self._names.lookup(target, name.removesuffix("Fast"))
        return answer

    def lookup(self, package: Package, module: str, facts: ModuleFacts, name: str) -> Answer:
        """Return what a module that replaced itself by a lazy one gives for `name`."""
        lazy = facts.lazy
        assert lazy is not None
        if name in lazy.extra:
            return self._names.bound(module, facts, name) or PRESENT
        tabled = self._tabled(module, facts, name)
        if tabled.presence is Presence.PRESENT:
            return tabled
        for folder in lazy.derived:
            found = self.derived(package, f"{module}.{folder}" if folder else module, name)
            if found.presence is not Presence.MISSING:
                return found
        submodule = f"{module}.{name}"
        if package.kind(submodule) is not None or self.alias(submodule):
            return Answer(presence=Presence.PRESENT, ref=Ref(kind="module", package=package.root, module=submodule))
        for suffix in _FALLBACK_SUFFIXES:
            if name.endswith(suffix):
                return self._fallback(module, name)
        if name.startswith("_"):
            # The lazy module has attributes of its own, `_class_to_module` and others.
            return PRESENT if name.startswith("__") else OPAQUE
        return OPAQUE if lazy.open or tabled.presence is Presence.OPAQUE else MISSING

    def _fallback(self, module: str, name: str) -> Answer:
        """Return the class that stands in for a tokenizer or image processor that is gone, where one may."""
        if name.endswith("Fast"):
            plain = self._names.lookup(module, name.removesuffix("Fast"))
            version = self._names.versions.get(module.partition(".")[0])
            if plain.presence is Presence.PRESENT and version is not None and version.major >= 5:
                return plain
        return OPAQUE

    def _tabled(self, module: str, facts: ModuleFacts, name: str) -> Answer:
        """Look the name up in the import structures; OPAQUE when a structure may hold more than is seen."""
        lazy = facts.lazy
        unseen = promised = False
        listings = []
        for table_name in lazy.tables if lazy is not None else ():
            table = facts.table(table_name)
            if table is None:
                continue
            unseen |= table.open or bool(set(table.spreads) - set(lazy.tables if lazy is not None else ()))
            listings += [f"{module}.{key}" for key in table.listings]
            for key, values in table.entries.items():
                if isinstance(values, list) and name in values:
                    promised = True
                    answer = self._names.lookup(f"{module}.{key}", name)
                    if answer.presence is Presence.PRESENT and "dummy_" not in key:
                        return answer
        for listing in listings:
            if not name.startswith("_") and self._names.lookup(listing, name).presence is Presence.PRESENT:
                return PRESENT
        return OPAQUE if unseen or promised else MISSING

    def derived(self, package: Package, base: str, name: str) -> Answer:
        """Return what the files below `base` export under `name` through their `__all__` or `@requires`."""
        if base not in self._exports:
            self._exports[base] = Exports(package, base)
        exports = self._exports[base]
        for module in exports.modules(name):
            answer = self._names.lookup(module, name)
            if answer.presence is Presence.PRESENT:
                return answer
            return OPAQUE
        return MISSING if exports.complete else OPAQUE

    def served(self, module: str, facts: ModuleFacts, name: str) -> Answer:
        """Return what the module's `__getattr__` gives for `name`; MISSING without one or when it refuses."""
        fallback = facts.fallback
        if fallback is None:
            return MISSING
        if name in fallback.names:
            return PRESENT
        unseen = not fallback.closed
        for table_name in fallback.tables:
            table = facts.table(table_name)
            if table is None:
                unseen = True
                continue
            if name in table.entries:
                return self._target(module, facts, table.entries[name], name)
            unseen |= table.open or bool(table.spreads)
        return OPAQUE if unseen else MISSING

    def _target(self, module: str, facts: ModuleFacts, value: object, name: str) -> Answer:
        """Return what a table's value leads to: `.mod:X`, `.mod` (of the same name), `(mod, X)`; else just present."""
        if isinstance(value, list) and len(value) == 2:
            value = f"{value[0]}:{value[1]}"
        found = _TARGET.fullmatch(value) if isinstance(value, str) else None
        if found is None or not found["module"]:
            return PRESENT
        package = self._names.package(module)
        anchor = module if package is not None and module in package.packages else module.rpartition(".")[0]
        for _ in range(len(found["dots"]) - 1):
            anchor = anchor.rpartition(".")[0]
        target = f"{anchor}.{found['module']}" if found["dots"] else found["module"]
        owner = self._names.package(target)
        if owner is None or owner.kind(target) is not ModuleKind.SOURCE:
            return PRESENT
        answer = self._names.lookup(target, found["name"] or name)
        return answer if answer.presence is Presence.PRESENT else OPAQUE
