"""The words of `run` that say where cells are visited, and what it takes to go on with a run that was cut short."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.errors import UsageError

if TYPE_CHECKING:
    from matrix.executors.journal import Journal
    from matrix.executors.manner import Manner
    from matrix.executors.spread import Spread
    from matrix.home import Home
    from matrix.observe import Observation
    from matrix.store import Store

NAMES = ("local", "ray")
GIB = 2**30
SELECTING = (
    "cells", "cells_file", "tiers", "probes", "here", "cell", "python", "platform", "exclude_newer", "again",
)  # fmt: skip
"""What a run is about: one that goes on is about the same."""
MEANS = (
    "executor", "address", "gpus", "accelerator", "cpus", "node_home", "patience", "memory", "keep", "index_url",
    "offline", "evidence", "max_age",
)  # fmt: skip
"""How it is done: taken over too, unless something else is said."""


def add(parser: argparse.ArgumentParser, whole: Callable[[str], int], *, resume: bool = True) -> None:
    """Add the options to the parser of `run`; `whole` reads a number above 0."""
    group = parser.add_argument_group("where cells are visited (docs/executors.md)")
    group.add_argument("--executor", choices=NAMES, default=NAMES[0], help="default: %(default)s; `ray`: a cluster")
    if resume:
        group.add_argument("--resume", action="store_true", help="go on with the last run, which was cut short")
    group.add_argument("--address", metavar="ADDRESS", help="ray: the cluster (default: RAY_ADDRESS, else one here)")
    group.add_argument("--gpus", type=whole, metavar="N", help="ray: GPUs a cell at tier gpu (default: as probes need)")
    group.add_argument("--accelerator", action="append", default=[], metavar="TYPE", help=_ACCELERATOR)
    group.add_argument("--cpus", type=whole, metavar="N", help="ray: cores a cell (default: 2)")
    group.add_argument("--patience", type=whole, metavar="MINUTES", help=_PATIENCE)
    group.add_argument("--node-home", metavar="DIR", help="ray: where its machines keep environments and downloads")


_PATIENCE = "ray: wait so long for a machine that fits, in a cluster that grows (default: refuse at once)"
_ACCELERATOR = "ray: only this kind of GPU, as Ray names it (H100, A100-80G); may be repeated"


def take_up(args: argparse.Namespace, home: Home) -> None:
    """With `--resume`, fill in the words of the run that was cut short; other options must fit together.

    Raises:
        UsageError: what is selected is not what that run was about, or an option goes with `--executor ray` only.
        NothingRanError: there is no run to go on with.
    """
    if args.resume:
        from matrix.executors.journal import unfinished

        args.journal = unfinished(home.store)
        _fill(args, args.journal)
    if args.executor != "ray":
        for name in ("address", "gpus", "accelerator", "cpus", "node_home", "patience"):
            if getattr(args, name):
                raise UsageError(f"--{name.replace('_', '-')} goes with --executor ray.")


def _fill(args: argparse.Namespace, journal: Journal) -> None:
    for name in (*SELECTING, *MEANS):
        held, given, usual = journal.words.get(name), getattr(args, name), args.parser.get_default(name)
        if given in (usual, held):
            setattr(args, name, held if name in journal.words else given)
        elif name in SELECTING:
            option = {"probes": "-k"}.get(name, f"--{name.replace('_', '-')}")
            raise UsageError(
                f"--resume goes on with a run that was asked for something else: {option} was {held!r}, not {given!r}.",
                then="Leave the option away, or run without --resume.",
            )
    if args.again:
        args.since = journal.begun


def begin(args: argparse.Namespace, home: Home) -> Journal:
    """Return the journal of the run that begins now, or that goes on."""
    if not args.resume:
        from matrix.executors import journal

        args.journal = journal.begin(home.store, {name: getattr(args, name) for name in (*SELECTING, *MEANS)})
    found: Journal = args.journal
    return found


def open_cluster(
    args: argparse.Namespace, how: Manner, home: Home, store: Store, lock: Callable[[Observation], str]
) -> Spread:
    """Return the executor over the machines of the cluster; raises ToolError where there is none."""
    from matrix.executors.parcel import make_parcel
    from matrix.executors.ray_cluster import open_cluster
    from matrix.executors.recall import Recall
    from matrix.executors.spread import Given, Spread

    given = Given(
        gpus=args.gpus or 0,
        cpus=args.cpus or 0,
        kinds=tuple(args.accelerator),
        memory=how.memory_gib * GIB,
        home=Path(args.node_home) if args.node_home else None,
        patience_s=60.0 * (args.patience or 0),
    )
    cluster = open_cluster(args.address or "", make_parcel)
    recall = Recall(store=store, cache=home.cache, manner=how)
    return Spread(cluster=cluster, manner=how, given=given, store=store, lock=lock, journal=args.journal, recall=recall)
