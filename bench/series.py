"""The series: launches of pairings in A B B A order, each had once, resumed where it was stopped.

A pair of which a launch failed, or was disturbed by the machine, is dropped and had again at the end, in places of its
own; a side that fails each time is given up with its reason, and everything else goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from bench.gathered import APART_S, split
from bench.launched import Launched
from bench.place import Place
from bench.recipes import Kind
from bench.sample import Side, order
from bench.variant import Pairing
from matrix.errors import MatrixError, UsageError
from matrix.job import now

GIVE_UP = 2
"""So many launches of one side in a row without a figure, and none with one, and the pairing is given up."""


class Launching(Protocol):
    """What has launches; `bench.launcher.Launcher` is the real one."""

    @property
    def closed(self) -> str:
        """Return why nothing more is launched, "" where more is."""

    def stored(self, place: Place) -> Launched | None:
        """Return the launch of a place as it is kept, None where it has not been had."""

    def launch(self, place: Place) -> Launched:
        """Return how a launch ended, out of the store where it is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Launches that are compared under one name.

    Attributes:
        name: the name; a series that is run again under its name goes on where it was.
        pairings: what is compared, in the order in which it is had.
        launches: whole pairs that are wanted of a pairing of `ppo`; of another bench launches, which hold both sides.
        extra: so many dropped pairs are had again at the end.
        warm: whether each pairing begins with a launch a side that only warms caches and counts nowhere.
        repeats: of a launch of both sides how many repeats a side; 0 as the recipe has them.
    """

    name: str
    pairings: tuple[Pairing, ...]
    launches: int = 5
    extra: int = 2
    warm: bool = False
    repeats: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be a series."""
        if not self.name or "/" in self.name or self.launches < 1 or self.extra < 0 or self.repeats < 0:
            raise UsageError("A series has a name without a slash and at least one launch a side.")
        named = [(pairing.recipe.name, pairing.name) for pairing in self.pairings]
        if len(set(named)) != len(named):
            twice = sorted({" ".join(pair) for pair in named if named.count(pair) > 1})
            raise UsageError(f"Two pairings of the series {self.name} have one name: {', '.join(twice)}.")

    def planned(self) -> tuple[Place, ...]:
        """Return the places to be had, in order, without those of pairs that will have to be had again."""
        return tuple(place for pairing in self.pairings for place in self.places(pairing))

    def places(self, pairing: Pairing) -> tuple[Place, ...]:
        """Return the places of one pairing; none of one that is not live."""
        if not pairing.is_live:
            return ()
        return (*self._warming(pairing), *(self._place(pairing, at) for at in range(self._count(pairing))))

    def _warming(self, pairing: Pairing) -> tuple[Place, ...]:
        if not self.warm or pairing.recipe.kind is not Kind.PPO:
            return ()
        return tuple(
            Place(series=self.name, pairing=pairing, side=side, number=at, planned=self.launches, warms=True)
            for at, side in enumerate(Side)
        )

    def _count(self, pairing: Pairing) -> int:
        return 2 * self.launches if pairing.recipe.kind is Kind.PPO else self.launches

    def _place(self, pairing: Pairing, number: int) -> Place:
        side = order(number // 2 + 1)[number] if pairing.recipe.kind is Kind.PPO else None
        return Place(
            series=self.name,
            pairing=pairing,
            side=side,
            number=number,
            planned=self.launches,
            repeats=self.repeats,
        )

    def again(self, pairing: Pairing, had: Sequence[Launched], skipped: Collection[int] = ()) -> tuple[Place, ...]:
        """Return the places of one more pair where those that were had hold too few that count, () where it is enough.

        A pair begun is ended first, but for the places that are skipped, which cost nothing and may be had again each.
        """
        count, unit = self._count(pairing), 2 if pairing.recipe.kind is Kind.PPO else 1
        numbers = {item.place for item in had if not item.warms}
        spent = max(numbers, default=-1) // unit + 1
        begun = [at for at in range(count, spent * unit) if at not in numbers and at not in skipped]
        if begun:
            return tuple(self._place(pairing, at) for at in begun)
        counting = _counting(had, unit)
        most = self.launches + self.extra + len(skipped)
        if counting >= self.launches or spent >= most or not numbers:
            return ()
        return tuple(self._place(pairing, at) for at in range(spent * unit, (spent + 1) * unit))


def _counting(had: Sequence[Launched], unit: int) -> int:
    """Return how many whole pairs count: neither failed nor disturbed, nor on two hosts."""
    out = split(had)
    good = [
        item.place // unit
        for item in had
        if not (item.warms or item.fault is not None or item.disturbed or item.place in out)
    ]
    return sum(good.count(pair) == unit for pair in set(good))


def run(
    series: Series,
    launcher: Launching,
    *,
    tell: Callable[[str], None] = lambda _: None,
    deadline: float = float("inf"),
    clock: Callable[[], float] = time.monotonic,
    today: Callable[[], datetime] = now,
) -> Generator[Launched, None, None]:
    """Yield the launches of a series as they end, those that are kept first had from the store.

    No launch begins that would, going by the longest one of its pairing so far, not be over by `deadline` (of `clock`).
    A pair of which one launch is kept from long ago is not completed, since its launches would not lie close in time:
    it is had again. A pairing whose launches cannot be had (no such cards, a side that always fails) is told and passed
    over; where the launcher is closed (a GPU was lost, memory did not come back) nothing more is begun. Kept launches
    are yielded all the same.
    """
    for pairing in series.pairings:
        if not pairing.is_live:
            assert pairing.standing is not None
            tell(f"{pairing.recipe.name} {pairing.name}: {pairing.standing.standing}, {pairing.standing.why}")
            continue
        try:
            yield from _pairing(series, pairing, launcher, tell, lambda: deadline - clock(), today)
        except MatrixError as error:
            if launcher.closed:
                raise
            tell(f"{pairing.recipe.name} {pairing.name}: not had: {error.what}")


def _pairing(
    series: Series,
    pairing: Pairing,
    launcher: Launching,
    tell: Callable[[str], None],
    left_s: Callable[[], float],
    today: Callable[[], datetime],
) -> Iterator[Launched]:
    """Yield the launches of one pairing."""
    had: list[Launched] = []
    skipped: set[int] = set()
    waiting = list(series.places(pairing))
    while waiting or (waiting := list(series.again(pairing, had, skipped))):
        place = waiting.pop(0)
        found = launcher.stored(place)
        if found is None and _is_stale(place, had, today()):
            tell(f"{place.words}: not had, the launch it is paired with is too long ago")
            skipped.add(place.number)
            continue
        if found is None:
            why = _why_not(place, had, launcher, left_s())
            if why:
                tell(f"{place.words}: not had, {why}")
                # What is kept of later places is of the series all the same.
                yield from (item for later in waiting if (item := launcher.stored(later)) is not None)
                return
            tell(f"{place.words} …")
            found = launcher.launch(place)
            tell(f"{place.words}: {told(found)}")
        had.append(found)
        yield found


def _is_stale(place: Place, had: Sequence[Launched], at: datetime) -> bool:
    """Return whether the other launch of the pair was kept so long ago that the two would not lie close in time."""
    other = next((item for item in had if item.place == place.number ^ 1 and not item.warms), None)
    if place.side is None or place.warms or other is None or not other.recalled:
        return False
    return (at - other.observation.at).total_seconds() > APART_S


def _why_not(place: Place, had: Sequence[Launched], launcher: Launching, left_s: float) -> str:
    """Return why a launch is not begun, "" where it is."""
    if launcher.closed:
        return launcher.closed
    for side in Side if place.side is not None else (None,):
        of_side = [item for item in had if item.side is side and not item.warms]
        if len(of_side) >= GIVE_UP and all(item.fault is not None for item in of_side):
            who = f"side {side}" if side is not None else "it"
            return f"{who} failed {len(of_side)} times of {len(of_side)}: {of_side[-1].fault}"
    longest = max((item.seconds for item in had), default=0.0)
    return f"it takes {longest:.0f} s and {max(left_s, 0):.0f} s are left" if longest > left_s or left_s <= 0 else ""


def told(launched: Launched) -> str:
    """Return how a launch ended, in one line for people."""
    from bench.figures import MAIN

    if launched.fault is not None:
        return f"{launched.fault} ({launched.seconds:.0f} s)"
    main = MAIN[launched.kind.value]
    figure = launched.figures.get(main)
    repeats = launched.measured.repeats.get(main, ())
    words = [f"{len(repeats)} repeats"] if launched.side is None else []
    if figure is not None and figure.value is not None:
        words.append(f"{main} {figure.value:.5g}")
    words += [f"disturbed: {line}" for line in launched.disturbed]
    return ", ".join([*words, f"{launched.seconds:.0f} s"])
