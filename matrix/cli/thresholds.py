"""`thresholds`: search for the largest value of a knob that survives under a cap; list and show what was found."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.errors import NothingRanError, UsageError

if TYPE_CHECKING:
    from matrix.cli.front import Front
    from matrix.home import Home
    from matrix.observe import Observation
    from matrix.provision.environment import Environment
    from matrix.thresholds.ask import Bench
    from matrix.thresholds.card import Card
    from matrix.thresholds.question import Asked
    from matrix.thresholds.records import Keeper

MORE = """

  verl-matrix thresholds --plan --minutes 6
  verl-matrix thresholds --here --python CELL/bin/python --minutes 6
  verl-matrix thresholds --here --model qwen2.5-0.5b --knob actor.ppo_micro_batch_size_per_gpu --cap A100-80GB
  verl-matrix thresholds list
  verl-matrix thresholds show 'threshold/qwen2.5-0.5b*'

Without --knob the questions of the list that is shipped are asked, the worthiest first (docs/thresholds.md)."""


def words(parser: argparse.ArgumentParser) -> None:
    """Add the words of the command."""
    parser.add_argument("spec", nargs="*", metavar="WORD", help="a cell whose environment is kept; or list, show NAME")
    parser.add_argument("--here", action="store_true", help="try in the environment of --python; nothing is installed")
    parser.add_argument("--python", metavar="PATH", help="with --here: the interpreter (default: this one)")
    group = parser.add_argument_group("question")
    group.add_argument("--questions", action="append", default=[], metavar="ID", help="of the list, only this; repeat")
    group.add_argument("--list-file", metavar="FILE", help="a list of questions instead of the one shipped")
    group.add_argument("--model", "--workload", default="qwen2.5-0.5b", metavar="NAME", help="shape (%(default)s)")
    group.add_argument("--knob", metavar="KEY", help="verl's key, or how it ends")
    group.add_argument("--cap", metavar="CARD", help="a card's name, or a size like 24GiB (default: the card as it is)")
    group.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help=_SET)
    group.add_argument("--beside-mib", type=int, default=0, metavar="N", help="held on the card by somebody else")
    group.add_argument("--repeats", type=int, default=2, metavar="N", help="fresh repeats of each end (%(default)s)")
    group.add_argument("--guess", type=float, metavar="VALUE", help="start there instead of at the prediction")
    group.add_argument("--value", type=float, metavar="VALUE", help="try this value once and print what it took")
    group.add_argument("--whole-step", action="store_true", help=_WHOLE)
    group.add_argument("--blind", action="store_true", help="start without a prediction")
    parser.add_argument("--evidence", metavar="DIR", help="list, show: recorded ones (default: those shipped; `none`)")
    parser.add_argument("--plan", action="store_true", help="print what would run and for how long; touch no GPU")
    parser.add_argument("--minutes", type=float, metavar="N", help="start no trial after so many minutes")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help=_DEVICE)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


_SET = "a setting of the workload, by verl's key; may be repeated"
_WHOLE = "with --value: launch PPO whole, with Ray and two steps, under the cap"
_DEVICE = "cpu: the same trainer on a processor with counted bytes; shows that the way holds, and is not kept"


def run(args: argparse.Namespace, front: Front) -> int:
    """Do what the words say; 0 where every question has an answer, 1 where one has none."""
    if args.spec[:1] == ["list"] or args.spec[:1] == ["show"]:
        return _stored(args)
    if args.repeats < 1:
        raise UsageError("--repeats is at least 1.")
    for word, number in (("--minutes", args.minutes), ("--guess", args.guess), ("--value", args.value)):
        if number is not None and not (number > 0 and isfinite(number)):
            raise UsageError(f"{word} is a number above 0, not {number:g}.")
    questions = _questions(args)
    if args.value is not None and len(questions) != 1:
        raise UsageError("--value goes with one question.", then="Name it with --knob or --questions.")
    if args.whole_step:
        if args.value is None or args.device != "cuda":
            raise UsageError("--whole-step goes with --value, on a GPU.")
        questions = [(name, _whole(asked)) for name, asked in questions]
    if args.plan:
        return _plan(args, questions)
    environment = _environment(args)
    return _ask_all(args, questions, environment)


def _questions(args: argparse.Namespace) -> list[tuple[str, Asked]]:
    from matrix.thresholds.question import QUESTIONS, asked, chosen, load_questions, parse_setting

    if args.knob:
        settings = dict(parse_setting(word) for word in args.settings)
        one = asked(
            args.model, args.knob, args.cap, settings, beside=args.beside_mib * 2**20, repeats=args.repeats
        )  # fmt: skip
        return [("asked", one)]
    if args.settings or args.cap:
        raise UsageError("--set and --cap go with --knob.", then="Name the knob, or choose from the list.")
    listed = load_questions(Path(args.list_file) if args.list_file else QUESTIONS, args.repeats)
    return [(item.id, item.asked) for item in chosen(listed, args.questions)]


def _whole(asked: Asked) -> Asked:
    """Return the question asked of a whole launch of PPO."""
    from dataclasses import replace

    from matrix.thresholds.knobs import Script

    return replace(asked, knob=replace(asked.knob, script=Script.STEP))


def _foretold(args: argparse.Namespace, asked: Asked) -> float | None:
    """Return where a search starts: the guess, else the memory model's prediction."""
    from matrix.thresholds.foretell import foretold

    if args.guess is not None:
        return float(args.guess)
    return None if args.blind else foretold(asked)


def _plan(args: argparse.Namespace, questions: list[tuple[str, Asked]]) -> int:
    """Print the questions with their predictions, trials and seconds, and which of them fit."""
    from matrix.thresholds.plan import planned
    from matrix.thresholds.trial import shown

    rows = planned([(name, asked, _foretold(args, asked)) for name, asked in questions], args.minutes)
    if args.json:
        _say(json.dumps([row.to_json() for row in rows], indent=2))
        return 0
    for row in rows:
        mark = " " if row.fits else "-"
        start = "blind" if row.predicted is None else f"predicted {shown(row.predicted)}"
        _say(f"{mark} {row.id:<34} {row.trials:>2} trials  {row.seconds:>4.0f} s  {start}")
        _say(f"    {row.asked.name}")
    fitting = [row for row in rows if row.fits]
    total = sum(row.seconds for row in fitting)
    _say(f"{len(fitting)} of {len(rows)} questions, about {total:.0f} s of GPU time")
    return 0


def _environment(args: argparse.Namespace) -> Environment:
    """Return the environment to try in: that of --python, or the kept one of a cell."""
    from matrix.home import Home
    from matrix.provision.environment import read_manifest
    from matrix.provision.shelf import Shelf
    from matrix.provision.standing import here

    if args.here or args.python:
        if args.spec:
            raise UsageError("--here tries the environment there is; no cell is named with it.")
        return here(Path(args.python) if args.python else None)
    if len(args.spec) != 1:
        raise UsageError("Name one cell whose environment is kept, or give --here.", then="`env list` shows them.")
    shelf = Shelf(root=Home.find(args.home).cache / "environments")
    folder = shelf.folder(args.spec[0])
    manifest = read_manifest(folder)
    if manifest is None:
        raise NothingRanError(
            f"There is no environment of {args.spec[0]}.", then=f"Make it with `env build {args.spec[0]}`."
        )
    return manifest.environment(folder, reused=True)


def _ask_all(args: argparse.Namespace, questions: list[tuple[str, Asked]], environment: Environment) -> int:
    from dataclasses import replace

    from matrix.home import Home
    from matrix.probing.folder import probes_folder
    from matrix.thresholds.ask import Bench
    from matrix.thresholds.card import card

    home = Home.find(args.home)
    home.prepare()
    bench = Bench(
        python=environment.python,
        probes=probes_folder(),
        caches=home.cache / "thresholds",
        device=args.device,
        deadline=time.monotonic() + args.minutes * 60 if args.minutes else float("inf"),
    )
    bench.caches.mkdir(parents=True, exist_ok=True)
    if args.device == "cpu":
        return _answers(args, questions, bench, None, None)
    with card(environment) as granted:
        bench = replace(bench, visible=granted.visible)
        return _answers(args, questions, bench, _keeper(environment, home, bench, granted), granted)


def _answers(
    args: argparse.Namespace,
    questions: list[tuple[str, Asked]],
    bench: Bench,
    keeper: Callable[[Asked, Mapping[str, object]], Keeper] | None,
    granted: Card | None,
) -> int:
    """Ask one question after the other and print each answer; what does not fit into the time is untested."""
    from matrix.thresholds.ask import device_total, in_turn
    from matrix.thresholds.plan import planned
    from matrix.thresholds.records import threshold_json
    from matrix.thresholds.trial import shown

    rows = planned([(name, asked, _foretold(args, asked)) for name, asked in questions], None)
    if args.value is not None:
        return _once(args, rows[0].asked, bench, partial(keeper, rows[0].asked) if keeper else None)
    results: list[dict[str, object]] = []
    answered = 0
    for row, one in zip(rows, in_turn([row.asked for row in rows], bench, _tell, keeper), strict=True):
        if row.seconds > bench.deadline - time.monotonic():
            _tell(f"{row.id}: untested, about {row.seconds:.0f} s do not fit into what is left")
            continue
        _tell(f"{row.id}: {row.asked.name}" + ("" if row.predicted is None else f", predicted {shown(row.predicted)}"))
        found = one.answer(row.predicted)
        total = device_total(found.trials)
        answered += found.found.answers
        data = {"id": row.id, "name": row.asked.name, **threshold_json(row.asked, found, row.predicted, total)}
        if granted is not None:
            left = granted.settle().left_mib
            data["gpu_left_mib"] = left
            if left:
                _tell(f"{left} MiB are left on the GPU after {row.id}; it is used no further")
                results.append(data)
                break
        results.append(data)
        if not args.json:
            _say(_answer(data))
    if args.json:
        _say(json.dumps(results, indent=2, ensure_ascii=False))
    else:
        seconds = sum(float(str(data["gpu_seconds"])) for data in results)
        _say(f"{answered} of {len(rows)} questions answered, {seconds:.0f} s in trials")
    if not results:
        raise NothingRanError("No question was asked.", then="Give more --minutes; `--plan` shows what each takes.")
    return 0 if answered == len(results) else 1


def _once(
    args: argparse.Namespace,
    asked: Asked,
    bench: Bench,
    keeper: Callable[[Mapping[str, object]], Keeper] | None,
) -> int:
    """Try one value once and print all that was told; 0 where it survives, 1 where not."""
    from matrix.thresholds.ask import asking

    with asking(asked, bench, _tell, keeper) as one:
        trial = one.once(args.value)
    _say(json.dumps({"name": asked.name, **trial.to_json()}, indent=2, ensure_ascii=False))
    return 0 if trial.passed else 1


def _keeper(
    environment: Environment, home: Home, bench: Bench, granted: Card
) -> Callable[[Asked, Mapping[str, object]], Keeper]:
    """Return who keeps the trials of a question; what the machine is like is kept now."""
    from matrix.job import now
    from matrix.probing.cellfile import digest
    from matrix.store import Store
    from matrix.thresholds.records import Keeper, scripts_digest

    store = Store(home.store)
    lock = environment.lock or digest(dict(sorted(environment.installed.items())))
    store.add(granted.observation(environment.cell, lock, now()))
    scripts = scripts_digest(bench.probes)

    def made(asked: Asked, spec: Mapping[str, object]) -> Keeper:
        return Keeper(
            store=store,
            asked=asked,
            spec=spec,
            cell=environment.cell,
            lock=lock,
            trials=scripts,
            kind=granted.machine.kind,
            machine=granted.machine.words,
            clock=now,
            detail={"fingerprint": granted.digest},
        )

    return made


def _answer(data: Mapping[str, object]) -> str:
    """Return a threshold in a few lines for people."""
    from matrix.thresholds.trial import shown

    lines = [f"{data['name']}", f"  {data['line']}"]
    predicted, found = data.get("predicted"), data.get("largest_pass")
    if isinstance(predicted, int | float) and isinstance(found, int | float) and found:
        lines.append(f"  predicted {shown(predicted)}, {100 * (predicted / found - 1):+.1f} %")
    for word in ("pass", "fail"):
        side = data.get(word)
        if isinstance(side, Mapping):
            peak = f"peak {int(side['peak']) / 2**30:.2f} GiB" if side["peak"] else "no peak measured"
            lines.append(
                f"  {word}: {side['value']:g}, {side['repeats']} trials, {side['fresh']} in fresh processes, {peak}"
            )
    cap = data.get("cap")
    if isinstance(cap, Mapping):
        lines.append(f"  {cap['words']}")
    lines.append(f"  {data['trials']} trials, {data['recalled']} of them stored before; {data['gpu_seconds']} s")
    return "\n".join(lines)


def _stored(args: argparse.Namespace) -> int:
    """Print the thresholds that are stored, or one of them whole."""
    from matrix.evidence import shipped
    from matrix.home import Home
    from matrix.store import Store

    action, *names = args.spec
    if (action == "show") != (len(names) == 1):
        raise UsageError("`thresholds show` takes one name, `thresholds list` none.", then="`thresholds list` names.")
    latest: dict[tuple[str, str], Observation] = {}
    pattern = names[0] if names else "threshold/*"
    recorded = (item for item in shipped(args.evidence) if fnmatchcase(item.question.probe, pattern))
    for item in (*recorded, *Store(Home.find(args.home).store).find(probe=pattern)):
        if item.question.probe.startswith("threshold/"):
            latest[item.question.cell, item.question.probe] = item
    if not latest:
        there = "`thresholds list` names those there are." if names else "`thresholds --here` finds some, on a GPU."
        raise NothingRanError(f"No threshold {f'`{names[0]}` ' if names else ''}is stored.", then=there)
    data = [
        {
            "cell": cell,
            "name": probe,
            "machine": item.machine,
            "at": item.at.isoformat(),
            "shipped": item.shipped,
            **dict(item.detail),
        }
        for (cell, probe), item in sorted(latest.items())
    ]
    if args.json:
        _say(json.dumps(data, indent=2, ensure_ascii=False))
        return 0
    for one in data:
        if action == "show":
            _say(f"{_answer(one)}\n  {one['cell']}; {_where(one)}")
        else:
            _say(f"{one['name']}  {one['line']}  [{one['cell']}; {_where(one)}]")
    return 0


def _where(data: Mapping[str, object]) -> str:
    """Return the machine and the date, and whether it is of the evidence that is shipped."""
    return f"{data['machine']}, {str(data['at'])[:10]}" + (", shipped evidence" if data["shipped"] else "")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
