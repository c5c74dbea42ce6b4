"""What the records say of a set of versions: which failures apply, and whether the records themselves are sound."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from matrix.axes import Axes
from matrix.cell import Axis, parse_name
from matrix.errors import MatrixError, UsageError
from matrix.failure import Applies, Failure
from matrix.observe import Observation

Installed = Mapping[str, Version | None]
"""Package (or `python`) to its version; None where it is known to be absent."""
_SHORT = {axis.short: axis.value for axis in Axis}
_EXAMPLE = "Write it like verl==0.8.0, numpy==1.26.4 or python==3.12."


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A failure that applies to a set of versions, or may: `open_on` are the packages whose version decides."""

    failure: Failure
    applies: Applies
    open_on: tuple[str, ...] = ()


def parse_installed(specs: Sequence[str]) -> dict[str, Version | None]:
    """Return package to version for words like `verl==0.8.0`; an axis may have its short name.

    Raises:
        UsageError: a word is not `PACKAGE==VERSION`, or a package is named twice with different versions.
    """
    found: dict[str, Version | None] = {}
    for spec in specs:
        name, version = _exact(spec)
        if found.setdefault(name, version) != version:
            raise UsageError(f"{name} is named twice, as {found[name]} and {version}.", then=_EXAMPLE)
    if not found:
        raise UsageError("No version is named.", then=_EXAMPLE)
    return found


def _exact(spec: str) -> tuple[str, Version]:
    try:
        requirement = Requirement(spec)
        (clause,) = requirement.specifier
        version = Version(clause.version)
    except (InvalidRequirement, InvalidVersion, ValueError):
        raise UsageError(f"`{spec}` does not say an exact version.", then=_EXAMPLE) from None
    if clause.operator not in ("==", "===") or requirement.marker is not None or requirement.url is not None:
        raise UsageError(f"`{spec}` does not say an exact version.", then=_EXAMPLE)
    name = canonicalize_name(requirement.name)
    return _SHORT.get(name, name), version


def matching(failures: Sequence[Failure], installed: Installed) -> tuple[Match, ...]:
    """Return the failures that apply to these versions, then those that may, each in the order of the records.

    One may apply where a package it names has a version in its range and the version of another is not known.
    """
    certain, possible = [], []
    for failure in failures:
        match failure.applies(installed):
            case Applies.YES:
                certain.append(Match(failure=failure, applies=Applies.YES))
            case Applies.UNKNOWN if any(package in installed for package in failure.affects):
                open_on = tuple(package for package in failure.affects if package not in installed)
                possible.append(Match(failure=failure, applies=Applies.UNKNOWN, open_on=open_on))
            case _:
                pass
    return (*certain, *possible)


def faults(failures: Sequence[Failure], axes: Axes, probes: Path | None) -> Iterator[str]:
    """Yield what is wrong with the records that no single field shows; nothing where all is well.

    A range must hold a release that exists, no release may be affected and mended at once, and a probe must be there
    (`probes` is the folder of the probes; None where it is not at hand).
    """
    defined: dict[str, frozenset[str]] = {}
    for failure in failures:
        for package, affected in failure.affects.items():
            if package not in {axis.value for axis in Axis}:
                continue
            releases = [item.version for item in axes[Axis(package)].recorded]
            hit = [release for release in releases if affected.contains(release, prereleases=True)]
            if not hit:
                yield f"{failure.id}: no recorded release of {package} is {affected}"
            mended = failure.mended.get(package)
            both = [str(release) for release in hit if mended is not None and mended.contains(release)]
            if both:
                yield f"{failure.id}: {package} {', '.join(both)} is affected and mended at once"
        file, _, name = failure.probe.partition("::")
        if file and probes is not None:
            if file not in defined:
                defined[file] = _functions(probes / file)
            if name not in defined[file]:
                yield f"{failure.id}: there is no probe {failure.probe}"


def _functions(path: Path) -> frozenset[str]:
    """Return the names of the test functions of a probe file, none where there is no such file."""
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@cache
def _axes(name: str) -> Installed:
    """Return the versions that a cell's name tells, nothing for a name of another kind."""
    try:
        return {pin.axis.value: pin.version for pin in parse_name(name).pins}
    except MatrixError:
        return {}


def contradicts(failure: Failure, item: Observation) -> bool | None:
    """Return whether what was seen of a failure contradicts its record as it is now; None where that cannot be told.

    An observation says what was predicted when it was made, and a range may have been put right since. It is judged by
    the versions that the cell's name tells, so a record of another package is not judged anew.
    """
    applies, seen = failure.applies(_axes(item.question.cell)), item.detail.get("seen")
    if applies is Applies.UNKNOWN or seen not in ("reproduced", "absent"):
        return None
    return (seen == "reproduced") is not (applies is Applies.YES)
