"""Checks by the surface tier: whether a release of verl takes a release of vLLM, its own gate for versions included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from matrix.cell import Axis, Cell, Pin
from matrix.claims.checks import Look, Reader
from matrix.tier import Outcome

if TYPE_CHECKING:
    from matrix.claims.library import Library
    from matrix.datafile import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """Whether the code of verl fits a release of vLLM as far as an ordinary run goes (`takes`).

    The same look as `verl-matrix surface`; nothing is installed, so that it fits is not yet that it works.
    """

    releases: str
    vllm: Version

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"the code of verl ({self.releases}) takes vLLM {self.vllm}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release."""
        for version in library.within(Axis.VERL.value, self.releases):
            outcome, reason = library.surface(version, self.vllm)
            yield Look(
                subject=f"verl {version} with vllm {self.vllm}",
                supports=outcome is not Outcome.BROKEN,
                text=reason or "nothing that breaks was found",
                release=str(version),
            )


def cell_of(verl: Version, vllm: Version) -> Cell:
    """Return the cell of these two releases."""
    return Cell(pins=(Pin(axis=Axis.VERL, version=verl), Pin(axis=Axis.VLLM, version=vllm)))


def _takes(table: Table) -> Takes:
    return Takes(releases=table.text("releases"), vllm=table.version("vllm"))


READERS: Mapping[str, Reader] = {"takes": _takes}
