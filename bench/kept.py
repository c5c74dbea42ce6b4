"""What is kept of a launch: the detail of its observation, figures and all that they were made of.

An allow-list of its own result: nothing that names a machine, a person or a place, and no process by its number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench.conditions import conditions, workload
from bench.figures import Figure
from bench.launched import BOTH, SCHEMA, Measured
from bench.outcome import TAIL
from bench.place import Place
from matrix.gpus.fingerprint import digest as fingerprint_digest

if TYPE_CHECKING:
    from bench.lane import Lane
    from bench.launcher import Ended

_RESULT = (
    "schema", "bench", "ended", "code", "seconds", "prepared", "cpu", "resident", "own", "load", "patches", "device",
    "devices", "began", "release", "versions", "plan", "more", "fault", "reached", "interleaved", "why", "had",
    "switch", "numerics", "flash_attn", "watching",
)  # fmt: skip
"""Fields of a launch's result that are kept as they are."""
_GPU = ("release", "flash_attn", "model", "devices", "plan", "before", "peak", "left")
_COLD = "its caches were cold"


def _computed(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a launch says it ran: its plan, and on a GPU whether the model was a given one."""
    gpu = result.get("gpu") or {}
    return {**(result.get("plan") or {}), **({"model": gpu["model"]} if "model" in gpu else {})}


def caches_by(place: Place) -> dict[str, object]:
    """Return what decides which kernels are compiled: launches that are alike in it find each other's."""
    planned = place.variants[0].planned
    return {"kind": place.kind.value, "device": place.pairing.recipe.device,
            **{name: planned[name] for name in ("shape", "graphs", "batch", "prompt", "response")}}  # fmt: skip


def detail(place: Place, ended: Ended, where: Lane, scripts: str) -> dict[str, object]:
    """Return the detail of a launch's observation, plain JSON data."""
    result = ended.result
    measured = _without_cold_start(ended.measured) if ended.cold else ended.measured
    reached = result.get("reached") or {}
    before = [float(reached[name]) for name in ("fit", "first repeat") if name in reached]
    said = "" if measured.fault is None else ended.said[-TAIL:]
    variants = place.variants
    return {
        "schema": SCHEMA,
        "series": place.series,
        "pairing": place.pairing.name,
        "recipe": place.pairing.recipe.name,
        "kind": place.kind.value,
        "side": BOTH if place.side is None else place.side.value,
        "place": place.number,
        "planned": place.planned,
        "warms": place.warms,
        "device": place.pairing.recipe.device,
        "says": {variant.side.value: variant.name for variant in variants},
        "cells": {variant.side.value: variant.cell for variant in variants},
        "overrides": {variant.side.value: list(variant.overrides) for variant in variants},
        "changed": _changed(place),
        "plan": dict(result.get("plan") or {}),
        "measured": measured.to_json(),
        "disturbed": _disturbed(ended, measured),
        "notes": notes(place, ended),
        "conditions": conditions(ended.facts, where.places),
        "workload": workload(place.kind.value, _computed(result)),
        "scripts": scripts,
        "fingerprint": fingerprint_digest(ended.facts),
        "gpus": [gpu.name for gpu in where.gpus],
        **ended.settled,
        "telemetry": {"whole": ended.seen.summary(), "window": ended.seen.summary(measured.window)},
        "telemetry_raw": ended.seen.to_json(),
        # As verl writes it from 0.7.1 on: what is not finite is null.
        "rows": finite(list(ended.rows)),
        "result": finite(_allowed(result)),
        "startup_s": before[0] if before else None,
        "cold": ended.cold,
        **({"text": said} if said else {}),
    }


def _without_cold_start(measured: Measured) -> Measured:
    """Return the same without its start-up, which is not that of a launch that finds everything compiled."""
    held = measured.figures.get("start-up")
    if held is None:
        return measured
    figure = Figure(name=held.name, raw=held.raw, dropped=held.dropped, fault=_COLD)
    return replace(measured, figures={**measured.figures, held.name: figure})


def _changed(place: Place) -> dict[str, list[object]]:
    """Return what the toggle changes in the configuration: of each key its values off and on."""
    standing = place.pairing.standing
    return {} if standing is None else {key: list(values) for key, values in standing.changed.items()}


def _disturbed(ended: Ended, measured: Measured) -> list[str]:
    """Return what of the machine makes the figures no good."""
    window = measured.window
    return [*ended.seen.throttled(window), *ended.seen.company.lines]


def notes(place: Place, ended: Ended) -> list[str]:
    """Return what is to be known of the launch, a line each."""
    found = []
    told = ended.seen.summary(ended.measured.window).get("gpus")
    for gpu in told if isinstance(told, list) else ():
        share = gpu["reasons"].get("power cap") if isinstance(gpu, Mapping) else None
        if share:
            found.append(f"launch {place.number}: at its power cap {share:.0%} of the time")
    load = ended.result.get("load")
    cores = int(str((ended.facts.get("cpu") or {}).get("cores") or 0))
    if isinstance(load, list) and cores and float(load[0]) > cores / 2 and place.pairing.recipe.device == "cpu":
        found.append(f"launch {place.number}: the load was {load[0]:.1f} on {cores} cores before it began")
    if ended.result.get("interleaved") in ("process", "chunk"):
        how = "a process a side" if ended.result["interleaved"] == "process" else "in blocks, a process a side"
        found.append(f"launch {place.number}: its sides ran {how}: {ended.result.get('why')}")
    if ended.result.get("ended") == "cut":
        found.append(f"launch {place.number}: cut short by its seconds")
    return found


def _allowed(result: Mapping[str, Any]) -> dict[str, object]:
    """Return the fields of a launch's result that may be kept."""
    found: dict[str, object] = {name: result[name] for name in _RESULT if name in result}
    gpu = result.get("gpu")
    if isinstance(gpu, Mapping) and gpu:
        found["gpu"] = {name: gpu[name] for name in _GPU if name in gpu}
    found["left_behind"] = len(result.get("left_behind") or ())
    return found


def finite(value: Any) -> Any:
    """Return plain JSON data with None for each number that is not finite."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(name): finite(item) for name, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case _:
            return value
