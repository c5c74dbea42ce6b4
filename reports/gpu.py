"""The tier `gpu` in the reports: per cell what its probes came to, the machines, the thresholds, the starts of PPO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matrix.figures import Limit, StartUp, gpu_probes, limits, machines, start_ups
from matrix.tier import Outcome, Tier
from matrix.tried import Tried, short
from matrix.verdict import Verdict
from reports.legend import OUTCOMES

GIB = 2**30


def gpu_document(verdicts: Sequence[Verdict]) -> dict[str, object] | None:
    """Return what the tier said of all cells (schema.json: `gpu`), None where it says nothing and measured nothing."""
    items = [item for verdict in verdicts for item in verdict.evidence if item.question.tier is Tier.GPU]
    if not any("::" in item.question.probe or item.question.measures for item in items):
        return None
    found = machines(items)
    return {
        "probes": gpu_probes(items).to_json(),
        "machines": [
            {
                "fingerprint": digest,
                "facts": item.detail.get("facts") or {},
                "cells": sorted({one.question.cell for one in items if one.detail.get("fingerprint") == digest}),
                "machine": item.machine,
                "at": item.at.isoformat(),
                "shipped": item.shipped,
            }
            for digest, item in found.items()
        ],
        "thresholds": [limit.to_json() for limit in limits(items)],
        "starts": [_start(item) for item in start_ups(items)],
    }


def _start(item: StartUp) -> dict[str, object]:
    return {
        "cell": item.cell,
        "reached": dict(item.reached),
        "first_step": item.first_step,
        "machine": item.observation.machine,
        "at": item.observation.at.isoformat(),
        "shipped": item.observation.shipped,
    }


def cell_gpu(verdict: Verdict) -> dict[str, object] | None:
    """Return what the GPU probes of one cell came to, None where it has none."""
    found = gpu_probes(verdict.evidence)
    return found.to_json() if found.planned else None


def gpu_column(verdicts: Sequence[Verdict]) -> dict[str, str]:
    """Return a word for each cell that was, or was to be, tried on a GPU; empty where none was."""
    return {verdict.cell.name: word for verdict in verdicts if (word := gpu_word(verdict))}


def gpu_word(verdict: Verdict) -> str:
    """Return how a cell did on a GPU, e.g. `◐ 41 of 44`; `*` says that it was not here, "" that it was not to be."""
    found = [item for item in verdict.tried if item.tier is Tier.GPU]
    if not found:
        return ""
    item = max(found, key=lambda item: (item.outcome is not Outcome.UNTESTED, not item.shipped))
    star = "*" if item.shipped else ""
    if item.outcome is Outcome.UNTESTED:
        return f"{OUTCOMES[item.outcome].mark} untested"
    return f"{OUTCOMES[item.outcome].mark} {item.ran} of {item.planned}{star}"


def recorded_line(verdicts: Sequence[Verdict]) -> str:
    """Return what the evidence of other machines adds, as a sentence; "" where it adds nothing."""
    found: dict[Tier, list[Tried]] = {}
    for verdict in verdicts:
        for item in verdict.recorded:
            if item.outcome is not Outcome.UNTESTED:
                found.setdefault(item.tier, []).append(item)
    if not found:
        return ""
    parts = []
    for tier, items in sorted(found.items(), key=lambda entry: entry[0].depth):
        names = dict.fromkeys(short(name) for item in items for name in item.machines if name != "static")
        days = sorted({f"{item.at:%Y-%m-%d}" for item in items})
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        where = "; ".join([*names, when])
        parts.append(f"{tier} of {len(items)} {'cell' if len(items) == 1 else 'cells'} ({where})")
    return f"Not tried here, from the evidence that is shipped: {', '.join(parts)}."


def threshold_words(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a threshold of the document in words for people, by column."""
    predicted, low, high = (_value(row[name]) for name in ("predicted", "largest_pass", "smallest_fail"))
    error = row["error"]
    died = ", ".join(word for word in (row["part"], row["how"]) if word)
    passes, fails = row["repeats"]
    peaks = " / ".join("?" if peak is None else f"{peak / GIB:.1f}" for peak in row["peaks"])
    return {
        "workload": row["workload"],
        "knob": str(row["knob"]).rpartition(".")[2],
        "key": row["knob"],
        "cap": row["cap"],
        "capped": row["capped"] or "not capped",
        "predicted": predicted,
        "passes": low,
        "fails": high,
        "error": "?" if error is None else f"{error:+.0%}" if error else "0%",
        "died": died or row["found"],
        "repeats": f"{passes} and {fails}",
        "peaks": f"{peaks} GiB",
        "seconds": f"{row['seconds']:.0f} s",
    }


def _value(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def machine_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a fingerprint as rows of name and value for people; what it does not say is left out."""
    rows: list[tuple[str, object]] = []
    for gpu in facts.get("gpus") or ():
        clocks = gpu.get("clock_max_mhz") or {}
        rows.append(("GPU", f"{gpu.get('name')}, {gpu.get('memory_mib')} MiB, capability {gpu.get('capability')}"))
        rows.append(("clocks", f"up to {clocks.get('sm')} MHz, memory {clocks.get('memory')} MHz"))
        limit, links = gpu.get("power_limit_w"), gpu.get("nvlinks")
        width = f"PCIe {gpu.get('pcie_generation')} x{gpu.get('pcie_width')}"
        rows.append(("power and links", f"{limit} W, {width}, {links} NVLinks up"))
        rows.append(("modes", f"ECC {_on(gpu.get('ecc'))}, MIG {_on(gpu.get('mig'))}, {gpu.get('compute_mode')}"))
    cpu = facts.get("cpu") or {}
    rows += [
        ("driver", facts.get("driver")),
        ("CUDA of the driver", facts.get("cuda_driver")),
        ("CUDA runtime", facts.get("cuda_runtime")),
        ("NCCL", facts.get("nccl")),
        ("cuDNN", facts.get("cudnn")),
        ("CPU", f"{cpu.get('cores')} cores of {cpu.get('model')}" if cpu else None),
        ("memory", f"{facts['memory_gib']} GiB" if facts.get("memory_gib") else None),
        ("kernel", facts.get("kernel")),
        ("hypervisor", facts.get("hypervisor")),
        ("python", facts.get("python")),
        ("variables", ", ".join(f"{k}={v}" for k, v in (facts.get("environment") or {}).items()) or None),
    ]
    return [(name, str(value)) for name, value in rows if value is not None]


def _on(value: object) -> str:
    return "unknown" if value is None else "on" if value else "off"


THRESHOLD_HEADS = {
    "workload": "workload", "knob": "knob", "cap": "card", "predicted": "predicted", "passes": "passes",
    "fails": "fails", "error": "error", "died": "what died", "repeats": "repeats", "peaks": "peak", "capped": "how",
}  # fmt: skip
"""The columns of a table of thresholds, in the words of `threshold_words`."""


def threshold_lines(found: Sequence[Limit]) -> list[str]:
    """Return thresholds as a table in plain text, a line each under a heading."""
    rows = [THRESHOLD_HEADS, *(threshold_words(limit.to_json()) for limit in found)]
    widths = {name: max(len(row[name]) for row in rows) for name in THRESHOLD_HEADS}
    return ["  ".join(row[name].ljust(widths[name]) for name in THRESHOLD_HEADS).rstrip() for row in rows]
