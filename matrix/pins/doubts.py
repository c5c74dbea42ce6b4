"""Doubts about what people state: versions that do not exist, pins that contradict each other, nothing at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from matrix.cell import Axis
from matrix.errors import MatrixError, UnknownReleaseError
from matrix.index import PackageIndex
from matrix.nearness import near_versions
from matrix.pins.stack import Kind, Stack, Statement

if TYPE_CHECKING:
    from matrix.pins.candidates import Ground


def doubts(ground: Ground) -> tuple[str, ...]:
    """Return in lines what cannot be as people state it, each with its place; nothing where all can."""
    stack = ground.stack
    lines = [] if stack.statements else [f"{stack.source} names no package"]
    for axis in Axis:
        have, known = ground.have(axis), ground.releases(axis)
        if have is not None and have not in known:
            where = next(item.where for item in reversed(stack.about(axis.value)) if item.version is not None)
            day = f" as of {ground.as_of:%Y-%m-%d}" if ground.as_of is not None else ""
            near = ", ".join(near_versions(have, known))
            newer = "; `verl-matrix update` looks for newer ones" if known and have > max(known) else ""
            lines.append(f"{where}: no {axis.value} {have} is known{day}; closest: {near}{newer} [axes.toml]")
    return (*lines, *contradictions(stack))


def contradictions(stack: Stack) -> tuple[str, ...]:
    """Return for each package whose statements exclude each other a line with all of them.

    Of a Dockerfile there are none: a later command replaces what an earlier one installed.
    """
    if stack.kind.is_state or stack.kind is Kind.DOCKERFILE:
        return ()
    lines = []
    for package in dict.fromkeys(item.package for item in stack.statements):
        stated = [item for item in stack.about(package) if item.binds and item.specifier and not item.url]
        if any(_outside(item, stated) for item in stated):
            places = "; ".join(f"{item.where}: {item.text}" for item in stated)
            lines.append(f"no version of {package} satisfies {places}")
    return tuple(lines)


def _outside(item: Statement, others: list[Statement]) -> bool:
    """Return whether the exact version of a statement lies outside of what the others let in."""
    version = item.version
    return version is not None and not all(other.specifier.contains(version, prereleases=True) for other in others)


def absent(package: str, stack: Stack, index: PackageIndex) -> str:
    """Return `: the index has no ...` where what people state of a package is not there, else ""."""
    try:
        known = index.project(package).releases
    except UnknownReleaseError:
        return f": the index has no {package}"
    except MatrixError:
        return ""
    bound: SpecifierSet = stack.bound(package)
    if any(bound.contains(version, prereleases=True) for version in known):
        return ""
    return f": the index has no {package}{bound}"


def no_release(ground: Ground) -> Iterator[str]:
    """Yield for each axis that is wanted, or had, at what does not exist a line with what comes close."""
    for axis in Axis:
        known, wanted = ground.releases(axis), ground.wanted(axis)
        if wanted is not None and not any(wanted.contains(version, prereleases=True) for version in known):
            near = near_versions(aimed_at(wanted) or known[-1], known)
            yield f"no release of {axis.value} is {wanted}; closest: {', '.join(near)} [axes.toml]"
        if ground.shut(axis):
            places = "; ".join(f"{item.where}: {item.text}" for item in ground.stack.about(axis.value) if item.binds)
            yield f"no release of {axis.value} is {ground.bound(axis)} ({places}) [axes.toml]"
        have = ground.have(axis)
        if wanted is None and have is not None and have not in known:
            near = near_versions(have, known)
            yield f"there is no {axis.value} {have}; closest: {', '.join(near)} [axes.toml]"


def aimed_at(wanted: SpecifierSet) -> Version | None:
    """Return the version that a range speaks of, None where it is none."""
    for clause in wanted:
        try:
            return Version(clause.version.removesuffix(".*"))
        except InvalidVersion:
            continue
    return None
