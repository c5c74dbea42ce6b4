"""A cluster that is a list: machines, and what comes of each errand, for the tests of the executors."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from matrix.executors import errand as wire
from matrix.executors.cluster import LostError
from matrix.executors.demand import GIB, Demand, Machine
from matrix.executors.errand import Errand
from matrix.executors.journal import Journal
from matrix.executors.manner import Manner
from matrix.executors.recall import Recall
from matrix.executors.spread import Given, Spread
from matrix.job import Probed
from matrix.observe import Observation
from matrix.store import Store
from matrix.tier import Tier

BEGUN = datetime(2026, 11, 30, 11, 0, tzinfo=UTC)
SMALL = Machine(id="a" * 56, cpus=4, memory=16 * GIB)
OTHER = replace(SMALL, id="b" * 56)
THIRD = replace(SMALL, id="c" * 56)
H200 = Machine(id="d" * 56, gpus=8, cpus=64, memory=512 * GIB, kinds=frozenset({"H200"}))
T4 = Machine(id="e" * 56, gpus=1, cpus=8, memory=64 * GIB, kinds=frozenset({"T4"}))
PLAIN = Machine(id="f" * 56, gpus=2, cpus=8, memory=64 * GIB)

Script = Sequence["str | BaseException | Callable[[], object]"]


def begun(machine: Machine) -> str:
    """Return the line of a machine that has taken an errand."""
    return json.dumps({"event": wire.BEGUN, "node": machine.id, "gpus": machine.gpus})


def ended(code: int | None = 0, said: str = "") -> str:
    """Return the last line of an errand."""
    return json.dumps({"event": wire.ENDED, "code": code, "said": said})


def whole(machine: Machine, *found: Observation, reused: int = 0) -> list[str]:
    """Return the lines of a visit that gives these observations."""
    probed = Probed(observations=found, reused=reused, asked=len(found) - reused)
    return [begun(machine), wire.note("works"), *map(wire.observed, found), wire.done(probed), ended()]


@dataclass
class FakeSent:
    """An errand whose lines are written down; an error among them is raised, a function called."""

    script: Script
    cancelled: threading.Event = field(default_factory=threading.Event)

    def lines(self, idle: Callable[[], object]) -> Iterator[str]:
        for item in self.script:
            if self.cancelled.is_set():
                raise KeyboardInterrupt
            if isinstance(item, BaseException):
                raise item
            if callable(item):
                item()
                idle()
                continue
            yield item

    def cancel(self) -> None:
        self.cancelled.set()


@dataclass
class FakeCluster:
    """Machines, and a script for each errand in the order in which they are sent; what was sent is kept."""

    there: list[Machine]
    scripts: list[Script] = field(default_factory=list)
    sent: list[tuple[Errand, Demand, str, str]] = field(default_factory=list)
    under_way: list[FakeSent] = field(default_factory=list)
    closed: bool = False

    def machines(self) -> Sequence[Machine]:
        return tuple(self.there)

    def send(self, errand: str, demand: Demand, kind: str, machine: str) -> FakeSent:
        self.sent.append((Errand.from_line(errand), demand, kind, machine))
        self.under_way.append(FakeSent(self.scripts.pop(0)))
        return self.under_way[-1]

    def close(self) -> None:
        self.closed = True


def lost(reason: str = "its machine was lost") -> LostError:
    """Return how an errand is lost."""
    return LostError(reason)


def spread(folder: Path, cluster: FakeCluster, *, given: Given | None = None, **more: object) -> Spread:
    """Return the executor over a cluster of fakes, with a store of its own in `folder`."""
    store = Store(folder / "store")
    manner = Manner(tiers=frozenset({Tier.IMPORT, Tier.BEHAVE}), **more)  # type: ignore[arg-type]
    return Spread(
        cluster=cluster,
        manner=manner,
        given=given or Given(),
        store=store,
        lock=lambda resolved: f"text of {resolved.detail['lock']}",
        journal=Journal(path=folder / "run.json", begun=BEGUN),
        recall=Recall(store=store, cache=folder / "cache", manner=manner),
    )
