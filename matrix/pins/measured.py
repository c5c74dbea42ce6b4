"""Measured differences: comparisons of the tier `bench` between what people have and a set, as they are stored.

A comparison is kept as an observation at tier `bench` whose detail has `comparison`: the cells `a` and `b`, the metric,
ratio (b over a) with `low` and `high`, how many launches, and the verdict that `bench` gave it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from matrix.cell import Axis, Cell, parse_name
from matrix.errors import MatrixError
from matrix.observe import Observation
from matrix.tier import Tier
from matrix.tried import short

_SETTLED = ("faster", "slower", "equivalent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One comparison of two cells.

    Attributes:
        kind: `speed`, `memory` or `numerics`.
        ratio: b over a, of the metric as it is measured; None where there is none.
        low, high: the interval of the ratio; None where there is none.
        better: `higher` or `lower`: which way the metric is good.
        n: launches of a and of b.
        verdict: what bench said of it; only `faster`, `slower` and `equivalent` settle anything.
        beyond: numerics only: whether the gap moved beyond its tolerance.
    """

    a: str
    b: str
    kind: str
    metric: str
    verdict: str
    ratio: float | None
    low: float | None
    high: float | None
    better: str
    n: tuple[int, int]
    machine: str
    day: str
    beyond: bool = False

    @property
    def line(self) -> str:
        """Return it for people, e.g. `throughput x1.042 [1.031, 1.055] faster (n 8+8, NVIDIA H200, 2026-12-01)`."""
        ratio = f" x{self.ratio:.3f}" if self.ratio is not None else ""
        interval = f" [{self.low:.3f}, {self.high:.3f}]" if self.low is not None and self.high is not None else ""
        count = f"n {self.n[0]}+{self.n[1]}, {self.machine}, {self.day}"
        beyond = ", beyond its tolerance" if self.beyond else ""
        return f"{self.metric}{ratio}{interval} {self.verdict}{beyond} ({count}; against {self.a})"

    def slowdown(self) -> float | None:
        """Return by what share b may be slower at worst (0.05 for 5 %), by the interval; None where it is not known."""
        if self.kind != "speed" or self.verdict not in _SETTLED or self.low is None or self.high is None:
            return None
        return 1 - self.low if self.better == "higher" else 1 - 1 / self.high if self.high else None

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data (evidence.schema.json: `measured`)."""
        return {
            "a": self.a,
            "b": self.b,
            "kind": self.kind,
            "metric": self.metric,
            "verdict": self.verdict,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "better": self.better,
            "n": list(self.n),
            "machine": self.machine,
            "day": self.day,
            "beyond_tolerance": self.beyond,
            "line": self.line,
        }


def measured(observations: Iterable[Observation]) -> tuple[Measured, ...]:
    """Return the comparisons among these observations, the latest of each pair of cells and metric."""
    found: dict[tuple[str, str, str], tuple[object, Measured]] = {}
    for item in observations:
        data = item.detail.get("comparison") if item.question.tier is Tier.BENCH else None
        made = _read(data, item) if isinstance(data, Mapping) else None
        if made is None:
            continue
        slot = (made.a, made.b, made.metric)
        if slot not in found or str(found[slot][0]) <= item.at.isoformat():
            found[slot] = (item.at.isoformat(), made)
    return tuple(made for _, made in found.values())


def _read(data: Mapping[str, object], item: Observation) -> Measured | None:
    """Return the comparison that is kept there; None where it lacks what one has."""
    try:
        first, second = (int(str(count)) for count in data.get("n") or (0, 0))  # type: ignore[attr-defined]
        return Measured(
            a=str(data["a"]),
            b=str(data["b"]),
            kind=str(data["kind"]),
            metric=str(data["metric"]),
            verdict=str(data["verdict"]),
            ratio=_number(data.get("ratio")),
            low=_number(data.get("low")),
            high=_number(data.get("high")),
            better=str(data.get("better", "higher")),
            n=(first, second),
            machine=short(item.machine),
            day=f"{item.at:%Y-%m-%d}",
            beyond=bool(data.get("beyond_tolerance", False)),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def about(cell: Cell, base: Mapping[str, object], known: Iterable[Measured]) -> tuple[Measured, ...]:
    """Return the comparisons whose `b` is this cell, and whose `a` is made of what people have (package to version).

    Where nothing is known of what they have, any `a` is told.
    """
    name = cell.name
    return tuple(item for item in known if item.b == name and item.a != name and _is_of(item.a, base))


def _is_of(name: str, base: Mapping[str, object]) -> bool:
    try:
        pins = {pin.axis: str(pin.version) for pin in parse_name(name).pins}
    except MatrixError:
        return False
    stated = {axis: str(base[axis.value]) for axis in Axis if axis.value in base}
    return all(pins[axis] == version for axis, version in stated.items() if axis in pins)
