"""Reads ahead: the modules that a list of names leads to, level by level, each level in one go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from matrix.surface.facts import Bind, ModuleFacts, When
from matrix.surface.modules import Package
from matrix.surface.names import Names

# Chains of re-exports and base classes are short; what lies deeper is read when it is asked for.
_DEEPEST = 8


def prefetch(names: Names, wanted: Iterable[str]) -> None:
    """Load the facts that looking up these dotted names will need, as far as statements show where they lead."""
    frontier = {pair for dotted in wanted if (pair := _split(names, dotted)) is not None}
    seen: set[tuple[str, str]] = set()
    for _ in range(_DEEPEST):
        frontier -= seen
        if not frontier:
            return
        seen |= frontier
        by_package: dict[str, list[str]] = {}
        for module, _name in frontier:
            by_package.setdefault(module.partition(".")[0], []).append(module)
        for root, modules in by_package.items():
            names.packages[root].load(modules)
        following = (target for module, name in frontier for target in _leads(names, module, name))
        frontier = {pair for dotted in following if (pair := _split(names, dotted)) is not None}


def _split(names: Names, dotted: str) -> tuple[str, str] | None:
    """Return a dotted name as the longest module that exists and the rest; None outside the world."""
    package = names.package(dotted)
    if package is None:
        return None
    module = longest_module(package, dotted)
    return (module, dotted[len(module) + 1 :]) if module else None


def longest_module(package: Package, dotted: str) -> str:
    """Return the longest prefix of a dotted name that is a module, "" when not even the root is one."""
    while dotted and package.kind(dotted) is None:
        dotted = dotted.rpartition(".")[0]
    return dotted


def _leads(names: Names, module: str, name: str) -> Iterator[str]:
    """Yield the dotted names that looking `name` up in `module` will ask for next."""
    facts = names.facts(module)
    first = name.partition(".")[0]
    if facts is None or not first:
        return
    rest = name[len(first) :]
    bound = False
    for found in facts.bindings(first):
        if found.when is When.TYPING and facts.lazy is None:
            continue
        bound = True
        if found.kind is Bind.FROM:
            yield f"{found.source}.{found.name}{rest}"
        elif found.kind in (Bind.ALIAS, Bind.CALL):
            yield f"{module}.{found.source}"
        elif found.kind is Bind.CLASS:
            yield from (f"{module}.{base}" for c in facts.classes(first) for base in c.bases if base != "?")
    if not bound:
        yield from _served(module, facts, first, rest)


def _served(module: str, facts: ModuleFacts, first: str, rest: str) -> Iterator[str]:
    for target, when in facts.stars:
        if when is not When.TYPING:
            yield f"{target}.{first}{rest}"
    lazy = facts.lazy
    for table_name in (*(lazy.tables if lazy else ()), *(facts.fallback.tables if facts.fallback else ())):
        table = facts.table(table_name)
        for key, value in table.entries.items() if table is not None else ():
            if isinstance(value, list) and first in value:
                yield f"{module}.{key}.{first}"
            elif key == first and isinstance(value, str) and value.startswith("."):
                target, _, name = value.lstrip(".").partition(":")
                yield f"{module}.{target}.{name or first}"
