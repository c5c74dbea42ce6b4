"""How the benches' answers read on a terminal: plans, tables of verdicts, promises, what a search came to."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bench.plans import BenchPlan, Row
from bench.tuning import Found

if TYPE_CHECKING:
    from pandas import DataFrame

BRIEF = ("series", "pairing", "recipe", "metric", "A", "B", "ratio", "low", "high", "n", "verdict", "numerics")
WIDE = 160
"""So many characters of a line of notes are shown."""


def say(text: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def tell(text: str) -> None:
    """Write a line of progress to standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def has_pandas() -> bool:
    """Return whether tables can be made; without pandas, as in many a cell, verdicts are told line by line."""
    import importlib.util

    return importlib.util.find_spec("pandas") is not None


def frame(table: DataFrame, columns: Sequence[str] = ()) -> str:
    """Return a table as aligned text; figures with four digits that count, what is not there blank."""
    shown = table[list(columns)] if columns else table
    return str(shown.map(_cell).to_string(index=False))


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def notes(table: DataFrame) -> list[str]:
    """Return what is to be known of the rows of a table of verdicts, a line each."""
    found = zip(table["pairing"], table["recipe"], table["metric"], table["note"], strict=True)
    return [f"  {pairing}, {recipe}, {metric}: {note}" for pairing, recipe, metric, note in found if note]


def plan_text(plan: BenchPlan) -> str:
    """Return a plan for people: a line a comparison, totals, and what to know first."""
    lines = []
    for row in plan.rows:
        name = f"{row.pairing:<24} {row.recipe:<14}"
        lines.append(
            f"{name} {row.standing}: {row.why}" if row.could is None else f"{name} {_planned(row, plan.margin)}"
        )
    total = f"{plan.minutes:.0f} minutes, {plan.gpu_minutes:.0f} of GPU time"
    if plan.family > 1:
        total += f"; {plan.family} comparisons are judged together, so the first at {0.05 / plan.family:.3g}"
    lines.append(total)
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _planned(row: Row, margin: float) -> str:
    assert row.could is not None
    shows = "no difference" if row.could.detectable is None else f"{row.could.detectable - 1:.1%}"
    same = "no sameness" if row.could.least_margin is None else f"sameness within {row.could.least_margin:.1%}"
    count = f"{row.launches} launches" if row.launches > 1 else "1 launch"
    gpus = f"{row.gpus} GPU{'s' if row.gpus != 1 else ''}" if row.gpus else "CPU"
    return (
        f"{row.metric:<24} {count} on {gpus}, {row.minutes:.0f} min, n = {row.n}+{row.n}, noise {row.noise:.1%}:"
        f" shows {shows} in 4 of 5 cases, {same} (within {margin:.0%} in {row.could.equivalent:.0%})"
    )


def plan_json(plan: BenchPlan) -> dict[str, Any]:
    """Return a plan as plain JSON data."""
    return {
        "rows": [asdict(row) for row in plan.rows],
        "family": plan.family,
        "margin": plan.margin,
        "minutes": round(plan.minutes, 1),
        "gpu_minutes": round(plan.gpu_minutes, 1),
        "notes": list(plan.notes),
    }


def found_text(bench: str, found: Found) -> list[str]:
    """Return what a search came to: what is flipped, by how much, and what was left out."""
    lines = [f"{bench}: {found.shown}: {found.why}"]
    if found.comparison is not None and found.comparison.gain is not None and found.comparison.interval is not None:
        low, high = found.comparison.interval
        n = "+".join(map(str, found.comparison.n))
        lines.append(
            f"  {found.comparison.gain:.3f} times as fast, 95 % interval {1 / high:.3f} to {1 / low:.3f}, n = {n}"
        )
    return [*lines, *(f"  left out: {name}, {why}" for name, why in sorted(found.out.items()))]


def dump(data: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return JSON for `--json`."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False, default=str)
