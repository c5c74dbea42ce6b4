"""The commands: each takes the parsed words and the renderers, prints its answer, and returns the exit code."""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.cell import Axis, Cell
from matrix.cli import executors, wiring
from matrix.cli.front import Front
from matrix.errors import CorruptFileError, NothingRanError, UnknownReleaseError, UsageError
from matrix.home import Home
from matrix.job import Job, RunResult
from matrix.observe import Observation
from matrix.plan import Planned
from matrix.tier import Status, Tier

if TYPE_CHECKING:
    from packaging.version import Version

    from matrix.plan import Plan


def run(args: argparse.Namespace, front: Front) -> int:
    """Give every planned cell its verdict and write the report; 0 once all are judged, 1 where `--fail-on` says so."""
    from matrix.run import run as run_job

    executors.take_up(args, Home.find(args.home))
    plan = _plan(args)
    if args.list:
        _say(_json(plan.data) if args.json else front.plan_table(plan))
        return 0
    fail_on, strict = _statuses(args.fail_on)
    out = wiring.out_folder(args)
    job = wiring.open_job(args, plan.planned, front.progress())
    journal = executors.begin(args, Home.find(args.home)) if job.unkept is None else None
    result = run_job(job)
    result = replace(result, lattice=wiring.pairs_of(args, job))
    if journal is not None and not result.interrupted:
        journal.end()
    files = front.write_report(result, out)
    _say(_json(front.run_json(result)) if args.json else front.run_table(result))
    _tell_files(files)
    _refuse_unfinished(result)
    # What is recorded elsewhere is shown; it fails nobody's run.
    disagrees = strict and any(not item.shipped for verdict in result.verdicts for item in verdict.disagreements)
    return 1 if disagrees or any(verdict.status in fail_on for verdict in result.verdicts) else 0


def report(args: argparse.Namespace, front: Front) -> int:
    """Write the report again from what is stored; asks nothing."""
    from matrix.run import recall

    plan = _plan(args)
    job = wiring.open_job(args, plan.planned, front.progress(), keeps=False)
    result = recall(job)
    result = replace(result, lattice=wiring.pairs_of(args, job))
    if not result.ran and not result.recorded:
        raise NothingRanError(
            f"Nothing is stored about {_counted(result.planned, 'cell')}, so there is nothing to report.",
            then="Run `verl-matrix run` first; --home says where its observations are kept.",
        )
    files = front.write_report(result, Path(args.out))
    _say(front.run_table(result))
    _tell_files(files)
    return 0


def check(args: argparse.Namespace, front: Front) -> int:
    """Print the verdict of one set of versions; 0 works or degraded as far as tried, 1 broken or conflict."""
    from matrix.evidence import alike
    from matrix.run import run as run_job
    from matrix.verdict import exit_code

    asked = wiring.cell_of(args)
    job = wiring.open_job(args, (Planned(cell=asked),), front.progress())
    result = run_job(job)
    (verdict,) = result.verdicts
    if result.interrupted:
        raise KeyboardInterrupt
    if job.evidence is not None:
        result = replace(result, notes=(*result.notes, *alike(asked, job.evidence)))
    if args.json:
        _say(_json(front.run_json(result)))
    code = exit_code(result.verdicts)
    if not args.json:
        _say(front.verdict_text(verdict, result))
    if code == 0:
        _refuse_failures(result)
    return code


def surface(args: argparse.Namespace, front: Front) -> int:
    """List the findings of one set of pinned versions; 0 works or degraded, 1 broken, as `check` has it."""
    from matrix.axes import load_axes
    from matrix.finding import Finding
    from matrix.run import run as run_job
    from matrix.spec import parse_cell
    from matrix.verdict import exit_code

    asked = parse_cell(args.spec, platform=wiring.platform(args), as_of=wiring.as_of(args), axes=load_axes())
    _refuse_incomparable(asked)
    args.tiers = Tier.SURFACE.value
    result = run_job(wiring.open_job(args, (Planned(cell=asked),), front.progress()))
    if result.interrupted:
        raise KeyboardInterrupt
    code = exit_code(result.verdicts)
    (verdict,) = result.verdicts
    observation = verdict.observation(Tier.SURFACE)
    stored = observation.detail.get("findings", ()) if observation is not None else ()
    findings = [Finding.from_json(item) for item in stored]  # type: ignore[attr-defined]
    shown = [found for found in findings if args.all or found.decides]
    if shown or args.format in ("json", "markdown"):
        _say(front.findings_text(shown, args.format))
    if args.format == "text":
        more = "" if args.all or len(shown) == len(findings) else "; --all shows what is guarded or not certain too"
        _say(f"{asked.name}: {verdict.status}. {len(shown)} of {_counted(len(findings), 'finding')} shown{more}.")
        if verdict.unlooked:
            _say(f"Not looked at, as no version was given: {', '.join(verdict.unlooked)}.")
    return code


def _refuse_incomparable(asked: Cell) -> None:
    """Raise UsageError for a cell that does not pin verl and something that verl uses."""
    how = "Write it like `verl-matrix surface verl==0.9.1 vllm==0.26.0`."
    if asked.open_axes:
        raise UsageError(
            f"surface compares exact versions; `{asked.open_axes[0].requirement}` leaves one open.",
            then=f"{how} `verl-matrix check` takes open ones, and checks what they resolve to.",
        )
    if asked.pin(Axis.VERL) is None or len(asked.pins) < 2:
        missing = "verl is not named" if asked.pin(Axis.VERL) is None else "only verl is named"
        raise UsageError(f"surface compares a release of verl with releases of others; {missing}.", then=how)


def grid(args: argparse.Namespace, front: Front) -> int:
    """Give every pair of two axes its verdict; write the CSV and the heat map."""
    from matrix.axes import axis_named, load_axes
    from matrix.grid import chosen, pairs, run_grid

    axes = load_axes()
    x, y = axis_named(args.x), axis_named(args.y)
    xs = chosen(x, axes[x].releases, args.x_only)
    ys = chosen(y, axes[y].releases, args.y_only)
    asked = pairs(x, y, xs, ys, platform=wiring.platform(args), as_of=wiring.as_of(args))
    out = wiring.out_folder(args)
    made = run_grid(x, y, wiring.open_job(args, [Planned(cell=cell) for cell in asked], front.progress()))
    files = front.write_grid(made, out)
    counts = {status: sum(row.status is status for row in made.rows) for status in Status}
    told = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    _say(f"{x.value} x {y.value}: {len(made.rows)} of {_counted(len(asked), 'pair')} judged: {told}.")
    for tally in made.run.tallies:
        counted = f"{tally.reused} reused, {tally.new} new, {tally.untested} untested"
        _say(f"{tally.tier.value}: {counted}, {tally.seconds:.1f} s")
    _tell_files(files)
    _refuse_unfinished(made.run)
    return 0


def bisect(args: argparse.Namespace, front: Front) -> int:
    """Name the first release of an axis that is bad, and why; 0 when it was found, 1 when only a range was."""
    from matrix.axes import axis_named, load_axes
    from matrix.bisect import Answer, Grade, grade
    from matrix.bisect import bisect as search
    from matrix.spec import parse_cell, parse_version

    axes, axis, tier = load_axes(), axis_named(args.axis), Tier(args.tier)
    args.tiers = tier.value
    good, bad = (parse_version(axis, text, axes) for text in (args.good, args.bad))
    job = wiring.open_job(args, (), front.progress())
    # One checker for all questions: what it has loaded of the versions that stay is not loaded for each of them.
    job = replace(job, checker=functools.cache(job.checker))

    def ask(version: Version) -> Answer[Observation]:
        specs = [*args.fixed, f"{axis.value}=={version}"]
        asked = parse_cell(specs, platform=wiring.platform(args), as_of=wiring.as_of(args), axes=axes)
        observation = _ask_one(job, asked, tier)
        found = grade(observation.outcome, tier)
        judged = "passed over" if found is Grade.HOLE else found.value
        sys.stderr.write(f"{axis.value} {version}: {judged} ({observation.outcome})\n")
        return Answer(grade=found, evidence=observation, reason=observation.reason)

    found = search(axis, axes[axis].releases, good, bad, ask)
    evidence = found.bad.evidence
    if args.json:
        _say(_json({**found.data, "evidence": evidence.question.key, "detail": dict(evidence.detail)}))
    else:
        _say(found.line)
        between = sum(good <= version <= bad for version in axes[axis].releases)
        _say(f"last good: {found.last_good}; asked about {len(found.asked)} of {between} releases from {good} to {bad}")
        for version, reason in found.holes.items():
            _say(f"passed over {version}: {reason}")
        for warning in found.warnings:
            _say(f"warning: {warning}")
    return 0 if found.first_bad is not None else 1


def update(args: argparse.Namespace, front: Front) -> int:
    """Bring axes.toml up to date with the index and show the difference; with `--check` write nothing, 1 if any."""
    from matrix.axes import AXES
    from matrix.update import update as bring_up

    diff = bring_up(wiring.open_index(args, Home.find(args.home)), AXES, check=args.check)
    if args.json:
        _say(_json(diff.data))
    else:
        for line in diff.lines:
            _say(line)
        if not diff:
            _say(f"{diff.path.name} is up to date: {sum(diff.counts.values())} releases of {len(diff.counts)} axes.")
        else:
            written = "written" if diff.written else "not written"
            _say(f"{diff.path.name}: {_counted(len(diff.changes), 'change')}, {written}.")
    return 1 if args.check and diff else 0


def _plan(args: argparse.Namespace) -> Plan:
    from matrix.plan import SHIPPED, Plan, load_cells, plan

    if getattr(args, "here", None) is not None:
        return Plan(planned=(_standing(args),))
    paths = (Path(args.cells_file),) if args.cells_file else SHIPPED
    return plan(load_cells(paths), selectors=args.cells, platform=wiring.platform(args), as_of=wiring.as_of(args))


def _standing(args: argparse.Namespace) -> Planned:
    """Return the environment of `--here` as a planned cell; raises UsageError, NothingRanError, ToolError."""
    from matrix.cell import parse_name

    if args.cells or args.cells_file:
        raise UsageError("--here is about one environment, so --cells and --cells-file do not go with it.")
    if args.python:
        if args.here:
            raise UsageError("--here and --python both name an interpreter.", then="Name it once.")
        args.here, args.python = args.python, None
    found = wiring.stand(args)
    if not found.cell:
        raise NothingRanError(
            f"{found.python} has none of the stack installed, so there is no cell to try.",
            then="Start it from the environment that you mean, or name its interpreter: --here PYTHON.",
        )
    reason = "The environment that one stands in."
    if found.left_out:
        left_out = ", ".join(f"{name} {version}" for name, version in sorted(found.left_out.items()))
        reason = f"{reason} It came in a bundle without {left_out}, which its lock holds."
    cell = replace(parse_name(found.cell), reason=reason)
    return Planned(cell=cell, groups=("here",))


def _statuses(text: str) -> tuple[frozenset[Status], bool]:
    """Return the statuses that are named, and whether a record that is wrong counts too."""
    words = {word.strip() for word in text.split(",")} - {""}
    unknown = words - {status.value for status in Status} - {_DISAGREEMENT}
    if unknown:
        raise UsageError(f"There is no status `{min(unknown)}`.", then=f"Statuses: {', '.join(Status)}.")
    return frozenset(Status(word) for word in words - {_DISAGREEMENT}), _DISAGREEMENT in words


_DISAGREEMENT = "disagreement"


def _ask_one(job: Job, cell: Cell, tier: Tier) -> Observation:
    """Return the answer for one cell at one tier, stored or new; `untested` where the release itself is to blame."""
    from matrix.asking import untested
    from matrix.run import run as run_job

    try:
        result = run_job(replace(job, cells=(cell,), from_lock=False))
    except (UnknownReleaseError, CorruptFileError) as error:
        return untested(cell, tier, error.what, job)
    if result.interrupted:
        raise KeyboardInterrupt
    found = result.verdicts[0].observation(tier)
    return found if found is not None else untested(cell, tier, "nothing was answered", job)


def _refuse_unfinished(result: RunResult) -> None:
    """Raise what kept a run of many cells from its end: an interrupt, that nothing ran, or the first failure."""
    if result.interrupted:
        raise KeyboardInterrupt
    if not result.ran:
        # No cell was tried, and that would look like a pass.
        raise NothingRanError(
            f"Nothing ran: 0 of {_counted(result.planned, 'cell')} {'was' if result.planned == 1 else 'were'} tried.",
            why="; ".join(sorted({reason for verdict in result.verdicts for reason in verdict.reasons})[:3]),
            then="The report says why, cell by cell; run again once that is mended.",
        )
    _refuse_failures(result)


def _refuse_failures(result: RunResult) -> None:
    """Raise the first of the failures that kept a question from its answer: what was printed is not the whole."""
    for failure in result.failures[:1]:
        raise failure


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _tell_files(files: Sequence[Path]) -> None:
    for file in files:
        sys.stderr.write(f"wrote {file}\n")


def _json(data: object) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False)


def _lazy(module: str) -> Callable[[argparse.Namespace, Front], int]:
    """Return the `run` of a module of `matrix.cli` that is imported when it is called."""

    def call(args: argparse.Namespace, front: Front) -> int:
        command: Callable[[argparse.Namespace, Front], int] = importlib.import_module(f"matrix.cli.{module}").run
        return command(args, front)

    return call


COMMANDS: Mapping[str, Callable[[argparse.Namespace, Front], int]] = {
    "run": run,
    "report": report,
    "check": check,
    "surface": surface,
    "grid": grid,
    "bisect": bisect,
    "update": update,
    "nightly": _lazy("nightly"),
    "gather": _lazy("gather"),
    "env": _lazy("environments"),
    "bundle": _lazy("bundle"),
    "gpus": _lazy("gpus"),
    "workload": _lazy("workload"),
    "failures": _lazy("failures"),
    "config": _lazy("config"),
    "data": _lazy("data"),
    "health": _lazy("health"),
    "memory": _lazy("memory"),
    "thresholds": _lazy("thresholds"),
    "drift": _lazy("drift"),
    "claims": _lazy("claims"),
    "doctor": _lazy("doctor"),
    "pins": _lazy("pins"),
}
