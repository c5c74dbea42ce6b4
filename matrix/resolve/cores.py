"""Conflict cores: the fewest requirements that uv itself refuted; a cell that holds them is refuted too.

A core is asked as uv's own requirements, apart from any cell, and made minimal by taking requirements away one by one
while uv still says no. So it does not rest on how uv words a derivation. It carries over to a cell because requirements
of the user's own let more in than those of a dependency do (explicit pre-releases, yanked exact pins): what is
unsolvable as the former is unsolvable as the latter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from matrix.resolve.case import PIN, Demand
from matrix.resolve.derivation import mentioned, premises
from matrix.resolve.facts import Fact
from matrix.resolve.shortcuts import Versions
from matrix.resolve.solver import Answer, Refused

_LARGEST = 24
"""More candidates than this are not made minimal: each costs a run of uv."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Requirements that have no solution together, and what uv says besides them."""

    demands: tuple[Demand, ...]
    facts: tuple[Fact, ...]
    text: str


Ask = Callable[[tuple[str, ...]], Answer]


def find_core(text: str, demands: Iterable[Demand], pinned: Iterable[Demand], ask: Ask) -> Core | None:
    """Return a minimal core among the pins, and the demands whose package uv's derivation `text` mentions.

    A pin stays in the core only where the conflict needs it (something depends on the pinned package itself). None
    where uv does not refute the candidates, or they are too many to take apart.
    """
    words = mentioned(text)
    candidates: dict[str, Demand] = {}
    # The pins come first, so that they are the first to be taken away: what is left applies to more cells.
    for demand in (*pinned, *demands):
        if demand.package in words and not demand.url:
            candidates.setdefault(demand.requirement, demand)
    if not candidates or len(candidates) > _LARGEST:
        return None
    answer = ask(tuple(candidates))
    if not isinstance(answer, Refused):
        return None
    kept = list(candidates)
    for requirement in list(candidates):
        rest = [other for other in kept if other != requirement]
        if rest and isinstance(without := ask(tuple(rest)), Refused):
            kept, answer = rest, without
    facts = tuple(Fact(text=premise, source="uv") for premise in premises(answer.text))
    return Core(demands=tuple(candidates[requirement] for requirement in kept), facts=facts, text=answer.text)


class Cores:
    """The cores found so far for one platform, date and set of overrides."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._cores: list[Core] = []
        self._guard = threading.Lock()

    def add(self, core: Core) -> None:
        """Remember a core."""
        with self._guard:
            self._cores.append(core)

    def match(self, demands: Iterable[Demand], pinned: Iterable[Demand]) -> Core | None:
        """Return a core that these demands and pins imply, with the demands of this cell in it, or None."""
        with self._guard:
            cores = tuple(self._cores)
        by_package: dict[str, list[Demand]] = {}
        for demand in (*demands, *pinned):
            if not demand.url:
                by_package.setdefault(demand.package, []).append(demand)
        for core in cores:
            stated = [self._implying(wanted, by_package.get(wanted.package, [])) for wanted in core.demands]
            found = tuple(demand for demand in stated if demand is not None)
            if len(found) == len(stated):
                return Core(demands=found, facts=core.facts, text=core.text)
        return None

    def _implying(self, wanted: Demand, stated: Iterable[Demand]) -> Demand | None:
        """Return a demand that lets in nothing which `wanted` keeps out, or None."""
        usable = [demand for demand in stated if demand.extras >= wanted.extras]
        for demand in usable:
            if demand.specifier == wanted.specifier:
                return demand
        outer = self._versions.allowed(wanted.package, wanted.specifier) if usable else None
        for demand in usable:
            if _lets_in_more(demand):
                continue
            inner = self._versions.allowed(demand.package, demand.specifier)
            if outer is not None and inner is not None and inner <= outer:
                return demand
        return None


def _lets_in_more(demand: Demand) -> bool:
    """Return whether uv may see releases for the user's own words that it would not see for a dependency's.

    Those are pre-releases and, for an exact version, yanked ones; a pin is never yanked here.
    """
    if demand.holder == PIN:
        return bool(demand.specifier.prereleases)
    return demand.source == "cell"
