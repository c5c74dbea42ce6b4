"""The executor `ray`: each cell is an errand to a machine of a cluster, and what is observed there is stored here.

An observation is stored as it comes, so a machine that is lost, or this process, costs only what had not ended. A cell
that was lost with its machine is sent to another one, with what is known by then, `TRIES` times in all.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from matrix.asking import untested_at
from matrix.cell import Cell
from matrix.errors import BusyError, IndexUnreachableError, MatrixError, NoSpaceError, NothingRanError, ToolError
from matrix.executors import errand as wire
from matrix.executors.cluster import Cluster, LostError, Sent
from matrix.executors.demand import Demand, Machine, kinds_that_do, most_gpus, needs_of
from matrix.executors.errand import Errand
from matrix.executors.journal import Journal
from matrix.executors.manner import Manner
from matrix.executors.recall import Recall
from matrix.job import Probed, Tell
from matrix.observe import Observation
from matrix.probing.folder import probes_folder
from matrix.probing.machine import Machine as Seen
from matrix.probing.visit import locked
from matrix.store import Store
from matrix.tier import Outcome, Tier

TRIES = 3
CPUS, MEMORY = 2, 16 * 2**30
"""What a cell is given unless more is asked for: importing vLLM keeps two cores busy, and a probe may take so much."""
WIDEST = 128
"""So many cells at most are under way at once, each watched by a thread that only waits."""
LOOK_S, GONE_S = 5.0, 60.0
"""How often one that waits looks for a machine that fits, and how long one that had been there may be gone."""
TROUBLES = (NoSpaceError, BusyError, IndexUnreachableError, ToolError)
"""What keeps one machine from trying a cell, and may keep no other: a full disk, no way to the index."""


class _RefusedError(Exception):
    """What a machine says of why it cannot try a cell; the same said of this machine would end the run."""

    def __init__(self, error: MatrixError) -> None:
        super().__init__(error.what)
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the command line says of what a cell is given.

    Attributes:
        gpus: GPUs a cell at tier `gpu`; 0 for as many as its most demanding probe asks for, as far as a machine has.
        cpus: cores a cell; 0 for `CPUS`, or what the largest machine has.
        kinds: kinds of GPU that do, () for any.
        memory: bytes a cell; 0 for what a probe may take, or what the largest machine has.
        home: the folder in which the machines keep environments, None for their user's own.
        patience_s: seconds that a cell waits where no machine fits, for a cluster that grows when it is asked to.
    """

    gpus: int = 0
    cpus: int = 0
    kinds: tuple[str, ...] = ()
    memory: int = 0
    home: Path | None = None
    patience_s: float = 0.0


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
        recall: knows of which cells nothing is left to ask.
    """

    cluster: Cluster
    manner: Manner
    given: Given
    store: Store
    lock: Callable[[Observation], str]
    journal: Journal
    recall: Recall
    clock: Callable[[], float] = time.monotonic
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
        return WIDEST if self.given.patience_s else min(room + 1, WIDEST)

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
        given, gpus, kinds = self.given, 0, self.given.kinds
        if Tier.GPU in self.manner.tiers:
            needs = needs_of(self.probes())
            # A cluster that grows is asked for what it does not have yet.
            gpus = given.gpus or most_gpus(needs, machines) or int(given.patience_s > 0)
            kinds = kinds or kinds_that_do(needs, machines)
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
        text = ""
        if self.manner.here is None:
            resolved = locked(resolved)
            found = self.recall.probed(cell, resolved, self._suits)
            if found is not None:
                return found
            text = self.lock(resolved)
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
            except _RefusedError as refused:
                if not isinstance(refused.error, TROUBLES) or not self._elsewhere(tried):
                    raise refused.error from None
                tell(f"tried elsewhere: {refused.error.what}")
        return self._given_up(cell, before, lost)

    def _sent(self, going: Errand, tried: list[str], tell: Tell) -> Probed:
        """Return what came of one errand; the machine that took it is added to `tried`."""
        machines = self.cluster.machines()
        demand = self.demand(machines)
        fit = [machine for machine in machines if machine.fits(demand)]
        if not fit and not self.given.patience_s:
            raise _unfit(demand, machines)
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
            return self._heard(sent, demand, tried, tell)
        except BaseException:
            # Also where only a line of it makes no sense: what runs on would run for nobody.
            sent.cancel()
            raise
        finally:
            with self._guard:
                self._under_way.pop(thread, None)

    def _heard(self, sent: Sent, demand: Demand, tried: list[str], tell: Tell) -> Probed:
        """Return all that a visit gave, each observation stored as it came; raises LostError, MatrixError."""
        probed: Probed | None = None
        queued = _Queued(spread=self, demand=demand, since=self.clock(), looked=self.clock())
        for line in sent.lines(queued.look):
            try:
                data = json.loads(line)
                match data["event"]:
                    case wire.BEGUN:
                        queued.over = True
                        tried.append(str(data["node"]))
                        tell(f"begins on machine {str(data['node'])[:8]}")
                    case wire.NOTE:
                        tell(str(data["text"]))
                    case wire.PLANNED:
                        self.recall.keep(str(data["name"]), str(data["text"]))
                    case wire.OBSERVED:
                        self.store.add(wire.read_observed(data))
                    case wire.DONE:
                        probed = wire.read_done(data)
                    case wire.REFUSED:
                        raise _RefusedError(wire.read_refused(data))
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

    def _suits(self, machine: Seen) -> bool:
        """Return whether what such a machine said counts: it had as many GPUs as a cell is given, of a kind that does.

        A machine whose driver tells of no GPU counts where none is given.
        """
        demand = self.demand(self.cluster.machines())
        kinds = self.given.kinds
        return len(machine.gpus) == demand.gpus and (
            not kinds or all(any(_names(kind, name) for kind in kinds) for name in machine.gpus)
        )

    def _elsewhere(self, tried: Sequence[str]) -> bool:
        machines = self.cluster.machines()
        demand = self.demand(machines)
        return len(tried) < TRIES and any(machine.fits(demand) and machine.id not in tried for machine in machines)

    def _given_up(self, cell: Cell, before: Sequence[Observation], lost: Sequence[str]) -> Probed:
        """Return that the cell is untested, and what was seen to be wrong with it; raises where that is nothing.

        What passed before the last loss is stored, but says nothing for a cell that takes machines down, perhaps.
        """
        reason = f"lost {len(lost)} times with its machine: {'; '.join(dict.fromkeys(lost))}"
        found = self._known(cell)
        wrong = [item for item in found if item.outcome not in (Outcome.OK, Outcome.UNTESTED)]
        if not wrong:
            raise NothingRanError(f"The cell was {reason}.", then="Look at those machines, and run it again.")
        at = max(item.at for item in wrong)
        rest = tuple(untested_at(cell, tier, reason, at) for tier in Tier if tier in self.manner.tiers)
        return Probed(observations=(*wrong, *rest), reused=len(before), asked=len(found) - len(before))


@dataclass(slots=True, kw_only=True)
class _Queued:
    """An errand that has not begun: looked after, since Ray waits for ever for a machine that will not come."""

    spread: Spread
    demand: Demand
    since: float
    looked: float
    over: bool = False

    def look(self) -> None:
        """Raise NothingRanError once no machine has fitted for longer than one waits for one."""
        now = self.spread.clock()
        if self.over or now - self.looked < LOOK_S:
            return
        self.looked = now
        machines = self.spread.cluster.machines()
        if any(machine.fits(self.demand) for machine in machines):
            self.since = now
        elif now - self.since > max(self.spread.given.patience_s, GONE_S):
            raise _unfit(self.demand, machines)


def _unfit(demand: Demand, machines: Sequence[Machine]) -> NothingRanError:
    there = "; ".join(sorted({machine.words for machine in machines})) or "none"
    return NothingRanError(
        f"No machine of the cluster has {demand.words}",
        why=f"(there are: {there}).",
        then="Ask for less (--gpus, --cpus, --memory), or wait for one with --patience.",
    )


def _names(kind: str, words: str) -> bool:
    """Return whether a machine in words has GPUs of that kind: `NVIDIA H200` is Ray's `H200`, and no `H20`."""
    spaced = re.escape(kind.replace("-", " "))
    return re.search(rf"(?<!\w){spaced}(?!\w)", words.replace("-", " ")) is not None


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
