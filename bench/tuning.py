"""The search for the fastest settings: which trial comes next, from those that were, and what they show in the end.

Successive halving (Jamieson and Talwalkar, Non-stochastic best arm identification, AISTATS 2016) over sets of flips of
the defaults. A first round tries each flip alone and leaves out those that fail, move the numbers of training, or gain
nothing; the best sets of the others, by the product of their gains, are tried together, half of them with twice the
repeats, and so on. The one that is left is tried afresh: only that last trial says what is shown, because the best of
several looks better than it is.

`step` is a function of the trials alone, so a search that was stopped goes on from what is kept of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from bench.comparison import Comparison, compare
from bench.sample import Better, Launch, Metric, Sample, Side, order
from bench.stats import reference

SECONDS = Metric(name="seconds", unit="s", better=Better.LOWER)
"""What is searched by: the seconds of all that a bench runs."""


class Round(StrEnum):
    """Where in the search a trial stands: each flip alone, sets of them (with their number of halvings), afresh."""

    ALONE = "alone"
    SETS = "sets"
    AFRESH = "afresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A default that may be otherwise; `keys` are what it sets: two flips of one key exclude each other."""

    name: str
    keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How much is tried; stated before the search.

    Attributes:
        repeats: a side of a trial of the first round; doubled with each halving, and four times that afresh.
        width: how many sets are tried together at first.
        worth: a flip that alone gains less than this is left out.
        margin: the equivalence margin of the last trial.
    """

    repeats: int = 4
    width: int = 2
    worth: float = 0.005
    margin: float = 0.02

    def __post_init__(self) -> None:
        """Refuse what makes no search."""
        if self.repeats < 2 or self.width < 1 or self.worth < 0 or self.margin <= 0:
            raise ValueError("a search needs two repeats, a width of one, a worth of 0 and a margin above 0 at least")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The trial that comes next: which flips, in which round, with how many repeats a side."""

    flips: frozenset[str]
    round: Round
    level: int
    repeats: int

    @property
    def name(self) -> str:
        """Return a name that no other trial of the search has."""
        return f"{self.round}-{self.level}:{'+'.join(sorted(self.flips))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial: the seconds of the defaults (A) and of the flips (B) by place, or why there are none.

    `safe` is whether the numbers of training were held, None where that is not shown.
    """

    ask: Ask
    figures: Mapping[int, float] = field(default_factory=dict)
    safe: bool | None = None
    fault: str = ""

    @property
    def sample(self) -> Sample:
        """Return the repeats as they ran, missing ones with the reason."""
        sides = order(self.ask.repeats)
        launches = tuple(
            Launch.of(place, side, self.figures[place])
            if place in self.figures
            else Launch(place=place, side=side, fault=self.fault or "did not run")
            for place, side in enumerate(sides)
        )
        return Sample(metric=SECONDS, launches=launches)

    @property
    def out(self) -> str:
        """Return why this trial counts its flips out, "" where it does not."""
        if self.fault:
            return self.fault
        return "the numbers of training moved" if self.safe is False else ""

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data; `from_json` gives the equal trial back."""
        return {
            "flips": sorted(self.ask.flips), "round": self.ask.round.value, "level": self.ask.level,
            "repeats": self.ask.repeats, "figures": {str(at): value for at, value in sorted(self.figures.items())},
            "safe": self.safe, "fault": self.fault,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Trial:
        """Return what `to_json` wrote; raises KeyError, TypeError, ValueError for anything else."""
        flips, figures, safe = data["flips"], data["figures"], data["safe"]
        if not isinstance(flips, list) or not isinstance(figures, dict):
            raise TypeError("a trial has flips and figures")
        return cls(
            ask=Ask(
                flips=frozenset(map(str, flips)),
                round=Round(str(data["round"])),
                level=int(str(data["level"])),
                repeats=int(str(data["repeats"])),
            ),
            figures={int(at): float(value) for at, value in figures.items()},
            safe=None if safe is None else bool(safe),
            fault=str(data["fault"]),
        )


class Shown(StrEnum):
    """What a search shows in the end."""

    FASTER = "faster"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search came to.

    Attributes:
        shown: `faster` where the last trial shows it; else `inconclusive`, and the defaults stay.
        flips: what is flipped; empty where nothing is shown.
        comparison: of the last trial, None where none came to it.
        safe: whether its numbers of training were held, None where that is not shown.
        out: flips that were left out, with the reason.
        why: in one line, for people.
    """

    shown: Shown
    flips: frozenset[str]
    comparison: Comparison | None
    safe: bool | None
    out: Mapping[str, str]
    why: str


class Tries(Protocol):
    """What runs a trial; it raises for nothing that a trial can meet."""

    def attempt(self, ask: Ask) -> Trial:
        """Return the trial, with figures or its fault."""


def search(
    flips: Sequence[Flip], rules: Rules, bench: Tries, trials: Iterable[Trial] = ()
) -> tuple[Found, tuple[Trial, ...]]:
    """Return what the search comes to and all its trials; those given are not run again."""
    had = list(trials)
    while isinstance(next_ := step(flips, rules, had), Ask):
        had.append(bench.attempt(next_))
    return next_, tuple(had)


def step(flips: Sequence[Flip], rules: Rules, trials: Sequence[Trial]) -> Ask | Found:
    """Return the trial that comes next, or what the search came to; of equal arguments always the same."""
    known = {trial.ask.name: trial for trial in trials}
    for flip in flips:
        ask = Ask(flips=frozenset({flip.name}), round=Round.ALONE, level=0, repeats=rules.repeats)
        if ask.name not in known:
            return ask
    alone = {name: trial for trial in trials if trial.ask.round is Round.ALONE for name in trial.ask.flips}
    out = {name: why for name, trial in alone.items() if (why := _left_out(trial, rules))}
    gains = {flip.name: _log_gain(alone[flip.name]) for flip in flips if flip.name not in out}
    if not gains:
        return _nothing(out, "no flip alone gains anything, or those that do fail or move the numbers of training")
    sets = _sets(flips, gains, rules.width)
    level, repeats = 0, rules.repeats
    while True:
        asks = [Ask(flips=one, round=Round.SETS, level=level, repeats=repeats) for one in sets]
        for ask in asks:
            if ask.name not in known:
                return ask
        out |= {"+".join(sorted(ask.flips)): why for ask in asks if (why := known[ask.name].out)}
        good = [ask.flips for ask in asks if not known[ask.name].out]
        ranked = sorted(good, key=lambda one: -_pooled(one, trials))
        if not ranked:
            return _nothing(out, "no set of flips ran with the numbers of training held")
        # Of two the better one is tried afresh at once: a round of it alone would be that trial, and smaller.
        if len(ranked) == 1 or len(sets) <= 2:
            return _afresh(ranked[0], rules, known, out)
        sets, level, repeats = ranked[: math.ceil(len(sets) / 2)], level + 1, 2 * repeats


def most_trials(flips: Sequence[Flip], rules: Rules) -> tuple[Ask, ...]:
    """Return the trials of a search in which every flip gains something: no search has more repeats to run.

    What a plan is made of; how the sets will be called is not known before.
    """
    rounds = [Ask(flips=frozenset({flip.name}), round=Round.ALONE, level=0, repeats=rules.repeats) for flip in flips]
    names = frozenset(flip.name for flip in flips)
    count, level = len(_sets(flips, dict.fromkeys(names, 1.0), rules.width)) if flips else 0, 0
    while count:
        # As in `step`: what one or two sets are left to is tried afresh.
        repeats = rules.repeats * 2**level
        rounds += [Ask(flips=names, round=Round.SETS, level=level, repeats=repeats) for _ in range(count)]
        count, level = (math.ceil(count / 2), level + 1) if count > 2 else (0, level)
    if flips:
        rounds.append(Ask(flips=names, round=Round.AFRESH, level=0, repeats=4 * rules.repeats))
    return tuple(rounds)


def _left_out(trial: Trial, rules: Rules) -> str:
    """Return why a flip is left out after it was tried alone, "" where it is not."""
    if trial.out:
        return trial.out
    gain = math.expm1(_log_gain(trial))
    return f"alone it gains {gain:+.2%}" if gain < rules.worth else ""


def _log_gain(trial: Trial) -> float:
    """Return the logarithm of how much faster the flips were; minus infinity where nothing was measured."""
    blocks = trial.sample.blocks
    # An estimate needs fewer arrangements than a p value; of seconds a lower ratio is better.
    return -reference(blocks, up_to=1_500, drawn=499).estimate if blocks else -math.inf


def _pooled(flips: frozenset[str], trials: Sequence[Trial]) -> float:
    """Return the gain of a set over all its trials, those with more repeats counting for more."""
    mine = [trial for trial in trials if trial.ask.flips == flips and not trial.out]
    weight = sum(trial.ask.repeats for trial in mine)
    return sum(_log_gain(trial) * trial.ask.repeats for trial in mine) / weight if weight else -math.inf


def _sets(flips: Sequence[Flip], gains: Mapping[str, float], width: int) -> list[frozenset[str]]:
    """Return the sets that promise most by the product of their gains, without two flips of one key."""
    by_name = {flip.name: flip for flip in flips}
    # Of the best few alone: all subsets of twenty flips would be a million.
    best = sorted(gains, key=lambda name: (-gains[name], name))[:10]
    found = []
    for size in range(1, len(best) + 1):
        for some in itertools.combinations(best, size):
            keys = [key for name in some for key in by_name[name].keys]
            if len(set(keys)) == len(keys):
                found.append(some)
    found.sort(key=lambda some: (-math.fsum(gains[name] for name in some), len(some), some))
    return [frozenset(some) for some in found[:width]]


def _afresh(flips: frozenset[str], rules: Rules, known: Mapping[str, Trial], out: Mapping[str, str]) -> Ask | Found:
    """Return the last trial, or what it shows."""
    ask = Ask(flips=flips, round=Round.AFRESH, level=0, repeats=4 * rules.repeats)
    if ask.name not in known:
        return ask
    trial = known[ask.name]
    if trial.out:
        return _nothing({**out, "+".join(sorted(flips)): trial.out}, f"afresh: {trial.out}")
    found = compare(trial.sample, margin=rules.margin)
    # The margin says what matters: a gain that is shown to be smaller than it changes nothing for anybody.
    if found.verdict.value != Shown.FASTER:
        return _nothing(out, f"afresh the best set is {found.verdict}", found, trial.safe)
    names = " + ".join(sorted(flips))
    return Found(
        shown=Shown.FASTER, flips=flips, comparison=found, safe=trial.safe, out=dict(out), why=f"{names} is faster"
    )


def _nothing(out: Mapping[str, str], why: str, comparison: Comparison | None = None, safe: bool | None = None) -> Found:
    return Found(
        shown=Shown.INCONCLUSIVE, flips=frozenset(), comparison=comparison, safe=safe, out=dict(out), why=why
    )  # fmt: skip


def total(by_phase: Sequence[Mapping[int, tuple[Side, float | None]]]) -> dict[int, float]:
    """Return the seconds of a repeat over all its phases, by place; of a repeat that lacks a phase none."""
    places = set.intersection(*(set(phase) for phase in by_phase)) if by_phase else set()
    found = {}
    for place in sorted(places):
        parts = [phase[place][1] for phase in by_phase]
        whole = [part for part in parts if part is not None]
        if len(whole) == len(parts):
            found[place] = math.fsum(whole)
    return found
