"""What a series may have gathered, made up: figures of launches in turns with a known ratio and noise."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from bench.figures import metric_named
from bench.gathered import Gathered
from bench.recipes import Kind
from bench.sample import Launch, Sample, Side, order

AT = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
KINDS = {"ppo": Kind.PPO, "update": Kind.UPDATE, "rollout": Kind.ROLLOUT}


def some(
    pairing: str = "chunked-prefill",
    metric: str = "throughput",
    *,
    ratio: float = 1.1,
    n: int = 6,
    noise: float = 0.01,
    recipe: str = "ppo-short",
    series: str = "s",
    device: str = "cuda",
    base: float = 5_000.0,
    seed: int = 1,
    numerics: Mapping[Side, Mapping[str, tuple[float, ...]]] | None = None,
    reasons: Sequence[str] = (),
    notes: Sequence[str] = (),
    faults: Mapping[int, str] | None = None,
    gpus: tuple[str, ...] = ("NVIDIA H200",),
) -> Gathered:
    """Return one metric of one pairing."""
    source = random.Random(f"{seed} {pairing} {metric} {recipe}")
    kind = KINDS[recipe.partition("-")[0]]
    launches = []
    for place, side in enumerate(order(n)):
        value = base * (ratio if side is Side.B else 1.0) * math.exp(source.gauss(0, noise))
        fault = (faults or {}).get(place, "")
        launches.append(Launch(place=place, side=side, value=None if fault else value, fault=fault))
    replicate: Literal["launch", "repeat"] = "launch" if kind is Kind.PPO else "repeat"
    return Gathered(
        series=series,
        pairing=pairing,
        recipe=recipe,
        kind=kind,
        device=device,
        metric=metric_named(metric),
        replicate=replicate,
        sample=Sample(metric=metric_named(metric), launches=tuple(launches)),
        reasons=tuple(reasons),
        notes=tuple(notes),
        raw={launch.place: (launch.value or 0.0,) for launch in launches},
        dropped=0,
        numerics=held(n) if numerics is None else numerics,
        within=None,
        cells=dict.fromkeys(Side, "verl0.9.1-vllm0.24.0"),
        says={Side.A: f"{pairing}=off", Side.B: f"{pairing}=on"},
        machine="1 x NVIDIA H200" if device == "cuda" else "x86_64, 2 cores",
        gpus=gpus if device == "cuda" else (),
        fingerprint="f",
        seconds=2 * n * 160.0,
        gpu_seconds=2 * n * 160.0 if device == "cuda" else 0.0,
        startup=0.6,
        at=(AT, AT),
        planned=n,
    )


def held(n: int = 6, factor: float = 1.0, name: str = "gap_k3") -> dict[Side, dict[str, tuple[float, ...]]]:
    """Return one number of training of both sides: B's is A's times `factor`, with a per cent of noise."""
    source = random.Random(f"{n} {factor} {name}")
    return {
        side: {name: tuple(2e-3 * times * math.exp(source.gauss(0, 0.01)) for _ in range(n))}
        for side, times in ((Side.A, 1.0), (Side.B, factor))
    }
