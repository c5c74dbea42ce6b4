"""Refutations that need no resolver: the direct requirements of the pins already contradict each other.

Sound by construction, so they cannot disagree with uv: a set of versions is only ever taken too large (every version on
the index, pre-releases, yanked ones and those for other platforms included), and a cell is refuted only when even that
set is empty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.resolve.case import Demand
from matrix.resolve.facts import Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class Refutation:
    """Why a set of demands has no solution; `lasting` when no new release on the index can change that."""

    facts: tuple[Fact, ...]
    lasting: bool = False


class Versions:
    """Which versions on the index a specifier lets in, remembered; `read` returns every version of a package.

    `read` returns None for a package that the index does not have: then nothing is said about it.
    """

    def __init__(self, read: Callable[[str], Sequence[Version] | None]) -> None:
        self._read = read
        self._all: dict[str, frozenset[Version] | None] = {}
        self._allowed: dict[tuple[str, str], frozenset[Version]] = {}
        self._guard = threading.Lock()

    def every(self, package: str) -> frozenset[Version] | None:
        """Return every version of the package, or None where the index has no such package."""
        with self._guard:
            if package in self._all:
                return self._all[package]
        read = self._read(package)
        with self._guard:
            self._all[package] = None if read is None else frozenset(read)
            return self._all[package]

    def allowed(self, package: str, specifier: SpecifierSet) -> frozenset[Version] | None:
        """Return the versions that the specifier lets in, pre-releases included."""
        every = self.every(package)
        if every is None:
            return None
        key = (package, str(specifier))
        with self._guard:
            if key not in self._allowed:
                self._allowed[key] = frozenset(specifier.filter(every, prereleases=True))
            return self._allowed[key]


def refute(demands: Iterable[Demand], pins: Mapping[str, Version], versions: Versions) -> Refutation | None:
    """Return why no set of versions can meet these demands beside these pins, or None where that is not plain."""
    by_package: dict[str, dict[str, Demand]] = {}
    for demand in demands:
        if demand.specifier and not demand.url:
            by_package.setdefault(demand.package, {}).setdefault(str(demand.specifier), demand)
    for package, stated in by_package.items():
        if package in pins:
            excluding = next((d for d in stated.values() if not d.specifier.contains(pins[package], True)), None)
            if excluding is not None:
                pinned = Fact(text=f"the cell pins {package} {pins[package]}", source="cell")
                return Refutation(facts=(excluding.fact, pinned), lasting=True)
    for package, stated in by_package.items():
        if package not in pins and len(stated) > 1 and (found := _disjoint(package, list(stated.values()), versions)):
            return found
    return None


def _disjoint(package: str, stated: Sequence[Demand], versions: Versions) -> Refutation | None:
    """Return the fewest of these demands on one package that no version of it meets together, or None."""
    sets = [versions.allowed(package, demand.specifier) for demand in stated]
    known = [allowed for allowed in sets if allowed is not None]
    if len(known) < len(sets) or frozenset.intersection(*known):
        return None
    for size in range(1, len(known) + 1):
        for chosen in combinations(range(len(known)), size):
            if not frozenset.intersection(*(known[at] for at in chosen)):
                facts = [stated[at].fact for at in chosen]
                what = "meets both" if size == 2 else "meets that" if size == 1 else "meets them all"
                none = Fact(text=f"no release of {package} {what}", source=f"index: {package}")
                return Refutation(facts=(*facts, none))
    return None
