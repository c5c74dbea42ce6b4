"""How a cell is decided: first by what is exact and cheap, then by uv, sharing its answers where that is exact.

The order: the pins' availability (`case`), contradictions among direct requirements (`shortcuts`), conflict cores that
uv refuted before (`cores`), the answer to a cell with the same requirements (`_Shared`), uv itself.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

from packaging.version import Version

from matrix.cell import Axis, Cell, OpenAxis, Pin
from matrix.errors import ToolError, UnknownReleaseError
from matrix.index import PackageIndex
from matrix.resolve.case import Case, Holding, Missing, hold, read_case
from matrix.resolve.cores import Core, Cores, find_core
from matrix.resolve.derivation import premises
from matrix.resolve.facts import Fact
from matrix.resolve.lock import Lock, Locked, LockFolder, parse_lock
from matrix.resolve.outcome import DecidedBy, Decision, in_one_line
from matrix.resolve.sdists import SdistTable
from matrix.resolve.shortcuts import Versions, refute
from matrix.resolve.solver import Answer, NeedsBuild, Problem, Refused, Solved, Solver
from matrix.tier import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """A solution that holds for every cell of the same requirements: nothing in it depends on a pinned package."""

    cell: Cell
    lock: Lock


class Decider:
    """Decides cells; remembers what it learned for as long as it lives. Thread-safe."""

    def __init__(self, *, index: PackageIndex, solver: Solver, sdists: SdistTable, locks: LockFolder) -> None:
        self._index = index
        self._solver = solver
        self._sdists = sdists
        self._locks = locks
        self._versions = Versions(self._every_version)
        self._guard = threading.Lock()
        self._holdings: dict[Hashable, Holding | Missing] = {}
        self._cores: dict[Hashable, Cores] = {}
        self._shared: dict[Hashable, _Shared] = {}
        self._entries: dict[Hashable, Locked] = {}

    def read(self, cell: Cell) -> Case | Missing:
        """Return the cell made concrete, or why a pin cannot be had; raises what the index raises."""
        return read_case(cell, (self.hold(pin, cell) for pin in cell.pins))

    def hold(self, pin: Pin, cell: Cell) -> Holding | Missing:
        """Return one pin made concrete on the cell's platform and date, remembered."""
        key = (pin, cell.platform, cell.as_of)
        with self._guard:
            found = self._holdings.get(key)
        if found is None:
            found = hold(pin, cell, self._index, self._sdists)
            with self._guard:
                self._holdings[key] = found
        return found

    def quick(self, case: Case | Missing) -> Decision | None:
        """Return the decision where no uv is needed for it, else None."""
        if isinstance(case, Missing):
            return Decision(
                outcome=Outcome.UNAVAILABLE,
                by=DecidedBy.INDEX,
                reason=case.reason,
                chain=case.facts,
                lasting=True,
                more={"lacks": case.lacks.value} | ({"near": list(case.near)} if case.near else {}),
            )
        if _no_deps(case.cell):
            return None
        return self._quick_conflict(case)

    def _quick_conflict(self, case: Case) -> Decision | None:
        demands = case.demands
        refuted = refute(demands, case.in_force, self._versions)
        if refuted is not None:
            return Decision(
                outcome=Outcome.CONFLICT,
                by=DecidedBy.REQUIREMENTS,
                reason=in_one_line(refuted.facts),
                chain=refuted.facts,
                notes=_notes(case),
                lasting=refuted.lasting,
            )
        core = self._cores_of(case).match(demands, case.pinned)
        return None if core is None else _by_core(core, case, DecidedBy.CORE)

    def share_key(self, case: Case) -> tuple[Hashable, ...] | None:
        """Return what cells have in common whose answers are the same but for the pinned versions, or None."""
        # What an open axis may be depends on when the pins appeared, and an override may speak of a pin.
        if case.cell.open_axes or _no_deps(case.cell) or case.in_force != case.pins:
            return None
        if not all(holding.shareable for holding in case.holdings):
            return None
        asked = tuple(
            (holding.pin.axis, tuple(demand.requirement for demand in holding.demands)) for holding in case.holdings
        )
        return (asked, *_setting(case.cell))

    def slow(self, case: Case, *, sharing: bool = True) -> Decision:
        """Return the decision by a shared answer or by uv; raises what the solver and the index raise."""
        if _no_deps(case.cell):
            return self._without_dependencies(case)
        if floors := self._floors(case):
            return self._open(case, floors)
        key = self.share_key(case) if sharing else None
        with self._guard:
            shared = self._shared.get(key) if key is not None else None
        if shared is not None:
            return self._solved(case, self._renamed(shared.lock, case), DecidedBy.SHARED)
        answer = self._ask_case(case)
        match answer:
            case Solved():
                lock = parse_lock(answer.lock)
                if key is not None and _stands_alone(answer, case):
                    with self._guard:
                        self._shared.setdefault(key, _Shared(cell=case.cell, lock=lock))
                return self._solved(case, lock, DecidedBy.UV)
            case NeedsBuild():
                return _needs_build(answer, case)
            case Refused():
                return self._refused(answer, case)

    def _open(self, case: Case, floors: Mapping[OpenAxis, Version]) -> Decision:
        """Return the decision for a cell with open axes: `backtracked` where they cannot all be kept at their floors.

        uv is asked with the floors first. It takes the first solution that it finds, which may lie below a floor that
        could have been kept; and on its way down it may meet releases so old that it would have to build them.
        """
        wanted = tuple(f"{axis.axis.value}>={floor}" for axis, floor in floors.items())
        above = self._ask_case(case, wanted)
        if isinstance(above, Solved):
            return self._solved(case, parse_lock(above.lock), DecidedBy.UV)
        below = self._ask_case(case)
        if isinstance(below, Refused):
            return self._refused(below, case)
        if isinstance(above, NeedsBuild) and isinstance(below, NeedsBuild):
            return _needs_build(above, case)
        chain = _chain(above, case) if isinstance(above, Refused) else _needs_build(above, case).chain
        lost = Decision(
            outcome=Outcome.BACKTRACKED,
            by=DecidedBy.UV,
            reason=f"nothing fits with {', '.join(wanted)}, current when the newest pin appeared: {in_one_line(chain)}",
            chain=chain,
            raw=above.text,
            notes=_notes(case),
        )
        if isinstance(below, NeedsBuild):
            return lost
        lock = parse_lock(below.lock)
        found = self._solved(case, lock, DecidedBy.UV)
        for axis, floor in floors.items():
            chosen = lock.versions.get(axis.axis.value)
            if chosen is None or chosen < floor:
                chain, reason, raw = self._fallen(case, axis, floor, chosen) or (lost.chain, lost.reason, lost.raw)
                return replace(found, outcome=Outcome.BACKTRACKED, reason=reason, chain=chain, raw=raw)
        return found

    def _ask_case(self, case: Case, more: tuple[str, ...] = ()) -> Answer:
        """Return uv's answer to a cell, by pages as new as the releases that are pinned."""
        requirements = (*case.cell.requirements, *more)
        answer = self._ask(case.cell, requirements)
        if isinstance(answer, Refused) and (unseen := _unseen(answer, case)):
            answer = self._ask(case.cell, requirements, refresh=unseen)
        return answer

    def _ask(
        self, cell: Cell, requirements: tuple[str, ...], *, no_deps: bool = False, refresh: tuple[str, ...] = ()
    ) -> Answer:
        return self._solver.solve(
            Problem(
                requirements=requirements,
                platform=cell.platform,
                as_of=cell.as_of,
                overrides=cell.deviation.overrides if cell.deviation is not None and not no_deps else (),
                no_deps=no_deps,
                refresh=refresh,
            )
        )

    def _refused(self, refused: Refused, case: Case) -> Decision:
        """Return a conflict with the shortest chain that uv itself confirms."""
        core = find_core(refused.text, case.demands, case.pinned, lambda asked: self._ask(case.cell, asked))
        if core is None:
            chain = _chain(refused, case)
            return Decision(
                outcome=Outcome.CONFLICT, by=DecidedBy.UV, reason=in_one_line(chain), chain=chain,
                raw=refused.text, hints=refused.hints, notes=_notes(case),
            )  # fmt: skip
        self._cores_of(case).add(core)
        return replace(_by_core(core, case, DecidedBy.UV), raw=refused.text, hints=refused.hints)

    def _solved(self, case: Case, lock: Lock, by: DecidedBy) -> Decision:
        """Return `ok`, or `backtracked` where an override moved a pin."""
        would = self._undeviated(case) if case.overrides and not _no_deps(case.cell) else None
        decision = Decision(
            outcome=Outcome.OK,
            by=by,
            notes=(*_notes(case), *((f"{_FORBID}{would.reason}",) if would else ())),
            lasting=case.cell.as_of is not None,
            lock=lock,
            digest=self._locks.write(lock.text),
            versions=_axes(lock),
        )
        locked = lock.versions
        for axis, version in case.pins.items():
            if locked.get(axis) != version:
                went = f"{axis} is {locked.get(axis, 'not installed')}, not {version} as pinned"
                fact = Fact(text=f"an override says so: {', '.join(map(str, case.overrides)) or 'none'}", source="cell")
                return replace(decision, outcome=Outcome.BACKTRACKED, reason=went, chain=(fact,))
        return decision

    def _fallen(
        self, case: Case, axis: OpenAxis, floor: Version, chosen: Version | None
    ) -> tuple[tuple[Fact, ...], str, str] | None:
        """Return why an open axis could not be at its floor (chain, line, uv's text), or None where it could be."""
        newest = _newest(case)
        others = tuple(other for other in case.cell.open_axes if other is not axis)
        floored = Pin(axis=axis.axis, version=floor, extras=axis.extras)
        why = self.decide(replace(case.cell, pins=(*case.cell.pins, floored), open_axes=others))
        if newest is None or why.outcome is Outcome.OK:
            return None
        name = axis.axis.value
        when = f"{newest.release.project} {newest.release.version} appeared on {newest.release.uploaded:%Y-%m-%d}"
        current = Fact(text=f"{name} {floor} was current when {when}", source=f"index: {name}")
        # The floor is no pin of this cell; that it was tried is what `current` says.
        chain = tuple(fact for fact in why.chain if fact.text != f"the cell pins {name} {floor}")
        reason = f"{name} fell back to {chosen}: {current.text}, but {in_one_line(chain)}"
        return (current, *chain), reason, why.raw

    def _floors(self, case: Case) -> dict[OpenAxis, Version]:
        """Return the floor of each open axis that has one."""
        floors = {axis: self._floor(axis, case) for axis in case.cell.open_axes}
        return {axis: floor for axis, floor in floors.items() if floor is not None}

    def _floor(self, axis: OpenAxis, case: Case) -> Version | None:
        """Return the final release of an open axis that was current when the newest pin appeared, if there was one."""
        newest = _newest(case)
        if newest is None:
            return None
        known = [
            release.version
            for release in self._index.project(axis.axis.value).releases.values()
            if release.uploaded <= newest.release.uploaded
            and release.yanked is None
            and not release.version.is_prerelease
            and axis.specifier.contains(release.version)
        ]
        return max(known, default=None)

    def decide(self, cell: Cell, *, shortcuts: bool = True) -> Decision:
        """Return the decision; without `shortcuts` uv is asked about this very cell."""
        case = self.read(cell)
        quick = self.quick(case) if shortcuts or isinstance(case, Missing) else None
        if quick is not None or isinstance(case, Missing):
            return quick or self.decide(cell)
        return self.slow(case, sharing=shortcuts)

    def _without_dependencies(self, case: Case) -> Decision:
        """Return `ok` for pins that can be had, with a note of what their metadata would say together."""
        answer = self._ask(case.cell, case.cell.requirements, no_deps=True)
        if isinstance(answer, Refused):
            chain = _chain(answer, case)
            return Decision(outcome=Outcome.CONFLICT, by=DecidedBy.UV, reason=in_one_line(chain), chain=chain,
                            raw=answer.text, notes=_notes(case))  # fmt: skip
        if isinstance(answer, NeedsBuild):
            return _needs_build(answer, case)
        decision = self._solved(case, parse_lock(answer.lock), DecidedBy.UV)
        would = self._undeviated(case)
        said = f"{_FORBID}{would.reason}" if would else "their direct requirements do not contradict"
        more = {"metadata": would.outcome.value if would else "not asked", "metadata_chain":
                [fact.to_json() for fact in would.chain] if would else []}  # fmt: skip
        return replace(decision, notes=(*decision.notes, said), more=more)

    def _undeviated(self, case: Case) -> Decision | None:
        """Return what the direct requirements say of the cell without its deviation, where they refute it."""
        return self._quick_conflict(replace(case, cell=replace(case.cell, deviation=None)))

    def _renamed(self, lock: Lock, case: Case) -> Lock:
        """Return a shared lock with this cell's pins in it, in uv's own words."""
        for holding in case.holdings:
            if lock.versions[holding.pin.package] != holding.pin.version:
                lock = lock.with_entry(self._entry(holding, case.cell))
        return lock

    def _entry(self, holding: Holding, cell: Cell) -> Locked:
        """Return how uv writes this pin into a lock."""
        key = (holding.pin, cell.platform, cell.as_of)
        with self._guard:
            found = self._entries.get(key)
        if found is None:
            answer = self._ask(cell, (holding.pin.requirement,), no_deps=True)
            packages = parse_lock(answer.lock).packages if isinstance(answer, Solved) else ()
            if len(packages) != 1:
                raise ToolError(f"uv does not find {holding.pin.requirement}, which the index has.", why=str(answer))
            found = packages[0]
            with self._guard:
                self._entries[key] = found
        return found

    def _cores_of(self, case: Case) -> Cores:
        with self._guard:
            return self._cores.setdefault(_setting(case.cell), Cores(self._versions))

    def _every_version(self, package: str) -> tuple[Version, ...] | None:
        try:
            return tuple(self._index.project(package).releases)
        except UnknownReleaseError:
            return None


_FORBID = "the metadata forbid it: "


def _setting(cell: Cell) -> tuple[Hashable, ...]:
    """Return what an answer of uv depends on besides the requirements."""
    return (cell.platform, cell.as_of, cell.added, cell.deviation.overrides if cell.deviation is not None else ())


def _no_deps(cell: Cell) -> bool:
    return cell.deviation is not None and cell.deviation.no_deps


def _newest(case: Case) -> Holding | None:
    """Return the pin that appeared last."""
    return max(case.holdings, key=lambda holding: holding.release.uploaded, default=None)


def _unseen(refused: Refused, case: Case) -> tuple[str, ...]:
    """Return the pinned packages of which uv, by an older copy of their page, does not know the pinned release."""
    return tuple(axis for axis, version in case.pins.items() if f"no version of {axis}=={version}" in refused.text)


def _stands_alone(solved: Solved, case: Case) -> bool:
    """Return whether nothing that uv looked at depends on a pinned package, so that its version cannot matter."""
    return solved.dependants is not None and not any(solved.dependants.get(axis) for axis in case.pins)


def _axes(lock: Lock) -> Mapping[str, str]:
    versions = lock.versions
    return {axis.value: str(versions[axis.value]) for axis in Axis if axis.value in versions}


def _notes(case: Case) -> tuple[str, ...]:
    """Return what must be shown wherever the cell is: its deviation, and pins that must be built."""
    deviation = case.cell.deviation
    notes = [note for holding in case.holdings for note in holding.notes]
    if deviation is not None:
        notes += [f"deviates: override {override}" for override in deviation.overrides]
        notes += ["deviates: dependencies are ignored"] if deviation.no_deps else []
    return tuple(notes)


def _by_core(core: Core, case: Case, by: DecidedBy) -> Decision:
    chain = (*(demand.fact for demand in core.demands), *core.facts)
    return Decision(
        outcome=Outcome.CONFLICT, by=by, reason=in_one_line(chain), chain=chain, raw=core.text, notes=_notes(case)
    )


def _needs_build(answer: NeedsBuild, case: Case) -> Decision:
    text = f"needs a build of {answer.package}: it has no wheel, and its dependencies are not in sdists.toml"
    text += f" ({answer.because})" if answer.because else ""
    return Decision(outcome=Outcome.UNAVAILABLE, by=DecidedBy.UV, reason=text, chain=(Fact(text=text, source="uv"),),
                    raw=answer.text, notes=_notes(case))  # fmt: skip


def _chain(refused: Refused, case: Case) -> tuple[Fact, ...]:
    """Return uv's own premises; where one widens a pin to a range ("verl>=0.9.1"), the pin is put back."""
    facts = []
    for premise in premises(refused.text):
        source = "uv"
        for holding in case.holdings:
            name, version = holding.pin.package, str(holding.pin.version)
            for widened in (f"{name}>={version} ", f"{name}<={version} ", f"{name}=={version} "):
                if premise.startswith(widened):
                    premise, source = f"{name}=={version} {premise[len(widened) :]}", holding.file.filename
        facts.append(Fact(text=premise, source=source))
    return tuple(facts) or (Fact(text=" ".join(refused.text.split()), source="uv"),)
