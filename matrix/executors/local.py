"""The executor `local`: cells are visited on this machine, one a GPU where there are several, else one by one."""

from __future__ import annotations

from dataclasses import dataclass

from matrix.cell import Cell
from matrix.job import Probed, Tell, Visitor
from matrix.observe import Observation
from matrix.tier import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Passes cells on to a visitor of this machine. It needs nothing but this tool.

    Attributes:
        visitor: installs and probes a cell; `matrix.probing.visit` has the real ones.
        tiers: what is tried; without the tier `gpu` cells would only be in each other's way.
    """

    visitor: Visitor
    tiers: frozenset[Tier]

    @property
    def width(self) -> int:
        """Return how many cells may be visited at once: one a GPU, 1 where none is used."""
        return self.visitor.width if Tier.GPU in self.tiers else 1

    def visit(self, cell: Cell, resolved: Observation | None, tell: Tell) -> Probed:
        """Return what the probes say, each stored; raises MatrixError where they cannot be run."""
        return self.visitor.visit(cell, resolved, tell)

    def stop(self) -> None:
        """End what is being visited in other threads."""
        self.visitor.stop()

    def close(self) -> None:
        """Do nothing: nothing is held between two visits."""
