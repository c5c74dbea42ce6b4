"""The view of benches in the page: the section as an HTML fragment with its plots; every text is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from reports.benches import interval
from reports.packing import printable
from reports.plot import intervals, launches, tone

TEMPLATES = Path(__file__).with_name("templates")
NONE = "none"


def markup(data: Mapping[str, Any]) -> str:
    """Return the section (`reports.benches.section`) as a fragment without scripts, styles and ids."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, finalize=_shown)
    made.globals.update(tone=tone, figure=_figure, ratio=_ratio, number=_number, interval=interval, when=_when)
    plots = {}
    groups = []
    for group in data["groups"]:
        rows = [_row(one, item) for one in group["pairings"] for item in one["judgements"] if item["main"]]
        groups.append({**group, "plot": intervals(rows, data["margin"], _label(group["title"], rows))})
        for one in group["pairings"]:
            for number, item in enumerate(item for item in one["judgements"] if item["main"]):
                key = f"{number} {one['series']} {one['recipe']} {one['pairing']} {group['device']}"
                plots[key] = launches(item, f"{one['pairing']} on {one['recipe']}: {item['metric']} of each launch")
    return made.get_template("benches.html.j2").render(data={**data, "groups": groups}, plots=plots)


def _shown(value: object) -> object:
    """Return text without control characters; what is markup stays markup."""
    return type(value)(printable(value)) if isinstance(value, str) else value


def _row(one: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    gain = item["metric"].partition("/")[2]
    name = f"{one['pairing']}, {one['recipe']}" + (f" {gain}" if gain else "")
    return {**{key: item[key] for key in ("verdict", "ratio", "low", "high", "n")}, "name": name}


def _label(title: str, rows: list[dict[str, Any]]) -> str:
    told = "; ".join(f"{row['name']} {row['verdict']}" for row in rows)
    return f"{title}: ratios B over A with their 95 % intervals. {told}"


def _figure(summary: Mapping[str, Any] | None) -> str:
    return NONE if summary is None else _number(summary["median"])


def _number(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def _ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def _when(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M} UTC"
