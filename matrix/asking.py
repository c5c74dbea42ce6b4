"""Asking one tier's questions: what is stored is not asked again, what is answered is stored, what fails is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from matrix import __version__
from matrix.cell import Cell
from matrix.errors import BusyError, IndexUnreachableError, MatrixError, NewerSchemaError, NoSpaceError
from matrix.job import Job, Tally
from matrix.observe import Observation, Question
from matrix.tier import Outcome, Tier

FATAL = (NoSpaceError, BusyError, NewerSchemaError)
"""Errors that end a run, because no cell after it could fare better."""

GIVE_UP_AFTER = 3
"""So many cells in a row that could not reach the index, and none that could: the others are not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error that kept a cell from its answer, in a form that can cross processes."""

    error: type[MatrixError]
    what: str
    why: str = ""
    then: str = ""

    @classmethod
    def of(cls, error: MatrixError) -> Refusal:
        """Return the refusal that `error` amounts to."""
        return cls(error=type(error), what=error.what, why=error.why, then=error.then)

    @property
    def line(self) -> str:
        """Return what happened and why, on one line."""
        return " ".join(" ".join(part for part in (self.what, self.why) if part).split())

    def raised(self) -> MatrixError:
        """Return an error of the same class and words, without the attributes that class may add."""
        error = self.error.__new__(self.error)
        MatrixError.__init__(error, self.what, why=self.why, then=self.then)
        return error


class Asking:
    """The questions of one tier in one run; knows the answers, the refusals and the tally."""

    def __init__(self, job: Job, tier: Tier, planned: int) -> None:
        """Start the clock and tell the progress."""
        self.answers: dict[str, Observation] = {}
        self.refusals: dict[str, Refusal] = {}
        self.interrupted = False
        self._job = job
        self._tier = tier
        self._planned = planned
        self._reused = 0
        self._start = time.monotonic()
        job.progress.start(tier, planned)

    def look_up(
        self, cell: Cell, question: Callable[[], Question], max_age: timedelta | None = None
    ) -> Question | None:
        """Return the question of `cell` if it has to be asked; else its stored answer, or its refusal, is taken.

        An answer that says of itself that nothing can change it (`volatile` is false in its detail) does not age.
        """
        if self.hopeless is not None:
            self.refuse(cell, self.hopeless)
            return None
        try:
            asked = question()
        except FATAL:
            raise
        except MatrixError as error:
            self.refuse(cell, Refusal.of(error))
            return None
        stored = self._job.store.get(asked.key)
        if stored is not None and self._job.again and (self._job.since is None or stored.at < self._job.since):
            stored = None
        if stored is not None and max_age is not None and stored.detail.get("volatile") is not False:
            stored = self._job.store.get(asked.key, max_age)
        # "Untested" is no answer: what kept the probe from one may be gone by now.
        if stored is None or stored.outcome is Outcome.UNTESTED:
            return asked
        self._reused += 1
        self._accept(cell, stored, reused=True)
        return None

    def ask(self, cell: Cell, answer: Callable[[], Observation]) -> None:
        """Have `answer` called and its result stored; a MatrixError becomes the cell's refusal."""
        if self.hopeless is not None:
            self.refuse(cell, self.hopeless)
            return
        try:
            observation = answer()
        except FATAL:
            raise
        except MatrixError as error:
            self.refuse(cell, Refusal.of(error))
        else:
            self.keep(cell, observation)

    def keep(self, cell: Cell, observation: Observation) -> None:
        """Store a new answer, then count it; the copy that is held reads its large details from the store."""
        self._job.store.add(observation)
        self.take(cell, self._job.store.get(observation.question.key) or observation)

    def take(self, cell: Cell, observation: Observation) -> None:
        """Count a new answer that is stored already (a worker process did)."""
        self._accept(cell, observation, reused=False)

    def refuse(self, cell: Cell, refusal: Refusal) -> None:
        """Note that `cell` got no answer."""
        self.refusals[cell.name] = refusal
        self._job.progress.done(self._tier, cell.name, Outcome.UNTESTED, reused=False)

    @property
    def hopeless(self) -> Refusal | None:
        """Return why no further cell needs to be tried, None while there is hope."""
        if self.answers or len(self.refusals) < GIVE_UP_AFTER:
            return None
        unreachable = all(refusal.error is IndexUnreachableError for refusal in self.refusals.values())
        return next(iter(self.refusals.values())) if unreachable else None

    def end(self) -> Tally:
        """Tell the progress and return the tally."""
        self._job.progress.end(self._tier)
        untested = sum(answer.outcome is Outcome.UNTESTED for answer in self.answers.values())
        return Tally(
            tier=self._tier,
            planned=self._planned,
            reused=self._reused,
            new=len(self.answers) - self._reused - untested,
            untested=untested + len(self.refusals),
            seconds=time.monotonic() - self._start,
        )

    def _accept(self, cell: Cell, observation: Observation, *, reused: bool) -> None:
        self.answers[cell.name] = observation
        self._job.progress.done(self._tier, cell.name, observation.outcome, reused=reused)


def untested(cell: Cell, tier: Tier, reason: str, job: Job) -> Observation:
    """Return an observation that says why `cell` has no answer at `tier`; it is shown and never stored."""
    return untested_at(cell, tier, reason, job.clock())


def untested_at(cell: Cell, tier: Tier, reason: str, at: datetime) -> Observation:
    """Return the observation of `untested`, made at that moment."""
    question = Question(cell=cell.name, probe=tier.value, tier=tier, tool=__version__, reads={})
    return Observation(question=question, outcome=Outcome.UNTESTED, reason=reason, at=at)
