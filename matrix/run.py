"""The main job: resolve, surface, deep, conclude; each step takes the last one's ledger and returns the next.

Every step looks into the store first, so a run that was stopped goes on where it was, and a run with nothing new asks
nothing. A cell for which a probe raises is `untested` with the reason, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from matrix.asking import FATAL, Asking, Refusal, untested
from matrix.cell import Axis, Cell
from matrix.deep import deep_tiers, that_count, visit_all
from matrix.errors import CorruptFileError, IndexUnreachableError, MatrixError, NothingRanError, ToolError
from matrix.evidence import joined
from matrix.job import Job, RunResult, Tally, Versions, tools_of
from matrix.observe import INSTALL, Observation
from matrix.tier import Outcome, Tier
from matrix.verdict import Verdict, judge
from matrix.workers import Errand, observe_all

INTERRUPTED = "interrupted before it was asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What the steps have so far: answers and refusals by tier and cell, tallies, and at last the verdicts.

    `probes` are the observations of the tiers that need an installation, of which a cell has many, by cell.
    """

    answers: Mapping[Tier, Mapping[str, Observation]] = field(default_factory=dict)
    probes: Mapping[str, tuple[Observation, ...]] = field(default_factory=dict)
    refusals: Mapping[Tier, Mapping[str, Refusal]] = field(default_factory=dict)
    tallies: tuple[Tally, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    interrupted: bool = False

    def with_tier(self, tier: Tier, asking: Asking) -> Ledger:
        """Return this ledger and what was asked at `tier`."""
        return replace(
            self,
            answers={**self.answers, tier: asking.answers},
            refusals={**self.refusals, tier: asking.refusals},
            tallies=(*self.tallies, asking.end()),
            interrupted=self.interrupted or asking.interrupted,
        )


Step = Callable[[Job, Ledger], Ledger]


def run(job: Job) -> RunResult:
    """Return a verdict for every cell of `job`; what is answered on the way is in the store.

    After Ctrl-C the result is returned too, `interrupted`, with what was finished.

    Raises:
        NothingRanError: the job has no cells, or no tier, or nothing can be kept and not all is stored.
        NoSpaceError, BusyError, NewerSchemaError: the store cannot be used.
        MatrixError: no cell got an answer, and for all of them for this one reason (the index was not reached).
    """
    if job.unkept is not None:
        return _stored(job, job.unkept)
    ledger = Ledger()
    for step in STEPS:
        ledger = step(job, ledger)
    return RunResult(
        verdicts=ledger.verdicts,
        tallies=ledger.tallies,
        at=job.clock(),
        tools=tools_of(job),
        interrupted=ledger.interrupted,
        notes=_notes(job),
        plan=job.plan,
        expected=job.expected,
        failures=_failures(ledger),
        benches=_benches(job),
    )


def recall(job: Job) -> RunResult:
    """Return the verdicts that follow from what is stored, the latest answer of each probe; asks nothing."""
    verdicts, found = [], dict.fromkeys(sorted(job.tiers, key=lambda tier: tier.depth), 0)
    deep = set(job.deep)
    for cell in job.cells:
        seen = [item for item in job.store.for_cell(cell.name) if item.question.tier in found]
        seen = that_count(_probed(_of_the_lock(cell, seen, from_lock=job.from_lock)))
        for tier in {item.question.tier for item in seen if item.outcome is not Outcome.UNTESTED}:
            found[tier] += 1
        deep |= {cell.name for item in seen if item.question.tier.is_deep}
        verdicts.append(judge(cell, joined(cell, [*seen, *_aside(job, cell, seen)], job.evidence)))
    planned = {tier: len(deep) if tier.is_deep else len(verdicts) for tier in found}
    tallies = tuple(
        Tally(tier=tier, planned=planned[tier], reused=count, untested=planned[tier] - count)
        for tier, count in found.items()
        if count or not tier.is_deep
    )
    notes = ("Rebuilt from stored observations; nothing was asked.", *_notes(job))
    return RunResult(
        verdicts=tuple(verdicts),
        tallies=tallies,
        at=job.clock(),
        tools=tools_of(job),
        notes=notes,
        plan=job.plan,
        expected=job.expected,
        benches=_benches(job),
    )


def _benches(job: Job) -> tuple[Observation, ...]:
    """Return what is kept of benches, of whatever cells: a series compares cells that may not be in the plan."""
    shipped = job.evidence.of_tier(Tier.BENCH) if job.evidence is not None else ()
    return (*job.store.find(tier=Tier.BENCH), *shipped)


def _stored(job: Job, unkept: MatrixError) -> RunResult:
    """Return what is stored, all of it; raises NothingRanError where something would have to be asked."""
    begin(job, Ledger())
    result = recall(job)
    asked = [verdict for verdict in result.verdicts if job.again or _lacks(job, verdict)]
    if asked:
        count = "1 cell" if result.planned == 1 else f"{result.planned} cells"
        raise NothingRanError(
            f"{len(asked)} of {count} would have to be asked about, and no answer can be kept.",
            why=unkept.what,
            then=unkept.then,
        )
    return result


def _lacks(job: Job, verdict: Verdict) -> bool:
    """Return whether a tier that could be tried has no answer from here."""
    here = [item for item in verdict.evidence if not item.shipped]
    answered = {item.question.tier for item in here if item.outcome is not Outcome.UNTESTED}
    resolved = verdict.observation(Tier.RESOLVE)
    versions = versions_of(verdict.cell, resolved if job.from_lock else None)
    checkable = Axis.VERL in versions and len(versions) > 1
    wanted = {tier for tier in job.tiers if not tier.is_deep or verdict.cell.name in job.deep}
    return bool(wanted - answered - (set() if checkable else {Tier.SURFACE}))


def _of_the_lock(cell: Cell, seen: Sequence[Observation], *, from_lock: bool) -> list[Observation]:
    """Return the observations without the surface checks of other versions than the cell's lock, or its pins, have.

    A grid checks the same cell at its two pins only; where the fuller check is stored too, that one is the cell's.
    """
    resolved = next((item for item in reversed(seen) if item.question.tier is Tier.RESOLVE), None)
    held = versions_of(cell, resolved if from_lock else None)
    wanted = {axis.value: str(version) for axis, version in held.items()}
    surface = [item for item in seen if item.question.tier is Tier.SURFACE]
    if not any(item.detail.get("versions") == wanted for item in surface):
        return list(seen)
    return [item for item in seen if item.question.tier is not Tier.SURFACE or item.detail.get("versions") == wanted]


def _probed(seen: Sequence[Observation]) -> list[Observation]:
    """Return the observations without those of probes that ran in another set than the cell's lock is now."""
    resolved = next((item for item in reversed(seen) if item.question.tier is Tier.RESOLVE), None)
    lock = resolved.detail.get("lock") if resolved is not None else None
    return [item for item in seen if not item.question.tier.is_deep or lock in (None, item.question.reads.get("lock"))]


def begin(job: Job, ledger: Ledger) -> Ledger:
    """Refuse a job that would try nothing."""
    if not job.cells or not (job.tiers & {Tier.RESOLVE, Tier.SURFACE} or deep_tiers(job)):
        nothing = "No cell is selected" if not job.cells else "No tier that can run is selected"
        raise NothingRanError(f"{nothing}, so nothing ran.", then="`--list` shows the cells there are.")
    return ledger


def resolve(job: Job, ledger: Ledger) -> Ledger:
    """Add what the resolver says of every cell."""
    if Tier.RESOLVE not in job.tiers:
        return ledger
    asking = Asking(job, Tier.RESOLVE, len(job.cells))
    try:
        _resolve(job, asking)
    except KeyboardInterrupt:
        asking.interrupted = True
    return ledger.with_tier(Tier.RESOLVE, asking)


def _resolve(job: Job, asking: Asking) -> None:
    pending: dict[str, Cell] = {}
    for cell in job.cells:
        max_age = None if cell.as_of is not None else job.max_age
        if asking.look_up(cell, lambda cell=cell: job.resolver.question(cell), max_age):  # type: ignore[misc]
            pending[cell.name] = cell
    for observation in _resolved(job, tuple(pending.values())):
        cell = pending.pop(observation.question.cell)
        asking.keep(cell, observation)
    # What is left made `resolve_many` stop: one by one it shows which cell it is, and the others get their answer.
    for cell in pending.values():
        asking.ask(cell, lambda cell=cell: job.resolver.resolve(cell))  # type: ignore[misc]


def _resolved(job: Job, cells: Sequence[Cell]) -> Iterator[Observation]:
    """Yield what `resolve_many` answers until it is through or a cell makes it raise."""
    if len(cells) < 2:
        return
    try:
        yield from job.resolver.resolve_many(cells)
    except FATAL:
        raise
    except MatrixError:
        return


def surface(job: Job, ledger: Ledger) -> Ledger:
    """Add what the surface check says of every cell, at its pins and, where it has one, at the versions of its lock."""
    if Tier.SURFACE not in job.tiers or ledger.interrupted:
        return ledger
    asking = Asking(job, Tier.SURFACE, len(job.cells))
    try:
        _surface(job, ledger, asking)
    except KeyboardInterrupt:
        asking.interrupted = True
    return ledger.with_tier(Tier.SURFACE, asking)


def _surface(job: Job, ledger: Ledger, asking: Asking) -> None:
    checker = job.checker()
    errands = []
    for cell in job.cells:
        versions = versions_of(cell, ledger.answers.get(Tier.RESOLVE, {}).get(cell.name) if job.from_lock else None)
        if Axis.VERL not in versions or len(versions) < 2:
            asking.refuse(cell, Refusal(error=NothingRanError, what=_too_little(versions)))
            continue
        variant = next((pin for pin in cell.pins if pin.variant), None)
        if variant is not None:
            what = f"the surface of {variant.package} is not read; the import tier imports the real thing"
            asking.refuse(cell, Refusal(error=NothingRanError, what=what))
            continue
        question = asking.look_up(cell, lambda c=cell, v=versions: checker.question(c, v))  # type: ignore[misc]
        if question is not None:
            errands.append(Errand(cell=cell, versions=versions, key=question.key))
    observe_all(job, asking, errands, checker)


def _too_little(versions: Versions) -> str:
    if Axis.VERL not in versions:
        return "no release of verl is pinned or was resolved, so there is no code to check"
    return "only verl is pinned and nothing else was resolved, so there is nothing to check it against"


def deep(job: Job, ledger: Ledger) -> Ledger:
    """Add what the probes say of the cells that go deep, each in an environment made from its lock."""
    tiers = deep_tiers(job)
    if not tiers or ledger.interrupted:
        return ledger
    visits = visit_all(job, ledger.answers.get(Tier.RESOLVE, {}))
    return replace(
        ledger,
        probes=visits.observations,
        refusals={**ledger.refusals, **dict.fromkeys(tiers, visits.refusals)},
        tallies=(*ledger.tallies, *visits.tallies),
        interrupted=visits.interrupted,
    )


def conclude(job: Job, ledger: Ledger) -> Ledger:
    """Add the verdicts; raises the one error that kept every cell from an answer, if that is what happened."""
    answered = bool(ledger.probes) or any(ledger.answers.get(tier) for tier in job.tiers)
    refusals = [refusal for tier in job.tiers for refusal in ledger.refusals.get(tier, {}).values()]
    own = {refusal.error for refusal in refusals} - {NothingRanError}
    if not answered and not ledger.interrupted and len(own) == 1:
        raise next(refusal for refusal in refusals if refusal.error in own).raised()
    return replace(ledger, verdicts=tuple(_judged(job, ledger, cell) for cell in job.cells))


def _judged(job: Job, ledger: Ledger, cell: Cell) -> Verdict:
    """Return the verdict on a cell: by what was observed here, and by the evidence where nothing was."""
    seen = list(_evidence(job, ledger, cell))
    return judge(cell, joined(cell, [*seen, *_aside(job, cell, seen)], job.evidence))


def _aside(job: Job, cell: Cell, seen: Sequence[Observation]) -> Iterator[Observation]:
    """Yield for each tier that the cell is planned for, and that was not tried, an observation that says why."""
    for tier, reason in job.aside.get(cell.name, {}).items():
        if not any(item.question.tier is tier for item in seen):
            yield untested(cell, tier, reason, job)


STEPS: tuple[Step, ...] = (begin, resolve, surface, deep, conclude)


def versions_of(cell: Cell, resolved: Observation | None) -> dict[Axis, Version]:
    """Return the version of every axis that is known: the pins, and for others what an `ok` resolve locked."""
    versions = {pin.axis: pin.version for pin in cell.pins}
    if resolved is None or resolved.outcome is not Outcome.OK:
        return versions
    locked = resolved.detail.get("versions")
    if not isinstance(locked, Mapping):
        return versions
    names: dict[str, str] = {canonicalize_name(str(name)): str(version) for name, version in locked.items()}
    for axis in Axis:
        if axis not in versions and axis.value in names:
            try:
                versions[axis] = Version(names[axis.value])
            except InvalidVersion:
                continue
    return versions


def _evidence(job: Job, ledger: Ledger, cell: Cell) -> Iterator[Observation]:
    """Yield the cell's observations, one a static tier and those of its probes; where there is none, one that says why.

    A tier that a cell was not to be tried at yields nothing.
    """
    for tier in sorted(job.tiers & {Tier.RESOLVE, Tier.SURFACE}, key=lambda tier: tier.depth):
        found = ledger.answers.get(tier, {}).get(cell.name)
        if found is not None:
            yield found
            continue
        refusal = ledger.refusals.get(tier, {}).get(cell.name)
        yield untested(cell, tier, refusal.line if refusal else INTERRUPTED, job)
    if cell.name not in job.deep:
        return
    probes = that_count(ledger.probes.get(cell.name, ()))
    yield from probes
    for tier in deep_tiers(job):
        if not any(item.question.tier is tier for item in probes):
            refusal = ledger.refusals.get(tier, {}).get(cell.name)
            yield untested(cell, tier, _why_not(refusal, probes, interrupted=ledger.interrupted), job)


def _why_not(refusal: Refusal | None, probes: Sequence[Observation], *, interrupted: bool) -> str:
    """Return why a cell that was to go deep has no probe at a tier."""
    if refusal is not None:
        return refusal.line
    missing = [item.reason for item in probes if item.question.probe == INSTALL and item.outcome is not Outcome.OK]
    if missing:
        return missing[0]
    return INTERRUPTED if interrupted else "no probe of this tier was chosen"


_FAULTLESS = (IndexUnreachableError, ToolError, CorruptFileError)


def _failures(ledger: Ledger) -> tuple[MatrixError, ...]:
    """Return what kept cells from an answer without any fault of theirs, each message once."""
    refusals = [refusal for by_cell in ledger.refusals.values() for refusal in by_cell.values()]
    return tuple(refusal.raised() for refusal in dict.fromkeys(refusals) if issubclass(refusal.error, _FAULTLESS))


def _notes(job: Job) -> tuple[str, ...]:
    store, more = job.store, job.evidence.notes if job.evidence is not None else ()
    if not store.damage:
        return more
    first = store.damage[0]
    lines = "1 line" if len(store.damage) == 1 else f"{len(store.damage)} lines"
    passed = f"{lines} of {store.path.name} passed over, not readable as observations"
    return (f"{passed} (first line {first.line}: {first.what}).", *more)
