"""What a run is given and what it gives back: the job, its probes and progress, the tallies, the result."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from packaging.version import Version

from matrix import __version__
from matrix.cell import Axis, Cell
from matrix.errors import MatrixError
from matrix.evidence import Evidence
from matrix.observe import Observation, Question
from matrix.plan import Planned
from matrix.store import Store
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict

if TYPE_CHECKING:
    from matrix.executors.protocol import Executor
    from matrix.grid import Row

Versions = Mapping[Axis, Version]


class Resolver(Protocol):
    """The probe of tier `resolve`; `matrix.resolve` is the real one."""

    def question(self, cell: Cell) -> Question:
        """Return what would be asked, without asking it; raises MatrixError."""

    def resolve(self, cell: Cell) -> Observation:
        """Return the answer; raises MatrixError where there is none."""

    def resolve_many(self, cells: Sequence[Cell]) -> Iterator[Observation]:
        """Yield an answer a cell, in any order, as each is had; raises MatrixError where it cannot go on."""


class Checker(Protocol):
    """The probe of tier `surface`; `matrix.surface` is the real one."""

    def question(self, cell: Cell, versions: Versions) -> Question:
        """Return what would be asked, without asking it; raises MatrixError."""

    def observe(self, cell: Cell, versions: Versions) -> Observation:
        """Return the answer; raises MatrixError where there is none."""


Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What became of a cell's probes: an observation for each that was chosen, how many of them were known already.

    `asked` says how many were run now; one that is untested from the outset (too few GPUs) is neither.
    """

    observations: tuple[Observation, ...] = ()
    reused: int = 0
    asked: int = 0


class Visitor(Protocol):
    """The probes of the tiers that need an installation; `matrix.probing.visit` has the real ones."""

    @property
    def width(self) -> int:
        """Return how many cells may be visited at once, 1 at least."""

    def visit(self, cell: Cell, resolved: Observation | None, tell: Tell) -> Probed:
        """Return what the probes say, each stored; raises MatrixError where they cannot be run."""

    def stop(self) -> None:
        """End what is being visited in other threads; their `visit` raises KeyboardInterrupt or a MatrixError."""


class Progress(Protocol):
    """Who is told how a run gets on. `reports.terminal` draws bars or prints lines; `Silent` does nothing."""

    def start(self, tier: Tier, total: int) -> None:
        """Hear that `total` cells are about to be tried at `tier`."""

    def done(self, tier: Tier, cell: str, outcome: Outcome, *, reused: bool) -> None:
        """Hear that a cell has its outcome; `reused` when the store had it already."""

    def note(self, text: str) -> None:
        """Hear what is being done for the cell at hand, where that takes long."""

    def end(self, tier: Tier) -> None:
        """Hear that the tier is over, finished or interrupted."""


class Silent:
    """Progress that nobody is told of."""

    def start(self, tier: Tier, total: int) -> None:
        """Do nothing."""

    def done(self, tier: Tier, cell: str, outcome: Outcome, *, reused: bool) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def end(self, tier: Tier) -> None:
        """Do nothing."""


def now() -> datetime:
    """Return the current time, UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a run does.

    Attributes:
        cells: what is to be tried, each once.
        resolver: answers at tier `resolve`.
        checker: makes the probe of tier `surface`; called in this process and, with more than one worker, once in
            each worker process, so it must be picklable (a module's function, a `functools.partial` of one).
        store: where answers are kept and looked up.
        progress: who is told.
        tiers: which tiers are tried.
        again: ask even what was answered.
        since: what was answered after that moment is not asked again, all the same.
        max_age: a resolver's answer older than this is asked again, but for cells as of a date, which never age.
        from_lock: whether axes that a cell does not pin are checked at the version that its lock has.
        workers: how many processes the surface tier may use.
        tools: versions of the tools that took part, for the result.
        plan: what is known of why a cell is planned, by the cell's name, for the reports.
        expected: cells that are known to be bad, and how (JUnit; strict both ways).
        deep: names of the cells that are installed and probed, at those of `tiers` that need it.
        visitor: makes the executor that has it done; called once, where a cell goes deep.
        unkept: why nothing can be kept; where there is a reason, only what is stored is answered.
        evidence: what is recorded of other machines, for the tiers that are not tried here; None for nothing.
        aside: tiers that a cell is planned for and that are not tried now, each with the reason, by the cell's name.
    """

    cells: Sequence[Cell]
    resolver: Resolver
    checker: Callable[[], Checker]
    store: Store
    progress: Progress = field(default_factory=Silent)
    tiers: frozenset[Tier] = frozenset({Tier.RESOLVE, Tier.SURFACE})
    again: bool = False
    since: datetime | None = None
    max_age: timedelta | None = None
    from_lock: bool = True
    workers: int = 1
    tools: Mapping[str, str] = field(default_factory=dict)
    plan: Mapping[str, Planned] = field(default_factory=dict)
    expected: Mapping[str, Status] = field(default_factory=dict)
    deep: frozenset[str] = frozenset()
    visitor: Callable[[], Executor] | None = None
    unkept: MatrixError | None = None
    evidence: Evidence | None = None
    aside: Mapping[str, Mapping[Tier, str]] = field(default_factory=dict)
    clock: Callable[[], datetime] = now


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of a tier's cells: `planned` = `reused` + `new` + `untested` + those an interrupt left unasked.

    `seconds` is wall time; `untested` counts the cells for which a probe could give no answer.
    """

    tier: Tier
    planned: int
    reused: int = 0
    new: int = 0
    untested: int = 0
    seconds: float = 0.0

    @property
    def ran(self) -> int:
        """Return how many cells have an answer at this tier."""
        return self.reused + self.new

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data (reports/schema.json: `tally`)."""
        return {
            "tier": self.tier.value,
            "planned": self.planned,
            "ran": self.ran,
            "reused": self.reused,
            "new": self.new,
            "untested": self.untested,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run found out: a verdict a cell, and the denominators.

    Attributes:
        verdicts: one for every planned cell, in the order of the plan.
        tallies: one a tier.
        at: when the run ended (UTC).
        tools: versions of this tool, python and what else took part.
        interrupted: whether Ctrl-C ended it early; what was not asked is `untested`.
        notes: what a reader should know of the run as a whole.
        plan: what is known of why a cell is planned, by the cell's name.
        expected: cells that were known to be bad, and how.
        failures: what kept cells from an answer without any fault of theirs (index, tool, file), each once.
        benches: launches of benches and what was judged of them, of every cell, made here or shipped.
        lattice: pairs of verl and vLLM that are no cells of the plan and of which something is stored, for the report.
    """

    verdicts: tuple[Verdict, ...]
    tallies: tuple[Tally, ...]
    at: datetime
    tools: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    plan: Mapping[str, Planned] = field(default_factory=dict)
    expected: Mapping[str, Status] = field(default_factory=dict)
    failures: tuple[MatrixError, ...] = ()
    benches: tuple[Observation, ...] = ()
    lattice: tuple[Row, ...] = ()

    @property
    def planned(self) -> int:
        """Return how many cells were to be tried."""
        return len(self.verdicts)

    @property
    def ran(self) -> int:
        """Return how many cells were tried here, at one tier at least."""
        return sum(verdict.deepest is not None for verdict in self.verdicts)

    @property
    def recorded(self) -> int:
        """Return for how many cells the evidence of another machine says what was not tried here."""
        return sum(bool(verdict.recorded) for verdict in self.verdicts)

    @property
    def counts(self) -> dict[Status, int]:
        """Return how many cells have each status, every status named."""
        return {status: sum(verdict.status is status for verdict in self.verdicts) for status in Status}


def tools_of(job: Job) -> dict[str, str]:
    """Return the versions that a result of this job names, this tool and python among them."""
    return {"verl-matrix": __version__, "python": platform.python_version(), **job.tools}
