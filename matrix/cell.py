"""The cell: one combination of versions, its platform and deviations, named by one stable string.

A name is the axes in a fixed order and then whatever differs from the default, joined by `-`:
`verl0.9.1-vllm0.24.0-torch2.11.0-tf5.9.0`, `verl0.9.1+vllm-vllm0.24.0-py3.11-glibc2.28-ov.numpy.lt.2-nodeps`.
It holds no `/`, `[`, `*` or space, so it is a file name and a glob can match it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Where a cell is meant to run: CPython version, machine and glibc.

    The default glibc is 2.35 because vLLM 0.12 to 0.20.2 ships `manylinux_2_31` and `manylinux_2_35` wheels only; with
    uv's own default (2.28) those releases look as if they had no wheel.
    """

    python: str = "3.12"
    machine: str = "x86_64"
    glibc: str = "2.35"

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
    """An exact version of one axis, with the extras that are asked for."""

    axis: Axis
    version: Version
    extras: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """Return the PEP 508 requirement, e.g. `verl[vllm]==0.9.1`."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.axis.value}{extras}=={self.version}"

    @property
    def part(self) -> str:
        """Return this pin as a part of a cell's name, e.g. `verl0.9.1+vllm`."""
        return f"{self.axis.short}{self.version}" + "".join(f"+{extra}" for extra in self.extras)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAxis:
    """An axis that is named without an exact version: the resolver chooses, within `specifier`.

    An open axis is `backtracked` when the resolver had to go below the release that was current when the newest pinned
    release of the cell appeared.
    """

    axis: Axis
    specifier: SpecifierSet = field(default_factory=SpecifierSet)
    extras: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """Return the PEP 508 requirement, e.g. `verl>=0.7`."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.axis.value}{extras}{self.specifier}"

    @property
    def part(self) -> str:
        """Return this axis as a part of a cell's name, e.g. `verl.any` or `verl.ge.0.7`."""
        extras = "".join(f"+{extra}" for extra in self.extras)
        return f"{self.axis.short}{extras}.{_spelled(str(self.specifier)) or 'any'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A recorded departure from what the metadata allow: requirements overridden, or dependencies ignored.

    `overrides` are PEP 508 requirements that replace every other statement about their package (uv's `--override`);
    `no_deps` installs the pins and nothing they ask for, as verl's own image is built. Never empty.
    """

    overrides: tuple[str, ...] = ()
    no_deps: bool = False
    reason: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """Return this deviation as parts of a cell's name, e.g. `ov.numpy.lt.2`, `nodeps`."""
        overrides = tuple(f"ov.{_spelled(override)}" for override in sorted(self.overrides))
        return overrides + (("nodeps",) if self.no_deps else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination: exact pins, open axes if any, platform, snapshot date, deviation, and why it is in the matrix."""

    pins: tuple[Pin, ...]
    open_axes: tuple[OpenAxis, ...] = ()
    platform: Platform = field(default_factory=Platform)
    as_of: datetime | None = None
    deviation: Deviation | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse an empty cell and an axis named twice; put the pins into the order of `Axis`."""
        axes = [pin.axis for pin in self.pins] + [axis.axis for axis in self.open_axes]
        if not axes:
            raise ValueError("a cell needs at least one axis")
        if len(set(axes)) != len(axes):
            raise ValueError(f"an axis is named twice: {', '.join(axes)}")
        order = list(Axis)
        object.__setattr__(self, "pins", tuple(sorted(self.pins, key=lambda pin: order.index(pin.axis))))
        object.__setattr__(self, "open_axes", tuple(sorted(self.open_axes, key=lambda axis: order.index(axis.axis))))

    @property
    def name(self) -> str:
        """Return the one stable string that names this cell."""
        order = list(Axis)
        named: list[Pin | OpenAxis] = [*self.pins, *self.open_axes]
        parts = [item.part for item in sorted(named, key=lambda item: order.index(item.axis))]
        parts += self.platform.differences
        if self.as_of is not None:
            parts.append(f"asof{self.as_of.astimezone(UTC):%Y%m%dT%H%M%SZ}")
        if self.deviation is not None:
            parts += self.deviation.parts
        return "-".join(parts)

    def pin(self, axis: Axis) -> Pin | None:
        """Return the pin of `axis`, or None where it is open or not named."""
        return next((pin for pin in self.pins if pin.axis is axis), None)

    @property
    def requirements(self) -> tuple[str, ...]:
        """Return the PEP 508 requirements that are given to the resolver, pins first."""
        return tuple(pin.requirement for pin in self.pins) + tuple(axis.requirement for axis in self.open_axes)


_OPERATORS = {"===": "is", "==": "eq", "!=": "ne", "<=": "le", ">=": "ge", "~=": "co", "<": "lt", ">": "gt"}


def _spelled(requirement: str) -> str:
    """Return a requirement or specifier with its operators as letters, e.g. `numpy<2` → `numpy.lt.2`."""
    parsed = requirement.replace(" ", "")
    if re.match(r"[A-Za-z]", parsed):
        named = Requirement(parsed)
        parsed = f"{named.name}{','.join(sorted(str(spec) for spec in named.specifier))}"
    for operator, word in _OPERATORS.items():
        parsed = parsed.replace(operator, f".{word}.")
    return parsed.strip(".").replace(",", "_").replace("*", "x")
