"""Which modules of a package cannot be imported, because another package of the world lacks what they take from it.

Read from what each module executes first (`matrix.surface.importing`) and followed along the imports inside the
package. A failure is said only where it is sure: outside of conditions, not handled, and about a name that the other
package is seen not to have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from matrix.finding import Kind, Site
from matrix.surface.answer import ImportFailure, Presence
from matrix.surface.facts import ModuleFacts, Row
from matrix.surface.modules import Package
from matrix.surface.names import Names
from matrix.surface.prefetch import prefetch

_SUPERS: Mapping[str, frozenset[str]] = {
    "ImportError": frozenset({"ModuleNotFoundError", "Exception", "BaseException"}),
    "AttributeError": frozenset({"Exception", "BaseException"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """Why a block raises: something that is missing at `line`, or the import of the module `via` that fails."""

    exception: str
    line: int
    kind: Kind = Kind.NAME_MISSING
    symbol: str = ""
    via: str = ""


class Failing:
    """The modules of one package that fail when they are imported first; what was asked before is kept."""

    def __init__(self, names: Names, package: Package) -> None:
        """Share the lookup of the world; nothing is read yet."""
        self._names = names
        self._package = package
        self._read: dict[str, ModuleFacts] = {}
        self._failures: dict[str, _Failure] = {}
        self._importers: dict[str, set[str]] = {}
        self._patched: set[str] = set()

    def failure(self, module: str, name: str = "") -> ImportFailure | None:
        """Return why `import module`, or `from module import name`, raises; None where nothing says that it does."""
        self._follow(_ancestors(module))
        asked = [*_ancestors(module), *self._taken(module, name)] if name else _ancestors(module)
        self._follow(asked)
        for dotted in asked:
            if dotted in self._failures:
                return self._told(dotted)
        return None

    def _told(self, module: str) -> ImportFailure | None:
        chain = [module]
        found = self._failures[module]
        while found.via:
            # A module fails through one that was found to fail before, so this ends.
            chain.append(found.via)
            found = self._failures[found.via]
        if found.symbol.rpartition(".")[2] in self._patched:
            # The package puts something of that name somewhere itself: it may be there by then.
            return None
        site = Site(path=self._package.path(chain[-1]), line=found.line)
        return ImportFailure(
            kind=found.kind, symbol=found.symbol, exception=found.exception, site=site, chain=tuple(chain)
        )

    # ------------------------------------------------------------------------------------------------- reading
    def _follow(self, modules: Iterable[str]) -> None:
        """Read these modules and all that they import of the package, level by level, and find those that fail."""
        fresh: list[str] = []
        level = [item for item in modules if item in self._package.source and item not in self._read]
        while level:
            self._read.update(self._package.imports(level))
            fresh += level
            following = {item: None for module in level for item in self._own(self._rows(module))}
            level = [item for item in following if item not in self._read]
        if not fresh:
            return
        for module in fresh:
            self._patched.update(self._read[module].data.get("patched", ()))
            for imported in self._own(self._rows(module)):
                self._importers.setdefault(imported, set()).add(module)
        prefetch(self._names, [item for module in fresh for item in self._foreign(self._rows(module))])
        self._settle(fresh)

    def _settle(self, modules: Iterable[str]) -> None:
        """Find which of these fail by themselves, then those that import one that does, until nothing changes."""
        todo = list(modules)
        while todo:
            module = todo.pop()
            if module in self._failures:
                continue
            found, _ = self._block(self._rows(module))
            if found is not None and (found.symbol or found.via):
                self._failures[module] = found
                todo += self._importers.get(module, ())

    def _rows(self, module: str) -> Sequence[Row]:
        rows: Sequence[Row] = self._read[module].data.get("imports", ())
        return rows

    def _own(self, rows: Iterable[Row]) -> Iterator[str]:
        """Yield the modules of the package itself that rows import, those in handlers left out."""
        for row in _flat(rows):
            if row[0] in ("import", "from") and self._is_own(row[2]):
                yield from self._imported(row)

    def _foreign(self, rows: Iterable[Row]) -> Iterator[str]:
        """Yield the dotted names of other packages of the world that rows take."""
        for row in _flat(rows):
            if row[0] != "raise" and not self._is_own(row[2]) and self._names.package(row[2]) is not None:
                if row[0] == "from":
                    yield from (f"{row[2]}.{name}" for name in row[3])
                else:
                    yield f"{row[2]}.{row[3]}" if row[0] == "attr" else row[2]

    def _is_own(self, dotted: str) -> bool:
        return dotted.partition(".")[0] == self._package.root

    def _imported(self, row: Row) -> list[str]:
        """Return the source modules of the package that an import of it executes, in order."""
        found = _ancestors(row[2])
        for name in row[3] if row[0] == "from" else ():
            found += self._taken(row[2], name)
        return [item for item in found if item in self._package.source]

    def _taken(self, module: str, name: str) -> list[str]:
        """Return the modules that `from module import name` imports besides `module`."""
        facts = self._read.get(module)
        if facts is None or name in facts.data.get("bound", ()):
            # Of a module not read yet nothing is known; it is a package only if it has submodules.
            return [f"{module}.{name}"] if facts is None and f"{module}.{name}" in self._package.source else []
        if f"{module}.{name}" in self._package.source:
            return [f"{module}.{name}"]
        if not facts.data.get("getattr"):
            return []
        ref = self._names.lookup(module, name).ref
        return _ancestors(ref.module) if ref is not None and self._is_own(ref.module) and ref.module != module else []

    # ---------------------------------------------------------------------------------------------- executing
    def _block(self, rows: Iterable[Row]) -> tuple[_Failure | None, bool]:
        """Return what a block is sure to raise, and whether all that it imports is known to be there."""
        known = True
        for row in rows:
            if row[0] == "try":
                found, clear = self._attempt(row)
            elif row[0] == "raise":
                found, clear = _Failure(exception=row[2], line=row[1]), True
            else:
                found, clear = self._step(row)
            if found is not None:
                return found, known
            known = known and clear
        return None, known

    def _attempt(self, row: Row) -> tuple[_Failure | None, bool]:
        _, body, handlers, orelse = row
        found, known = self._block(body)
        if found is None:
            # Something in it may raise after all, then neither `else` nor a handler is sure to run.
            return self._block(orelse) if known else (None, False)
        for caught, handler in handlers:
            if caught is None or found.exception in caught or _SUPERS.get(found.exception, frozenset()) & set(caught):
                raised, clear = self._block(handler)
                if raised is None:
                    return None, clear
                if raised.symbol or raised.via:
                    return raised, clear
                # Raised on purpose because of what is missing: that is still the reason.
                again = raised.exception or found.exception
                return _Failure(
                    exception=again, line=found.line, kind=found.kind, symbol=found.symbol, via=found.via
                ), clear
        return found, known

    def _step(self, row: Row) -> tuple[_Failure | None, bool]:
        """Return why an import or an attribute fails, and whether it is known to work."""
        what, line, module = row[:3]
        if self._is_own(module):
            if what == "attr":
                return None, False
            for item in self._imported(row):
                failing = self._failures.get(item)
                if failing is not None:
                    return _Failure(exception=failing.exception, line=line, via=item), True
            return None, True
        if self._names.package(module) is None:
            return None, False
        if what == "attr":
            return self._attribute(module, row[3], line)
        presence = self._names.module(module)
        if presence is Presence.MISSING:
            return _Failure(exception="ImportError", line=line, kind=Kind.MODULE_MISSING, symbol=module), True
        clear = presence is Presence.PRESENT
        for name in row[3] if what == "from" else ():
            answer = self._names.lookup(module, name).presence if name != "*" else presence
            if answer is Presence.MISSING:
                return _Failure(exception="ImportError", line=line, symbol=f"{module}.{name}"), True
            clear = clear and answer is Presence.PRESENT
        return None, clear

    def _attribute(self, module: str, chain: str, line: int) -> tuple[_Failure | None, bool]:
        for name in chain.split("."):
            answer = self._names.lookup(module, name)
            if answer.presence is Presence.MISSING:
                missing = _Failure(
                    exception="AttributeError", line=line, kind=Kind.ATTRIBUTE_MISSING, symbol=f"{module}.{name}"
                )
                return missing, True
            if answer.ref is None or answer.ref.kind != "module":
                return None, answer.presence is Presence.PRESENT
            module = answer.ref.module
        return None, True


def _ancestors(dotted: str) -> list[str]:
    """Return `a`, `a.b`, `a.b.c` for `a.b.c`: what Python imports, in order."""
    parts = dotted.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _flat(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows that run unless something is missing: `try` bodies and their `else`, no handlers."""
    for row in rows:
        if row[0] == "try":
            yield from _flat(row[1])
            yield from _flat(row[3])
        else:
            yield row
