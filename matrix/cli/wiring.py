"""From words to working parts: the index, the two probes and the store that the options ask for."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from matrix.cell import Platform
from matrix.errors import UsageError
from matrix.home import Home
from matrix.index.fetch import Fetcher, Limits
from matrix.index.simple import SimpleIndex
from matrix.job import Checker, Job, Progress
from matrix.plan import Planned
from matrix.resolve import Resolver
from matrix.spec import parse_moment, parse_platform
from matrix.store import Store
from matrix.tier import Tier

BUILT = (Tier.RESOLVE, Tier.SURFACE)
"""The tiers that this release can try."""


def open_index(args: argparse.Namespace, home: Home) -> SimpleIndex:
    """Return the index that the options name; raises UsageError for a malformed address or date."""
    return _index(home.cache, args.index_url, offline=args.offline, as_of=as_of(args))


def _index(cache: Path, url: str | None, *, offline: bool, as_of: datetime | None) -> SimpleIndex:
    fetcher = Fetcher(offline=offline, limits=_limits())
    if url:
        return SimpleIndex(cache_dir=cache, url=url, offline=offline, as_of=as_of, fetcher=fetcher)
    return SimpleIndex.from_environment(cache_dir=cache, offline=offline, as_of=as_of, fetcher=fetcher)


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
    """Return the tiers of `--tiers`; raises UsageError for one that does not exist or cannot be tried yet."""
    found = set()
    for word in filter(None, (word.strip() for word in args.tiers.split(","))):
        if word not in {tier.value for tier in Tier}:
            raise UsageError(f"There is no tier `{word}`.", then=f"Tiers: {', '.join(BUILT)}.")
        tier = Tier(word)
        if tier not in BUILT:
            raise UsageError(f"The tier `{word}` cannot be tried by this release.", then=f"Tiers: {', '.join(BUILT)}.")
        found.add(tier)
    if not found:
        raise UsageError("--tiers names no tier.", then=f"Tiers: {', '.join(BUILT)}.")
    return frozenset(found)


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
    resolver = Resolver(index=index, cache_dir=home.cache, max_age=timedelta(hours=args.max_age), workers=count)
    return Job(
        cells=tuple(item.cell for item in planned),
        resolver=resolver,
        checker=functools.partial(open_checker, home.cache, args.index_url, args.offline, as_of(args)),
        store=Store(home.store),
        progress=progress,
        tiers=tiers(args) if hasattr(args, "tiers") else frozenset(BUILT),
        again=args.again,
        max_age=timedelta(hours=args.max_age),
        workers=count,
        tools=_tools(),
        plan={item.cell.name: item for item in planned},
        unkept=unkept,
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


def _tools() -> dict[str, str]:
    """Return the version of uv where it is installed as a package."""
    try:
        return {"uv": importlib.metadata.version("uv")}
    except importlib.metadata.PackageNotFoundError:
        return {}
