"""The deep step of a run: cells that are installed and probed, side by side where there are several GPUs.

What stops one cell stops no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from matrix.asking import Refusal
from matrix.cell import Cell
from matrix.errors import MatrixError
from matrix.gpus.fingerprint import PROBE as MACHINE
from matrix.job import Job, Probed, Progress, Tally, Visitor
from matrix.observe import INSTALL, Observation
from matrix.tier import RANKS, Outcome, Tier

if TYPE_CHECKING:
    from matrix.executors.protocol import Executor


@dataclass(slots=True, kw_only=True)
class Visits:
    """What the deep step found: the observations of each cell, what kept cells from it, a tally a tier."""

    observations: dict[str, tuple[Observation, ...]] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    tallies: tuple[Tally, ...] = ()
    interrupted: bool = False


def deep_tiers(job: Job) -> tuple[Tier, ...]:
    """Return the tiers of the job that need an installation, shallow first; none where no cell goes deep."""
    if not job.deep or job.visitor is None:
        return ()
    return tuple(tier for tier in Tier if tier.is_deep and tier in job.tiers)


def that_count(seen: Sequence[Observation]) -> list[Observation]:
    """Return the observations of a cell without those that say nothing of whether it works, where no probe does.

    That a set could be installed is one, and what the machine is another: neither is a probe that passed.
    """
    ran = {
        item.question.tier
        for item in seen
        if item.question.probe not in (INSTALL, MACHINE) and item.outcome is not Outcome.UNTESTED
    }
    deep = any(tier.is_deep for tier in ran)
    counts = {INSTALL: deep, MACHINE: Tier.GPU in ran}
    return [item for item in seen if item.outcome is not Outcome.OK or counts.get(item.question.probe, True)]


def visit_all(job: Job, resolved: Mapping[str, Observation]) -> Visits:
    """Return what the probes say of every cell that goes deep; an error of one cell is its refusal.

    Not even a full disk ends the run: the next cell may need less, and what is static stands whatever comes of this.
    """
    visits, tiers = Visits(), deep_tiers(job)
    cells = [cell for cell in job.cells if cell.name in job.deep]
    assert job.visitor is not None
    reused: dict[str, Probed] = {}
    start = time.monotonic()
    job.progress.start(tiers[-1], len(cells))
    try:
        visitor = _made(job.visitor, visits, cells)
        if visitor is not None:
            try:
                _visit_each(job, visitor, cells, resolved, visits, reused)
            finally:
                visitor.close()
    except KeyboardInterrupt:
        visits.interrupted = True
    job.progress.end(tiers[-1])
    seconds = time.monotonic() - start
    visits.tallies = tuple(_tally(tier, cells, visits, reused, seconds) for tier in tiers)
    return visits


def _made(make: Callable[[], Executor], visits: Visits, cells: Sequence[Cell]) -> Executor | None:
    """Return the visitor; where there can be none (no uv, no probes) that is every cell's refusal."""
    try:
        return make()
    except MatrixError as error:
        visits.refusals.update({cell.name: Refusal.of(error) for cell in cells})
        return None


def _visit_each(
    job: Job,
    visitor: Visitor,
    cells: Sequence[Cell],
    resolved: Mapping[str, Observation],
    visits: Visits,
    reused: dict[str, Probed],
) -> None:
    """Visit the cells, as many at once as the visitor says; raises KeyboardInterrupt once all have been ended."""
    width = min(visitor.width, len(cells))
    if width <= 1:
        for cell in cells:
            _visit(job, visitor, cell, resolved.get(cell.name), visits, reused)
        return
    with ThreadPoolExecutor(width, thread_name_prefix="visit") as threads:
        turns = replace(job, progress=_Turns(job.progress))
        futures = [
            threads.submit(_visit, turns, visitor, cell, resolved.get(cell.name), visits, reused, f"{cell.name}: ")
            for cell in cells
        ]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            visits.interrupted = True
            visitor.stop()
            raise


class _Turns:
    """Progress that hears one thread at a time."""

    def __init__(self, progress: Progress) -> None:
        """Tell `progress`."""
        self._progress = progress
        self._turn = threading.Lock()

    def start(self, tier: Tier, total: int) -> None:
        """Pass it on."""
        with self._turn:
            self._progress.start(tier, total)

    def done(self, tier: Tier, cell: str, outcome: Outcome, *, reused: bool) -> None:
        """Pass it on."""
        with self._turn:
            self._progress.done(tier, cell, outcome, reused=reused)

    def note(self, text: str) -> None:
        """Pass it on."""
        with self._turn:
            self._progress.note(text)

    def end(self, tier: Tier) -> None:
        """Pass it on."""
        with self._turn:
            self._progress.end(tier)


def _visit(
    job: Job,
    visitor: Visitor,
    cell: Cell,
    resolved: Observation | None,
    visits: Visits,
    reused: dict[str, Probed],
    lead: str = "  ",
) -> None:
    tiers, begun = deep_tiers(job), job.clock()
    try:
        job.progress.note(cell.name)
        probed = visitor.visit(cell, resolved, lambda text: job.progress.note(f"{lead}{text}"))
    except KeyboardInterrupt:
        # What had ended by then is in the store, and is part of what this run found.
        stored = [item for item in job.store.for_cell(cell.name) if item.question.tier in tiers]
        ended = tuple(item for item in stored if item.at >= begun)
        if ended:
            visits.observations[cell.name] = ended
        raise
    except MatrixError as error:
        if visits.interrupted:
            # What it waited for was ended from here.
            return
        visits.refusals[cell.name] = Refusal.of(error)
        job.progress.done(tiers[-1], cell.name, Outcome.UNTESTED, reused=False)
        return
    visits.observations[cell.name] = probed.observations
    known = probed.reused > 0 and not probed.asked
    if known:
        reused[cell.name] = probed
    worst = max((item.outcome for item in probed.observations), key=RANKS.index, default=Outcome.UNTESTED)
    job.progress.done(tiers[-1], cell.name, worst, reused=known)


def _tally(tier: Tier, cells: Sequence[Cell], visits: Visits, reused: Mapping[str, Probed], seconds: float) -> Tally:
    """Return how many cells have an answer at `tier`; the seconds are those of all deep tiers, which run together."""
    answered = {
        name
        for name, found in visits.observations.items()
        if any(item.question.tier is tier and item.outcome is not Outcome.UNTESTED for item in that_count(found))
    }
    known = answered & set(reused)
    asked = set(visits.observations) | set(visits.refusals)
    return Tally(
        tier=tier,
        planned=len(cells),
        reused=len(known),
        new=len(answered - known),
        untested=len(asked - answered),
        seconds=seconds,
    )
