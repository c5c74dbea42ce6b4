"""The commands of the benches: each takes the parsed words, prints its answer and returns the exit code."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench import plain
from bench.cli import asked, shown
from bench.cli.tune import tune
from bench.gathered import gathered, launches_of
from bench.launcher import Launcher
from bench.plans import Past, past, planned
from bench.record import comparisons, standings, why
from bench.series import Series
from bench.series import run as run_series
from bench.variant import Pairing
from bench.verdicts import Paired, advice, judge, reported, table
from matrix.errors import MatrixError, NothingRanError, UsageError
from matrix.evidence import shipped
from matrix.home import Home
from matrix.observe import Observation
from matrix.probing.folder import probes_folder
from matrix.provision.environment import Environment
from matrix.store import Store
from matrix.tier import Tier


def plan(args: argparse.Namespace) -> int:
    """Print what the launches would cost and could show; 0, or 2 where nothing could be run with such words."""
    among = asked.subjects(args, need=False)
    compared = asked.pairings(among, asked.recipes(args.recipe), args.toggles, args.home)
    made = planned(
        compared, args.launches, repeats=args.repeats, known=_past(args.home), margin=_margin(args), noise=args.noise
    )  # fmt: skip
    shown.say(shown.dump(shown.plan_json(made)) if args.json else shown.plan_text(made))
    return 0


def run(args: argparse.Namespace) -> int:
    """Run a series, keep each launch at once, print the verdicts; 0, or 1 where no pairing has a ratio."""
    if args.minutes is not None and not args.minutes > 0:
        raise UsageError("--minutes is a number above 0.")
    among = asked.subjects(args, need=True)
    chosen = asked.recipes(args.recipe)
    compared = asked.pairings(among, chosen, args.toggles, args.home)
    home = Home.find(args.home)
    home.prepare()
    store = Store(home.store)
    made = planned(compared, args.launches, repeats=args.repeats, known=_past(args.home), margin=_margin(args))
    shown.tell(shown.plan_text(made))
    need_devices(compared)
    store.add(*_new(store, standings(compared, "static", _now())))
    todo = asked.series(args.series, compared, args.launches, args.repeats, warm=args.warm)
    name = todo[0].name
    shown.tell(f"series {name}: the same words go on with it")
    launch_all(todo, asked.environments(among), home, store, args.minutes)
    return _told(args, store, name)


def launch_all(
    todo: Sequence[Series], where: Mapping[str, Environment], home: Home, store: Store, minutes: float | None
) -> None:
    """Have the launches of some series, each kept as it ends; Ctrl-C keeps what was finished and is raised again."""
    deadline = time.monotonic() + minutes * 60 if minutes else float("inf")
    with Launcher(environments=where, store=store, cache=home.cache, probes=probes_folder()) as launcher:
        for one in todo:
            for _ in run_series(one, launcher, tell=shown.tell, deadline=deadline):
                pass


def need_devices(compared: Iterable[Pairing]) -> None:
    """Raise NothingRanError where all that would run needs a GPU and this machine has none."""
    from matrix.gpus.inventory import take_inventory

    live = [pairing for pairing in compared if pairing.is_live]
    if not live:
        raise NothingRanError("Nothing is to be run: every pairing is inert or refused here.")
    wanted = min(pairing.gpus for pairing in live)
    found = take_inventory()
    if wanted > len(found.gpus):
        raise NothingRanError(
            f"This needs {wanted} GPU{'s' if wanted > 1 else ''}, and there {'is' if len(found.gpus) == 1 else 'are'} "
            f"{len(found.gpus)}.",
            why=found.why,
            then="`--recipe ppo-tiny` runs on a CPU; `plan` needs no machine.",
        )


def _told(args: argparse.Namespace, store: Store, name: str) -> int:
    """Judge a series, keep the comparisons, print them; 1 where none has a ratio."""
    store.refresh()
    mine = [item for item in gathered(store.find(tier=Tier.BENCH)) if item.series == name]
    paired = judge(mine, margin=_margin(args))
    if not paired:
        raise NothingRanError(f"No launch of the series {name} has ended well.", then="What was told above says why.")
    store.add(*_new(store, comparisons(paired, _now())))
    _print(args, paired, whole=False)
    return 0 if any(one.comparison.ratio is not None for item in paired for one in item.main) else 1


def _print(args: argparse.Namespace, paired: Sequence[Paired], *, whole: bool) -> None:
    """Print verdicts, of GPUs and of a CPU in tables of their own."""
    if args.json:
        shown.say(shown.dump([{**plain.pairing(one), "device": one.device} for one in paired]))
        return
    for device in dict.fromkeys(item.device for item in paired):
        some = [item for item in paired if item.device == device]
        machines = "; ".join(sorted({item.judgements[0].gathered.machine for item in some}))
        shown.say(f"On a {'CPU' if device == 'cpu' else 'GPU'}: {machines}")
        if shown.has_pandas():
            rows = table(some, whole=whole)
            shown.say(shown.frame(rows, shown.BRIEF))
            lines = shown.notes(rows)
        else:
            judged = [(item, one) for item in some for one in item.judgements if whole or one.main]
            lines = [f"  {item.pairing}, {item.recipe}: {why(one.comparison)}" for item, one in judged]
        for line in lines:
            shown.say(line)
        for item in some:
            shown.say(f"  {item.pairing}, {item.recipe}: {advice(item)}")


def show(args: argparse.Namespace) -> int:
    """Print the series that are kept, with verdicts and promises; 0, or 10 where nothing is kept."""
    from bench.agreement import agreements
    from bench.agreement import table as agreement_table

    kept = _kept(args.home, args.evidence)
    every = gathered(kept)
    shown_ = [item for item in every if item.series in args.series] if args.series else reported(every)
    paired = judge(shown_, margin=_margin(args))
    if args.claims:
        return _claims(args, paired, kept)
    if not paired:
        which = f" of {', '.join(args.series)}" if args.series else ""
        faults = [one for one in launches_of(kept) if one.fault and (not args.series or one.series in args.series)]
        if faults:
            last = faults[-1]
            raise NothingRanError(
                f"No launch{which} ended well: {len(faults)} are kept, each with a fault.",
                why=f"The last, {last.pairing} on {last.recipe} in series {last.series}: {last.fault}",
            )
        raise NothingRanError(
            f"Nothing{which} is kept of benches.", then="`run` makes a series, `plan` says what it costs."
        )
    _print(args, paired, whole=args.whole)
    agree = agreements([one for one in paired if one.device != "cpu"])
    if agree and not args.json and shown.has_pandas():
        shown.say("Do the cheap benches agree with ppo")
        shown.say(shown.frame(agreement_table(agree)))
    return 0


def _claims(args: argparse.Namespace, paired: Sequence[Paired], kept: Sequence[Observation]) -> int:
    """Print the promises of guides beside what was measured, untested ones with their reasons."""
    from bench.claims import answers
    from bench.claims import table as claims_table
    from bench.record import idle

    found = answers(paired, standings={one.pairing: f"{one.standing}: {one.why}" for one in idle(kept)})
    if args.json:
        shown.say(shown.dump([plain.answer(one) for one in found]))
        return 0
    if shown.has_pandas():
        shown.say(shown.frame(claims_table(found), ("promised", "measured", "low", "high", "n", "verdict", "where")))
    for one in found:
        shown.say(f"  {one.claim.id}, {one.held}: {one.claim.says} {one.why}")
    return 0


def compare(args: argparse.Namespace) -> int:
    """Judge saved runs of pytest-benchmark; 0, or 1 where no pair has a ratio."""
    from bench.saved import between, read_saved, within

    if len(args.saved) > 2:
        raise UsageError("One or two saved runs are compared.", then="Give the older one first.")
    runs = [read_saved(Path(name)) for name in args.saved]
    found = within(runs[0], _margin(args)) if len(runs) == 1 else between(runs[0], runs[1], _margin(args))
    if not found:
        raise NothingRanError(
            "The saved runs hold nothing that can be compared.",
            why="One run is compared by its pairs of sides, two by benches of one name.",
        )
    if args.json:
        shown.say(shown.dump([one.to_json() for one in found]))
    else:
        for one in found:
            shown.say(one.line)
    return 0 if any(one.comparison.ratio is not None for one in found) else 1


def _margin(args: argparse.Namespace) -> float:
    """Return the margin that was asked for; raises UsageError for one that is none."""
    if not 0 < args.margin < 1:
        raise UsageError(f"The margin lies between 0 and 1, 0.02 for 2 %; it is not {args.margin:g}.")
    return float(args.margin)


def _past(home: str | None) -> Past:
    """Return what is recorded of launches, here and in what is shipped; of damaged evidence nothing."""
    try:
        kept = _kept(home, None)
        return past(kept, judge(gathered(kept)))
    except MatrixError as error:
        shown.tell(f"note: nothing is taken from recorded launches: {error.what}")
        return Past()


def _kept(home: str | None, evidence: str | None) -> tuple[Observation, ...]:
    """Return what is kept of benches, own and shipped."""
    return (*asked.store_of(home).find(tier=Tier.BENCH), *shipped(evidence).of_tier(Tier.BENCH))


def _new(store: Store, items: Iterable[Observation]) -> list[Observation]:
    """Return those whose question has no answer yet."""
    return [item for item in items if store.get(item.question.key) is None]


def _now() -> datetime:
    return datetime.now(UTC)


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "plan": plan, "run": run, "compare": compare, "tune": tune, "show": show,
}  # fmt: skip
