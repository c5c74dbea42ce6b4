"""One launch as it ended: its place in the order, its figures or its fault, and the observation that keeps it all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bench.figures import Figure
from bench.recipes import Kind
from bench.sample import Side
from matrix.observe import LAUNCH, Observation

SCHEMA = 1
BOTH = "AB"
"""What stands for the side of a launch that holds both."""


class Trouble(StrEnum):
    """What kept a launch from a figure."""

    MEMORY = "out of memory"
    HUNG = "hung"
    KILLED = "killed"
    NOT_FINITE = "not finite"
    GPU_LOST = "GPU lost"
    SHORT = "stopped early"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a launch has no figure: of what kind, and what it said of it in one line."""

    trouble: Trouble
    text: str

    def __str__(self) -> str:
        """Return both in one line."""
        return f"{self.trouble}: {self.text}" if self.text else str(self.trouble)

    def to_json(self) -> dict[str, str]:
        """Return plain JSON data; `from_json` gives the equal fault back."""
        return {"trouble": self.trouble.value, "text": self.text}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Fault:
        """Return what `to_json` wrote; raises KeyError, ValueError for anything else."""
        return cls(trouble=Trouble(str(data["trouble"])), text=str(data["text"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One metric of one repeat within a launch that holds both sides; `value` is None where `fault` says why."""

    place: int
    side: Side
    value: float | None = None
    fault: str = ""

    def to_json(self) -> list[object]:
        """Return plain JSON data; `from_json` gives the equal repeat back."""
        return [self.place, self.side.value, self.value, self.fault]

    @classmethod
    def from_json(cls, data: Sequence[object]) -> Repeat:
        """Return what `to_json` wrote; raises ValueError for anything else."""
        place, side, value, fault = data
        return cls(
            place=int(str(place)),
            side=Side(str(side)),
            value=None if value is None else float(str(value)),
            fault=str(fault),
        )


Numerics = Mapping[str, Sequence[float]]
"""Numbers of training by the name in `bench.metrics.NUMERICS`, one a step, the warm-up steps too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured in one launch.

    Attributes:
        figures: of a launch of one side, by metric.
        repeats: of a launch that holds both sides, by metric, in the order in which they ran.
        numerics: numbers of training by side; of a launch of one side under that side.
        within: whether both sides of one launch gave the same numbers from the same weights and data; None: not told.
        dropped: steps at the start that are warm-up.
        fault: why it has no figure (of repeats: why there are no more of them), None where all went well.
        window: seconds since the beginning of the launch between which the steps that count ran; None where none did.
    """

    figures: Mapping[str, Figure] = field(default_factory=dict)
    repeats: Mapping[str, Sequence[Repeat]] = field(default_factory=dict)
    numerics: Mapping[Side, Numerics] = field(default_factory=dict)
    within: bool | None = None
    dropped: int = 0
    fault: Fault | None = None
    window: tuple[float, float] | None = None

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data; `from_json` gives the equal one back, but for what is not finite, which is NaN."""
        return {
            "figures": {name: figure.to_json() for name, figure in self.figures.items()},
            "repeats": {name: [item.to_json() for item in items] for name, items in self.repeats.items()},
            "numerics": {
                side.value: {name: [_plain(value) for value in values] for name, values in numbers.items()}
                for side, numbers in self.numerics.items()
            },
            "within": self.within,
            "dropped": self.dropped,
            "fault": None if self.fault is None else self.fault.to_json(),
            "window": None if self.window is None else list(self.window),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Measured:
        """Return what `to_json` wrote; raises KeyError, TypeError, ValueError for anything else."""
        fault, window, within = data["fault"], data["window"], data["within"]
        return cls(
            figures={name: Figure.from_json(name, _table(item)) for name, item in _table(data["figures"]).items()},
            repeats={
                name: tuple(Repeat.from_json(_row(item)) for item in _row(items))
                for name, items in _table(data["repeats"]).items()
            },
            numerics={
                Side(side): {
                    name: tuple(math.nan if item is None else float(str(item)) for item in _row(values))
                    for name, values in _table(numbers).items()
                }
                for side, numbers in _table(data["numerics"]).items()
            },
            within=None if within is None else bool(within),
            dropped=int(str(data["dropped"])),
            fault=None if fault is None else Fault.from_json(_table(fault)),
            window=None if window is None else (float(str(_row(window)[0])), float(str(_row(window)[1]))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A launch that has ended, as its observation says it; `recalled` where that was stored before.

    Attributes:
        series: the series it is of.
        pairing: the pairing's name.
        recipe: the recipe's name.
        kind: the bench.
        side: which side ran, None where both did in one launch.
        place: its place in the order of the pairing's launches.
        planned: how many whole pairs the series wanted of this pairing.
        warms: whether it only warmed caches and counts nowhere.
        measured: what was measured.
        disturbed: what of the machine makes its figures no good, a line each; () where nothing was seen.
    """

    series: str
    pairing: str
    recipe: str
    kind: Kind
    side: Side | None
    place: int
    planned: int
    warms: bool
    measured: Measured
    disturbed: tuple[str, ...]
    observation: Observation
    recalled: bool = False

    @property
    def fault(self) -> Fault | None:
        """Return why it has no figure."""
        return self.measured.fault

    @property
    def figures(self) -> Mapping[str, Figure]:
        """Return its figures by metric; of a launch of both sides none."""
        return self.measured.figures

    @property
    def seconds(self) -> float:
        """Return its wall time."""
        return self.observation.seconds

    @property
    def gpu_seconds(self) -> float:
        """Return its wall time for each of its GPUs; 0 on a CPU."""
        gpus = self.observation.detail.get("gpus", ())
        return self.seconds * len(gpus) if isinstance(gpus, list | tuple) else 0.0

    @classmethod
    def of(cls, observation: Observation, *, recalled: bool = True) -> Launched:
        """Return what an observation of a launch says; raises KeyError, TypeError, ValueError where it is of none."""
        detail = observation.detail
        if not observation.question.probe.startswith(LAUNCH):
            raise ValueError(f"{observation.question.probe} is no launch")
        side = str(detail["side"])
        return cls(
            series=str(detail["series"]),
            pairing=str(detail["pairing"]),
            recipe=str(detail["recipe"]),
            kind=Kind(str(detail["kind"])),
            side=None if side == BOTH else Side(side),
            place=int(str(detail["place"])),
            planned=int(str(detail["planned"])),
            warms=bool(detail["warms"]),
            measured=Measured.from_json(_table(detail["measured"])),
            disturbed=tuple(str(line) for line in _row(detail["disturbed"])),
            observation=observation,
            recalled=recalled,
        )


def probe_of(recipe: str, pairing: str, side: Side | None, place: int, *, warms: bool = False) -> str:
    """Return the name under which a launch is kept."""
    where = "warm" if warms else side.value if side is not None else BOTH
    return f"{LAUNCH}{recipe}/{pairing}/{where}/{place:02d}"


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _table(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is no table")
    return value


def _row(value: object) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no list")
    return value
