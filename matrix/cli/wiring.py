"""From words to working parts: the index, the two probes and the store that the options ask for."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.cell import Cell, Platform
from matrix.errors import ProvisionError, UsageError
from matrix.evidence import NONE, shipped
from matrix.home import Home
from matrix.index.fetch import Fetcher, Limits
from matrix.index.simple import PAGE_MAX_AGE, SimpleIndex
from matrix.job import Checker, Job, Progress
from matrix.plan import Planned
from matrix.resolve import Resolver
from matrix.spec import parse_moment, parse_platform
from matrix.store import Store
from matrix.tier import Tier

if TYPE_CHECKING:
    from matrix.axes import Axes
    from matrix.cli.front import Front
    from matrix.executors.manner import Manner
    from matrix.executors.protocol import Executor
    from matrix.gpus.inventory import Inventory
    from matrix.grid import Row
    from matrix.provision import Environment

BUILT = (Tier.RESOLVE, Tier.SURFACE, Tier.IMPORT, Tier.BEHAVE, Tier.GPU)
"""The tiers that this release can try."""
STATIC = frozenset({Tier.RESOLVE, Tier.SURFACE})
EMBEDDED = "embedded"
"""The group of the cells that a run installs and probes by default."""
LOCAL = "local"
"""The executor that needs no other machine."""
GPU_GROUP = "gpu"
"""The group of those that it installs and probes too where there is a GPU, and says so where there is none."""


def open_index(args: argparse.Namespace, home: Home, *, page_max_age: float = PAGE_MAX_AGE) -> SimpleIndex:
    """Return the index that the options name; raises UsageError for a malformed address or date."""
    return _index(home.cache, args.index_url, offline=args.offline, as_of=as_of(args), page_max_age=page_max_age)


def _index(
    cache: Path, url: str | None, *, offline: bool, as_of: datetime | None, page_max_age: float = PAGE_MAX_AGE
) -> SimpleIndex:
    fetcher = Fetcher(offline=offline, limits=_limits())
    make = functools.partial(SimpleIndex, url=url) if url else SimpleIndex.from_environment
    return make(cache_dir=cache, offline=offline, as_of=as_of, page_max_age=page_max_age, fetcher=fetcher)


def _limits() -> Limits:
    """Return how patient we are with the index: as uv is, which reads the same variable."""
    given = os.environ.get("UV_HTTP_TIMEOUT")
    if not given:
        return Limits()
    if not given.isdecimal() or int(given) < 1:
        raise UsageError(
            f"UV_HTTP_TIMEOUT is `{given}`, which is no number of seconds.", then="Set it to one, or unset it."
        )
    return Limits(connect=min(float(given), Limits().connect), read=float(given))


def as_of(args: argparse.Namespace) -> datetime | None:
    """Return the moment of `--exclude-newer`, or None."""
    given = getattr(args, "exclude_newer", None)
    return parse_moment(given) if given else None


def platform(args: argparse.Namespace) -> Platform | None:
    """Return the platform of `--python` and `--platform`, or None where neither is given."""
    return parse_platform(args.python, args.platform) if args.python or args.platform else None


def tiers(args: argparse.Namespace) -> frozenset[Tier]:
    """Return the tiers of `--tiers`; what needs an installation needs a lock, so `resolve` comes with it.

    Raises:
        UsageError: there is no such tier, or this release or this command cannot try it.
    """
    here = getattr(args, "here", None) is not None
    if args.tiers is None:
        # What was made from a lock is that cell, whose surface is read where there is an index.
        static = (set() if _made_here(args) else {Tier.SURFACE}) if here else STATIC
        return frozenset({*static, Tier.IMPORT, Tier.BEHAVE, *([Tier.GPU] if _spreads(args) or gpus().gpus else [])})
    found = set()
    can = BUILT if hasattr(args, "probes") else tuple(sorted(STATIC, key=lambda tier: tier.depth))
    for word in filter(None, (word.strip() for word in args.tiers.split(","))):
        if word not in {tier.value for tier in Tier}:
            raise UsageError(f"There is no tier `{word}`.", then=f"Tiers: {', '.join(can)}.")
        tier = Tier(word)
        if tier not in can:
            who = "this release" if tier not in BUILT else f"`{args.command}`"
            raise UsageError(f"The tier `{word}` cannot be tried by {who}.", then=f"Tiers: {', '.join(can)}.")
        found.add(tier)
    if not found:
        raise UsageError("--tiers names no tier.", then=f"Tiers: {', '.join(can)}.")
    if here:
        return frozenset(found - {Tier.RESOLVE})
    return frozenset(found | {Tier.RESOLVE} if any(tier.is_deep for tier in found) else found)


def _spreads(args: argparse.Namespace) -> bool:
    """Return whether cells are visited on other machines, which may have the GPUs that this one has not."""
    return bool(getattr(args, "executor", LOCAL) != LOCAL)


def _made_here(args: argparse.Namespace) -> bool:
    """Return whether the environment of `--here` was made by this tool, on its shelf or out of a bundle."""
    from matrix.provision.standing import manifest_of

    return bool(args.here) and manifest_of(Path(args.here)) is not None


def stand(args: argparse.Namespace) -> Environment:
    """Return the environment of `--here`, under the name of `--cell` where that is given."""
    from matrix.provision import here

    return here(Path(args.here) if args.here else None, args.cell or "")


def deep(args: argparse.Namespace, planned: Sequence[Planned], wanted: frozenset[Tier]) -> frozenset[str]:
    """Return the cells that are installed and probed: all where such a tier was asked for, else those of some groups.

    These are the embedded ones, and where there is a GPU those that are there for the tier `gpu`.
    """
    if not hasattr(args, "probes") or not any(tier.is_deep for tier in wanted):
        return frozenset()
    asked = args.tiers is not None or args.here is not None
    groups = {EMBEDDED, GPU_GROUP} if _spreads(args) or gpus().gpus else {EMBEDDED}
    return frozenset(item.cell.name for item in planned if asked or groups & set(item.groups))


@functools.cache
def gpus() -> Inventory:
    """Return the GPUs that may be used here; asks the driver once."""
    from matrix.gpus.inventory import take_inventory

    return take_inventory()


def aside(planned: Sequence[Planned], wanted: frozenset[Tier], names: frozenset[str]) -> dict[str, dict[Tier, str]]:
    """Return why the cells that are there for the tier `gpu` are not tried at it, by name; none of those that are."""
    found = gpus()
    left = [item.cell.name for item in planned if GPU_GROUP in item.groups]
    if Tier.GPU in wanted:
        left = [name for name in left if name not in names]
    why = "it was not asked for" if found.gpus else f"this machine has no GPU{found.why and ': '}{found.why}"
    return {name: {Tier.GPU: why} for name in left}


def workers(args: argparse.Namespace) -> int:
    """Return how many workers to use: what was asked for, else the cores this process may run on."""
    return int(args.workers or len(os.sched_getaffinity(0)))


def open_checker(cache: Path, url: str | None, offline: bool, as_of: datetime | None) -> Checker:
    """Return a surface checker with an index of its own; a module's function, so that a worker process can call it."""
    from matrix.surface.check import SurfaceChecker

    return SurfaceChecker(index=_index(cache, url, offline=offline, as_of=as_of), cache_dir=cache)


def open_job(args: argparse.Namespace, planned: Sequence[Planned], progress: Progress, *, keeps: bool = True) -> Job:
    """Return the job over the planned cells that the options describe.

    Raises:
        UsageError: an option is malformed, or (unless `keeps` is off) `--home` holds nothing and can keep nothing.
    """
    home = Home.find(args.home)
    unkept = _unkept(home) if keeps else None
    index = open_index(args, home)
    count = workers(args)
    wanted = tiers(args) if hasattr(args, "tiers") else frozenset(BUILT)
    names = deep(args, planned, wanted)
    store = Store(home.store)
    resolver = Resolver(index=index, cache_dir=home.cache, max_age=timedelta(hours=args.max_age), workers=count)
    return Job(
        cells=tuple(item.cell for item in planned),
        resolver=resolver,
        checker=functools.partial(open_checker, home.cache, args.index_url, args.offline, as_of(args)),
        store=store,
        progress=progress,
        tiers=wanted,
        again=args.again,
        since=getattr(args, "since", None),
        max_age=timedelta(hours=args.max_age),
        workers=count,
        tools=tools(),
        plan={item.cell.name: item for item in planned},
        expected={item.cell.name: item.expected for item in planned if item.expected is not None},
        deep=names,
        visitor=functools.partial(open_executor, args, home, store, resolver, progress),
        unkept=unkept,
        evidence=shipped(getattr(args, "evidence", NONE)),
        aside=aside(planned, wanted, names) if hasattr(args, "evidence") else {},
    )


def open_executor(
    args: argparse.Namespace, home: Home, store: Store, resolver: Resolver, progress: Progress
) -> Executor:
    """Return what has cells visited: here, or on the machines of a cluster.

    Raises:
        ToolError: there is no uv to install with, or no probes, or no cluster.
        DataError: a record of a known failure is malformed.
    """
    from matrix.executors.local import Local
    from matrix.executors.manner import open_visitor

    how = manner(args)
    if _spreads(args):
        from matrix.cli.executors import open_cluster

        return open_cluster(args, how, home, store, resolver.lock)
    visitor = open_visitor(how, home=home, store=store, lock=resolver.lock, say=progress.note)
    return Local(visitor=visitor, tiers=how.tiers)


def manner(args: argparse.Namespace) -> Manner:
    """Return how the options have cells visited."""
    from matrix.executors.manner import Manner

    return Manner(
        tiers=frozenset(tier for tier in tiers(args) if tier.is_deep),
        patterns=tuple(args.probes),
        memory_gib=args.memory or 0,
        keep=args.keep,
        index_url=args.index_url,
        offline=args.offline,
        here=None if args.here is None else Path(args.here),
        cell=args.cell or "",
        again=args.again,
        since=getattr(args, "since", None),
    )


def _unkept(home: Home) -> UsageError | None:
    """Return why nothing can be kept in a home that can be read; raises UsageError where it holds no answer either."""
    try:
        home.prepare()
    except UsageError as error:
        if not home.store.is_dir() or not Store(home.store):
            raise
        return error
    return None


def tools() -> dict[str, str]:
    """Return the version of uv where it is installed as a package."""
    try:
        return {"uv": importlib.metadata.version("uv")}
    except importlib.metadata.PackageNotFoundError:
        return {}


def lock_of(cell: Cell, args: argparse.Namespace, front: Front) -> str:
    """Return the cell's lock, resolved now or as it is stored; raises ProvisionError where there is none."""
    from matrix.resolve.lock import LockFolder
    from matrix.run import run as run_job

    args.tiers = Tier.RESOLVE.value
    result = run_job(open_job(args, (Planned(cell=cell),), front.progress()))
    if result.interrupted:
        raise KeyboardInterrupt
    for failure in result.failures:
        raise failure
    (verdict,) = result.verdicts
    resolved = verdict.observation(Tier.RESOLVE)
    digest = resolved.detail.get("lock") if resolved is not None else None
    if not digest:
        why = "; ".join(verdict.reasons)
        then = "--override or --no-deps install it against its metadata, and the cell then says so."
        raise ProvisionError(f"{cell.name} has no lock to install: {verdict.status.value}.", why=why, then=then)
    return LockFolder.under(Home.find(args.home).cache).read(str(digest))


def cell_of(args: argparse.Namespace) -> Cell:
    """Return the cell that specs and the options of target and deviation name; raises UsageError as `parse_cell`."""
    from matrix.axes import load_axes
    from matrix.spec import parse_cell

    return parse_cell(
        args.spec,
        platform=platform(args),
        as_of=as_of(args),
        overrides=args.override,
        no_deps=args.no_deps,
        added=args.added,
        axes=load_axes(),
    )


def out_folder(args: argparse.Namespace) -> Path:
    """Return the folder of `--out`, made before a run that may take long; raises UsageError where that cannot be."""
    out = Path(args.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"Nothing can be written to {out}: {why}.", then="Give another folder with --out.") from error
    return out


def pairs_of(args: argparse.Namespace, job: Job, axes: Axes | None = None) -> tuple[Row, ...]:
    """Return the pairs of an earlier grid, where the report is of the whole plan as it stands; none elsewhere.

    `axes` is the lattice, by default the one that is shipped.
    """
    here = getattr(args, "here", None) is not None or getattr(args, "python", None)
    if args.cells or args.cells_file or here or args.platform:
        return ()
    from matrix.axes import load_axes
    from matrix.grid import stored_pairs

    return stored_pairs(job, axes or load_axes())
