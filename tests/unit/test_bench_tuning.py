"""The search for settings: simulated benches whose optimum and noise are known, and searches that are stopped."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from bench.sample import Side, order
from bench.tuning import Ask, Flip, Found, Round, Rules, Shown, Trial, most_trials, search, step, total

RULES = Rules(width=4)


@dataclass
class World:
    """A bench whose truth is known: gains of flips as factors, of pairs beyond their product, and noise."""

    gains: Mapping[str, float]
    together: Mapping[frozenset[str], float] = field(default_factory=dict)
    noise: float = 0.01
    seed: int = 0
    unsafe: frozenset[str] = frozenset()
    fails: Mapping[str, str] = field(default_factory=dict)
    drift: float = 0.0
    asked: list[Ask] = field(default_factory=list)

    @property
    def flips(self) -> tuple[Flip, ...]:
        return tuple(Flip(name=name, keys=frozenset({name})) for name in self.gains)

    def gain(self, flips: frozenset[str]) -> float:
        product = math.prod(self.gains[name] for name in flips)
        return product * math.prod(factor for pair, factor in self.together.items() if pair <= flips)

    def attempt(self, ask: Ask) -> Trial:
        self.asked.append(ask)
        for name in sorted(ask.flips):
            if name in self.fails:
                return Trial(ask=ask, fault=self.fails[name])
        source = random.Random(f"{self.seed} {ask.name}")
        figures = {}
        for place, side in enumerate(order(ask.repeats)):
            factor = self.gain(ask.flips) if side is Side.B else 1.0
            figures[place] = 10 / factor * math.exp(source.gauss(0, self.noise) + self.drift * place)
        return Trial(ask=ask, figures=figures, safe=not ask.flips & self.unsafe)


KNOWN = {"a": 1.20, "b": 1.05, "c": 1.0, "d": 0.93, "e": 0.99}


@pytest.mark.parametrize("seed", range(6))
def test_it_finds_the_known_optimum(seed: int) -> None:
    world = World(gains=KNOWN, seed=seed)
    found, trials = search(world.flips, RULES, world)
    assert found.shown is Shown.FASTER
    # What gains or loses nothing may be in it or not.
    assert found.flips - {"c"} == {"a", "b"}
    assert found.comparison is not None
    assert found.comparison.interval is not None
    assert 1 / found.comparison.interval[1] > 1
    assert {"d", "e"} <= set(found.out)
    assert len(trials) == len(world.asked) <= len(most_trials(world.flips, RULES))


def test_flips_that_spoil_each_other_are_not_taken_together() -> None:
    for seed in range(4):
        world = World(gains={"a": 1.12, "b": 1.10}, together={frozenset("ab"): 0.85}, seed=seed)
        found, _ = search(world.flips, RULES, world)
        assert len(found.flips) == 1, seed


def test_nothing_shown_is_inconclusive_at_the_level_that_is_promised() -> None:
    wrong = sum(
        search(world.flips, Rules(repeats=2, width=2), world)[0].shown is Shown.FASTER
        for seed in range(40)
        for world in [World(gains=dict.fromkeys("abcd", 1.0), seed=seed, noise=0.02)]
    )
    # It may be 2.5 % of those that come to the last trial: one in forty, and chance.
    assert wrong <= 4


def test_a_gain_within_the_margin_changes_nothing() -> None:
    world = World(gains={"a": 1.008}, noise=0.001)
    found, _ = search(world.flips, RULES, world)
    assert (found.shown, found.flips) == (Shown.INCONCLUSIVE, frozenset())
    assert "equivalent" in found.why


CASES = [
    (World(gains={"a": 1.3, "b": 1.1}, unsafe=frozenset("a")), {"b"}, "a", "moved"),
    (World(gains={"a": 1.3, "b": 1.1}, fails={"a": "out of memory"}), {"b"}, "a", "out of memory"),
    (World(gains={"a": 0.9, "b": 1.1}, drift=0.002), {"b"}, "a", "gains -"),
]


@pytest.mark.parametrize(("world", "flips", "out", "why"), CASES)
def test_what_fails_or_moves_numbers_is_left_out_with_the_reason(
    world: World, flips: set[str], out: str, why: str
) -> None:
    found, _ = search(world.flips, RULES, world)
    assert found.flips == flips
    assert why in found.out[out]


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (World(gains={"a": 0.9}), "no flip alone"),
        (World(gains={}), "no flip alone"),
        (World(gains={"a": 1.2}, unsafe=frozenset("a")), "no flip alone"),
    ],
)
def test_a_search_without_anything_to_gain(world: World, why: str) -> None:
    found, _ = search(world.flips, RULES, world)
    assert (found.shown, found.flips, found.comparison) == (Shown.INCONCLUSIVE, frozenset(), None)
    assert why in found.why


def test_a_set_that_fails_only_together_and_one_that_fails_afresh() -> None:
    class Together(World):
        def attempt(self, ask: Ask) -> Trial:
            if len(ask.flips) > 1 or (ask.round is Round.AFRESH and ask.flips == {"a"}):
                return Trial(ask=ask, fault="out of memory")
            return super().attempt(ask)

    world = Together(gains={"a": 1.2, "b": 1.1})
    found, _ = search(world.flips, RULES, world)
    assert found.out["a+b"] == "out of memory"
    assert found.why == "afresh: out of memory"
    exclusive = (Flip(name="a", keys=frozenset("k")), Flip(name="b", keys=frozenset("k")))
    found, trials = search(exclusive, RULES, World(gains={"a": 1.2, "b": 1.1}))
    assert found.flips == {"a"}
    assert all(len(trial.ask.flips) == 1 for trial in trials)


def test_no_set_that_runs() -> None:
    class Alone(World):
        def attempt(self, ask: Ask) -> Trial:
            return super().attempt(ask) if ask.round is Round.ALONE else Trial(ask=ask, fault="hung")

    world = Alone(gains={"a": 1.2})
    found, _ = search(world.flips, RULES, world)
    assert "no set of flips" in found.why


@pytest.mark.parametrize("kept", range(0, 12, 3))
def test_a_search_that_was_stopped_goes_on(kept: int) -> None:
    world = World(gains=KNOWN, seed=3)
    whole, trials = search(world.flips, RULES, world)
    stored = [Trial.from_json(json.loads(json.dumps(trial.to_json()))) for trial in trials[:kept]]
    assert stored == list(trials[:kept])
    again = World(gains=KNOWN, seed=3)
    found, all_trials = search(again.flips, RULES, again, stored)
    assert (found, all_trials) == (whole, trials)
    assert len(again.asked) == len(trials) - kept


def test_the_steps_are_a_function_of_the_trials() -> None:
    world = World(gains=KNOWN)
    found, trials = search(world.flips, RULES, world)
    assert step(world.flips, RULES, trials) == found
    assert isinstance(found, Found)
    halved = [trial.ask for trial in trials if trial.ask.round is Round.SETS]
    assert [ask.repeats for ask in halved] == [4 * 2**ask.level for ask in halved]
    assert trials[-1].ask.repeats == 16
    assert len({trial.ask.name for trial in trials}) == len(trials)


def test_the_most_that_a_search_can_cost() -> None:
    flips = tuple(Flip(name=name) for name in "abcde")
    asks = most_trials(flips, RULES)
    assert [sum(ask.round is one for ask in asks) for one in Round] == [5, 4 + 2, 1]
    assert most_trials((), RULES) == ()
    assert len(most_trials(flips[:1], RULES)) == 3


def test_a_repeat_that_is_missing_takes_its_pair_along() -> None:
    ask = Ask(flips=frozenset("a"), round=Round.ALONE, level=0, repeats=4)
    trial = Trial(ask=ask, figures=dict.fromkeys(range(7), 1.0))
    assert [drop.places for drop in trial.sample.drops] == [(6, 7)]


def test_seconds_of_all_phases() -> None:
    actor = {0: (Side.A, 1.0), 1: (Side.B, 2.0), 2: (Side.B, None)}
    critic = {0: (Side.A, 0.5), 1: (Side.B, 0.5), 2: (Side.B, 1.0), 3: (Side.A, 1.0)}
    assert total([actor, critic]) == {0: 1.5, 1: 2.5}
    assert total([]) == {}


@pytest.mark.parametrize("wrong", [{"repeats": 1}, {"width": 0}, {"worth": -0.1}, {"margin": 0.0}])
def test_rules_that_make_no_search(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a search needs"):
        Rules(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"flips": "a"}, {"figures": []}])
def test_a_stored_trial_that_is_none(wrong: dict[str, object]) -> None:
    ask = Ask(flips=frozenset("a"), round=Round.ALONE, level=0, repeats=2)
    with pytest.raises(TypeError):
        Trial.from_json({**Trial(ask=ask).to_json(), **wrong})
