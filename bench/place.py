"""The place of a launch in a series: which pairing, which side, which number in the order, and what runs there."""

from __future__ import annotations

from dataclasses import dataclass

from bench.launched import probe_of
from bench.recipes import Kind
from bench.sample import Side
from bench.variant import Pairing, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One launch to be had.

    Attributes:
        series: the name under which launches are compared.
        pairing: what is compared.
        side: which side runs, None where one launch holds both.
        number: its number among the pairing's launches.
        planned: how many whole pairs are wanted of the pairing.
        warms: whether it only warms caches, with as few steps as there can be, and counts nowhere.
        repeats: of a launch of both sides how many repeats a side; 0 as the recipe has them.
    """

    series: str
    pairing: Pairing
    side: Side | None
    number: int
    planned: int
    warms: bool = False
    repeats: int = 0

    @property
    def kind(self) -> Kind:
        """Return the bench."""
        return self.pairing.recipe.kind

    @property
    def probe(self) -> str:
        """Return the name under which the launch is kept."""
        return probe_of(self.pairing.recipe.name, self.pairing.name, self.side, self.number, warms=self.warms)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Return what runs: one side, or both."""
        return (self.pairing.a, self.pairing.b) if self.side is None else (self.pairing.of(self.side),)

    @property
    def words(self) -> str:
        """Return it in words, for people."""
        what = "warm-up" if self.warms else "both sides" if self.side is None else self.pairing.of(self.side).name
        return f"{self.pairing.recipe.name} {self.pairing.name} {self.number}: {what}"
