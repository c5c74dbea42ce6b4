"""`nightly`: new releases looked for, what is new or stale run, what changed told; 1 where something newly broke."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.errors import NothingRanError

if TYPE_CHECKING:
    from matrix.axes import Axes
    from matrix.cell import Cell
    from matrix.cli.front import Front
    from matrix.home import Home
    from matrix.index.simple import SimpleIndex
    from matrix.job import Job, RunResult
    from matrix.nightly.archive import Archive
    from matrix.nightly.course import Course, Held
    from matrix.nightly.record import Night
    from matrix.nightly.retry import Again
    from matrix.nightly.snapshot import Snapshot
    from matrix.plan import Planned
    from matrix.tier import Tier

MORE = """ The exit code is 0 where nothing is newly bad (on a first night there is nothing to compare with), 1 where
something is, 10 where nothing ran, and 9 where another nightly holds this home.

  verl-matrix nightly
  verl-matrix nightly --cells group:neighbour --tiers resolve,surface --out public
  verl-matrix nightly --as-of 2026-11-20

Answers of the resolver are asked again when they are older than 12 hours (--max-age)."""
FOLDER = "nightly"
"""Where the nights are kept, beside the store."""
MAX_AGE_H = 12
"""Shorter than a day, so that what an index may change is asked every night."""
HISTORY = 30
"""So many nights are in the feed."""


def words(parser: argparse.ArgumentParser) -> None:
    """Add the words that only this command has."""
    parser.add_argument("--cells", action="append", default=[], metavar="PATTERN", help=_CELLS)
    parser.add_argument("--cells-file", metavar="FILE", help="cells from this file instead of the ones shipped")
    parser.add_argument("--tiers", metavar="LIST", help="how deep (default: as `run`)")
    parser.add_argument("--out", default="reports/out", metavar="DIR", help=_OUT)
    parser.add_argument("--report-url", default="", metavar="URL", help="where --out will be served, for the links")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    group = parser.add_argument_group("nightly")
    group.add_argument("--axes", metavar="FILE", help=_AXES)
    group.add_argument("--no-update", action="store_true", help="look for no new releases")
    group.add_argument("--newest", type=_count, default=2, metavar="N", help=_NEWEST)
    group.add_argument("--as-of", dest="exclude_newer", metavar="DATE", help="the same as --exclude-newer")
    group.add_argument("--wait", type=_count, default=0, metavar="SECONDS", help=_WAIT)
    # A nightly goes on by itself where it was cut short: what was answered is in the store.
    parser.set_defaults(max_age=MAX_AGE_H, resume=False)


_CELLS = "cells by name, as for `run`; may be repeated"
_OUT = "where the reports go (default: %(default)s)"
_AXES = "keep the releases in this axes file (default: a copy in the home)"
_NEWEST = "also try the N newest releases of each axis that no cell pins (default: %(default)s)"
_WAIT = "wait so long for another nightly in this home (default: not at all)"


def _count(text: str) -> int:
    """Return `text` as a whole number from 0 on, for argparse."""
    if not text.isdecimal() or len(text) > 6:
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number from 0 to 999999")
    return int(text)


def run(args: argparse.Namespace, front: Front) -> int:
    """Hold a night, write its reports, and say what is new; 0 nothing, 1 new failures."""
    from matrix.cli import executors, wiring
    from matrix.home import Home
    from matrix.nightly.archive import Archive
    from matrix.nightly.course import hold
    from matrix.nightly.turn import turn

    home, out = Home.find(args.home), wiring.out_folder(args)
    executors.take_up(args, home)
    home.prepare()
    folder = home.store.parent / FOLDER
    with turn(folder, wait_s=float(args.wait)):
        archive = Archive(folder)
        journal = executors.begin(args, home) if args.executor != executors.NAMES[0] else None
        course = _course(args, front, home, archive)
        held = hold(course)
        if journal is not None and not held.result.interrupted:
            journal.end()
        history = _history(archive, held)
        files = front.write_nightly(_with_pairs(args, course, held), history, out, report_url=args.report_url)
        if held.counts:
            # Last: were it kept and not told, what is new in it would be nothing new the next time.
            archive.keep(held.night)
    if args.json:
        sys.stdout.write(json.dumps(held.night.to_json(), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(front.nightly_text(held) + "\n")
    for file in files:
        sys.stderr.write(f"wrote {file}\n")
    return _code(held)


def _with_pairs(args: argparse.Namespace, course: Course, held: Held) -> Held:
    """Return the night with the pairs of an earlier grid, as the report of a run has them; not of an earlier day."""
    from matrix.cli import wiring

    if course.as_of is not None or held.result.interrupted:
        return held
    pairs = wiring.pairs_of(args, course.job(course.planned), course.axes)
    return replace(held, result=replace(held.result, lattice=pairs))


def _code(held: Held) -> int:
    """Return the exit code; raises what kept the night from its end, once the reports are written."""
    if held.result.interrupted:
        raise KeyboardInterrupt
    if not held.result.ran:
        raise NothingRanError(
            f"Nothing ran: 0 of {held.result.planned} cells were tried, so this night is not kept.",
            why="; ".join(sorted({reason for verdict in held.result.verdicts for reason in verdict.reasons})[:3]),
            then="The report says why, cell by cell; run it again once that is mended.",
        )
    if held.new_failures:
        return 1
    for failure in held.result.failures[:1]:
        raise failure
    return 0


def _history(archive: Archive, held: Held) -> tuple[Night, ...]:
    """Return the nights for the feed, this one first; what cannot be read any more is left out."""
    others = (night for night in archive.recent(HISTORY) if night.stamp != held.night.stamp)
    return (held.night, *others)[:HISTORY]


def _course(args: argparse.Namespace, front: Front, home: Home, archive: Archive) -> Course:
    from matrix.axes import load_axes
    from matrix.cli import wiring
    from matrix.nightly.course import Course
    from matrix.nightly.lattice import NAME, bring_up
    from matrix.nightly.machine import is_other_gpu
    from matrix.resolve.lock import LockFolder

    index: SimpleIndex = wiring.open_index(args, home)
    given = Path(args.axes) if args.axes else None
    if args.no_update:
        kept = given or archive.folder / NAME
        axes = load_axes(kept) if given or kept.exists() else load_axes()
    else:
        axes = bring_up(index, archive.folder, given=given)
    planned = _planned(args, axes)
    snapshot = _snapshot(args, index, planned, axes)
    before, notes = archive.latest()
    if before is not None and is_other_gpu(before.snapshot.get("machine") or {}, snapshot.machine):
        args.again = True
        notes += ("The GPUs or their driver are others than on the night before: everything is asked again.",)

    def job(items: Sequence[Planned]) -> Job:
        return wiring.open_job(args, items, front.progress())

    return Course(
        planned=planned,
        as_of=wiring.as_of(args),
        job=job,
        again=_again(args, front, planned),
        index=index,
        axes=axes,
        lock=LockFolder.under(home.cache).read,
        before=before,
        snapshot=snapshot,
        pages=_pages_again(args, home, planned),
        notes=notes,
    )


def _planned(args: argparse.Namespace, axes: Axes) -> tuple[Planned, ...]:
    """Return the cells of the plan, and one for each of the newest releases that none of all planned cells pins."""
    from matrix.cli import wiring
    from matrix.nightly.candidates import candidates
    from matrix.plan import SHIPPED, load_cells, merged, plan

    paths = (Path(args.cells_file),) if args.cells_file else SHIPPED
    platform, as_of = wiring.platform(args), wiring.as_of(args)
    known = load_cells(paths)
    new = candidates(axes, known, newest=args.newest, platform=platform, as_of=as_of)
    # What is selected is selected of the plan; candidates have an option of their own.
    return merged((*plan(known, selectors=args.cells, platform=platform, as_of=as_of).planned, *new))


def _snapshot(args: argparse.Namespace, index: SimpleIndex, planned: Sequence[Planned], axes: Axes) -> Snapshot:
    from datetime import UTC, datetime

    from matrix.cli import wiring
    from matrix.index.login import shown
    from matrix.nightly.lattice import recorded
    from matrix.nightly.snapshot import Snapshot, data_digest, packages_of, pages_of, releases_of
    from matrix.plan import SHIPPED
    from matrix.records import FAILURES

    cells = (Path(args.cells_file),) if args.cells_file else SHIPPED
    return Snapshot(
        at=datetime.now(UTC),
        as_of=wiring.as_of(args),
        index=shown(index.url),
        pages=pages_of(index, packages_of(planned)),
        releases=releases_of(index, planned),
        lattice=recorded(axes),
        data={"cells": data_digest(*cells), "failures": data_digest(FAILURES)},
        tools=_tools(),
        machine=_machine(),
        asked={"cells": list(args.cells), "tiers": args.tiers, "probes": list(args.probes), "newest": args.newest},
    )


def _tools() -> dict[str, str]:
    import platform

    from matrix import __version__
    from matrix.cli import wiring
    from matrix.resolve.resolver import TOOL
    from matrix.surface.check import RULES
    from matrix.surface.facts import FACTS_VERSION

    return {
        "verl-matrix": __version__,
        "python": platform.python_version(),
        **wiring.tools(),
        "resolve": TOOL,
        "surface": f"rules {RULES} facts {FACTS_VERSION}",
    }


def _machine() -> dict[str, Any]:
    from matrix.cli import wiring
    from matrix.gpus.nvml import driver
    from matrix.nightly.machine import machine_facts
    from matrix.probing.machine import this_machine

    return machine_facts(driver(), wiring.gpus(), this_machine().words)


def _again(args: argparse.Namespace, front: Front, planned: Sequence[Planned]) -> Again:
    """Return what asks a cell once more: at these tiers, and at deep ones only these probes."""
    from matrix.cli import wiring
    from matrix.run import run as run_job
    from matrix.tier import Tier as Tiers

    by_name = {item.cell.name: item for item in planned}

    def again(cell: Cell, tiers: frozenset[Tier], probes: tuple[str, ...]) -> RunResult:
        # A set that is not pinned whole is checked at the versions of its lock, so it is resolved in any case.
        wanted = sorted({*tiers, Tiers.RESOLVE}, key=lambda tier: tier.depth)
        more: Mapping[str, object] = {
            "again": True,
            "tiers": ",".join(tier.value for tier in wanted),
            "probes": list(probes) or args.probes,
        }
        mine = argparse.Namespace(**{**vars(args), **more})
        return run_job(wiring.open_job(mine, (by_name[cell.name],), front.progress()))

    return again


def _pages_again(args: argparse.Namespace, home: Home, planned: Sequence[Planned]) -> Callable[[], Mapping[str, str]]:
    """Return what looks at the pages of the index once more, past every copy of them."""
    from matrix.cli import wiring
    from matrix.nightly.snapshot import packages_of, pages_of

    def pages() -> Mapping[str, str]:
        return pages_of(wiring.open_index(args, home, page_max_age=0.0), packages_of(planned))

    return pages
