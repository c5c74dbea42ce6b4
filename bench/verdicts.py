"""Verdicts of a series: what each pairing shows in each metric, judged as one family, with its numbers of training.

The family of a series are the main metrics of its pairings (throughput of `ppo`, of each update, of generation): these
are what was asked, and Holm's adjustment is over them. The other metrics of a pairing say where a difference comes
from; they are judged alone and are told as such.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.comparison import About, Caution, Comparison, Verdict, compare, judge_together
from bench.gathered import Gathered
from bench.numerics import Kept, Number, numbers, safe
from bench.recipes import Kind
from bench.sample import Side

if TYPE_CHECKING:
    from pandas import DataFrame

MARGIN = 0.02
"""Between 1/1.02 and 1.02 nobody changes a setting."""
FAMILY: Mapping[Kind, tuple[str, ...]] = {
    Kind.PPO: ("throughput",),
    Kind.UPDATE: ("throughput/update_actor", "throughput/update_critic"),
    Kind.ROLLOUT: ("throughput/gen",),
}
"""The metrics that a series is asked about, by bench; the family that is judged together."""
COLUMNS = (
    "series", "pairing", "recipe", "metric", "unit", "A", "B", "ratio", "low", "high", "n", "verdict",
    "numerics", "note",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One metric of a pairing, judged; `main` where it is of the family."""

    gathered: Gathered
    comparison: Comparison
    main: bool

    @property
    def name(self) -> str:
        """Return the metric's name."""
        return self.comparison.metric.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """A pairing of a series, judged in all its metrics, the main ones first; `numbers` are those of training."""

    series: str
    pairing: str
    recipe: str
    kind: Kind
    device: str
    judgements: tuple[Judgement, ...]
    numbers: tuple[Number, ...]
    within: bool | None = None

    @property
    def safe(self) -> bool | None:
        """Return whether the numbers of training were held; None where that is not shown.

        Where one launch gave both sides the same weights and data, what they made of these decides first.
        """
        found = safe(self.numbers)
        if found is False or self.within is False:
            return False
        return True if self.within else found

    @property
    def main(self) -> tuple[Judgement, ...]:
        """Return the judgements of the family."""
        return tuple(judgement for judgement in self.judgements if judgement.main)

    def of(self, metric: str) -> Judgement | None:
        """Return the judgement of a metric; None where it was not measured."""
        return next((judgement for judgement in self.judgements if judgement.name == metric), None)

    @property
    def gpu_seconds(self) -> float:
        """Return what its launches cost, in seconds of a GPU; each launch once, whatever was measured in it."""
        return max((judgement.gathered.gpu_seconds for judgement in self.judgements), default=0.0)


SEARCH, CONFIRM = "tune-", "-confirm"
"""How the series of a search for settings begin, and how that of its confirmation ends."""


def reported(gathered: Iterable[Gathered]) -> tuple[Gathered, ...]:
    """Return what a report shows: all but the trials of a search, which are steps of it and answer nothing alone."""
    return tuple(
        item for item in gathered if not item.series.startswith(SEARCH) or item.series.endswith(CONFIRM)
    )  # fmt: skip


def judge(gathered: Iterable[Gathered], *, margin: float = MARGIN) -> tuple[Paired, ...]:
    """Return the pairings of all series, judged, in the order given; CPU and GPU are never one family."""
    groups: dict[tuple[str, str], list[Gathered]] = {}
    for item in gathered:
        groups.setdefault((item.series, item.device), []).append(item)
    return tuple(itertools.chain.from_iterable(_judged(group, margin) for group in groups.values()))


def _judged(group: Sequence[Gathered], margin: float) -> list[Paired]:
    """Return the pairings of one series on one kind of device."""
    main = [item for item in group if item.metric.name in FAMILY[item.kind]]
    together = judge_together([_compared(item, margin) for item in main])
    known = {(item.recipe, item.pairing, item.metric.name): found for item, found in zip(main, together, strict=True)}
    pairings: dict[tuple[str, str], list[Gathered]] = {}
    for item in group:
        pairings.setdefault((item.recipe, item.pairing), []).append(item)
    return [
        Paired(
            series=items[0].series,
            pairing=items[0].pairing,
            recipe=items[0].recipe,
            kind=items[0].kind,
            device=items[0].device,
            judgements=tuple(
                sorted(
                    (
                        Judgement(
                            gathered=item,
                            comparison=known.get((*name, item.metric.name)) or _compared(item, margin),
                            main=(*name, item.metric.name) in known,
                        )
                        for item in items
                    ),
                    key=lambda judgement: not judgement.main,
                )
            ),
            numbers=numbers(items[0].numerics),
            within=items[0].within,
        )
        for name, items in pairings.items()
    ]


def _compared(item: Gathered, margin: float) -> Comparison:
    """Return the comparison of one sample; where it is of one launch, with that said."""
    found = compare(item.sample, margin=margin, reasons=item.reasons)
    more = [Caution(about=About.NOTE, text=note) for note in item.notes]
    if item.replicate == "repeat" and found.ratio is not None:
        text = "the repeats are of one launch: how launches differ from each other is not in the interval"
        more.append(Caution(about=About.ONE_LAUNCH, text=text))
    return replace(found, cautions=(*found.cautions, *more)) if more else found


def table(paired: Sequence[Paired], *, whole: bool = False) -> DataFrame:
    """Return the judgements as a table, a row a pairing and metric; `whole` with what only explains.

    Raises:
        ValueError: pairings of CPU and GPU are asked for at once: their numbers never stand side by side.
    """
    import pandas

    if len({item.device for item in paired}) > 1:
        raise ValueError("numbers of a CPU and of a GPU do not stand in one table")
    rows = [row(item, judgement) for item in paired for judgement in item.judgements if whole or judgement.main]
    return pandas.DataFrame(rows, columns=list(COLUMNS))


def row(paired: Paired, judgement: Judgement) -> dict[str, Any]:
    """Return one judgement as a row of `table`."""
    found = judgement.comparison
    low, high = found.interval or (None, None)
    return {
        "series": paired.series,
        "pairing": paired.pairing,
        "recipe": paired.recipe,
        "metric": judgement.name,
        "unit": found.metric.unit,
        "A": found.a.median if found.a else None,
        "B": found.b.median if found.b else None,
        "ratio": found.ratio,
        "low": low,
        "high": high,
        "n": f"{found.n[0]}+{found.n[1]}",
        "verdict": found.verdict.value,
        "numerics": SAFE[paired.safe],
        "note": note(found),
    }


SAFE: Mapping[bool | None, str] = {True: "held", False: "moved", None: "not shown"}
"""How the numbers of training came out, in a word."""


def note(found: Comparison) -> str:
    """Return what is to be known of a comparison before it is believed, in one line."""
    return "; ".join([*found.reasons, *(f"{caution.about}: {caution.text}" for caution in found.cautions)])


def advice(paired: Paired) -> str:
    """Return what follows from a pairing for somebody who decides: one of take it, leave it, measure more.

    Faster with numbers that moved is not taken, and one whose numbers were not shown to hold is told as that.
    """
    words = {judgement.comparison.verdict for judgement in paired.main}
    if not words or words == {Verdict.INCOMPARABLE}:
        return "nothing follows: the sides are not comparable"
    if paired.safe is False:
        moved = ", ".join(number.name for number in paired.numbers if number.kept is Kept.MOVED) or "what it computes"
        return f"leave it: {moved} moved"
    if Verdict.SLOWER in words:
        return "leave it: slower" if Verdict.FASTER not in words else "it gains in one part and loses in another"
    if Verdict.FASTER in words:
        return "take it" if paired.safe else "faster; that its numerics hold is not shown"
    if words == {Verdict.EQUIVALENT}:
        return "it makes no difference that matters"
    return "nothing is shown: more launches would be needed"


def values(judgement: Judgement) -> dict[Side, tuple[float, ...]]:
    """Return the figures that count of each side, in the order in which they ran."""
    return {side: judgement.gathered.sample.values(side) for side in Side}
