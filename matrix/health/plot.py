"""Curves of a diagnosis as SVG, alone or in a page: one panel a metric, the stretches of its symptoms marked."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path

from matrix.errors import UsageError
from matrix.gravity import Gravity
from matrix.health.diagnosis import Diagnosis
from matrix.health.history import Run, Series
from matrix.health.names import Metric
from matrix.health.symptom import Symptom

WIDTH, HEIGHT, MARGIN, COLUMNS = 420, 180, 44, 2
MOST_POINTS = 1500
"""More points than this are drawn as the lowest and highest of each stretch, so that no spike is lost."""
_HIDDEN = {Metric.SCORE_MAX, Metric.SCORE_MIN, Metric.RETURN_MAX, Metric.RETURN_MIN, Metric.LENGTH_MAX}
_COLOURS = {Gravity.ERROR: "#c62828", Gravity.WARNING: "#e65100", Gravity.NOTE: "#5e6a75"}
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#24292f}.t{font-weight:600;font-size:12px}.a{fill:#5e6a75}"
    ".c{fill:none;stroke:#1a6fb5;stroke-width:1.3}.f{fill:none;stroke:#d0d7de}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.a{fill:#9aa4ae}.c{stroke:#6cb6ff}.f{stroke:#3d444d}}"
)


def drawing(diagnosis: Diagnosis, suffix: str) -> str:
    """Return the curves as text: an SVG picture for `.svg`, a page with the symptoms below them for `.html`.

    Raises UsageError for another suffix.
    """
    if suffix == ".svg":
        return _svg(diagnosis)
    if suffix in (".html", ".htm"):
        return _page(diagnosis)
    raise UsageError(f"--plot draws SVG or HTML, not `{suffix or 'a file without suffix'}`.", then=_NAME)


_NAME = "Name the file health.svg or health.html."


def _page(diagnosis: Diagnosis) -> str:
    rows = "".join(
        f"<tr><td>{item.gravity.value}</td><td>{item.run}</td><td>{item.since}</td><td>{html.escape(item.metric)}</td>"
        f"<td>{html.escape(item.message)}</td><td>{html.escape(item.limit)}</td></tr>"
        for item in diagnosis.symptoms
    )
    head = "<tr><th>gravity<th>run<th>since step<th>metric<th>what<th>limit</tr>"
    table = f"<table>{head}{rows}</table>" if rows else "<p>Nothing wrong was found.</p>"
    title = f"Training health: {html.escape(Path(diagnosis.log.path).name)}"
    return (
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>:root{color-scheme:light dark}body{font:14px system-ui,sans-serif;margin:1.5rem}"
        "td,th{text-align:left;padding:.2rem .7rem .2rem 0;vertical-align:top}svg{max-width:100%;height:auto}</style>"
        f"<h1>{title}</h1>{_svg(diagnosis)}{table}</html>\n"
    )


def _svg(diagnosis: Diagnosis) -> str:
    panels = [
        (run, series)
        for run in diagnosis.log.runs
        for metric in Metric
        if metric not in _HIDDEN and (series := run.series(metric))
    ]
    several = len(diagnosis.log.runs) > 1
    rows = math.ceil(len(panels) / COLUMNS)
    parts = []
    for at, (run, series) in enumerate(panels):
        x, y = (at % COLUMNS) * WIDTH, (at // COLUMNS) * HEIGHT
        marks = [item for item in diagnosis.symptoms if item.run == run.number and item.metric == series.name]
        title = f"{series.name} (run {run.number})" if several else series.name
        parts.append(f'<g transform="translate({x},{y})">{_panel(series, run, marks, title)}</g>')
    wide, high = COLUMNS * WIDTH, rows * HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        f'role="img" aria-label="metrics by step"><style>{_STYLE}</style>{"".join(parts)}</svg>'
    )


def _panel(series: Series, run: Run, marks: Sequence[Symptom], title: str) -> str:
    left, right, top, bottom = MARGIN, WIDTH - 12, 24, HEIGHT - 26
    first, last = run.steps[0], max(run.steps[-1], run.steps[0] + 1)
    low, high = min(series.values), max(series.values)
    if low == high:
        low, high = low - 0.5, high + 0.5

    def across(step: float) -> float:
        return left + (right - left) * (step - first) / (last - first)

    def up(value: float) -> float:
        return bottom - (bottom - top) * (value - low) / (high - low)

    bands = []
    for mark in marks:
        start, end = across(mark.since), across(last if mark.until is None else mark.until)
        label = html.escape(f"{mark.gravity.value} since step {mark.since}: {mark.message}")
        colour = _COLOURS[mark.gravity]
        bands.append(
            f'<rect x="{start:.1f}" y="{top}" width="{max(end - start, 2):.1f}" height="{bottom - top}" '
            f'fill="{colour}" opacity=".18"><title>{label}</title></rect>'
        )
    points = " ".join(f"{across(step):.1f},{up(value):.1f}" for step, value in _thinned(series))
    return (
        f'<text class="t" x="{left}" y="15">{html.escape(title)}</text>'
        f'<rect class="f" x="{left}" y="{top}" width="{right - left}" height="{bottom - top}"/>{"".join(bands)}'
        f'<polyline class="c" points="{points}"/>'
        f'<text class="a" x="{left - 4}" y="{top + 9}" text-anchor="end">{high:.3g}</text>'
        f'<text class="a" x="{left - 4}" y="{bottom}" text-anchor="end">{low:.3g}</text>'
        f'<text class="a" x="{left}" y="{bottom + 14}">{first}</text>'
        f'<text class="a" x="{right}" y="{bottom + 14}" text-anchor="end">step {last}</text>'
    )


def _thinned(series: Series) -> list[tuple[int, float]]:
    """Return the points to draw: all, or the lowest and highest of each stretch in the order they came."""
    points = list(zip(series.steps, series.values, strict=True))
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(2 * len(points) / MOST_POINTS)
    kept = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept
