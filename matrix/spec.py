"""What people type after `check`: specs, platform words, dates, overrides; parsed into a cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from matrix.axes import Axes, axis_named
from matrix.cell import MACHINES, VARIANTS, Axis, Cell, Deviation, OpenAxis, Pin, Platform
from matrix.errors import UsageError

_EXAMPLE = "Write it like verl==0.9.1, verl[vllm]==0.9.1, 'vllm>=0.26' or verl."
_SPEC = re.compile(r"\s*(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?P<extras>\[[^\]]*\])?\s*(?P<rest>.*?)\s*")
_PYTHON = "python"
WORD_CHARS = 200
"""No word that means anything is longer; a longer one is refused before anything reads it as numbers."""


def parse_cell(
    specs: Sequence[str],
    *,
    platform: Platform | None = None,
    as_of: datetime | None = None,
    overrides: Sequence[str] = (),
    no_deps: bool = False,
    added: Sequence[str] = (),
    axes: Axes | None = None,
) -> Cell:
    """Return the cell that the specs describe: `==` is a pin, any other specifier or none an open axis.

    A spec names an axis by its index, import or short name (`tf==5.9.0`), or is `python==3.12`. With `axes`, a version
    is spelled as its release is (`0.24` becomes `0.24.0`), so that the same cell has the same name.

    Raises:
        UsageError: a spec is malformed, names no axis or one twice, or there is none; the message has near misses.
    """
    pins: list[Pin] = []
    open_axes: list[OpenAxis] = []
    target = platform or Platform()
    for spec in specs:
        parts = _parts(spec)
        if canonicalize_name(parts["name"]) in (_PYTHON, "py"):
            target = _with_python(target, platform, _exact(spec, parts))
            continue
        item = _axis_spec(spec, parts, axes)
        pins.append(item) if isinstance(item, Pin) else open_axes.append(item)
    named = [item.axis for item in pins] + [item.axis for item in open_axes]
    if not named:
        raise UsageError("No axis is named.", then=_EXAMPLE)
    twice = next((axis for axis in Axis if named.count(axis) > 1), None)
    if twice:
        raise UsageError(f"{twice.value} is named twice.", then="Write one spec with both, like 'vllm>=0.20,<0.27'.")
    deviation = parse_deviation(overrides, no_deps=no_deps)
    for text in added:
        _refuse_long(text)
    try:
        return Cell(
            pins=tuple(pins),
            open_axes=tuple(open_axes),
            added=tuple(added),
            platform=target,
            as_of=as_of,
            deviation=deviation,
            reason="asked on the command line",
        )
    except (InvalidRequirement, ValueError) as error:
        what = str(error).partition("\n")[0]
        raise UsageError(f"--with: {what}.", then="Write it like --with 'kernels==0.15.0'.") from error


def parse_deviation(overrides: Sequence[str], *, no_deps: bool = False) -> Deviation | None:
    """Return the deviation of `--override` and `--no-deps`, or None without either; raises UsageError."""
    if not overrides and not no_deps:
        return None
    for text in overrides:
        _refuse_empty(text)
    try:
        return Deviation(overrides=tuple(overrides), no_deps=no_deps, reason="asked on the command line")
    except (InvalidRequirement, InvalidVersion, ValueError) as error:
        what = str(error).partition("\n")[0]
        raise UsageError(f"--override: {what}.", then="Write it like --override 'numpy<2'.") from error


def _refuse_empty(override: str) -> None:
    """Raise UsageError for an override that says no version: it would only lift what the others say."""
    _refuse_long(override)
    try:
        parsed = Requirement(override)
    except InvalidRequirement:
        return
    if not parsed.specifier and parsed.url is None:
        raise UsageError(
            f"--override {override}: it does not say which version.",
            then=f"Write it like --override '{parsed.name}==1.2.3' or --override '{parsed.name}<2'.",
        )


def parse_version(axis: Axis, text: str, axes: Axes | None = None) -> Version:
    """Return the version that was typed for `axis`, spelled as its release is; raises UsageError."""
    _refuse_long(text)
    try:
        version = Version(text)
    except InvalidVersion:
        raise UsageError(f"`{text}` is not a version of {axis.value}.", why=_repaired(text)) from None
    return axes.respelled(axis, version) if axes else version


def parse_platform(python: str | None = None, tag: str | None = None) -> Platform:
    """Return the platform of `--python` (`3.11`) and `--platform` (`x86_64-manylinux_2_28`, a machine, or a glibc).

    Raises:
        UsageError: a word is malformed, or no release of the stack has wheels for it.
    """
    default = Platform()
    machine, glibc = _target(tag) if tag else (default.machine, default.glibc)
    if python is not None and not re.fullmatch(r"3\.\d{1,2}", python):
        short = re.match(r"(3\.\d+)\.", python)
        hint = f"Did you mean {short[1]}?" if short else "Write it like 3.12."
        raise UsageError(f"--python takes X.Y, not `{python}`.", then=hint)
    return Platform(python=python or default.python, machine=machine, glibc=glibc)


def parse_moment(text: str) -> datetime:
    """Return the moment of `--exclude-newer`: files uploaded from then on are not seen.

    A date includes that day, as in uv, but in UTC rather than local time, so that the answer is the same everywhere; a
    time without zone is UTC too.

    Raises:
        UsageError: `text` is neither a date nor an RFC 3339 time.
    """
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            return datetime.combine(date.fromisoformat(text) + timedelta(days=1), time(), UTC)
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"`{text}` is not a date: {error}.", then="Write it like 2026-06-01 or 2026-06-01T12:00:00Z."
        ) from error


def _refuse_long(text: str) -> None:
    """Raise UsageError for a word that is too long to mean anything; only its beginning is said again."""
    if len(text) > WORD_CHARS:
        raise UsageError(
            f"`{text[:40]}…` is {len(text)} characters long; no version is longer than {WORD_CHARS}.", then=_EXAMPLE
        )


def _parts(spec: str) -> dict[str, str]:
    _refuse_long(spec)
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(f"`{spec}` is not a spec.", then=_EXAMPLE)
    return {name: value or "" for name, value in match.groupdict().items()}


_VARIANTS = {f"{axis.value}-{variant}": (axis, variant) for axis, names in VARIANTS.items() for variant in names}


def _axis_spec(spec: str, parts: dict[str, str], axes: Axes | None) -> Pin | OpenAxis:
    of_variant = _VARIANTS.get(canonicalize_name(parts["name"]))
    axis, variant = of_variant or (_axis(spec, parts), "")
    extras = _extras(spec, parts["extras"])
    specifiers = _specifiers(spec, parts["rest"])
    clauses = list(specifiers)
    if len(clauses) == 1 and clauses[0].operator == "==" and not clauses[0].version.endswith(".*"):
        version = parse_version(axis, clauses[0].version, axes)
        return Pin(axis=axis, version=version, extras=extras, variant=variant)
    if variant:
        raise UsageError(f"`{spec}` leaves its version open.", then=f"Write it like {parts['name']}==0.24.0.")
    try:
        return OpenAxis(axis=axis, specifier=specifiers, extras=extras)
    except ValueError as error:
        raise UsageError(f"`{spec}`: {error}.", then=_EXAMPLE) from error


_OVERRIDE = "To replace what is said about another package: --override '{spec}'."


def _axis(spec: str, parts: dict[str, str]) -> Axis:
    try:
        return axis_named(parts["name"])
    except UsageError as error:
        # A package that is real but no axis can only be asked about as a deviation, which the cell then shows.
        hint = "" if "Closest" in error.why or not parts["rest"] else _OVERRIDE.format(spec=spec)
        raise UsageError(error.what, why=error.why, then=hint or _EXAMPLE) from None


def _extras(spec: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.strip("[]").split(",")) if text else ()
    try:
        return tuple(sorted(Requirement(f"x[{','.join(names)}]").extras)) if names else ()
    except InvalidRequirement:
        raise UsageError(f"`{spec}` has malformed extras `{text}`.", then=_EXAMPLE) from None


def _specifiers(spec: str, text: str) -> SpecifierSet:
    try:
        return SpecifierSet(text.removeprefix("(").removesuffix(")"))
    except InvalidSpecifier:
        raise UsageError(f"`{spec}` has a malformed specifier `{text}`.", why=_repaired(text), then=_EXAMPLE) from None


def _repaired(text: str) -> str:
    """Return a guess at what was meant by a malformed specifier or version, or ""."""
    typed = text.strip()
    guess = re.sub(r"(?<=\d),(?=\d)", ".", typed)
    guess = re.sub(r"^=([<>])", r"\1=", re.sub(r"^[=@]\s*(?=v?\d)", "==", guess))
    if guess == typed:
        return ""
    try:
        SpecifierSet(guess if not guess[:1].isdigit() else f"=={guess}")
    except InvalidSpecifier:
        return ""
    return f"Did you mean `{guess}`?"


def _exact(spec: str, parts: dict[str, str]) -> str:
    match = re.fullmatch(r"==\s*(3\.\d{1,2})(?:\.\d+|\.\*)?", parts["rest"])
    if match is None or parts["extras"]:
        raise UsageError(f"`{spec}` must say exactly which Python.", then="Write it like python==3.12.")
    return match[1]


def _with_python(target: Platform, given: Platform | None, python: str) -> Platform:
    if given is not None and given.python not in (python, Platform().python):
        raise UsageError(f"python=={python} contradicts --python {given.python}.", then="Say it once.")
    return Platform(python=python, machine=target.machine, glibc=target.glibc)


def _target(tag: str) -> tuple[str, str]:
    default = Platform()
    match = re.fullmatch(
        rf"(?:({'|'.join(MACHINES)})[-_]?)?(?:manylinux_?(\d{{1,3}})_(\d{{1,3}})|glibc_?(\d{{1,3}})\.(\d{{1,3}}))?", tag
    )
    if match is None or not any(match.groups()):
        what = f"--platform {tag} is not a platform that the stack has wheels for."
        raise UsageError(what, then=f"Write it like x86_64-manylinux_2_28; machines are {', '.join(MACHINES)}.")
    machine = match[1] or default.machine
    major, minor = match[2] or match[4], match[3] or match[5]
    return machine, f"{major}.{minor}" if major else default.glibc
