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
# How much a step in the tree of packages costs, and how much worse than the best a candidate may be.
_STEP = 0.12
_WORSE = 0.25


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

    def _search(self, package: Package, member: str) -> Iterator[str]:
        dotted = _owner(member)
        home, _, name = dotted.rpartition(".")
        if not home or self._is_there(package, dotted):
            return
        # A lower-case name below a package may be a module or a function: the definition is the stronger sign.
        maybe_module = name.islower() and (home in package.packages or package.kind(home) is None)
        below = home if maybe_module and home in package.packages else package.root
        found = self._defining(package, home, name, below)
        yield from (f"{module}.{name}" for module in found)
        if found:
            return
        if maybe_module:
            yield from similar_modules(package, dotted)
        else:
            yield from self._siblings(home, name)

    def _is_there(self, package: Package, dotted: str) -> bool:
        home, _, name = dotted.rpartition(".")
        return package.kind(dotted) is not None or self._names.lookup(home, name).presence is Presence.PRESENT

    def _defining(self, package: Package, home: str, name: str, below: str) -> list[str]:
        """Return the modules under `below` that define `name` at their top level, within the budget.

        Modules with the same last name as `home` come first (a folder was moved), then those with a word of it in
        their name, then those nearest to it.
        """
        pattern = re.compile(
            rb"^(?:(?:class|def|async def)\s+%b\b|%b\s*(?::[^=\n]+)?=[^=])" % ((re.escape(name.encode()),) * 2),
            re.MULTILINE,
        )
        last = home.rpartition(".")[2]
        words = _words(last)

        def order(module: str) -> tuple[bool, bool, int, str]:
            related = bool(words & _words(module.replace(".", "_")))
            return module.rpartition(".")[2] != last, not related, _distance(home, module), module

        candidates = [m for m in package.source if m.startswith(f"{below}.") or m == below]
        ordered = sorted(candidates, key=order)
        read = 0
        for at in range(0, len(ordered), _BATCH):
            batch = ordered[at : at + _BATCH]
            self._texts.update(package.sources(module for module in batch if module not in self._texts))
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
    common = _words(home.replace(".", "_"))
    near: list[tuple[float, str]] = []
    for module in package.source:
        parent, _, other = module.rpartition(".")
        alike = _likeness(last, other, common)
        if alike >= _ALIKE:
            near.append((alike - _STEP * _distance(home, parent), module))
    near.sort(key=lambda pair: (-pair[0], pair[1]))
    return [module for score, module in near if score >= near[0][0] - _WORSE][:_SHOWN]


def _likeness(wanted: str, other: str, common: set[str]) -> float:
    """Return how alike two module names are, 0 to 1; words that the package's own name has anyway do not count."""
    if wanted == other:
        return 1.0
    ours, theirs = _words(wanted), _words(other)
    # A name that shares less than half of its words is another thing, however alike the letters.
    if len(ours & theirs) * 2 > len(ours):
        return 0.7 + 0.2 * len(ours & theirs) / len(ours | (theirs - common))
    return 0.0


def _owner(dotted: str) -> str:
    """Return the class of a class's member, else `dotted` itself: a member goes where its class goes."""
    parts = dotted.split(".")
    at = next((at for at, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    return ".".join(parts[: at + 1])


def _words(name: str) -> set[str]:
    return {word.removesuffix("s") for word in name.split("_") if word}


def _distance(home: str, module: str) -> int:
    """Return how many steps lie between two modules in the tree of packages, up and then down."""
    ours, theirs = home.split("."), module.split(".")
    shared = 0
    while shared < min(len(ours), len(theirs)) and ours[shared] == theirs[shared]:
        shared += 1
    return len(ours) + len(theirs) - 2 * shared
