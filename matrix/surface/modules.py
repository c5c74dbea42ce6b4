"""The modules of one package: which exist, by the archive's directory, and their facts, read when asked for."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from matrix.index import Archive
from matrix.surface.exporting import exported_names
from matrix.surface.facts import ModuleFacts
from matrix.surface.factstore import FactStore
from matrix.surface.importing import read_imports
from matrix.surface.reading import quiet_collector, read_module

_COMPILED = (".so", ".pyd")
# Prefix under which the store keeps the exports of a member beside its facts.
_EXPORTS = "exports "
# The same of what importing the member executes first.
_IMPORTS = "imports "


class ModuleKind(StrEnum):
    """What stands behind a module's name."""

    SOURCE = "source"
    COMPILED = "compiled"
    NAMESPACE = "namespace"


class Package:
    """One import root of one archive. Existence costs the archive's directory; facts cost the member itself."""

    def __init__(self, root: str, archive: Archive, store: FactStore | None = None) -> None:
        """List the archive's members below `root`; nothing is read yet but the directory."""
        self.root = root
        self.archive = archive
        self._store = store
        self._facts: dict[str, ModuleFacts] = {}
        self._fresh: dict[str, ModuleFacts] = {}
        self._kept = store.load(archive.digest) if store is not None else None
        self.source: dict[str, str] = {}
        self.packages: set[str] = set()
        self._compiled: set[str] = set()
        self._directories: set[str] = set()
        # `import` prefers a package to a compiled module to a source file of the same name.
        for member in archive.names():
            self._place(member)
        for dotted in self._compiled - self.packages:
            self.source.pop(dotted, None)

    def _place(self, member: str) -> None:
        parts = member.split("/")
        if parts[0] != self.root and (len(parts) > 1 or parts[0].split(".")[0] != self.root):
            return
        folders, name = parts[:-1], parts[-1]
        self._directories.update(".".join(folders[:depth]) for depth in range(1, len(folders) + 1))
        stem = name.split(".")[0]
        if name == "__init__.py":
            self.source[".".join(folders)] = member
            self.packages.add(".".join(folders))
        elif name.endswith(".py"):
            self.source.setdefault(".".join([*folders, name[:-3]]), member)
        elif name.endswith(_COMPILED):
            self._compiled.add(".".join(folders if stem == "__init__" else [*folders, stem]))

    def kind(self, dotted: str) -> ModuleKind | None:
        """Return what stands behind the name, or None when no member does."""
        if dotted in self.source:
            return ModuleKind.SOURCE
        if dotted in self._compiled:
            return ModuleKind.COMPILED
        return ModuleKind.NAMESPACE if dotted in self._directories else None

    def under_compiled(self, dotted: str) -> bool:
        """Return whether an ancestor is compiled, so that submodules may exist without a file."""
        parts = dotted.split(".")
        return any(self.kind(".".join(parts[:depth])) is ModuleKind.COMPILED for depth in range(1, len(parts)))

    def path(self, dotted: str) -> str:
        """Return the member behind a module, or a path of that name when there is none."""
        return self.source.get(dotted, dotted.replace(".", "/"))

    def facts(self, dotted: str) -> ModuleFacts | None:
        """Return a source module's facts, reading it if need be; None for a module without source."""
        if dotted not in self._facts:
            self.load([dotted])
        return self._facts.get(dotted)

    def load(self, modules: Iterable[str]) -> None:
        """Make sure that the facts of these modules are there, reading what is missing in one go."""
        missing: dict[str, str] = {}
        for dotted in modules:
            member = self.source.get(dotted)
            if member is None or dotted in self._facts:
                continue
            known = self._kept.get(member) if self._kept is not None else None
            if known is None:
                missing[member] = dotted
            else:
                self._facts[dotted] = known
        if not missing:
            return
        with quiet_collector():
            for member, content in self.archive.read(missing).items():
                found = read_module(content, missing[member], package=member.endswith("/__init__.py"))
                self._facts[missing[member]] = self._fresh[member] = found

    def sources(self, modules: Iterable[str]) -> dict[str, bytes]:
        """Return the source text of these modules, those without source left out."""
        members = {self.source[dotted]: dotted for dotted in modules if dotted in self.source}
        return {members[member]: content for member, content in self.archive.read(members).items()}

    def imports(self, modules: Iterable[str]) -> dict[str, ModuleFacts]:
        """Return what importing each of these source modules executes first (`importing.read_imports`), kept."""
        found: dict[str, ModuleFacts] = {}
        missing: dict[str, str] = {}
        for dotted in modules:
            member = self.source[dotted]
            known = self._fresh.get(_IMPORTS + member) or (self._kept.get(_IMPORTS + member) if self._kept else None)
            if known is None:
                missing[member] = dotted
            else:
                found[dotted] = known
        with quiet_collector():
            for member, content in self.archive.read(missing).items() if missing else ():
                read = read_imports(content, missing[member], package=member.endswith("/__init__.py"))
                found[missing[member]] = self._fresh[_IMPORTS + member] = read
        return found

    def exported(self, modules: Iterable[str]) -> dict[str, list[str]]:
        """Return the names that each of these modules exports (`exports.exported_names`), kept like facts."""
        found: dict[str, list[str]] = {}
        wanted: list[str] = []
        for dotted in modules:
            key = _EXPORTS + self.source[dotted]
            kept = self._fresh.get(key) or (self._kept.get(key) if self._kept is not None else None)
            if kept is None:
                wanted.append(dotted)
            else:
                found[dotted] = list(kept.exports)
        for dotted, content in self.sources(wanted).items() if wanted else ():
            found[dotted] = exported_names(content)
            self._fresh[_EXPORTS + self.source[dotted]] = ModuleFacts({"exports": found[dotted]})
        return found

    def save(self) -> None:
        """Keep the facts that were derived since the last call, when there is a store to keep them in."""
        if self._store is not None and self._fresh:
            self._store.save(self.archive.digest, self._fresh)
            self._fresh = {}
