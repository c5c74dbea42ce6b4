"""A look at the index: whether the releases that a set resolved to the night before are still to be had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from packaging.version import InvalidVersion, Version

from matrix.errors import MatrixError, UnknownReleaseError
from matrix.index import PackageIndex
from matrix.nightly.cause import Fact, Label

THREADS = 16


def gone(index: PackageIndex, packages: Mapping[str, str]) -> tuple[Fact, ...]:
    """Return each package of a set whose release the index has yanked or lost since; `packages` to `version …`.

    Empty where all are there, or where the index does not answer: then nothing is known of them.
    """
    try:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="look") as threads:
            found = list(threads.map(partial(_gone, index), sorted(packages.items())))
    except MatrixError:
        return ()
    return tuple(fact for facts in found for fact in facts)


def _gone(index: PackageIndex, held: tuple[str, str]) -> list[Fact]:
    return list(_facts(index, held[0], held[1].partition(" ")[0]))


def _facts(index: PackageIndex, package: str, version: str) -> Iterator[Fact]:
    try:
        release = index.project(package).releases.get(Version(version))
    except (UnknownReleaseError, InvalidVersion):
        release = None
    if release is None:
        yield Fact(label=Label.INDEX, what=f"{package} {version}, which it resolved to, is gone from the index")
    elif release.yanked is not None:
        because = f" ({release.yanked})" if release.yanked not in ("", "True") else ""
        yield Fact(label=Label.INDEX, what=f"{package} {version}, which it resolved to, was yanked{because}")
