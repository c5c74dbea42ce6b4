"""The heat map of a grid: one self-contained HTML page, both verdicts a cell, the reason when it is pointed at."""

from __future__ import annotations

from matrix.grid import Grid, Row
from reports import headline
from reports.legend import OUTCOMES, STATUSES, TIERS
from reports.page import environment
from reports.view import when

REASON_CHARS = 400


def heatmap(grid: Grid) -> str:
    """Return the page; a reason that many cells share is in it once."""
    at = {(row.x, row.y): row for row in grid.rows}
    # Newest first: what people ask about then stands in the corner where the page opens.
    xs, ys = grid.xs[::-1], grid.ys[::-1]
    ordered = [at[x, y] for x in xs for y in ys if (x, y) in at]
    numbers = {(row.x, row.y): number for number, row in enumerate(ordered)}
    texts = _Texts()
    cells = [_cell(row, texts) for row in ordered]
    return (
        environment()
        .get_template("heatmap.html.j2")
        .render(
            x=grid.x.value,
            y=grid.y.value,
            ys=[str(version) for version in ys],
            rows=[
                {"x": str(x), "cells": [_shown(at[x, y], numbers[x, y]) if (x, y) in at else None for y in ys]}
                for x in xs
            ],
            cells=cells,
            data={
                "x": grid.x.value,
                "y": grid.y.value,
                "cells": cells,
                "texts": texts.all,
                "marks": {status.value: entry.mark for status, entry in STATUSES.items()},
            },
            title=headline.title(grid.run),
            denominator=headline.denominator(grid.run),
            notes=grid.run.notes,
            counts=grid.run.counts,
            planned=grid.run.planned,
            tallies=[tally.to_json() for tally in grid.run.tallies],
            provenance=headline.provenance(grid.run),
            statuses=STATUSES,
            outcomes=OUTCOMES,
            tiers=TIERS,
            when=when(grid.run.at.isoformat()),
        )
    )


class _Texts:
    """Texts by number, each kept once; number 0 is the empty one."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        shown = text if len(text) <= REASON_CHARS else text[: REASON_CHARS - 1] + "…"
        return self._numbers.setdefault(shown, len(self._numbers))

    @property
    def all(self) -> list[str]:
        return list(self._numbers)


def _cell(row: Row, texts: _Texts) -> list[object]:
    """Return what the page's script needs of a row, in the order in which it unpacks it."""
    return [
        str(row.x),
        str(row.y),
        row.status.value,
        row.resolvable.value,
        row.works.value,
        texts.number(row.resolve_reason),
        texts.number(row.surface_reason),
        texts.number(", ".join(row.features)),
        when(row.at.isoformat()) if row.at else "",
        row.deepest.value if row.deepest else "",
    ]


def _shown(row: Row, number: int) -> dict[str, object]:
    return {
        "number": number,
        "y": str(row.y),
        "status": row.status.value,
        "resolvable": row.resolvable.value,
        "works": row.works.value,
    }
