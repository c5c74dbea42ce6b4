"""The probes of one cell: what there is to run, what the store knows already, and the rest, run and kept one by one."""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from matrix.atomic import replace_file
from matrix.cell import Cell
from matrix.failure import Failure
from matrix.gpus import fingerprint
from matrix.job import Probed, Tell, now
from matrix.observe import Observation, Question
from matrix.probing import processes
from matrix.probing.cellfile import CellFacts, digest
from matrix.probing.folder import file_digest, probes_folder, shared_digest, whole_digest
from matrix.probing.lines import NOT_BEGUN, EndedProbe, Lost, PlannedProbe
from matrix.probing.machine import Machine, this_machine
from matrix.probing.outcome import Said, said
from matrix.probing.placement import Fingerprint, Placement
from matrix.probing.session import Limits, Surroundings, collect
from matrix.probing.surroundings import built, scratch, surroundings
from matrix.provision.environment import Environment
from matrix.provision.inventory import differences
from matrix.store import Store
from matrix.tier import Outcome, Tier

TOOL = "compat 1"
"""The version of the way in which ends of probes become observations; raised when that changes."""
FIRST = "test_install.py"
CELL_FILE, TRIALS = "VERL_MATRIX_CELL", "VERL_MATRIX_TRIALS"
TIERS = (Tier.IMPORT, Tier.BEHAVE, Tier.GPU)
"""The tiers at which probes run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A cell about to be probed: its lock's digest ("" where there is none) and what is, or will be, installed."""

    cell: Cell
    lock: str
    facts: CellFacts


@dataclass(slots=True, kw_only=True)
class Prober:
    """Runs the probes of cells.

    Attributes:
        store: where ends are kept, each as it comes.
        cache: where it is remembered what there is to run, by what that depends on.
        failures: the records of known failures, by id.
        equip: adds what probes need to an environment, changing nothing else, and raises where that cannot be.
        frozen: what is installed for an interpreter, canonical name to version.
        tiers: only probes of these tiers.
        patterns: only probes whose id matches one of these globs; all where there is none.
        again: run what was answered, too.
        since: but for what was answered after that moment.
        placement: shows GPUs to the probes that need them, and to no others.
        heed: is told the file in which it is remembered what there is to run, once that is known.
    """

    store: Store
    cache: Path
    failures: Mapping[str, Failure]
    equip: Callable[[Environment], object]
    frozen: Callable[[Path], Mapping[str, str]]
    tiers: frozenset[Tier] = frozenset(TIERS)
    patterns: tuple[str, ...] = ()
    again: bool = False
    since: datetime | None = None
    limits: Limits = field(default_factory=Limits.usual)
    machine: Machine = field(default_factory=this_machine)
    placement: Placement = field(default_factory=Placement.here)
    folder: Path = field(default_factory=probes_folder)
    heed: Callable[[Path], object] = lambda path: None
    clock: Callable[[], datetime] = now

    def subject(self, cell: Cell, lock: str, installed: Mapping[str, str]) -> Subject:
        """Return the cell with what is known of it before anything runs."""
        facts = CellFacts(
            cell=cell.name, python=cell.platform.python, installed=dict(installed), failures=self.failures
        )
        return Subject(cell=cell, lock=lock or digest(dict(sorted(installed.items()))), facts=facts)

    def recall(self, subject: Subject) -> Probed | None:
        """Return the observations where all are stored, so that no environment is needed; else None."""
        planned = self._remembered(subject)
        if planned is None:
            return None
        found = [self._stored(subject, probe) for probe in self._chosen(planned[0])]
        if any(item is None for item in found):
            return None
        held = tuple(item for item in found if item is not None)
        more = (*self._machines(subject, held), *self._lost(subject, planned[1]))
        return Probed(observations=(*held, *more), reused=len(held))

    def run(self, subject: Subject, environment: Environment, tell: Tell) -> Probed:
        """Return an observation for each chosen probe; those that are not stored are run in `environment`.

        Raises:
            ToolError: pytest cannot be had or started there.
            NoSpaceError: no scratch folder can be made, or nothing can be stored.
            MatrixError: what else `equip` raises.
        """
        for orphan in processes.end_orphans():
            tell(f"ended {orphan.name} ({orphan.pid}), which an earlier run had left")
        self.equip(environment)
        before = self.frozen(environment.python)
        with scratch() as made:
            cell_file, trials = made.root / "cell.json", made.root / "trials.jsonl"
            cell_file.write_text(json.dumps(subject.facts.to_json(made.temporary)), encoding="utf-8")
            token = processes.new_token()
            more = {CELL_FILE: str(cell_file), TRIALS: str(trials), processes.TAG: token, **built(self.cache)}
            given = Surroundings(
                python=environment.python,
                folder=self.folder,
                env=surroundings(environment.python, made, more),
                work=made.work,
                trials=trials,
                token=token,
                limits=self.limits,
            )
            planned = self._remembered(subject)
            if planned is None:
                planned = collect(given)
                self._remember(subject, *planned)
            probed = self._run(subject, environment, planned, given, tell)
        return self._proven(subject, probed, differences(before, self.frozen(environment.python)))

    def _run(
        self,
        subject: Subject,
        environment: Environment,
        planned: tuple[list[PlannedProbe], list[Lost]],
        given: Surroundings,
        tell: Tell,
    ) -> Probed:
        found: dict[str, Observation] = {}
        chosen = self._chosen(planned[0])
        for probe in chosen:
            stored = self._stored(subject, probe)
            if stored is not None:
                found[probe.test] = stored
        reused = len(found)
        for probe in chosen:
            reason = self.placement.lacking(probe)
            if probe.test not in found and reason:
                found[probe.test] = self._observation(subject, probe, Said(outcome=Outcome.UNTESTED, reason=reason))
                # Kept, so that evidence of this machine names what it could not try.
                self.store.add(found[probe.test])
        missing = {probe.test: probe for probe in chosen if probe.test not in found}

        def ended(end: EndedProbe) -> None:
            probe = missing[end.test]
            failure = self.failures.get(probe.failure) if probe.failure else None
            says = said(probe, end, failure, subject.facts.versions)
            observation = self._observation(subject, probe, says, end.seconds)
            self.store.add(observation)
            found[end.test] = observation
            # A small cell lacks the packages of most probes: a line for each would hide those that ran.
            if says.outcome is not Outcome.UNTESTED:
                tell(f"{probe.tier} {len(found)}/{len(chosen)}  {says.outcome:<8} {probe.test}  {says.reason}".rstrip())

        def known(facts: Fingerprint) -> None:
            self.store.add(self._machine(subject, facts))

        if missing:
            python, installed = environment.python_version, environment.installed
            probes = list(missing.values())
            self.placement.run(given, probes, ended, known, python=python, installed=installed, tell=tell)
        for line in _untested(found.values()):
            tell(line)
        return Probed(
            observations=(
                *(found[probe.test] for probe in chosen),
                *self._machines(subject, found.values()),
                *self._lost(subject, planned[1]),
            ),
            reused=reused,
            asked=len(missing),
        )

    def _chosen(self, planned: Sequence[PlannedProbe]) -> list[PlannedProbe]:
        """Return the probes to run, shallow tiers first, and first of all whether the packages import at all."""
        return [
            probe
            for probe in sorted(planned, key=lambda probe: (probe.tier.depth, probe.file != FIRST))
            if probe.tier in self.tiers
            and (not self.patterns or any(matches(pattern, probe) for pattern in self.patterns))
        ]

    def _lost(self, subject: Subject, lost: Sequence[Lost]) -> tuple[Observation, ...]:
        """Return an observation for each file that cannot be read; what was in it nobody knows."""
        tier = min(self.tiers, key=lambda tier: tier.depth)
        return tuple(
            self._observation(
                subject,
                PlannedProbe(test=item.file, tier=tier),
                Said(outcome=Outcome.UNTESTED, reason=f"{item.file} cannot be read here: {item.reason}"),
            )
            for item in lost
        )

    def _proven(self, subject: Subject, probed: Probed, changed: tuple[str, ...]) -> Probed:
        """Return the observations, and one that is red where the probes have changed the environment."""
        if not changed:
            return probed
        probe = PlannedProbe(test="frozen", tier=min(self.tiers, key=lambda tier: tier.depth), default_path=True)
        reason = f"the probes changed the environment: {'; '.join(changed)}"
        broken = Said(outcome=Outcome.BROKEN, reason=reason, detail={"changed": list(changed)})
        return replace(probed, observations=(*probed.observations, self._observation(subject, probe, broken)))

    def question(self, subject: Subject, probe: PlannedProbe) -> Question:
        """Return what a probe asks of a cell: two equal questions have the same answer."""
        reads = {
            "lock": subject.lock,
            probe.file: file_digest(self.folder, probe.file),
            "probes": shared_digest(self.folder),
            "machine": self.machine.kind,
        }
        if probe.failure:
            failure = self.failures.get(probe.failure)
            record = subject.facts.records().get(probe.failure)
            more = (failure.default_path, failure.feature, failure.planted) if failure is not None else ()
            reads[f"record {probe.failure}"] = digest([record, *more])
        if probe.entry:
            reads["entry"] = digest(probe.to_json())
        return Question(cell=subject.cell.name, probe=probe.probe, tier=probe.tier, tool=TOOL, reads=reads)

    def _observation(self, subject: Subject, probe: PlannedProbe, says: Said, seconds: float = 0.0) -> Observation:
        return Observation(
            question=self.question(subject, probe),
            outcome=says.outcome,
            reason=says.reason,
            detail=says.detail,
            machine=self.machine.words,
            at=self.clock(),
            seconds=seconds,
        )

    def _machine(self, subject: Subject, found: Fingerprint) -> Observation:
        """Return the observation that holds the whole fingerprint of a visit; the others name its digest."""
        facts = {"fingerprint": found.digest, "held_s": round(found.held_s, 1), "facts": dict(found.facts)}
        return Observation(
            question=self._machine_question(subject, found.digest),
            outcome=Outcome.OK,
            detail=facts,
            machine=self.machine.words,
            at=self.clock(),
            seconds=found.held_s,
        )

    def _machine_question(self, subject: Subject, digest: str) -> Question:
        reads = {"lock": subject.lock, "machine": self.machine.kind, "fingerprint": digest}
        name, tool = fingerprint.PROBE, fingerprint.TOOL
        return Question(cell=subject.cell.name, probe=name, tier=Tier.GPU, tool=tool, reads=reads)

    def _machines(self, subject: Subject, found: Iterable[Observation]) -> Iterator[Observation]:
        """Yield the fingerprints of the machine that these observations name, each once."""
        named = dict.fromkeys(str(item.detail["fingerprint"]) for item in found if item.detail.get("fingerprint"))
        stored = (self.store.get(self._machine_question(subject, digest).key) for digest in named)
        yield from (item for item in stored if item is not None)

    def _stored(self, subject: Subject, probe: PlannedProbe) -> Observation | None:
        """Return the stored answer that counts; that a probe never began is kept to be shown, and is none."""
        found = self.store.get(self.question(subject, probe).key)
        if found is None or found.detail.get(NOT_BEGUN):
            return None
        return None if self.again and (self.since is None or found.at < self.since) else found

    def _memory(self, subject: Subject) -> Path:
        """Return where it is kept what there is to run in this cell: that depends on its set and on all probes."""
        facts = subject.facts
        # Not by what is installed, which the lock stands for: an alias may be there that the lock does not name.
        key = digest([subject.lock, facts.records(), facts.entry_points, whole_digest(self.folder)])
        return self.cache / "probes" / f"{key.removeprefix('sha256:')[:32]}.json"

    def _remembered(self, subject: Subject) -> tuple[list[PlannedProbe], list[Lost]] | None:
        try:
            path = self._memory(subject)
            data = json.loads(path.read_text(encoding="utf-8"))
            found = (
                [PlannedProbe.from_json(item) for item in data["planned"]],
                [Lost(file=str(item["file"]), reason=str(item["reason"])) for item in data["lost"]],
            )
        except (OSError, ValueError, KeyError, TypeError):
            # Gone, or half of one: the cache may be deleted at any time, and asking again costs seconds.
            return None
        self.heed(path)
        return found

    def _remember(self, subject: Subject, planned: Sequence[PlannedProbe], lost: Sequence[Lost]) -> None:
        data = {
            "planned": [probe.to_json() for probe in planned],
            "lost": [{"file": item.file, "reason": item.reason} for item in lost],
        }
        path = self._memory(subject)
        try:
            replace_file(path, json.dumps(data).encode())
        except OSError:
            return
        self.heed(path)


def matches(pattern: str, probe: PlannedProbe) -> bool:
    """Return whether a glob, or a part of the id without any glob in it, names the probe."""
    if any(char in pattern for char in "*?"):
        return fnmatch.fnmatchcase(probe.test, pattern)
    return pattern in probe.test or pattern == probe.failure


def _untested(observations: Iterable[Observation]) -> Iterator[str]:
    """Yield one line that counts the untested and gives the commonest reasons; none where all ran."""
    reasons = Counter(item.reason for item in observations if item.outcome is Outcome.UNTESTED)
    if reasons:
        common = reasons.most_common(_REASONS)
        rest = sum(reasons.values()) - sum(count for _, count in common)
        words = [f"{count} {reason}" for reason, count in common] + ([f"{rest} for other reasons"] if rest else [])
        yield f"untested {sum(reasons.values())}: {'; '.join(words)}"


_REASONS = 3
