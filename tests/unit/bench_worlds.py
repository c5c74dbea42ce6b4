"""Worlds in which the verdicts of benches are tried: what launches of one variant do from one to the next."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from bench.sample import Better, Launch, Metric, Sample, Side, order

THROUGHPUT = Metric(name="throughput", unit="tokens/s/GPU", better=Better.HIGHER)
STEP = Metric(name="step", unit="s", better=Better.LOWER)

World = Callable[[random.Random, int], list[float]]
"""Logarithms of the figures of so many launches, in the order in which they run, of variants that are the same."""

NOISE = 0.01


def lognormal(source: random.Random, count: int) -> list[float]:
    return [source.gauss(0, NOISE) for _ in range(count)]


def heavy_tail(source: random.Random, count: int) -> list[float]:
    """Student's t with three degrees."""
    return [NOISE * source.gauss() / math.sqrt(source.gammavariate(1.5, 2) / 3) for _ in range(count)]


def stragglers(source: random.Random, count: int) -> list[float]:
    """One launch of twelve is slower by 10 to 40 %."""
    return [
        source.gauss(0, NOISE) - (source.uniform(0.1, 0.4) if source.random() < 1 / 12 else 0) for _ in range(count)
    ]


def straight_drift(source: random.Random, count: int) -> list[float]:
    """Five per cent from the first launch to the last."""
    return [source.gauss(0, NOISE) - 0.05 * at / (count - 1) for at in range(count)]


def settling(source: random.Random, count: int) -> list[float]:
    """A card that grows warm: 4 % lost over the first launches, most of it in the first four."""
    return [source.gauss(0, NOISE) + 0.04 * math.exp(-at / 3) for at in range(count)]


def wandering(source: random.Random, count: int) -> list[float]:
    """A random walk with steps of half the noise, on top of it."""
    level, found = 0.0, []
    for _ in range(count):
        level += source.gauss(0, NOISE / 2)
        found.append(level + source.gauss(0, NOISE))
    return found


def sticky(source: random.Random, count: int) -> list[float]:
    """Each launch is half like the one before it."""
    value = source.gauss(0, NOISE)
    found = [value]
    for _ in range(count - 1):
        value = 0.5 * value + math.sqrt(0.75) * source.gauss(0, NOISE)
        found.append(value)
    return found


WORLDS: dict[str, World] = {
    "lognormal": lognormal,
    "heavy tail": heavy_tail,
    "stragglers": stragglers,
    "straight drift": straight_drift,
    "settling": settling,
    "wandering": wandering,
    "sticky": sticky,
}


def tried(
    values: list[float], *, ratio: float = 1.0, sides: tuple[Side, ...] = (), metric: Metric = THROUGHPUT
) -> Sample:
    """Return the sample in which B is `ratio` times A, run in the usual order or in that of `sides`."""
    ran = sides or order(len(values) // 2)
    launches = (
        Launch(place=at, side=side, value=1000 * math.exp(value) * (ratio if side is Side.B else 1))
        for at, (side, value) in enumerate(zip(ran, values, strict=True))
    )
    return Sample(metric=metric, launches=tuple(launches))
