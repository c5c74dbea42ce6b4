"""The sample: one figure a launch of two variants, in the order in which they ran, and which launches belong together.

A launch is the replicate: steps of one launch share its process, its compiled kernels, its memory layout and its place
on the card, and are no independent witnesses (Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

FEWEST = 40
"""With so many ways to exchange labels a two-sided p can just be 0.05."""


class Better(StrEnum):
    """Which way a metric is good."""

    HIGHER = "higher"
    LOWER = "lower"


class Side(StrEnum):
    """Which of the two variants ran: A is what is compared against, B what is compared."""

    A = "A"
    B = "B"

    @property
    def other(self) -> Side:
        """Return the other side."""
        return Side.B if self is Side.A else Side.A


class Design(StrEnum):
    """How the launches of the two sides lay in time: in turns, or one side after the other."""

    INTERLEAVED = "interleaved"
    SEPARATE = "separate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What was measured: its name, its unit, and which way is good."""

    name: str
    unit: str
    better: Better


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """The rule by which steps at the start of a launch are left out; stated before anything runs, never tuned to data.

    Left out are the first `steps`, and every further one that began before the launch's steps had lasted `seconds`. A
    launch that then has fewer than `least` steps has no figure.
    """

    steps: int = 1
    seconds: float = 0.0
    least: int = 1

    def __post_init__(self) -> None:
        """Refuse a rule that cannot be meant."""
        if self.steps < 0 or not 0 <= self.seconds < math.inf or self.least < 1:
            raise ValueError("a warm-up rule leaves out no fewer than 0 steps and 0 seconds, and asks for one step")

    def apply(self, values: Sequence[float], seconds: Sequence[float] | None = None) -> Steps:
        """Return the steps of one launch, told apart by the rule.

        Args:
            values: the metric of each step, in order.
            seconds: how long each step took; needed where the rule names seconds.
        """
        if seconds is None and self.seconds:
            raise ValueError("a warm-up rule in seconds needs the seconds of each step")
        if seconds is not None and len(seconds) != len(values):
            raise ValueError(f"{len(values)} steps and {len(seconds)} durations")
        count = min(self.steps, len(values))
        if seconds is not None:
            passed = math.fsum(seconds[:count])
            while count < len(values) and passed < self.seconds:
                passed += seconds[count]
                count += 1
        return Steps(raw=tuple(values), dropped=count, least=self.least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of one launch: all of them as measured, and how many at the start are warm-up."""

    raw: tuple[float, ...]
    dropped: int
    least: int = 1

    @property
    def kept(self) -> tuple[float, ...]:
        """Return the steps after the warm-up."""
        return self.raw[self.dropped :]

    @property
    def fault(self) -> str:
        """Return why these steps give no figure; empty where they do."""
        if len(self.kept) < self.least:
            return f"{len(self.kept)} of {len(self.raw)} steps are left after warm-up; {self.least} are needed"
        odd = [at for at, value in enumerate(self.raw) if at >= self.dropped and not math.isfinite(value)]
        return f"step {odd[0]} is {self.raw[odd[0]]}" if odd else ""

    @property
    def figure(self) -> float | None:
        """Return the median of the kept steps, the figure of the launch; None where `fault` says why.

        The median, so that one step with a checkpoint or a garbage collection does not decide. It does not tell what a
        whole run takes: rare slow steps count there and not here.
        """
        return None if self.fault else statistics.median(self.kept)

    @property
    def trend(self) -> float | None:
        """Return the later half's median over the earlier half's, of the kept steps; None where these are under four.

        Far from 1 says that the warm-up rule left out too little, or that something drifts within a launch. It does not
        tell which.
        """
        if self.fault or len(self.kept) < 4 or min(self.kept) <= 0:
            return None
        half = len(self.kept) // 2
        return statistics.median(self.kept[-half:]) / statistics.median(self.kept[:half])


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch at its place in the order: its figure, or why it has none.

    Places 0 and 1 are a pair, 2 and 3 the next; places 0 to 3 are a block, and so on. A place is a moment in time: a
    launch that is repeated later takes a new place, together with the one it is paired with.
    """

    place: int
    side: Side
    value: float | None = None
    fault: str = ""

    def __post_init__(self) -> None:
        """Refuse a launch with neither figure nor reason, or with a figure that no ratio can be made of."""
        if self.place < 0:
            raise ValueError(f"a place is 0 or more, not {self.place}")
        if (self.value is None) != bool(self.fault):
            raise ValueError(f"launch {self.place} has a figure or a reason why it has none")
        if self.value is not None and not 0 < self.value < math.inf:
            raise ValueError(f"launch {self.place}: a figure is positive and finite, not {self.value}")

    @classmethod
    def of(cls, place: int, side: Side, value: float, *, fault: str = "") -> Launch:
        """Return the launch with that figure, or, where the figure is no positive number, without it and saying so."""
        if not fault and not 0 < value < math.inf:
            fault = f"the figure is {value}"
        return cls(place=place, side=side, value=None if fault else value, fault=fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A pair that is left out: the places of both launches, and why."""

    places: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Launches that lay close in time and may be exchanged with each other, and with no others: natural logarithms."""

    a: tuple[float, ...]
    b: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The launches of two variants: everything that was tried, in order, failed ones too."""

    metric: Metric
    launches: tuple[Launch, ...]
    design: Design = Design.INTERLEAVED

    def __post_init__(self) -> None:
        """Put the launches in order; refuse two at one place, and a pair that ran one side twice."""
        ordered = tuple(sorted(self.launches, key=lambda launch: launch.place))
        object.__setattr__(self, "launches", ordered)
        if len({launch.place for launch in ordered}) != len(ordered):
            raise ValueError("two launches have the same place in the order")
        if self.design is Design.INTERLEAVED:
            for pair in _groups(ordered, 2):
                if len(pair) == 2 and pair[0].side is pair[1].side:
                    raise ValueError(f"places {pair[0].place} and {pair[1].place} ran {pair[0].side} twice: no pair")

    @classmethod
    def separate(cls, metric: Metric, a: Sequence[float], b: Sequence[float]) -> Sample:
        """Return the sample of two runs that lay apart in time, e.g. a saved one and one of today."""
        sides = [(Side.A, value) for value in a] + [(Side.B, value) for value in b]
        launches = tuple(Launch.of(place, side, value) for place, (side, value) in enumerate(sides))
        return cls(metric=metric, launches=launches, design=Design.SEPARATE)

    @property
    def used(self) -> tuple[Launch, ...]:
        """Return the launches that count: of whole pairs, or, where the sides lay apart, all that have a figure."""
        out = {place for drop in self.drops for place in drop.places}
        return tuple(launch for launch in self.launches if launch.place not in out)

    @property
    def drops(self) -> tuple[Drop, ...]:
        """Return what is left out and why: with a launch that failed or is missing goes the other of its pair."""
        if self.design is Design.SEPARATE:
            lone = [launch for launch in self.launches if launch.fault]
            return tuple(Drop(places=(launch.place,), reason=f"{launch.side}: {launch.fault}") for launch in lone)
        drops = []
        for pair in _groups(self.launches, 2):
            faults = [f"{launch.side}: {launch.fault}" for launch in pair if launch.fault]
            if len(pair) == 1:
                faults.append(f"{pair[0].side.other}: did not run")
            if faults:
                drops.append(Drop(places=tuple(launch.place for launch in pair), reason="; ".join(faults)))
        return tuple(drops)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Return what counts, by block: four launches A B B A or B A A B, two where a pair is left out or odd.

        Why blocks of four and not pairs: five pairs can be exchanged in 32 ways only, which never shows anything at
        5 %; two blocks and a pair in 72. And in A B B A a steady drift adds the same to both sides. Where even blocks
        have fewer than FEWEST ways (four pairs or less), all launches are one block: that takes a drift for noise,
        which errs on the side of showing nothing. The choice looks at which launches failed, never at a figure.
        """
        groups = _groups(self.used, 4) if self.design is Design.INTERLEAVED else []
        if math.prod(math.comb(len(group), len(group) // 2) for group in groups) < FEWEST:
            groups = [list(self.used)]
        both = [group for group in groups if len({launch.side for launch in group}) == 2]
        return tuple(Block(a=_logs(group, Side.A), b=_logs(group, Side.B)) for group in both)

    def values(self, side: Side) -> tuple[float, ...]:
        """Return the figures of one side that count, in the order in which they ran."""
        return tuple(launch.value for launch in self.used if launch.side is side and launch.value is not None)


def order(pairs: int) -> tuple[Side, ...]:
    """Return the order in which to run so many launches a side: A B B A B A A B, and again.

    Any drift that is straight over four launches, or bent like a parabola over eight, adds the same to both sides: the
    Thue-Morse sequence, whose halves have equal sums of powers (Prouhet, 1851). It does not protect from a disturbance
    that comes in the same rhythm.
    """
    if pairs < 1:
        raise ValueError("at least one launch a side")
    bits = (at.bit_count() % 2 for at in (place % 8 for place in range(2 * pairs)))
    return tuple(Side.B if bit else Side.A for bit in bits)


def _groups(launches: Sequence[Launch], size: int) -> list[list[Launch]]:
    """Return the launches whose places lie in the same stretch of `size`."""
    found: dict[int, list[Launch]] = {}
    for launch in launches:
        found.setdefault(launch.place // size, []).append(launch)
    return list(found.values())


def _logs(group: Sequence[Launch], side: Side) -> tuple[float, ...]:
    return tuple(math.log(launch.value) for launch in group if launch.side is side and launch.value is not None)
