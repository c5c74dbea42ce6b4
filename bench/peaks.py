"""Denominators of an MFU: a GPU's peak by its maker (`peaks.toml`), and the ceiling that was measured on a card."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from matrix.datafile import Table, read

PEAKS = Path(__file__).with_name("peaks.toml")
TERA = 1e12


class Numbers(StrEnum):
    """A type of numbers that products are computed in, accumulated in 32 bits."""

    BF16 = "bf16"
    TF32 = "tf32"
    FP32 = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What a GPU can do at most by its maker, dense, in FLOP/s, with where that stands."""

    pattern: re.Pattern[str]
    flops: dict[Numbers, float]
    source: str
    checked: datetime

    def is_of(self, gpu: str) -> bool:
        """Return whether the driver's name of a GPU is one that this peak is of."""
        return self.pattern.fullmatch(gpu) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What a matrix product reached on a card, in FLOP/s; `how` names its sizes, its library and the clocks."""

    flops: float
    numbers: Numbers
    how: str

    def __post_init__(self) -> None:
        """Refuse a ceiling that nothing can be a share of."""
        if not self.flops > 0:
            raise ValueError(f"a ceiling of {self.flops} FLOP/s is none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mfu:
    """Model FLOPs utilisation, as a share: of the maker's peak and of the measured ceiling; None without such a one.

    `why_not` says why there is no share of the peak, "" where there is one.
    """

    peak: float | None
    ceiling: float | None
    source: str = ""
    why_not: str = ""


def load_peaks(path: Path = PEAKS) -> tuple[Peak, ...]:
    """Return the peaks of the data file; raises DataError where it is wrong."""
    whole = read(path)
    found = tuple(_peak(row) for row in whole.tables("peak"))
    whole.end()
    return found


def peak_of(gpu: str, peaks: Sequence[Peak] | None = None) -> Peak | None:
    """Return the peak of a GPU by the driver's whole name of it, None for one that is not in the data.

    A part of a name never matches: verl 0.2 and 0.3 found "H20" in "NVIDIA H200" and took a seventh for its peak.
    """
    known = load_peaks() if peaks is None else peaks
    return next((peak for peak in known if peak.is_of(gpu)), None)


def utilisation(
    flops: float,
    seconds: float,
    gpus: int,
    *,
    peak: Peak | None,
    ceiling: Ceiling | None = None,
    numbers: Numbers = Numbers.BF16,
) -> Mfu:
    """Return the share of what `gpus` such cards could have done in that time; `flops` are of all of them together.

    A GPU without a known peak has no MFU, which is not 0. Raises ValueError where no time passed or no GPU was there.
    """
    if not seconds > 0 or gpus < 1:
        raise ValueError(f"{gpus} GPUs for {seconds} s have no utilisation")
    each = flops / seconds / gpus
    best = peak.flops.get(numbers) if peak is not None else None
    if peak is None:
        why_not = "the peak of this GPU is not known"
    else:
        why_not = "" if best is not None else f"the peak of this GPU in {numbers} is not known"
    return Mfu(
        peak=None if best is None else each / best,
        ceiling=each / ceiling.flops if ceiling is not None and ceiling.numbers is numbers else None,
        source=peak.source if peak is not None and best is not None else "",
        why_not=why_not,
    )


def _peak(row: Table) -> Peak:
    flops = {}
    for numbers in Numbers:
        if row.has(numbers.value):
            value = row.values[numbers.value]
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise row.error(numbers.value, "must be a number above 0")
            flops[numbers] = float(value) * TERA
    if not flops:
        raise row.error("", "has no peak in any type of numbers")
    try:
        pattern = re.compile(row.text("name"))
    except re.error as error:
        raise row.error("name", f"is no pattern: {error}") from error
    peak = Peak(pattern=pattern, flops=flops, source=row.text("source"), checked=row.moment("checked"))
    row.end()
    return peak
