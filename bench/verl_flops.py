"""verl's own FLOPs and MFU, by release: what `perf/mfu/actor` and `perf/mfu/critic` of a log mean (`verl_flops.toml`).

Kept to be compared with, never to compare releases by: the formula changed in 0.7.1, the seconds it is divided by in
0.8.0, the peak of several GPUs in between, and for a GPU that it does not know verl logs 0. `python -m bench.counter`
runs the code of unpacked releases and records what this module must give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from bench.flops import Lengths
from matrix.datafile import Table, read
from matrix.errors import UnknownReleaseError
from matrix.memory.shape import Shape

FORMULAS = Path(__file__).with_name("verl_flops.toml")


class Span(StrEnum):
    """What the seconds are of that verl divides by."""

    UPDATE = "update"
    MINI_BATCH = "mini-batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """How a range of releases computes MFU.

    Attributes:
        releases: the range.
        attention: the factor of the sum of squares: 12 counts the whole square, 6 the causal half.
        span: the seconds divided by: of the whole update (with FLOPs times `ppo_epochs`), or of each mini-batch, whose
            figures are averaged, so that what happens between them is in none.
        families: `model_type`s that it knows of the dense decoders here; another one has MFU 0.
        peaks: in the order in which they are looked for: the first whose name is a part of the GPU's; FLOP/s.
    """

    releases: SpecifierSet
    attention: int
    span: Span
    families: frozenset[str]
    peaks: tuple[tuple[str, float], ...]
    source: str

    def flops(self, shape: Shape, lengths: Lengths) -> float:
        """Return the FLOPs of one forward and backward pass over all sequences, the embedding counted as a product too.

        The output layer is counted as wide as the vocabulary for a critic too, which has one row. 0 for a family that
        the release does not know.
        """
        if shape.family.value not in self.families:
            return 0.0
        layer = shape.hidden_size * (3 * shape.intermediate_size + 2 * shape.query_width + 2 * shape.key_width)
        weights = shape.num_hidden_layers * layer + 2 * shape.vocab_size * shape.hidden_size
        squares = shape.query_width * shape.num_hidden_layers * lengths.squares
        return 6.0 * weights * lengths.tokens + self.attention * squares

    def peak(self, gpu: str) -> float:
        """Return the FLOP/s that a release takes for the peak of a GPU, infinite for one that it does not know."""
        return next((flops for name, flops in self.peaks if name in gpu), math.inf)

    def mfu(
        self, shape: Shape, lengths: Lengths, *, seconds: float, gpus: int, gpu: str, epochs: int = 1, batches: int = 1
    ) -> float:
        """Return what verl logs as MFU of an update that took so long, on so many GPUs of that name.

        `seconds` are of the whole update, all `epochs` and mini-batches of it (`batches` an epoch). Where the release
        times mini-batches this takes them as equally long and the update as nothing but them, so it is the lowest that
        can be logged. Raises ValueError where no time passed.
        """
        if not seconds > 0 or gpus < 1 or epochs < 1 or batches < 1:
            raise ValueError("an MFU needs time, GPUs, an epoch and a batch")
        return self.flops(shape, lengths) * epochs / seconds / self.peak(gpu) / gpus


def load_formulas(path: Path = FORMULAS) -> tuple[Formula, ...]:
    """Return the formulas of the data file; raises DataError where it is wrong."""
    whole = read(path)
    tables = {row.text("name"): _peaks(row) for row in whole.tables("peaks")}
    found = tuple(_formula(row, tables) for row in whole.tables("formula"))
    whole.end()
    return found


@cache
def _known() -> tuple[Formula, ...]:
    return load_formulas()


def formula_of(release: Version, formulas: Sequence[Formula] | None = None) -> Formula:
    """Return the formula of a release of verl; raises UnknownReleaseError for one without MFU (before 0.2)."""
    for formula in _known() if formulas is None else formulas:
        if formula.releases.contains(release, prereleases=True):
            return formula
    raise UnknownReleaseError(f"A formula of MFU in verl {release}", then="verl logs MFU from 0.2 on.")


def _peaks(row: Table) -> tuple[tuple[str, float], ...]:
    """Return names and FLOP/s, written `NAME TFLOPS`."""
    found = []
    for at, text in enumerate(row.texts("peaks")):
        name, _, value = text.rpartition(" ")
        try:
            found.append((name, float(value) * 1e12))
        except ValueError:
            raise row.error(f"peaks[{at}]", f"`{text}` is not NAME TFLOPS") from None
    row.end()
    return tuple(found)


def _formula(row: Table, tables: dict[str, tuple[tuple[str, float], ...]]) -> Formula:
    text, span, named = row.text("releases"), row.text("span"), row.text("peaks")
    if named not in tables:
        raise row.error("peaks", f"`{named}` is no table of peaks; there are {', '.join(tables)}")
    if span not in tuple(Span):
        raise row.error("span", f"`{span}` is none of {', '.join(Span)}")
    try:
        releases = SpecifierSet(text)
    except InvalidSpecifier:
        raise row.error("releases", f"`{text}` is not a range like >=0.8,<0.9") from None
    formula = Formula(
        releases=releases,
        attention=row.integer("attention"),
        span=Span(span),
        families=frozenset(row.texts("families")),
        peaks=tables[named],
        source=row.text("source"),
    )
    row.end()
    return formula
