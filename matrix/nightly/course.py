"""The course of a night: snapshot, run, second tries, comparison with the night before, record."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from matrix.axes import Axes
from matrix.cell import Axis, Cell
from matrix.errors import CorruptFileError, MatrixError, ToolError
from matrix.index import PackageIndex
from matrix.job import Job, RunResult
from matrix.nightly.boundary import STATIC, between, boundary
from matrix.nightly.candidates import release_of
from matrix.nightly.cause import versions_read
from matrix.nightly.comparison import Comparison, Kind, Shift, Turn, compare, dropped, suspects
from matrix.nightly.lattice import since
from matrix.nightly.look import gone
from matrix.nightly.record import CellRecord, Night, counts_of, record_cell
from matrix.nightly.retry import Again, Retried, marked, try_again
from matrix.nightly.snapshot import Snapshot
from matrix.plan import Planned
from matrix.resolve.lock import parse_lock
from matrix.run import run
from matrix.tier import Tier
from matrix.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a night is made with.

    Attributes:
        planned: the cells, those of the plan and candidates for new releases.
        as_of: the date that the command line gave to cells without their own; None for none.
        job: makes the job over cells.
        again: asks a cell once more.
        index: where releases are looked up.
        axes: the lattice as it is now.
        lock: gives the text of the lock of that digest; raises MatrixError where it is gone.
        before: the night before; None for a first night.
        snapshot: what this one rests on.
        pages: looks at the index's pages once more, when the run is over.
        notes: what a reader should know.
    """

    planned: Sequence[Planned]
    as_of: datetime | None
    job: Callable[[Sequence[Planned]], Job]
    again: Again
    index: PackageIndex
    axes: Axes
    lock: Callable[[str], str]
    before: Night | None
    snapshot: Snapshot
    pages: Callable[[], Mapping[str, str]]
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A night that is over: its record, what changed, and the run."""

    night: Night
    comparison: Comparison
    result: RunResult

    @property
    def counts(self) -> bool:
        """Return whether the next night is compared with this one: something ran, and nobody cut it short."""
        return bool(self.result.ran) and not self.result.interrupted

    @property
    def new_failures(self) -> int:
        """Return how many cells are newly bad."""
        return len(self.comparison.of(Kind.NEW_FAILURE))


def hold(course: Course) -> Held:
    """Return the night, run and compared with the one before; it is kept by whoever has told of it (`Archive.keep`).

    Raises:
        NoSpaceError, BusyError, NewerSchemaError: the store cannot be used.
        MatrixError: no cell got an answer, and for all of them for this one reason.
    """
    began = time.monotonic()
    before = course.before
    job = course.job(course.planned)
    result = run(job)
    names = {item.cell.name: name_of(item, course.as_of) for item in course.planned}
    plan = {item.cell.name: item for item in course.planned}
    records = [_record(verdict, names, plan) for verdict in result.verdicts]
    retried: dict[str, Retried] = {}
    if not result.interrupted:
        records, result, retried = _second_tries(course, job, before, records, result, names, plan)
    known = {cell.name: cell for cell in before.cells} if before else {}
    night = Night(
        at=job.clock(),
        snapshot=course.snapshot.to_json(),
        counts=counts_of(result),
        cells=tuple(_carrying(record, known.get(record.name)) for record in records),
        locks=_locks(result, course.lock),
        seconds=round(time.monotonic() - began, 3),
    )
    refused = [f"{name} could not be tried again: {held.refused}" for name, held in retried.items() if held.refused]
    shifts = compare(before, night, look=partial(gone, course.index))
    comparison = Comparison(
        before=before,
        shifts=tuple(_bounded(shift, plan, course, job) for shift in shifts),
        releases=since(before.snapshot.get("lattice") if before else None, course.axes, as_of=course.as_of),
        dropped=dropped(before, night),
        notes=(*course.notes, *_moved_pages(course), *result.notes, *refused),
    )
    night = replace(night, changes=comparison.to_json())
    return Held(night=night, comparison=comparison, result=result)


def _moved_pages(course: Course) -> tuple[str, ...]:
    """Return a note where the index changed under the run: each answer is still true of what it read."""
    try:
        now = course.pages()
    except MatrixError as error:
        return (f"Whether the index changed under the run is not known: {error.what}",)
    moved = [name for name, digest in course.snapshot.pages.items() if now.get(name, digest) != digest]
    if not moved:
        return ()
    told = f"The index changed under the run: {', '.join(moved)}."
    return (f"{told} Each answer names the files that it read; what changed is asked again the next night.",)


def name_of(item: Planned, as_of: datetime | None) -> str:
    """Return the cell's name without the date that the command line gave it."""
    cell = item.cell
    return replace(cell, as_of=None).name if as_of is not None and not item.targeted else cell.name


def _record(verdict: Verdict, names: Mapping[str, str], plan: Mapping[str, Planned]) -> CellRecord:
    item = plan[verdict.cell.name]
    expected = item.expected.value if item.expected else ""
    return record_cell(verdict, names[verdict.cell.name], expected=expected, new=release_of(item))


def _second_tries(
    course: Course,
    job: Job,
    before: Night | None,
    records: list[CellRecord],
    result: RunResult,
    names: Mapping[str, str],
    plan: Mapping[str, Planned],
) -> tuple[list[CellRecord], RunResult, dict[str, Retried]]:
    """Return records and result with every new failure asked once more, and what became of each."""
    verdicts = {verdict.cell.name: verdict for verdict in result.verdicts}
    by_name = {record.cell: record for record in records}
    retried: dict[str, Retried] = {}
    for record, slots in suspects(before, records):
        job.progress.note(f"{record.name} would be a new failure: tried once more")
        held = try_again(verdicts[record.cell], slots, course.again, job.evidence)
        retried[record.name] = held
        verdicts[record.cell] = held.verdict
        by_name[record.cell] = marked(_record(held.verdict, names, plan), held)
    again = tuple(verdicts[verdict.cell.name] for verdict in result.verdicts)
    return [by_name[record.cell] for record in records], replace(result, verdicts=again), retried


def _carrying(record: CellRecord, old: CellRecord | None) -> CellRecord:
    """Return the record with the earlier answers of probes that gave none this time."""
    if old is None:
        return record
    answered = {slot.key for slot in record.slots if slot.answered}
    tried = {slot.tier for slot in record.slots if slot.answered and not slot.shipped}
    # Where a tier was tried, a probe that is not there any more has been taken away.
    kept = [slot for key, slot in old.baseline.items() if key not in answered and slot.tier not in tried]
    return replace(record, carried=tuple(kept))


def _locks(result: RunResult, read: Callable[[str], str]) -> dict[str, dict[str, str]]:
    """Return each resolved set of the night, by digest: package to `version digest-of-its-files`."""
    found: dict[str, dict[str, str]] = {}
    for verdict in result.verdicts:
        resolved = verdict.observation(Tier.RESOLVE)
        digest = str(resolved.detail.get("lock") or "") if resolved is not None else ""
        if not digest or digest in found:
            continue
        try:
            packages = parse_lock(read(digest)).packages
        except (CorruptFileError, ToolError):
            versions = resolved.detail.get("versions") if resolved is not None else None
            if isinstance(versions, Mapping):
                found[digest] = {str(name): str(version) for name, version in versions.items()}
            continue
        found[digest] = {item.name: f"{item.version} {_short(item.entry)}" for item in packages}
    return found


def _short(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()[:12]


def _bounded(shift: Shift, plan: Mapping[str, Planned], course: Course, job: Job) -> Shift:
    """Return a new failure with the first bad release, where it is known without asking anything."""
    if shift.kind is not Kind.NEW_FAILURE:
        return shift
    item = plan[shift.cell]
    for turn in shift.turns:
        if turn.now.tier not in STATIC:
            continue
        if turn.before is not None:
            line = _moved(turn, course.axes)
        else:
            axes = _suspected(item.cell, release_of(item))
            lines = (boundary(item.cell, turn.now.tier, axis, course.axes, job.store) for axis in axes)
            line = next(filter(None, lines), "")
        if line:
            return replace(shift, boundary=line)
    return shift


def _moved(turn: Turn, axes: Axes) -> str:
    """Return the first bad release of the one axis that the resolver moved since the night before; "" for several."""
    assert turn.before is not None
    was, has = versions_read(turn.before), versions_read(turn.now)
    moved = [axis for axis in Axis if was.get(axis) != has.get(axis)]
    if len(moved) != 1 or moved[0] not in was or moved[0] not in has:
        return ""
    return between(moved[0], was[moved[0]], has[moved[0]], axes)


def _suspected(cell: Cell, new: str) -> tuple[Axis, ...]:
    """Return the axes to search: that of the new release; of a cell of the plan those that it pins, vllm first."""
    if new:
        return (Axis(new.partition(" ")[0]),)
    order = [Axis.VLLM, *(axis for axis in Axis if axis not in (Axis.VLLM, Axis.VERL)), Axis.VERL]
    return tuple(axis for axis in order if cell.pin(axis) is not None)
