"""The conditions of a launch: what of machine and workload both sides must share, and in what launches differ.

GPU, driver, clocks and workload make a comparison incomparable wherever they differ; the host may be another one from
pair to pair, since launches are only ever compared within a block, but a pair that ran on two hosts is dropped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_GPU = (
    "name", "memory_mib", "capability", "clock_max_mhz", "clock_application_mhz", "power_limit_w", "persistence", "ecc",
    "mig", "compute_mode",
)  # fmt: skip
_SHARED = ("gpus", "driver", "cuda_driver")
_HOST = ("cpu", "memory_gib", "kernel", "hypervisor", "environment")
_SETTINGS = frozenset(
    {
        "more", "graphs", "tokens", "utilization",
        # Of the plan of a launch that holds both sides.
        "schema", "common", "off", "on", "python", "env", "repeats", "warm_up", "seconds", "limit",
    }
)  # fmt: skip
"""Fields of a plan that say how, how often and where a workload is run, and not what it is."""


def conditions(facts: Mapping[str, Any], gpus: Sequence[int] = ()) -> dict[str, Any]:
    """Return what of a machine's fingerprint launches are compared by; `gpus` are the granted ones' places in it."""
    held = facts.get("gpus") or []
    return {
        "gpus": [{name: held[at].get(name) for name in _GPU} for at in gpus],
        **{name: facts.get(name) for name in (*_SHARED[1:], *_HOST)},
    }


def workload(kind: str, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was computed, of the plan that a launch says it ran: lengths, batches, shape, seed, steps."""
    known = {name: value for name, value in sorted(plan.items()) if name not in _SETTINGS}
    return {"kind": kind, **known}


def digest(data: Mapping[str, Any]) -> str:
    """Return `sha256:` and 16 hex digits of plain JSON data."""
    return "sha256:" + hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:16]


def differing(
    launches: Sequence[tuple[int, Mapping[str, Any]]], device: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return in what the conditions of launches, by place, differ: reasons not to compare, and notes.

    On a CPU the host is what is measured, so that it counts as a GPU does.
    """
    shared = (*_SHARED, *_HOST) if device == "cpu" else _SHARED
    noted = () if device == "cpu" else _HOST
    found = [tuple(line for name in names for line in _difference(name, launches)) for names in (shared, noted)]
    return found[0], found[1]


def other_host(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return in what two launches' hosts differ, "" where they may be one."""
    return "; ".join(line for name in _HOST for line in _difference(name, [(0, one), (1, other)]))


def other_workload(launches: Sequence[tuple[int, Mapping[str, Any]]]) -> tuple[str, ...]:
    """Return in what the workloads of launches, by place, differ."""
    names = sorted({name for _, data in launches for name in data})
    return tuple(f"workload: {line}" for name in names for line in _difference(name, launches))


def _difference(name: str, launches: Sequence[tuple[int, Mapping[str, Any]]]) -> list[str]:
    """Return the field with its values and the places where they were seen, [] where there is one value."""
    seen: dict[str, list[int]] = {}
    for place, data in launches:
        seen.setdefault(_shown(data.get(name)), []).append(place)
    if len(seen) < 2:
        return []
    told = "; ".join(f"{value} at {_places(places)}" for value, places in seen.items())
    return [f"{name}: {told}"]


def _shown(value: Any) -> str:
    if isinstance(value, str | int | float | bool) or value is None:
        return str(value)
    return json.dumps(value, sort_keys=True, default=str)


def _places(places: Iterable[int]) -> str:
    found = list(places)
    return ", ".join(map(str, found[:6])) + (", …" if len(found) > 6 else "")
