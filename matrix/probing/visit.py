"""The visit to one cell: its lock is installed, its probes run there, and the environment is let go again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from matrix.cell import Cell
from matrix.errors import NothingRanError, ProvisionError
from matrix.job import Probed, Tell
from matrix.observe import INSTALL, Observation, Question
from matrix.probing.prober import TOOL, Prober, Subject
from matrix.provision.environment import Environment
from matrix.tier import Outcome, Tier


class Provisioner(Protocol):
    """Gives environments to cells; `matrix.provision.Provisioner` is the real one."""

    def provision(self, cell: Cell, lock_text: str) -> Environment:
        """Return the cell's environment; raises MatrixError."""

    def release(self, environment: Environment) -> None:
        """Let it go."""

    def stop(self) -> None:
        """Kill what runs for it; what waits for that raises ToolError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Visits cells; `lock` gives the text of the lock of a resolver's answer.

    Several may be visited at once, in threads. They are installed one after the other: what they share is fetched once.
    """

    prober: Prober
    provisioner: Provisioner
    lock: Callable[[Observation], str]
    _installing: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def width(self) -> int:
        """Return how many cells may be visited at once: one a GPU."""
        return self.prober.placement.width

    def stop(self) -> None:
        """End what is being visited in other threads."""
        self.prober.placement.stop()
        self.provisioner.stop()

    def visit(self, cell: Cell, resolved: Observation | None, tell: Tell) -> Probed:
        """Return what the probes say of a cell; where all of it is stored nothing is installed.

        That the cell cannot be installed is an observation too; it is `untested` where a wheel has to be built first.

        Raises:
            NothingRanError: there is no lock to install.
            NoSpaceError: there is less room than it needs.
            MatrixError: the index, a tool or a file kept it from being tried.
        """
        resolved = locked(resolved)
        digest = str(resolved.detail["lock"])
        subject = self.prober.subject(cell, digest, versions_of(resolved))
        known = self.prober.recall(subject)
        if known is not None:
            return known
        text = self.lock(resolved)
        try:
            with self._installing:
                environment = self.provisioner.provision(cell, text)
        except ProvisionError as error:
            outcome = Outcome.UNTESTED if error.wheel_missing else Outcome.BROKEN
            then = error.then if error.wheel_missing else ""
            line = " ".join(f"cannot be installed: {error.what} {error.why} {then}".split())
            return Probed(observations=(keep(self.prober, subject, outcome, line),))
        try:
            # What is really there, which may be more than the lock says: an alias of a build under another name.
            subject = self.prober.subject(cell, digest, environment.installed)
            cost = _cost(environment)
            told, seconds = _told(environment), environment.seconds
            installed = () if environment.reused else (keep(self.prober, subject, Outcome.OK, told, cost, seconds),)
            tell(told)
            probed = self.prober.run(subject, environment, tell)
            return replace(probed, observations=(*installed, *probed.observations))
        finally:
            with self._installing:
                self.provisioner.release(environment)


def locked(resolved: Observation | None) -> Observation:
    """Return the resolver's answer where it has a lock; raises NothingRanError where there is none to install."""
    if resolved is None or not resolved.detail.get("lock"):
        why = "it was not resolved" if resolved is None else resolved.reason or resolved.outcome.value
        raise NothingRanError("There is no lock to install", why=f"({why}).")
    return resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Probes the one environment that is there already: nothing is resolved and nothing installed."""

    prober: Prober
    environment: Environment
    width: int = 1

    def stop(self) -> None:
        """End what is being probed in another thread."""
        self.prober.placement.stop()

    def visit(self, cell: Cell, resolved: Observation | None, tell: Tell) -> Probed:
        """Return what the probes say of the environment; raises MatrixError where they cannot be run there."""
        environment = self.environment
        subject = self.prober.subject(cell, environment.lock, environment.installed)
        found = () if not environment.lock else (self._standing(subject, tell),)
        probed = self.prober.recall(subject) or self.prober.run(subject, environment, tell)
        return replace(probed, observations=(*found, *probed.observations))

    def _standing(self, subject: Subject, tell: Tell) -> Observation:
        """Return what is kept of an environment that was made from a lock: whether it is what that says."""
        environment = self.environment
        told = f"{len(environment.installed)} packages"
        if environment.left_out:
            told += f"; not carried, a deviation: {', '.join(_spelled(environment.left_out))}"
        tell(told)
        outcome, reason = Outcome.OK, told
        if environment.differing:
            outcome, reason = Outcome.BROKEN, f"it is not what its lock says: {'; '.join(environment.differing)}"
        detail = {**_cost(environment), "left_out": dict(environment.left_out), "differing": [*environment.differing]}
        return keep(self.prober, subject, outcome, reason, detail)


def keep(
    prober: Prober,
    subject: Subject,
    outcome: Outcome,
    reason: str,
    detail: Mapping[str, object] | None = None,
    seconds: float = 0.0,
) -> Observation:
    """Return the observation that a cell is installed, or why it cannot be, once it is stored."""
    reads = {"lock": subject.lock, "machine": prober.machine.kind}
    observation = Observation(
        question=Question(cell=subject.cell.name, probe=INSTALL, tier=Tier.IMPORT, tool=TOOL, reads=reads),
        outcome=outcome,
        reason=reason,
        detail=detail or {},
        machine=prober.machine.words,
        at=prober.clock(),
        seconds=seconds,
    )
    prober.store.add(observation)
    return observation


def _spelled(versions: Mapping[str, str]) -> list[str]:
    return [f"{name} {version}" for name, version in sorted(versions.items())]


def versions_of(resolved: Observation) -> dict[str, str]:
    """Return the version of each package of the lock that a resolver's answer has."""
    locked = resolved.detail.get("versions")
    return {str(name): str(version) for name, version in locked.items()} if isinstance(locked, Mapping) else {}


def _cost(environment: Environment) -> dict[str, object]:
    return {
        "packages": len(environment.installed),
        "added_bytes": environment.added_bytes,
        "built": list(environment.built),
        "notes": list(environment.notes),
        "python": environment.python_version,
    }


def _told(environment: Environment) -> str:
    count = f"{len(environment.installed)} packages"
    if environment.reused:
        return f"{count} were installed already"
    gigabytes = environment.added_bytes / 1e9
    return f"{count} installed in {environment.seconds:.0f} s, {gigabytes:.2f} GB more on disk"
