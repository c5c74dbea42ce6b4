"""Plots as inline SVG: raw figures of launches in the order in which they ran, and intervals of ratios.

Everything is escaped; colours come from classes alone (`templates/benches.css`), so that both colour schemes read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH = 760
LABEL = 250
"""So wide is the column of names in a plot of intervals."""
TOLD = 150
ROW = 26
TONES: Mapping[str, str] = {
    "faster": "works", "slower": "broken", "equivalent": "untested", "inconclusive": "degraded",
    "incomparable": "conflict", "exceeded": "works", "met": "works", "less": "degraded", "refuted": "broken",
    "untested": "untested", "agrees": "works", "differs": "broken", "unclear": "degraded", "held": "works",
    "moved": "broken", "not shown": "degraded", "inert": "untested", "refused": "conflict",
}  # fmt: skip
"""Which of the page's tones a word has."""
MOST_TICKS = 6


def tone(word: str) -> str:
    """Return the class of a word's colour; what is not known has that of `untested`."""
    return f"s-{TONES.get(word, 'untested')}"


def intervals(rows: Sequence[Mapping[str, Any]], margin: float, label: str) -> Markup:
    """Return the intervals of ratios as a plot, a row each, on one logarithmic axis with 1 and the margin marked.

    A row has `name`, `verdict`, `ratio`, `low`, `high`, `n`; one without an interval says its verdict alone.
    """
    known = [value for row in rows for value in (row["low"], row["high"], row["ratio"]) if value]
    scale = _Log(min([*known, 1 / (1 + 2 * margin)]), max([*known, 1 + 2 * margin]), LABEL, WIDTH - TOLD)
    height = ROW * len(rows) + 34
    foot = height - 26
    ticks = scale.ticks()
    left, right = scale.at(1 / (1 + margin)), scale.at(1 + margin)
    parts = [
        _shape("rect", "b-band", x=left, y=4, width=right - left, height=foot - 4),
        *[_shape("line", "b-grid", x1=scale.at(tick), x2=scale.at(tick), y1=4, y2=foot) for tick in ticks],
        _shape("line", "b-one", x1=scale.at(1), x2=scale.at(1), y1=4, y2=foot + 4),
        *[_text(f"{tick:g}", "b-tick", scale.at(tick), foot + 18, "middle") for tick in ticks],
    ]
    for number, row in enumerate(rows):
        parts.append(_interval(row, 4 + ROW * number + ROW / 2, scale))
    return _svg(WIDTH, height, label, parts)


def _interval(row: Mapping[str, Any], y: float, scale: _Log) -> Markup:
    from markupsafe import Markup

    name, told = str(row["name"]), str(row["verdict"])
    parts = [_text(_cut(name, 40), "b-name", LABEL - 12, y + 4, "end")]
    if row["ratio"] is not None:
        if row["low"] is not None:
            parts.append(_shape("line", "b-bar", x1=scale.at(row["low"]), x2=scale.at(row["high"]), y1=y, y2=y))
            parts += [
                _shape("line", "b-bar", x1=scale.at(end), x2=scale.at(end), y1=y - 4, y2=y + 4)
                for end in (row["low"], row["high"])
            ]
        parts.append(_shape("circle", "b-dot", cx=scale.at(row["ratio"]), cy=y, r=4))
        told = f"{row['ratio']:.3f} {told}"
    parts.append(_text(told, "b-told", WIDTH - TOLD + 12, y + 4, "start"))
    about = f"{name}: {_words(row)}"
    return Markup('<g class="{}"><title>{}</title>{}</g>').format(tone(str(row["verdict"])), about, _joined(parts))


def _words(row: Mapping[str, Any]) -> str:
    if row["ratio"] is None:
        return str(row["verdict"])
    between = "" if row["low"] is None else f", 95 % interval {row['low']:.4f} to {row['high']:.4f}"
    return f"ratio {row['ratio']:.4f}{between}, n = {'+'.join(map(str, row['n']))}, {row['verdict']}"


def launches(judgement: Mapping[str, Any], label: str) -> Markup:
    """Return the figures of a metric in the order in which its launches ran, side B filled, failed ones crossed.

    Small dots are the raw steps of each launch; the line of a side is its median.
    """
    rows = judgement["launches"]
    counted = [row for row in rows if row["value"] is not None]
    raw = [value for row in counted for value in row["raw"][judgement["dropped"] :] if value is not None]
    figures = [row["value"] for row in counted]
    height, left, right, top, foot = 190, 64, WIDTH - 12, 12, 156
    if not figures:
        return _svg(WIDTH, 40, label, [_text("no launch has a figure", "b-tick", WIDTH / 2, 24, "middle")])
    scale = _Linear(min([*raw, *figures]), max([*raw, *figures]), foot, top)
    step = (right - left) / max(1, len(rows))
    parts = [
        *[_shape("line", "b-grid", x1=left, x2=right, y1=scale.at(tick), y2=scale.at(tick)) for tick in scale.ticks()],
        *[_text(f"{tick:,.6g}", "b-tick", left - 8, scale.at(tick) + 4, "end") for tick in scale.ticks()],
    ]
    for side in ("A", "B"):
        summary = judgement[side.lower()]
        if summary is not None:
            y = scale.at(summary["median"])
            parts.append(_shape("line", f"b-median b-{side.lower()}", x1=left, x2=right, y1=y, y2=y))
    for number, row in enumerate(rows):
        parts.append(_launch(row, left + step * (number + 0.5), scale, foot, judgement))
    parts.append(_text("launches in the order in which they ran", "b-tick", (left + right) / 2, height - 6, "middle"))
    return _svg(WIDTH, height, label, parts)


def _launch(row: Mapping[str, Any], x: float, scale: _Linear, foot: float, judgement: Mapping[str, Any]) -> Markup:
    from markupsafe import Markup

    side = str(row["side"])
    parts = [_text(side, "b-tick", x, foot + 16, "middle")]
    if row["value"] is None:
        about = f"place {row['place']}, {side}: {row['fault']}"
        parts += [
            _shape("line", "b-cross", x1=x - 4, x2=x + 4, y1=foot - 4, y2=foot + 4),
            _shape("line", "b-cross", x1=x - 4, x2=x + 4, y1=foot + 4, y2=foot - 4),
        ]
    else:
        steps = [value for value in row["raw"][judgement["dropped"] :] if value is not None]
        if len(steps) > 1:
            parts += [_shape("circle", "b-step", cx=x, cy=scale.at(value), r=1.5) for value in steps]
        parts.append(_shape("circle", "b-launch", cx=x, cy=scale.at(row["value"]), r=4.5))
        about = f"place {row['place']}, {side}: {row['value']:,.6g} {judgement['unit']}"
    return Markup('<g class="b-{}"><title>{}</title>{}</g>').format(side.lower(), about, _joined(parts))


class _Linear:
    """A linear axis from value to place, a little wider than what it shows."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        spare = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
        self.low, self.high, self.start, self.end = low - spare, high + spare, start, end

    def at(self, value: float) -> float:
        """Return where a value lies."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> list[float]:
        """Return round values to mark."""
        rough = (self.high - self.low) / 4
        unit = 10 ** math.floor(math.log10(rough))
        size = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough)
        first = math.ceil(self.low / size)
        return [at * size for at in range(first, math.floor(self.high / size) + 1)]


class _Log:
    """A logarithmic axis of ratios."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        # What is beyond a factor of a thousand is shown at the edge.
        self.low, self.high = math.log(max(low, 1e-3)), math.log(min(high, 1e3))
        spare = 0.04 * (self.high - self.low) or 0.01
        self.low, self.high, self.start, self.end = self.low - spare, self.high + spare, start, end

    def at(self, value: float) -> float:
        """Return where a ratio lies."""
        share = (min(max(math.log(value), self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> list[float]:
        """Return round ratios to mark, 1 among them."""
        low, high = math.exp(self.low), math.exp(self.high)
        for size in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
            steps = range(math.ceil((low - 1) / size), math.floor((high - 1) / size) + 1)
            found = [value for at in steps if (value := round(1 + at * size, 4)) > 0]
            if len(found) <= MOST_TICKS:
                return found
        return [value for value in (0.01, 0.1, 0.5, 1, 2, 5, 10, 100) if low <= value <= high]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _svg(width: float, height: float, label: str, parts: Sequence[Markup]) -> Markup:
    from markupsafe import Markup

    return Markup('<svg class="b-plot" role="img" viewBox="0 0 {} {}" aria-label="{}">{}</svg>').format(
        width, height, label, _joined(parts)
    )


def _shape(kind: str, classes: str, **places: float) -> Markup:
    from markupsafe import Markup

    said = Markup(" ").join(Markup('{}="{}"').format(name, f"{value:g}") for name, value in places.items())
    return Markup('<{} class="{}" {}/>').format(Markup(kind), classes, said)  # noqa: S704 - one of a few words of this module


def _text(words: str, classes: str, x: float, y: float, anchor: str) -> Markup:
    from markupsafe import Markup

    return Markup('<text class="{}" x="{:g}" y="{:g}" text-anchor="{}">{}</text>').format(classes, x, y, anchor, words)


def _joined(parts: Sequence[Markup]) -> Markup:
    from markupsafe import Markup

    return Markup("").join(parts)
