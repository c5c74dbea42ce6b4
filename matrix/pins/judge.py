"""The judge: asks what has to be asked of candidates, and puts together what is known of each under a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.cell import Axis, Cell
from matrix.deep import that_count
from matrix.errors import CorruptFileError
from matrix.evidence import Evidence, joined
from matrix.failure import Failure
from matrix.index import PackageIndex
from matrix.job import Job
from matrix.observe import Observation
from matrix.pins.candidates import Ground
from matrix.pins.doubts import absent
from matrix.pins.kept import complete, weigh
from matrix.pins.measured import Measured, about, measured
from matrix.pins.option import Change, Option
from matrix.pins.policy import Policy
from matrix.pins.proof import prove
from matrix.resolve.derivation import mentioned
from matrix.resolve.lock import LockFolder, parse_lock
from matrix.resolve.sdists import SdistTable
from matrix.resolve.solver import Answer, Problem, Solved
from matrix.run import run
from matrix.tier import Outcome, Tier
from matrix.verdict import Verdict, judge

_TRIES = 12
"""So many of people's statements are looked at one by one for whether they have to give way."""


@dataclass(slots=True, kw_only=True)
class Judge:
    """Judges candidates; what is asked goes through the job, and so into the store.

    Attributes:
        ground: what people have and want.
        policy: what a set has to keep.
        job: how questions are asked; its cells, tiers and evidence are replaced.
        evidence: what is recorded of other machines.
        failures: the records.
        locks: where the locks of answers lie.
        solve: asks uv about a set that is no cell: one with people's other packages in it.
        index, sdists: where the metadata of releases are read.
    """

    ground: Ground
    policy: Policy
    job: Job
    evidence: Evidence
    failures: Sequence[Failure]
    locks: LockFolder
    solve: Callable[[Problem], Answer]
    index: PackageIndex
    sdists: SdistTable
    _known: dict[str, Option] = field(default_factory=dict, init=False)
    _compared: tuple[Measured, ...] | None = field(default=None, init=False)

    def options(self, cells: Iterable[Cell], tiers: Iterable[Tier] = (Tier.RESOLVE,)) -> tuple[Option, ...]:
        """Return what is known of the cells, each once, in order; those not known yet are asked about at `tiers`.

        Raises what kept every one of them from an answer (the index, uv), KeyboardInterrupt, and as `matrix.run.run`.
        """
        asked = {cell.name: cell for cell in cells}
        wanted = frozenset(tiers)
        new = [cell for name, cell in asked.items() if name not in self._known or Tier.SURFACE in wanted]
        if new:
            result = run(replace(self.job, cells=tuple(new), tiers=wanted, evidence=None, aside={}, deep=frozenset()))
            if result.interrupted:
                raise KeyboardInterrupt
            for failure in result.failures:
                raise failure
            for verdict in result.verdicts:
                self._known[verdict.cell.name] = self._option(verdict)
        return tuple(self._known[name] for name in asked)

    def known(self, option: Option) -> Option:
        """Return what is known by now of the option's cell."""
        return self._known.get(option.cell.name, option)

    def as_tried(self, option: Option) -> Option:
        """Return the option as of the day on which it was tried, where that is the very set that was tried.

        What its pins leave open may come to newer releases today; then another set than the tried one would be told.
        """
        deepest = option.proof.deepest
        if deepest is None or not deepest.other_lock or option.cell.as_of is not None:
            return option
        (then,) = self.options([replace(option.cell, as_of=deepest.at)])
        same = then.resolves and then.proof.deepest is not None and not then.proof.deepest.other_lock
        return self.looked_at(then) if same and then.qualifies(self.policy) else option

    def looked_at(self, option: Option) -> Option:
        """Return the option with its code compared, where nothing deeper says of it yet."""
        if option.looked or not option.resolves:
            return option
        return self.options([option.cell], (Tier.RESOLVE, Tier.SURFACE))[0]

    def _option(self, verdict: Verdict) -> Option:
        """Return a verdict of static tiers with all that is recorded of its cell, here and on other machines."""
        cell = verdict.cell
        base = replace(cell, as_of=None)
        here = [item for item in verdict.evidence if item.outcome is not Outcome.UNTESTED]
        deep = [item for item in self.job.store.for_cell(base.name) if item.question.tier.is_deep]
        seen = joined(base, [*here, *that_count(deep)], self.evidence)
        before = [item for item in seen if self.ground.as_of is None or item in here or item.at < self.ground.as_of]
        whole = judge(cell, that_count(before)) if before else verdict
        return self.made(cell, whole, self._lock(cell, whole))

    def made(self, cell: Cell, verdict: Verdict, lock: str) -> Option:
        """Return the option that a cell with this verdict and this lock is."""
        versions = parse_lock(lock).versions if lock else {}
        known = complete(versions, cell.platform.python, self.failures)
        present = self.present
        return Option(
            cell=cell,
            verdict=verdict,
            versions=versions,
            lock=lock,
            proof=prove(verdict.evidence, self.policy, self.failures),
            kept=weigh(
                self.failures, known, self.policy, present=present, observations=verdict.evidence, whole=bool(versions)
            ),
            changes=self._changes(versions),
            unmet=self.ground.want.unmet(known) if versions else (),
            measured=about(replace(cell, as_of=None), present, self.compared),
            more_changes=self._more_changes(versions),
        )

    @property
    def present(self) -> Mapping[str, Version | None]:
        """Return the versions that people have, python among them; what they do not tell of is not in it."""
        have: dict[str, Version | None] = {
            name: Version(version.public) for name, version in self.ground.stack.have.items()
        }
        return {**have, "python": Version(self.ground.platform.python)}

    @property
    def compared(self) -> tuple[Measured, ...]:
        """Return the comparisons of the tier `bench` that are stored here or shipped."""
        if self._compared is None:
            self._compared = measured([*self.evidence, *self.job.store.find(tier=Tier.BENCH)])
        return self._compared

    def _lock(self, cell: Cell, verdict: Verdict) -> str:
        """Return the text of the lock; asks again where the cache lost it."""
        resolved = verdict.observation(Tier.RESOLVE)
        digest = resolved.detail.get("lock") if resolved is not None and resolved.outcome is Outcome.OK else None
        if not digest:
            return ""
        try:
            return self.locks.read(str(digest))
        except CorruptFileError:
            run(replace(self.job, cells=(cell,), tiers=frozenset({Tier.RESOLVE}), again=True, evidence=None, aside={},
                        deep=frozenset()))  # fmt: skip
            return self.locks.read(str(digest))

    def _changes(self, versions: Mapping[str, Version]) -> tuple[Change, ...]:
        stack = self.ground.stack
        found = []
        for axis in Axis:
            before, after = stack.have.get(axis.value), versions.get(axis.value)
            stated = stack.about(axis.value)
            known = before is not None or bool(stated)
            gone = after is None and (before is None or not versions)
            if known and not gone and (before is None or after is None or before.public != after.public):
                where = stated[-1].where if stated and before is not None else ""
                found.append(Change(package=axis.value, before=before, after=after, where=where))
        return tuple(found)

    def _more_changes(self, versions: Mapping[str, Version]) -> int:
        axes = {axis.value for axis in Axis}
        have = self.ground.stack.have
        return sum(name in versions and versions[name] != version for name, version in have.items() if name not in axes)

    def completed(self, option: Option) -> Option:
        """Return the option with people's other packages in its lock, as far as they can be kept.

        A statement of theirs that has no place beside the set is dropped, and told with its file and line. Where what
        is left moves an axis, the set with that version is judged anew.
        """
        axes = {axis.value for axis in Axis}
        others = [
            item for item in self.ground.stack.statements
            if item.binds and not item.url and item.package not in axes and item.package not in self.ground.want.to
        ]  # fmt: skip
        if not others or not option.resolves:
            return option
        names = list(dict.fromkeys(item.package for item in others))
        answer = self._ask(option, names)
        if isinstance(answer, Solved):
            dropped: list[str] = []
        else:
            answer, dropped = self._give_way(option, names, answer)
        if not isinstance(answer, Solved):
            return replace(option, dropped=tuple(self._told(name, option) for name in names))
        lock = answer.lock
        moved = {
            axis: version for axis in Axis
            if (version := parse_lock(lock).versions.get(axis.value)) is not None
            and version != option.versions.get(axis.value)
        }  # fmt: skip
        made = self.made(option.cell, option.verdict, lock)
        if moved:
            from matrix.pins.candidates import with_pin

            cell = option.cell
            for axis, version in moved.items():
                cell = with_pin(cell, axis, version)
            again = self.looked_at(self.options([cell])[0])
            if again.resolves:
                made = self.made(again.cell, again.verdict, lock)
        return replace(made, dropped=tuple(self._told(name, made) for name in dropped))

    def _ask(self, option: Option, names: Sequence[str]) -> Answer:
        """Return uv's answer to a set with people's statements on these packages."""
        asked = [item for item in self.ground.stack.statements if item.package in names and item.binds and not item.url]
        cell = option.cell
        return self.solve(
            Problem(
                requirements=(*cell.requirements, *(item.requirement for item in asked if item.asks)),
                platform=cell.platform,
                as_of=cell.as_of,
                overrides=(*option.overrides, *self._own_overrides(option)),
                constraints=tuple(item.requirement for item in asked if not item.asks and item.specifier),
            )
        )

    def _own_overrides(self, option: Option) -> tuple[str, ...]:
        """Return the overrides that people have already, of packages that the set neither pins nor overrides."""
        taken = {pin.axis.value for pin in option.cell.pins}
        taken |= {str(canonicalize_name(text.partition("=")[0].strip("<>!~ "))) for text in option.overrides}
        return tuple(item.requirement for item in self.ground.stack.overrides if item.package not in taken)

    def _give_way(self, option: Option, names: Sequence[str], refused: Answer) -> tuple[Answer, list[str]]:
        """Return an answer without the statements that are in the way, and which those are: as few as can be."""
        kept = list(names)
        dropped: list[str] = []
        answer = refused
        while not isinstance(answer, Solved) and kept:
            words = mentioned(answer.text)
            guilty = [name for name in kept if name in words] or kept
            dropped += guilty
            kept = [name for name in kept if name not in guilty]
            answer = self._ask(option, kept)
        for name in dropped[:_TRIES] if isinstance(answer, Solved) else ():
            more = self._ask(option, [*kept, name])
            if isinstance(more, Solved):
                kept.append(name)
                answer = more
        return answer, [name for name in dropped if name not in kept]

    def _told(self, package: str, option: Option) -> str:
        stated = [item for item in self.ground.stack.about(package) if item.binds]
        version = option.versions.get(package)
        places = "; ".join(f"{item.where}: {item.text}" for item in stated)
        here = f" (here {version})" if version else ""
        return f"{places} has to give way{here}{absent(package, self.ground.stack, self.index)}"


def observations_of(options: Iterable[Option]) -> tuple[Observation, ...]:
    """Return every observation that these options rest on, each once."""
    return tuple({item.question.key: item for option in options for item in option.verdict.evidence}.values())
