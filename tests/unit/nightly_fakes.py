"""A nightly over fakes: a resolver, a checker and an index that say what a test lets them, night after night."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.axes import Axes, AxisRule, Recorded
from matrix.cell import Axis, Cell
from matrix.errors import CorruptFileError, MatrixError
from matrix.evidence import Evidence
from matrix.job import Job, RunResult
from matrix.nightly.archive import Archive
from matrix.nightly.course import Course, Held, hold
from matrix.nightly.record import CellRecord, Night, Slot
from matrix.nightly.snapshot import Snapshot
from matrix.observe import Observation, Question
from matrix.plan import Planned
from matrix.run import run
from matrix.store import Store
from matrix.tier import Outcome, Status, Tier
from tests.unit.fakes import FakeIndex
from tests.unit.run_fakes import FakeChecker, Heard, cell

FIRST = datetime(2026, 12, 1, 0, 30, tzinfo=UTC)
DAY = timedelta(days=1)
NAME = "verl0.9.1-vllm0.24.0"


def slot(
    tier: Tier = Tier.SURFACE,
    outcome: Outcome = Outcome.OK,
    *,
    probe: str = "",
    reads: Mapping[str, str] | None = None,
    **more: Any,
) -> Slot:
    return Slot(tier=tier, probe=probe or tier.value, outcome=outcome, reads=reads or {}, **more)


def record(*slots: Slot, name: str = NAME, status: Status = Status.WORKS, **more: Any) -> CellRecord:
    return CellRecord(name=name, cell=name, status=status, slots=slots, **more)


def night(
    *cells: CellRecord,
    at: datetime = FIRST,
    locks: Mapping[str, Mapping[str, str]] | None = None,
    changes: Mapping[str, Any] | None = None,
    seconds: float = 12.0,
    **snapshot: Any,
) -> Night:
    counts = {status.value: sum(item.status is status for item in cells) for status in Status}
    base = {"index": "https://index.invalid/simple", "digest": "sha256:0123456789abcdef", "machine": {"machine": "m"}}
    return Night(
        at=at,
        snapshot=base | snapshot,
        counts=counts | {"planned": len(cells), "ran": sum(item.ran for item in cells)},
        cells=cells,
        locks=locks or {},
        changes=changes or {},
        seconds=seconds,
    )


@dataclass
class Script:
    """A resolver whose outcomes are used up one by one, the last of a cell staying; it reads what it is told to."""

    outcomes: dict[str, list[Outcome | MatrixError]] = field(default_factory=dict)
    reads: dict[str, str] = field(default_factory=lambda: {"uv": "0.13.9"})
    versions: dict[str, str] = field(default_factory=lambda: {"torch": "2.11.0"})
    lock: str = "sha256:lock"
    clock: Callable[[], datetime] = lambda: FIRST
    asked: list[str] = field(default_factory=list)
    tool: str = "resolve-2"

    def question(self, asked: Cell) -> Question:
        return Question(cell=asked.name, probe="resolve", tier=Tier.RESOLVE, tool=self.tool, reads=dict(self.reads))

    def resolve(self, asked: Cell) -> Observation:
        self.asked.append(asked.name)
        queue = self.outcomes.get(asked.name, [Outcome.OK])
        outcome = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(outcome, MatrixError):
            raise outcome
        detail: dict[str, object] = {"versions": dict(self.versions), "volatile": True}
        if outcome is Outcome.OK:
            detail["lock"] = self.lock
        reason = "" if outcome is Outcome.OK else f"{asked.name} is in {outcome}"
        return Observation(
            question=self.question(asked), outcome=outcome, reason=reason, detail=detail, at=self.clock()
        )

    def resolve_many(self, cells: Sequence[Cell]) -> Any:
        for one in cells:
            yield self.resolve(one)


@dataclass
class Nights:
    """The nights of one home."""

    folder: Path
    cells: tuple[Cell, ...] = (cell(verl="0.9.1", vllm="0.24.0"), cell(verl="0.9.1", vllm="0.26.0"))
    resolver: Script = field(default_factory=Script)
    checker: FakeChecker = field(default_factory=FakeChecker)
    index: FakeIndex = field(default_factory=lambda: FakeIndex({}))
    axes: Axes = field(default_factory=lambda: axes(vllm=("0.24.0", "0.25.0", "0.26.0")))
    snapshot: dict[str, Any] = field(default_factory=dict)
    new: Mapping[str, str] = field(default_factory=dict)
    locks: dict[str, str] = field(default_factory=dict)
    pages: Callable[[], Mapping[str, str]] = dict
    tiers: frozenset[Tier] = frozenset({Tier.RESOLVE, Tier.SURFACE})
    heard: Heard = field(default_factory=Heard)
    evidence: Evidence | None = None
    expected: Mapping[str, Status] = field(default_factory=dict)
    count: int = 0

    @property
    def now(self) -> datetime:
        return FIRST + DAY * self.count

    @property
    def archive(self) -> Archive:
        return Archive(self.folder / "nightly")

    def planned(self) -> tuple[Planned, ...]:
        return tuple(
            Planned(cell=one, expected=self.expected.get(one.name))
            if one.name not in self.new
            else Planned(cell=one, groups=("candidate",), source=f"the index, {self.new[one.name]}")
            for one in self.cells
        )

    def job(self, planned: Sequence[Planned], *, again: bool = False, tiers: frozenset[Tier] | None = None) -> Job:
        self.resolver.clock = lambda: self.now
        self.checker.at = lambda: self.now
        return Job(
            cells=tuple(item.cell for item in planned),
            resolver=self.resolver,
            checker=lambda: self.checker,
            store=Store(self.folder / "store"),
            progress=self.heard,
            tiers=tiers or self.tiers,
            again=again,
            plan={item.cell.name: item for item in planned},
            expected=self.expected,
            evidence=self.evidence,
            clock=lambda: self.now,
        )

    def again(self, one: Cell, tiers: frozenset[Tier], probes: tuple[str, ...]) -> RunResult:
        return run(self.job((Planned(cell=one),), again=True, tiers=tiers | {Tier.RESOLVE}))

    def hold(self) -> Held:
        """Hold the next night."""
        planned = self.planned()
        before, notes = self.archive.latest()
        empty: dict[str, Any] = {"pages": {}, "releases": {}, "lattice": {}, "data": {}, "tools": {}}
        made = Snapshot(at=self.now, as_of=None, index="https://index.invalid/simple", **{**empty, **self.snapshot})
        held = hold(
            Course(
                planned=planned,
                as_of=None,
                job=self.job,
                again=self.again,
                index=self.index,
                axes=self.axes,
                lock=self.read_lock,
                before=before,
                snapshot=made,
                pages=self.pages,
                notes=notes,
            )
        )
        self.count += 1
        if held.counts:
            self.archive.keep(held.night)
        return held

    def read_lock(self, digest: str) -> str:
        if digest not in self.locks:
            raise CorruptFileError("It is gone.")
        return self.locks[digest]

    def kinds(self, held: Held) -> dict[str, str]:
        """Return what became of each cell."""
        return {shift.name: shift.kind.value for shift in held.comparison.shifts}


def axes(**releases: Sequence[str]) -> Axes:
    """Return a lattice of these releases; every other axis has 1.0 only."""
    rules = {}
    for axis in Axis:
        versions = releases.get(axis.name.lower(), ("1.0",))
        recorded = tuple(Recorded(version=Version(version), uploaded=FIRST - 30 * DAY) for version in versions)
        rules[axis] = AxisRule(axis=axis, within=SpecifierSet(""), why="a test", recorded=recorded)
    return Axes(path=Path("axes.toml"), rules=rules)


def lock_text(**packages: str) -> str:
    """Return a lock of these packages, `name="version hash"`."""
    entries = []
    for name, held in packages.items():
        version, _, digest = held.partition(" ")
        entries.append(f'name = "{name}"\nversion = "{version}"\nwheels = [{{ hashes = "{digest}" }}]\n')
    return "\n[[packages]]\n".join(["head", *entries])
