"""Checks by counting: what a trained model needs at least against what cards hold, and sums that a guide does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matrix.claims.checks import Look, Reader

if TYPE_CHECKING:
    from matrix.claims.library import Library
    from matrix.datafile import Table

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """Whether parameters at so many bytes each fit on cards (`fits`), all of them sharing it evenly.

    A lower bound: activations, buffers and the inference engine are left out, so that it does not fit is final.
    """

    parameters: int
    bytes_each: int
    copies: int
    cards: int
    gib_each: int
    why: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"{self.copies} x {self.parameters / 1e9:.2f} billion parameters on {self.cards} x {self.gib_each} GiB"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield one look."""
        need = self.parameters * self.bytes_each * self.copies / GIB
        have = self.cards * self.gib_each
        told = f"{need:.0f} GiB at least ({self.bytes_each} bytes a parameter: {self.why}) against {have} GiB"
        yield Look(subject="arithmetic", supports=need <= have, text=told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Whether one number over another is a third, rounded as that is written (`ratio`)."""

    over: str
    under: str
    gives: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"{self.over} / {self.under} = {self.gives}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield one look."""
        found = float(self.over) / float(self.under)
        digits = len(self.gives.partition(".")[2])
        told = f"{self.over} / {self.under} = {found:.{digits}f}"
        yield Look(subject="arithmetic", supports=f"{found:.{digits}f}" == self.gives, text=told)


def _fits(table: Table) -> Fits:
    return Fits(
        parameters=table.integer("parameters"),
        bytes_each=table.integer("bytes_each"),
        copies=table.integer("copies", 1),
        cards=table.integer("cards"),
        gib_each=table.integer("gib_each"),
        why=table.text("why"),
    )


def _ratio(table: Table) -> Ratio:
    found = Ratio(over=table.text("over"), under=table.text("under"), gives=table.text("gives"))
    for name in ("over", "under", "gives"):
        try:
            float(getattr(found, name))
        except ValueError:
            raise table.error(name, "is no number") from None
    return found


READERS: Mapping[str, Reader] = {"fits": _fits, "ratio": _ratio}
