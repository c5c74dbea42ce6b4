"""What the observation of a launch may say (`bench.kept`): a list of its fields, and anything else is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.accuracy.scrub import strange

_RAW = {
    "columns": r"at|(power_w|sm_mhz|memory_mhz|reasons|used_mib|busy|celsius)/\d+",
    "company": r"before|beside|after|before_mib|known",
}
_LAUNCH = frozenset(
    {
        "schema", "series", "pairing", "recipe", "kind", "side", "place", "planned", "warms", "device", "says", "cells",
        "overrides", "changed", "plan", "measured", "disturbed", "notes", "conditions", "workload", "scripts",
        "fingerprint", "gpus", "gpu_base_mib", "gpu_peak_mib", "gpu_left_mib", "gpu_settle_s", "gpu_held_s",
        "gpu_ended", "telemetry", "telemetry_raw", "rows", "result", "startup_s", "cold", "text",
    }
)  # fmt: skip
"""What the detail of a launch of a bench may hold (`bench.kept`)."""
_RESULT = frozenset(
    {
        "schema", "bench", "ended", "code", "seconds", "prepared", "cpu", "resident", "own", "load", "patches",
        "device", "devices", "began", "release", "versions", "plan", "more", "fault", "reached", "interleaved", "why",
        "had", "switch", "numerics", "flash_attn", "watching", "gpu", "left_behind",
    }
)  # fmt: skip
"""What of its result."""


def strange_launch(detail: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the detail of a launch holds that it may not: the field, and why.

    Its text is scrubbed like any other; this is for fields that somebody adds, which are looked at first.
    """
    yield from (f"{name}: not on the list" for name in sorted(set(detail) - _LAUNCH))
    result, raw, conditions = (detail.get(name) or {} for name in ("result", "telemetry_raw", "conditions"))
    if not all(isinstance(part, Mapping) for part in (result, raw, conditions)):
        yield "result, telemetry_raw, conditions: one of them is not an object"
        return
    yield from (f"result.{name}: not on the list" for name in sorted(set(result) - _RESULT))
    for part, pattern in _RAW.items():
        held = raw.get(part) or {}
        yield from (f"telemetry_raw.{part}.{name}: not on the list" for name in held if not re.fullmatch(pattern, name))
    yield from (f"conditions.{line}" for line in strange(conditions))
