"""The subject: one release of verl, parsed once and asked many times.

`Subject` holds what does not depend on the target: module trees and syntactic facts about them. Nothing of a run is
ever stored here but memos of pure functions of the tree.
"""

from __future__ import annotations

import ast
import gc
import warnings
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from matrix.index import Archive
from matrix.surface.execution.syntax import (
    Condition,
    Function,
    FunctionFacts,
    ModuleFacts,
    bound_names,
    function_facts,
    module_facts,
)
from matrix.surface.execution.tree import AnswerTree
from matrix.surface.importing import stored_attributes
from matrix.surface.reading import quiet_collector

ROOT = "verl"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SubjectModule:
    """One module of the subject; `tree` is None for a namespace package and for text that does not parse."""

    name: str
    path: str
    is_package: bool
    tree: ast.Module | None
    facts: ModuleFacts
    bound: frozenset[str]

    def absolute(self, level: int, module: str | None) -> str:
        """Return the absolute name of `from ...module import`, as this module would resolve it."""
        if not level:
            return module or ""
        parts = self.name.split(".")
        base = parts if self.is_package else parts[:-1]
        if level > 1:
            base = base[: len(base) - (level - 1)]
        return ".".join([*base, module] if module else base)


@dataclass(slots=True, kw_only=True, eq=False)
class Subject:
    """A release of verl: its modules by dotted name, and memos of what their syntax says.

    `memory` holds, by the packages that a cell pins, what came of the answers that earlier checks got.
    """

    version: Version
    digest: str
    sources: dict[str, tuple[str, bytes]]
    namespaces: frozenset[str]
    bytes_read: int = 0
    memory: dict[frozenset[str], AnswerTree[Any]] = field(default_factory=dict)
    _stored: frozenset[str] | None = None
    _modules: dict[str, SubjectModule | None] = field(default_factory=dict)
    _texts: dict[int, str] = field(default_factory=dict)
    _conditions: dict[int, Condition] = field(default_factory=dict)
    _functions: dict[int, FunctionFacts] = field(default_factory=dict)

    @classmethod
    def load(cls, archive: Archive, version: Version) -> Subject:
        """Return the release in `archive`; every `verl/**.py` is read and parsed.

        Raises IndexUnreachableError or CorruptFileError as the archive does.
        """
        names = [name for name in archive.names() if name.startswith(f"{ROOT}/")]
        python = [name for name in names if name.endswith(".py")]
        sources = {}
        for path, content in archive.read(python).items():
            dotted = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            if path.endswith("/__init__.py") or dotted not in sources:
                sources[dotted] = (path, content)
        folders = {name.rsplit("/", depth)[0] for name in python for depth in range(1, name.count("/") + 1)}
        namespaces = frozenset(folder.replace("/", ".") for folder in folders) - sources.keys()
        made = cls(
            version=version,
            digest=archive.digest,
            sources=sources,
            namespaces=namespaces,
            bytes_read=archive.bytes_read,
        )
        with quiet_collector():
            for dotted in sources:
                made.module(dotted)
            # A million nodes that live as long as the subject: the collector must not walk them again and again.
            gc.freeze()
        return made

    def exists(self, dotted: str) -> bool:
        """Return whether the release ships the module `dotted`."""
        return dotted in self.sources or dotted in self.namespaces

    def module(self, dotted: str) -> SubjectModule | None:
        """Return the module, or None when the release does not ship it."""
        try:
            return self._modules[dotted]
        except KeyError:
            made = self._modules[dotted] = self._parse(dotted)
            return made

    def stores(self, name: str) -> bool:
        """Return whether code of the release stores an attribute of that name: it may be patching a target."""
        if self._stored is None:
            self._stored = frozenset().union(*(stored_attributes(text) for _, text in self.sources.values()))
        return name in self._stored

    def text(self, node: ast.AST) -> str:
        """Return the node's source text on one line; kept, since unparsing is slow."""
        key = id(node)
        found = self._texts.get(key)
        if found is None:
            found = self._texts[key] = " ".join(ast.unparse(node).split())
        return found

    def condition(self, node: ast.expr) -> Condition:
        """Return the facts about a test expression."""
        found = self._conditions.get(id(node))
        if found is None:
            found = self._conditions[id(node)] = Condition(node)
        return found

    def function(self, node: Function) -> FunctionFacts:
        """Return the facts about a function's syntax."""
        found = self._functions.get(id(node))
        if found is None:
            found = self._functions[id(node)] = function_facts(node)
        return found

    def _parse(self, dotted: str) -> SubjectModule | None:
        if dotted not in self.sources:
            if dotted not in self.namespaces:
                return None
            path = dotted.replace(".", "/")
            facts = ModuleFacts()
            return SubjectModule(name=dotted, path=path, is_package=True, tree=None, facts=facts, bound=frozenset())
        path, content = self.sources[dotted]
        with quiet_collector(), warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                tree = ast.parse(content, path)
            except (SyntaxError, ValueError):
                tree = None
        return SubjectModule(
            name=dotted,
            path=path,
            is_package=path.endswith("/__init__.py"),
            tree=tree,
            facts=module_facts(tree) if tree is not None else ModuleFacts(dynamic=True),
            bound=frozenset(bound_names(tree.body)) if tree is not None else frozenset(),
        )
