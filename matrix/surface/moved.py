"""Where a module or a name went: the closest module names, or the modules that define the name now."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from matrix.surface.answer import Presence
from matrix.surface.modules import Package
from matrix.surface.names import Names

_SHOWN = 4
_BATCH = 48
# Bytes of source; four batches of vLLM's modules. A name that went further is reported as not found.
_BUDGET = 3_000_000
_ALIKE = 0.6


class Moves:
    """Finds new homes, bounded in what it reads: names of modules cost nothing, sources are read nearest first."""

    def __init__(self, names: Names) -> None:
        """Share the lookup; nothing is read yet."""
        self._names = names
        self._known: dict[str, tuple[str, ...]] = {}
        self._texts: dict[str, bytes] = {}

    def moved(self, dotted: str) -> tuple[str, ...]:
        """Return where `dotted` may be found now, best first; empty when nothing comes close."""
        if dotted not in self._known:
            package = self._names.package(dotted)
            self._known[dotted] = () if package is None else tuple(self._search(package, dotted))[:_SHOWN]
        return self._known[dotted]

    def _search(self, package: Package, dotted: str) -> Iterator[str]:
        home, _, name = dotted.rpartition(".")
        looks_like_module = name.islower() and (home in package.packages or package.kind(home) is None)
        if package.kind(dotted) is not None or not home:
            return
        if looks_like_module:
            yield from similar_modules(package, dotted)
        found = self._defining(package, home, name)
        yield from (f"{module}.{name}" for module in found)
        if not found and not looks_like_module:
            yield from self._siblings(home, name)

    def _defining(self, package: Package, home: str, name: str) -> list[str]:
        """Return the modules that define `name` at their top level, nearest to `home` first, within the budget."""
        pattern = re.compile(
            rb"^(?:(?:class|def|async def)\s+%b\b|%b\s*(?::[^=\n]+)?=[^=])" % ((re.escape(name.encode()),) * 2),
            re.MULTILINE,
        )
        ordered = sorted(package.source, key=lambda module: (_distance(home, module), module))
        read = 0
        for at in range(0, len(ordered), _BATCH):
            batch = ordered[at : at + _BATCH]
            missing = [module for module in batch if module not in self._texts]
            self._texts.update(package.sources(missing))
            found = [module for module in batch if pattern.search(self._texts.get(module, b""))]
            found = [m for m in found if self._names.lookup(m, name).presence is Presence.PRESENT]
            if found:
                return found
            read += sum(len(self._texts.get(module, b"")) for module in batch)
            if read > _BUDGET:
                return []
        return []

    def _siblings(self, module: str, name: str) -> Iterator[str]:
        """Yield names of the same module that look like `name`."""
        facts = self._names.facts(module)
        known: Sequence[str] = [n for n in facts.names if not n.startswith("__")] if facts is not None else ()
        for other in difflib.get_close_matches(name, known, n=2, cutoff=0.8):
            if self._names.lookup(module, other).presence is Presence.PRESENT:
                yield f"{module}.{other}"


def similar_modules(package: Package, dotted: str) -> list[str]:
    """Return the modules most like `dotted` by the names in the archive alone: same last name, then a similar one."""
    home, _, last = dotted.rpartition(".")
    near: list[tuple[float, str]] = []
    for module in package.source:
        parent, _, other = module.rpartition(".")
        alike = _likeness(last, other)
        if alike >= _ALIKE:
            near.append((alike - 0.12 * _distance(home, parent), module))
    near.sort(key=lambda pair: (-pair[0], pair[1]))
    return [module for score, module in near if score >= _ALIKE - 0.3][:_SHOWN]


def _likeness(wanted: str, other: str) -> float:
    if wanted == other:
        return 1.0
    ours, theirs = _words(wanted), _words(other)
    if ours & theirs:
        return 0.7 + 0.2 * len(ours & theirs) / len(ours | theirs)
    return difflib.SequenceMatcher(None, wanted, other).ratio()


def _words(name: str) -> set[str]:
    return {word.removesuffix("s") for word in name.split("_") if word}


def _distance(home: str, module: str) -> int:
    """Return how many steps lie between two modules in the tree of packages, up and then down."""
    ours, theirs = home.split("."), module.split(".")
    shared = 0
    while shared < min(len(ours), len(theirs)) and ours[shared] == theirs[shared]:
        shared += 1
    return len(ours) + len(theirs) - 2 * shared
