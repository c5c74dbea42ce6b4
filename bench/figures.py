"""The figures: what a launch is compared by, one number a metric with the raw steps that it is the middle of.

Every name of a metric has its unit and its good direction here and nowhere else.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.metrics import Launch, Step
from bench.sample import Better, Metric, WarmUp

GIB = 2**30
MAIN = {"ppo": "throughput", "update": "throughput/update_actor", "rollout": "throughput/gen"}
"""The metric that a bench is there for."""
PHASES = (
    "step", "gen", "update_weights", "rollout", "reward", "old_log_prob", "ref", "values", "adv", "update_critic",
    "update_actor",
)  # fmt: skip
"""Parts of a step whose seconds are compared; `rollout` is generation and the sending of weights together."""
_UNITS = {
    "throughput": ("tokens/s/GPU", Better.HIGHER),
    "seconds": ("s", Better.LOWER),
    "mfu": ("share of the peak", Better.HIGHER),
    "mfu_ceiling": ("share of the measured ceiling", Better.HIGHER),
    "mfu_verl": ("share, by verl's formula", Better.HIGHER),
    "memory": ("GiB", Better.LOWER),
    "kv_cache": ("tokens", Better.HIGHER),
    "start-up": ("s", Better.LOWER),
    "power": ("W", Better.LOWER),
    "energy": ("J/token", Better.LOWER),
}


def metric_named(name: str) -> Metric:
    """Return the metric of that name; raises KeyError for a kind of figure that there is none of."""
    unit, better = _UNITS[name.partition("/")[0]]
    return Metric(name=name, unit=unit, better=better)


def rank(name: str, kind: str) -> tuple[int, int, str]:
    """Return where a metric stands among others: the bench's main one first, then by kind, then by phase."""
    head, _, part = name.partition("/")
    known = list(_UNITS)
    place = known.index(head) if head in known else len(known)
    return (0 if name == MAIN[kind] else 1 + place, PHASES.index(part) if part in PHASES else len(PHASES), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One metric of one launch: `raw` as measured, of which the first `dropped` are warm-up, and the launch's number.

    `value` is None where `fault` says why there is none.
    """

    name: str
    raw: tuple[float, ...]
    dropped: int = 0
    value: float | None = None
    fault: str = ""

    @classmethod
    def of_steps(cls, name: str, values: Sequence[float], rule: WarmUp) -> Figure:
        """Return the median of what the rule leaves."""
        steps = rule.apply(values)
        figure = steps.figure
        fault = steps.fault
        if figure is not None and not figure > 0:
            figure, fault = None, f"the figure is {figure}"
        return cls(name=name, raw=steps.raw, dropped=steps.dropped, value=figure, fault=fault)

    @classmethod
    def once(cls, name: str, value: float, raw: Sequence[float] | None = None) -> Figure:
        """Return a figure that a launch has one of, like a peak of memory."""
        good = 0 < value < math.inf
        return cls(
            name=name,
            raw=tuple(raw if raw is not None else (value,)),
            value=value if good else None,
            fault="" if good else f"the figure is {value}",
        )

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data; `from_json` gives the equal figure back."""
        return {"raw": [_plain(value) for value in self.raw], "dropped": self.dropped, "value": self.value,
                "fault": self.fault}  # fmt: skip

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, object]) -> Figure:
        """Return what `to_json` wrote; raises KeyError, TypeError, ValueError for anything else."""
        raw, value = data["raw"], data["value"]
        if not isinstance(raw, list):
            raise TypeError("raw values are a list")
        return cls(
            name=name,
            raw=tuple(math.nan if item is None else float(item) for item in raw),
            dropped=int(str(data["dropped"])),
            value=None if value is None else float(str(value)),
            fault=str(data["fault"]),
        )


def _plain(value: float) -> float | None:
    """Return a number as JSON has it, None for one that JSON has not."""
    return value if math.isfinite(value) else None


def of_launch(launch: Launch) -> tuple[dict[str, Figure], dict[str, tuple[float, ...]]]:
    """Return the figures of a launch of `ppo` by name, and its numerics by name with the value of each step."""
    rule, steps = WarmUp(steps=launch.warm_up), launch.steps
    found: dict[str, Figure] = {}
    for name, values in _by_step(steps).items():
        if len(values) == len(steps):
            found[name] = Figure.of_steps(name, values, rule)
    for worker in {worker for step in steps for worker in step.memory}:
        peaks = [step.memory[worker] for step in steps if worker in step.memory]
        for what, raw in (
            ("allocated", [peak.allocated for peak in peaks]),
            ("reserved", [peak.reserved for peak in peaks]),
        ):
            found[f"memory/{worker}/{what}"] = Figure.once(f"memory/{worker}/{what}", max(raw), raw)
    if launch.outcome.gpu_peak:
        found["memory/gpu"] = Figure.once("memory/gpu", launch.outcome.gpu_peak / GIB)
    reached = launch.outcome.reached
    if "fit" in reached:
        found["start-up"] = Figure.once("start-up", reached["fit"])
    names = {name for step in steps for name in step.numerics}
    numerics = {name: tuple(step.numerics.get(name, math.nan) for step in steps) for name in sorted(names)}
    return found, numerics


def _by_step(steps: Iterable[Step]) -> dict[str, list[float]]:
    """Return each metric's values, one a step; one that a step lacks has fewer."""
    found: dict[str, list[float]] = {}
    for step in steps:
        found.setdefault("throughput", []).append(step.throughput)
        seconds = {**step.seconds, "rollout": step.rollout_seconds}
        for phase in PHASES:
            if seconds.get(phase, 0.0) > 0:
                found.setdefault(f"seconds/{phase}", []).append(seconds[phase])
        for name, figure in step.phases.items():
            found.setdefault(f"throughput/{name.value}", []).append(figure.throughput)
            if figure.mfu is not None and figure.mfu.peak is not None:
                found.setdefault(f"mfu/{name.value}", []).append(figure.mfu.peak)
            if figure.mfu is not None and figure.mfu.ceiling is not None:
                found.setdefault(f"mfu_ceiling/{name.value}", []).append(figure.mfu.ceiling)
            if figure.verl_mfu is not None:
                found.setdefault(f"mfu_verl/{name.value}", []).append(figure.verl_mfu)
    return found


def steady(values: Sequence[float], dropped: int) -> float | None:
    """Return the median of the steps after warm-up, None where none is left or one is not finite."""
    kept = values[dropped:]
    return statistics.median(kept) if kept and all(math.isfinite(value) for value in kept) else None
