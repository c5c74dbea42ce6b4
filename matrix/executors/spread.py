"""The executor `ray`: each cell is an errand to a machine of a cluster, and what is observed there is stored here.

An observation is stored as it comes, so a machine that is lost, or this process, costs only what had not ended. A cell
that was lost with its machine is sent to another one, with what is known by then, `TRIES` times in all.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from matrix.asking import untested_at
from matrix.cell import Cell
from matrix.errors import BusyError, IndexUnreachableError, NoSpaceError, NothingRanError, ToolError
from matrix.executors import errand as wire
from matrix.executors.cluster import Cluster, LostError, Sent
from matrix.executors.demand import Demand, Machine, kinds_that_do, most_gpus, needs_of
from matrix.executors.errand import Errand
from matrix.executors.journal import Journal
from matrix.executors.manner import Manner
from matrix.job import Probed, Tell
from matrix.observe import Observation
from matrix.probing.folder import probes_folder
from matrix.probing.visit import locked
from matrix.store import Store
from matrix.tier import Tier

TRIES = 3
CPUS, MEMORY = 2, 16 * 2**30
"""What a cell is given unless more is asked for: importing vLLM keeps two cores busy, and a probe may take so much."""
WIDEST = 128
"""So many cells at most are under way at once, each watched by a thread that only waits."""
TROUBLES = (NoSpaceError, BusyError, IndexUnreachableError, ToolError)
"""What keeps one machine from trying a cell, and may keep no other: a full disk, no way to the index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the command line says of what a cell is given.

    Attributes:
        gpus: GPUs a cell at tier `gpu`; 0 for as many as its most demanding probe asks for, as far as a machine has.
        cpus: cores a cell; 0 for `CPUS`, or what the largest machine has.
        kinds: kinds of GPU that do, () for any.
        memory: bytes a cell; 0 for what a probe may take, or what the largest machine has.
        home: the folder in which the machines keep environments, None for their user's own.
    """

    gpus: int = 0
    cpus: int = 0
    kinds: tuple[str, ...] = ()
    memory: int = 0
    home: Path | None = None


@dataclass(slots=True, kw_only=True)
class Spread:
    """Visits cells on the machines of a cluster.

    Attributes:
        cluster: the machines.
        manner: what is tried of a cell.
        given: what a cell is given.
        store: where observations are kept, each as it comes.
        lock: gives the text of the lock of a resolver's answer.
        journal: keeps what was lost, over the end of this process.
    """

    cluster: Cluster
    manner: Manner
    given: Given
    store: Store
    lock: Callable[[Observation], str]
    journal: Journal
    probes: Callable[[], Path] = probes_folder
    _under_way: dict[int, tuple[Sent, str]] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False

    @property
    def width(self) -> int:
        """Return how many cells the machines have room for now, and one more, which then waits in Ray's queue."""
        machines = self.cluster.machines()
        demand = self.demand(machines)
        room = sum(_room(machine, demand) for machine in machines if machine.fits(demand))
        return min(room + 1, WIDEST)

    def stop(self) -> None:
        """End what is under way; its `visit` raises KeyboardInterrupt."""
        with self._guard:
            self._stopped = True
            under_way = [sent for sent, _ in self._under_way.values()]
        for sent in under_way:
            sent.cancel()

    def close(self) -> None:
        """Let go of the cluster."""
        self.cluster.close()

    def demand(self, machines: Sequence[Machine]) -> Demand:
        """Return what a cell of this run is given, in a cluster of these machines."""
        given, gpus, kinds = self.given, 0, ()
        if Tier.GPU in self.manner.tiers:
            needs = needs_of(self.probes())
            gpus, kinds = given.gpus or most_gpus(needs, machines), given.kinds or kinds_that_do(needs, machines)
        least = Demand(gpus=gpus, cpus=given.cpus or 1, memory=given.memory, kinds=kinds)
        # What nobody asked for keeps no cell from a small machine where there is no other.
        able = [machine for machine in machines if machine.fits(least)]
        cpus = given.cpus or min(CPUS, max((int(machine.cpus) for machine in able), default=CPUS))
        memory = given.memory or min(MEMORY, max((machine.memory for machine in able), default=MEMORY))
        return replace(least, cpus=cpus, memory=memory)

    def visit(self, cell: Cell, resolved: Observation | None, tell: Tell) -> Probed:
        """Return what the probes say, each stored, wherever they ran.

        Raises:
            NothingRanError: there is no lock to install, no machine that fits, or each that took it was lost.
            MatrixError: the machines that took it could not try it.
            KeyboardInterrupt: it was stopped.
        """
        text = "" if self.manner.here is not None else self.lock(locked(resolved))
        lost = list(self.journal.losses.get(cell.name, ()))
        before = self._known(cell)
        tried: list[str] = []
        while len(lost) < TRIES:
            known = self._known(cell)
            manner = replace(self.manner, again=False, since=None)
            going = Errand(
                cell=cell.name, manner=manner, resolved=resolved, lock=text, known=known, home=self.given.home
            )
            try:
                return self._sent(going, tried, tell)
            except LostError as error:
                lost.append(error.reason)
                self.journal.lost(cell.name, error.reason)
                tell(f"lost ({len(lost)} of {TRIES}): {error.reason}")
            except TROUBLES as error:
                if not self._elsewhere(tried):
                    raise
                tell(f"tried elsewhere: {error.what}")
        return self._given_up(cell, before, lost)

    def _sent(self, going: Errand, tried: list[str], tell: Tell) -> Probed:
        """Return what came of one errand; the machine that took it is added to `tried`."""
        machines = self.cluster.machines()
        demand = self.demand(machines)
        fit = [machine for machine in machines if machine.fits(demand)]
        if not fit:
            there = "; ".join(sorted({machine.words for machine in machines})) or "none"
            raise NothingRanError(
                f"No machine of the cluster has {demand.words}", why=f"(there are: {there}).", then="See --gpus."
            )
        kind = self._kind(fit, demand, going.known)
        fresh = [machine for machine in fit if machine.id not in tried and (not kind or kind in machine.kinds)]
        # A preference only, and only after a loss: else Ray knows better which machine is free.
        machine = fresh[0].id if tried and fresh else ""
        sent = self.cluster.send(going.to_line(), demand, kind, machine)
        thread = threading.get_ident()
        with self._guard:
            stopped = self._stopped
            self._under_way[thread] = (sent, kind)
        try:
            if stopped:
                sent.cancel()
                raise KeyboardInterrupt
            return self._heard(sent, tried, tell)
        finally:
            with self._guard:
                self._under_way.pop(thread, None)

    def _heard(self, sent: Sent, tried: list[str], tell: Tell) -> Probed:
        """Return all that a visit gave, each observation stored as it came; raises LostError, MatrixError."""
        probed: Probed | None = None
        for line in sent.lines():
            try:
                data = json.loads(line)
                match data["event"]:
                    case wire.BEGUN:
                        tried.append(str(data["node"]))
                        tell(f"begins on machine {str(data['node'])[:8]}")
                    case wire.NOTE:
                        tell(str(data["text"]))
                    case wire.OBSERVED:
                        self.store.add(wire.read_observed(data))
                    case wire.DONE:
                        probed = wire.read_done(data)
                    case wire.REFUSED:
                        raise wire.read_refused(data)
                    case wire.ENDED if probed is None:
                        raise LostError(_ended(data))
            except (ValueError, KeyError, TypeError) as error:
                raise LostError(f"a line from there makes no sense ({type(error).__name__}: {error})") from error
        if probed is None:
            raise LostError("it ended without a word")
        return probed

    def _known(self, cell: Cell) -> tuple[Observation, ...]:
        """Return what is stored of the cell and counts: with `again`, only what was observed since the run began."""
        since = self.manner.since or self.journal.begun
        latest = {
            item.question.key: item
            for item in self.store.for_cell(cell.name)
            if item.question.tier in self.manner.tiers
        }
        return tuple(item for item in latest.values() if not self.manner.again or item.at >= since)

    def _kind(self, fit: Sequence[Machine], demand: Demand, known: Sequence[Observation]) -> str:
        """Return the kind of GPU for an errand, "" where any will do.

        The one that the cell was begun on, so that nothing is asked twice; else that with the most room.
        """
        kinds = sorted(set(demand.kinds) & {kind for machine in fit for kind in machine.kinds})
        if not demand.gpus or not kinds:
            return ""
        began = [kind for kind in kinds if any(_names(kind, item.machine) for item in known)]
        with self._guard:
            busy = [kind for _, kind in self._under_way.values()]
        held = {kind: sum(machine.gpus for machine in fit if kind in machine.kinds) for kind in kinds}
        return min(began or kinds, key=lambda kind: (busy.count(kind) / held[kind], kind))

    def _elsewhere(self, tried: Sequence[str]) -> bool:
        machines = self.cluster.machines()
        demand = self.demand(machines)
        return len(tried) < TRIES and any(machine.fits(demand) and machine.id not in tried for machine in machines)

    def _given_up(self, cell: Cell, before: Sequence[Observation], lost: Sequence[str]) -> Probed:
        """Return what was observed before the last loss, and that the rest is untested; raises where nothing was."""
        reason = f"lost {len(lost)} times with its machine: {'; '.join(dict.fromkeys(lost))}"
        found = self._known(cell)
        if not found:
            raise NothingRanError(f"The cell was {reason}.", then="Look at those machines, and run it again.")
        at = max(item.at for item in found)
        rest = tuple(untested_at(cell, tier, reason, at) for tier in Tier if tier in self.manner.tiers)
        return Probed(observations=(*found, *rest), reused=len(before), asked=len(found) - len(before))


def _names(kind: str, words: str) -> bool:
    """Return whether a machine in words has GPUs of that kind: `NVIDIA H200` is Ray's `H200`."""
    return f" {kind.replace('-', ' ')}" in words.replace("-", " ")


def _room(machine: Machine, demand: Demand) -> int:
    by = [int(machine.cpus // demand.cpus)]
    by += [machine.gpus // demand.gpus] if demand.gpus else []
    by += [machine.memory // demand.memory] if demand.memory else []
    return min(by)


def _ended(data: dict[str, object]) -> str:
    """Return how a process ended that had not told all, in words: its last line of complaint, where it has one."""
    said = [line for line in str(data.get("said") or "").splitlines() if line.strip()]
    code = data.get("code")
    how = "it could not be run there" if code is None else f"its process ended with {code}"
    return f"{how}: {said[-1].strip()}" if said else how
