"""`tune`: search the defaults on the cheap benches, confirm on `ppo`, print the settings with their gain."""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Mapping, Sequence

from bench.choices import TUNED, Choice, benches_of, changed, choices, words
from bench.cli import asked, shown
from bench.comparison import Verdict
from bench.gathered import gathered
from bench.launcher import Launcher
from bench.plain import pairing
from bench.plans import ASSUMED_SECONDS, MOST_LAUNCHES
from bench.recipes import Recipe, recipe_named
from bench.record import comparisons
from bench.series import Series
from bench.series import run as run_series
from bench.tuned import CheapBench, confirming
from bench.tuning import Found, Rules, most_trials, search
from bench.verdicts import CONFIRM, SEARCH, Paired, judge
from matrix.errors import NothingRanError, UsageError
from matrix.home import Home
from matrix.job import now
from matrix.probing.folder import probes_folder
from matrix.store import Store
from matrix.tier import Tier

CLAIMED = 1.405
"""What the guides promise of their recipe: 1,652 over 1,176 tokens a second."""
START_S = 90.0
"""Of a launch of a cheap bench before its first repeat, assumed."""


def tune(args: argparse.Namespace) -> int:
    """Print the fastest settings that keep numerics, confirmed on `ppo`; 0, also where nothing is shown to gain."""
    rules = _rules(args)
    length = _length(args.recipe)
    update, rollout, ppo = (recipe_named(name) for name in benches_of(length))
    among = asked.subjects(args, need=not args.plan)
    if len(among) != 1:
        raise UsageError("A search is of one cell.", then="Name one with --cells, or stand in it with --here.")
    release = asked.composing(among[0].release, args.home)
    names = tuple(args.toggles) or TUNED
    found = {recipe.name: choices(release, recipe, names) for recipe in (update, rollout)}
    # On `ppo` every choice has its default or its flip, whichever bench it was searched on.
    every = tuple({choice.name: choice for of, _ in found.values() for choice in of}.values())
    if args.plan:
        _plan(found, rules, args.launches, ppo)
        return 0
    home = Home.find(args.home)
    home.prepare()
    store = Store(home.store)
    _need_gpu(ppo)
    name = search_name(among[0].cell, length, rules, every)
    shown.tell(f"search {name}: the same words go on with it")
    deadline = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    with Launcher(
        environments=asked.environments(among), store=store, cache=home.cache, probes=probes_folder()
    ) as launcher:
        ends = {}
        for recipe in (update, rollout):
            bench = CheapBench(
                name=name, recipe=recipe, cell=among[0].cell, among=found[recipe.name][0], launcher=launcher,
                tell=shown.tell, deadline=deadline,
            )  # fmt: skip
            ends[recipe.name] = search([choice.flip for choice in bench.among], rules, bench)[0]
        flips = frozenset().union(*(end.flips for end in ends.values()))
        series = confirming(f"{name}{CONFIRM}", ppo, among[0].cell, every, flips, args.launches)
        if flips:
            for _ in run_series(series, launcher, tell=shown.tell, deadline=deadline):
                pass
    store.refresh()
    paired = _confirmed(store, series, args.margin) if flips else ()
    store.add(*[item for item in comparisons(paired, now()) if store.get(item.question.key) is None])
    _tell(args, ends, every, flips, paired)
    return 0


def _rules(args: argparse.Namespace) -> Rules:
    if not 1 <= args.launches <= MOST_LAUNCHES or (args.minutes is not None and not args.minutes > 0):
        raise UsageError(f"--launches is 1 to {MOST_LAUNCHES}, --minutes above 0.")
    try:
        return Rules(repeats=args.repeats, width=args.width, margin=args.margin)
    except ValueError as error:
        raise UsageError(f"{error}.") from None


def _length(names: Sequence[str]) -> str:
    """Return the workload that is searched: of one recipe of `ppo`, by default the short one."""
    known = {"ppo-short": "short", "ppo-long": "long"}
    if len(names) > 1 or (names and names[0] not in known):
        raise UsageError("A search is confirmed on one recipe of ppo.", then=f"--recipe is one of {', '.join(known)}.")
    return known[names[0]] if names else "short"


def _need_gpu(recipe: Recipe) -> None:
    from matrix.gpus.inventory import take_inventory

    found = take_inventory()
    if len(found.gpus) < recipe.gpus:
        raise NothingRanError(
            "A search runs on a GPU, and this machine has none.",
            why=found.why,
            then="`tune --plan` says what it costs.",
        )


def search_name(cell: str, length: str, rules: Rules, among: Sequence[Choice]) -> str:
    """Return the name of a search: that of its content, so that another space is another search."""
    text = repr((cell, length, rules, [(choice.name, sorted(choice.other.items()), words(among)) for choice in among]))
    return f"{SEARCH}{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _plan(
    found: Mapping[str, tuple[tuple[Choice, ...], dict[str, str]]], rules: Rules, launches: int, ppo: Recipe
) -> None:
    """Print the most that a search takes."""
    total = 0.0
    for name, (among, out) in found.items():
        trials = most_trials([choice.flip for choice in among], rules)
        each = (ASSUMED_SECONDS[name] - START_S) / 20
        minutes = sum(START_S + each * trial.repeats for trial in trials) / 60
        total += minutes
        shown.say(f"{name}: up to {len(trials)} launches, {minutes:.0f} min: {', '.join(one.name for one in among)}")
        for toggle, why in out.items():
            # What the other bench searches needs no word here.
            if all(toggle not in {one.name for one in of} for of, _ in found.values()):
                shown.say(f"  not searched: {toggle}, {why}")
    confirm = 2 * 2 * launches * ASSUMED_SECONDS[ppo.name] / 60
    shown.say(f"{ppo.name}: {4 * launches} launches to confirm, {confirm:.0f} min: against the defaults and the guides")
    shown.say(f"{total + confirm:.0f} minutes at most, in as many visits as it takes; minutes are assumed")


def _confirmed(store: Store, series: Series, margin: float) -> tuple[Paired, ...]:
    """Return the confirming series, judged."""
    mine = [item for item in gathered(store.find(tier=Tier.BENCH)) if item.series == series.name]
    return judge(mine, margin=margin)


def _tell(
    args: argparse.Namespace,
    ends: Mapping[str, Found],
    every: Sequence[Choice],
    flips: frozenset[str],
    paired: Sequence[Paired],
) -> None:
    settings = changed(every, flips)
    if args.json:
        found = {
            name: {"shown": end.shown.value, "flips": sorted(end.flips), "why": end.why, "out": dict(end.out)}
            for name, end in ends.items()
        }
        shown.say(
            shown.dump({"searches": found, "settings": list(settings), "confirmed": [pairing(one) for one in paired]})
        )
        return
    for name, end in ends.items():
        for line in shown.found_text(name, end):
            shown.say(line)
    if not flips:
        shown.say("inconclusive: nothing is shown to be faster than verl's defaults; they stay")
        return
    shown.say("settings on top of verl's defaults:")
    for word in settings:
        shown.say(f"  {word}")
    for line in verdict_lines(paired):
        shown.say(line)


def verdict_lines(paired: Sequence[Paired]) -> list[str]:
    """Return what `ppo` says of the settings, against the defaults and against the guides' recipe."""
    against = {"tuned-defaults": "verl's defaults", "tuned-guides": "the guides' recipe"}
    lines = []
    for name, what in against.items():
        one = next((item for item in paired if item.pairing == name), None)
        found = one.main[0].comparison if one is not None and one.main else None
        if one is None or found is None or found.ratio is None:
            lines.append(f"against {what}: not confirmed, no pair of launches of ppo has ended")
            continue
        between = (
            "" if found.interval is None else f", 95 % interval {found.interval[0]:.3f} to {found.interval[1]:.3f}"
        )
        numerics = {True: "numerics held", False: "numerics MOVED", None: "that numerics hold is not shown"}[one.safe]
        word = found.verdict if found.verdict is not Verdict.FASTER or one.safe is not False else "faster and not safe"
        lines.append(
            f"against {what}: {word}, {found.ratio:.3f} times{between}, n = {found.n[0]}+{found.n[1]}; {numerics}"
        )
        if name == "tuned-defaults":
            more = found.interval is not None and found.interval[0] > CLAIMED
            lines.append(
                f"  the guides promise {CLAIMED:g} times; more than that is {'shown' if more else 'not shown'}"
            )
    return lines
