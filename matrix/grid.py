"""The grid: every pair of two axes as a cell, its verdict as a row; a run like any other, written as CSV.

Each row stands on its own observations, so that when a release appears only its own row or column is asked.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from packaging.version import Version

from matrix.axes import Axes
from matrix.cell import Axis, Cell, Pin, Platform
from matrix.errors import NothingRanError, UsageError
from matrix.job import Job, RunResult
from matrix.run import recall, run
from matrix.select import parse_patterns, select
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict

CSV_FIELDS = (
    "cell",
    "status",
    "resolvable",
    "works",
    "deepest",
    "resolve_reason",
    "surface_reason",
    "features",
    "at",
    "resolve_key",
    "surface_key",
)
"""The columns of the CSV after the two axes; one row a pair, one line a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pair and what came of it; small, so that a lattice of thousands fits into memory.

    Attributes:
        x: release of the axis whose releases are the rows.
        y: release of the axis whose releases are the columns.
        cell: the cell's name.
        status: what the pair comes to.
        resolvable: what the resolver said.
        works: what the tiers below said.
        deepest: the deepest tier that ran.
        resolve_reason: why it does not resolve, or was not tried; "" where it does.
        surface_reason: the same for the surface tier.
        features: what is broken or degraded where the whole is not.
        at: when the latest observation was made.
        resolve_key: the key of the resolver's observation in the store; "" when there is none.
        surface_key: the same for the surface tier.
    """

    x: Version
    y: Version
    cell: str
    status: Status
    resolvable: Outcome
    works: Outcome
    deepest: Tier | None
    resolve_reason: str
    surface_reason: str
    features: tuple[str, ...]
    at: datetime | None
    resolve_key: str
    surface_key: str

    def fields(self) -> dict[str, str]:
        """Return the row as text, by CSV column (without the two axes)."""
        return {
            "cell": self.cell,
            "status": self.status.value,
            "resolvable": self.resolvable.value,
            "works": self.works.value,
            "deepest": self.deepest.value if self.deepest else "",
            "resolve_reason": self.resolve_reason,
            "surface_reason": self.surface_reason,
            "features": " ".join(self.features),
            "at": self.at.isoformat(timespec="seconds") if self.at else "",
            "resolve_key": self.resolve_key,
            "surface_key": self.surface_key,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The rows of a lattice, the two axes in the order of their versions, and the run that they come from."""

    x: Axis
    y: Axis
    rows: tuple[Row, ...]
    run: RunResult

    @property
    def xs(self) -> tuple[Version, ...]:
        """Return the releases of `x`, oldest first."""
        return tuple(sorted({row.x for row in self.rows}))

    @property
    def ys(self) -> tuple[Version, ...]:
        """Return the releases of `y`, oldest first."""
        return tuple(sorted({row.y for row in self.rows}))

    def only(self, statuses: Collection[Status]) -> Grid:
        """Return the grid with the rows of these statuses; the run, and so the denominators, stay."""
        return replace(self, rows=tuple(row for row in self.rows if row.status in statuses))

    def to_csv(self) -> str:
        """Return the rows as CSV with a header, in the order of the versions."""
        text = io.StringIO()
        writer = csv.DictWriter(text, (self.x.value, self.y.value, *CSV_FIELDS), lineterminator="\n")
        writer.writeheader()
        for row in sorted(self.rows, key=lambda row: (row.x, row.y)):
            writer.writerow({self.x.value: str(row.x), self.y.value: str(row.y), **row.fields()})
        return text.getvalue()


def pairs(
    x: Axis,
    y: Axis,
    xs: Sequence[Version],
    ys: Sequence[Version],
    *,
    platform: Platform | None = None,
    as_of: datetime | None = None,
) -> tuple[Cell, ...]:
    """Return a cell for every pair, all of one release of `x` together.

    Raises:
        UsageError: the two axes are one.
        NothingRanError: one of the axes has no release.
    """
    if x is y:
        raise UsageError(f"A grid needs two axes; {x} was given twice.", then="Give another axis with --x or --y.")
    for axis, versions in ((x, xs), (y, ys)):
        if not versions:
            raise NothingRanError(
                f"No release of {axis} is selected, so nothing ran.", then="Widen --x-only or --y-only."
            )
    on = platform or Platform()
    reason = f"grid {x} x {y}"
    return tuple(
        Cell(pins=(Pin(axis=x, version=a), Pin(axis=y, version=b)), platform=on, as_of=as_of, reason=reason)
        for a in xs
        for b in ys
    )


def chosen(axis: Axis, versions: Sequence[Version], pattern: str | None) -> tuple[Version, ...]:
    """Return the versions that a selector takes, as `0.{8,9}*`, `verl0.9*` or `!0.1`; all of them without one.

    Raises:
        UsageError: the selector is malformed or matches no version (see `matrix.select`).
    """
    if pattern is None:
        return tuple(versions)
    names = {f"{axis.short}{version}": version for version in versions}
    also = {name: str(version) for name, version in names.items()}
    patterns = parse_patterns([pattern])
    try:
        found = select(dict.fromkeys(names, ()), patterns, also=also)
    except UsageError as error:
        raise UsageError(
            f"`{pattern}` matches no release of {axis.value}.",
            why=f"They go from {min(versions)} to {max(versions)}." if versions else "",
            then="Write it like '0.{8,9}*', in quotes.",
        ) from error
    return tuple(names[name] for name in found)


def run_grid(x: Axis, y: Axis, job: Job) -> Grid:
    """Return the grid of a job whose cells came from `pairs`; raises what `matrix.run.run` raises.

    Each pair is checked at its own two releases only (`from_lock` off): the row is about the pair, and does not change
    when some third package has a new release.
    """
    result = run(replace(job, from_lock=False))
    return grid_of(x, y, result)


def grid_of(x: Axis, y: Axis, result: RunResult) -> Grid:
    """Return the grid of a run whose cells pin both axes; cells that do not are left out."""
    rows = tuple(
        row_of(verdict, first.version, second.version)
        for verdict in result.verdicts
        if (first := verdict.cell.pin(x)) is not None and (second := verdict.cell.pin(y)) is not None
    )
    return Grid(x=x, y=y, rows=rows, run=result)


def stored_pairs(job: Job, axes: Axes) -> tuple[Row, ...]:
    """Return the pairs of verl and vLLM that the store knows and the job does not plan; asks nothing.

    What is stored comes from an earlier grid, or from a `check` of such a pair.
    """
    x, y = Axis.VERL, Axis.VLLM
    if not axes[x].releases or not axes[y].releases:
        return ()
    planned = {cell.name for cell in job.cells}
    known = set(job.store.cells) - planned
    asked = [cell for cell in pairs(x, y, axes[x].releases, axes[y].releases) if cell.name in known]
    static = frozenset({Tier.RESOLVE, Tier.SURFACE})
    result = recall(
        replace(job, cells=asked, tiers=static, deep=frozenset(), from_lock=False, evidence=None, aside={}, plan={})
    )
    return tuple(row for row in grid_of(x, y, result).rows if row.deepest is not None)


def row_of(verdict: Verdict, x: Version, y: Version) -> Row:
    """Return the row of a pair's verdict."""
    resolved, surface = verdict.observation(Tier.RESOLVE), verdict.observation(Tier.SURFACE)
    return Row(
        x=x,
        y=y,
        cell=verdict.cell.name,
        status=verdict.status,
        resolvable=verdict.resolvable,
        works=verdict.works,
        deepest=verdict.deepest,
        resolve_reason=_line(resolved.reason) if resolved else "",
        surface_reason=_line(surface.reason) if surface else "",
        features=verdict.features,
        at=verdict.at,
        resolve_key=resolved.question.key if resolved else "",
        surface_key=surface.question.key if surface else "",
    )


def _line(text: str) -> str:
    return " ".join(text.split())
