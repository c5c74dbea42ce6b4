"""A search for settings on the real benches: each trial one launch that holds both sides, kept by the launcher.

What was tried is in the store under the search's name, so a search that was stopped asks the launcher and goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.choices import PLAN, Choice, guides_words, words
from bench.launched import Launched
from bench.numerics import numbers, safe
from bench.recipes import Recipe
from bench.series import Launching, Series, run
from bench.tuning import Ask, Trial, total
from bench.variant import Pairing, of_settings
from matrix.errors import NothingRanError


@dataclass(slots=True, kw_only=True)
class CheapBench:
    """Runs the trials of a search: a launch of `update` or `rollout`, the defaults in turns with the flips.

    Attributes:
        name: of the search; trials are kept under it.
        among: the choices, of which a trial flips some.
        ended: the launches that were had, in order.
    """

    name: str
    recipe: Recipe
    cell: str
    among: Sequence[Choice]
    launcher: Launching
    tell: Callable[[str], None] = lambda _: None
    deadline: float = math.inf
    ended: list[Launched] = field(default_factory=list)

    def attempt(self, ask: Ask) -> Trial:
        """Return the trial as its launch ended.

        Raises:
            NothingRanError: the launch was not begun: time is up, or nothing can be launched any more.
        """
        series = Series(name=self.name, pairings=(self.pairing(ask),), launches=1, extra=1, repeats=ask.repeats)
        launched = list(run(series, self.launcher, tell=self.tell, deadline=self.deadline))
        self.ended += launched
        if not launched:
            raise NothingRanError(
                f"The search stopped before {ask.name}: its launch was not begun.",
                why="Time is up, or nothing can be launched here; what was told above says which.",
                then="The same words go on where it was.",
            )
        return trial_of(ask, launched[-1])

    def pairing(self, ask: Ask) -> Pairing:
        """Return the defaults against the flips."""
        sides = words(self.among), words(self.among, ask.flips)
        return of_settings(ask.name, self.recipe, self.cell, *sides, plan=PLAN)


def trial_of(ask: Ask, launched: Launched) -> Trial:
    """Return what a launch of both sides says: the seconds of all phases of each repeat, and whether numbers held."""
    measured = launched.measured
    phases = [
        {repeat.place: (repeat.side, repeat.value) for repeat in repeats}
        for name, repeats in measured.repeats.items()
        if name.startswith("seconds/")
    ]
    held = measured.within
    if held is None:
        held = safe(numbers({side: {name: tuple(values[measured.dropped :]) for name, values in of.items()}
                             for side, of in measured.numerics.items()}))  # fmt: skip
    fault = str(launched.fault) if launched.fault is not None else "; ".join(launched.disturbed)
    return Trial(ask=ask, figures={} if fault else total(phases), safe=held, fault=fault)


def confirming(
    name: str, recipe: Recipe, cell: str, among: Sequence[Choice], flips: frozenset[str], launches: int
) -> Series:
    """Return the series on `ppo` that confirms what was found, against verl's defaults and the guides' recipe."""
    best = words(among, flips)
    return Series(
        name=name,
        pairings=(
            of_settings("tuned-defaults", recipe, cell, words(among), best, plan=PLAN),
            of_settings("tuned-guides", recipe, cell, guides_words(among), best, plan=PLAN),
        ),
        launches=launches,
    )
