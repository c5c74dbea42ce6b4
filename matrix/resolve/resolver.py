"""The tier `resolve`: may these versions be installed together, by their metadata, and as which complete set."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime, timedelta
from pathlib import Path

from matrix.cell import Cell
from matrix.errors import IndexUnreachableError, MatrixError, NoSpaceError
from matrix.index import PackageIndex
from matrix.observe import Observation, Question
from matrix.resolve.case import Case
from matrix.resolve.decide import Decider
from matrix.resolve.lock import LockFolder
from matrix.resolve.outcome import Decision
from matrix.resolve.sdists import load_sdists
from matrix.resolve.solver import Answer, Problem, Solver, Uv
from matrix.tier import Tier

PROBE = "resolve"
TOOL = "resolve-2"
"""Changes when the same inputs may get another answer from this code."""
PYPI = "https://pypi.org/simple"
MAX_AGE = timedelta(hours=24)
PAGE_MAX_AGE = timedelta(minutes=10)
"""As long as the index keeps its own pages: were uv's older, a release that one sees would not exist for the other."""
_FATAL = (IndexUnreachableError, NoSpaceError)


def _now() -> datetime:
    return datetime.now(UTC)


class Resolver:
    """Answers the tier `resolve`; remembers what it learned for as long as it lives, and is safe for threads.

    An answer that rests on more of the index than the pinned releases (`detail["volatile"]`) should be asked again when
    it is older than `max_age` (`is_stale`); uv reads index pages again that are older than `page_max_age`.
    """

    def __init__(
        self,
        *,
        index: PackageIndex,
        cache_dir: Path,
        uv: Path | None = None,
        python: Path | None = None,
        index_url: str | None = None,
        max_age: timedelta = MAX_AGE,
        page_max_age: timedelta = PAGE_MAX_AGE,
        workers: int = 2,
        solver: Solver | None = None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        """Start nothing yet. uv reads `index_url`, by default the index's own `url`, else PyPI.

        `solver` stands in for uv in tests. Raises DataError when `sdists.toml` is not as it should be.
        """
        home = cache_dir / "resolve"
        self._index = index
        self._sdists = load_sdists()
        self._url = index_url or str(getattr(index, "url", PYPI))
        self._solver = solver or Uv(
            cache_dir=home, index_url=self._url, sdists=self._sdists, uv=uv, python=python, page_max_age=page_max_age
        )
        self.locks = LockFolder.under(cache_dir)
        self.max_age = max_age
        self._workers = workers
        self._clock = clock
        self._decider = Decider(index=index, solver=self._solver, sdists=self._sdists, locks=self.locks)

    def question(self, cell: Cell) -> Question:
        """Return what would be asked of the cell: its pinned releases as they are now, uv, and our sdist data.

        The rest of the index is not in it, so a new release of another package leaves the answer where it is; that is
        what `is_stale` is for. Raises UnknownReleaseError for an unknown package, IndexUnreachableError, ToolError.
        """
        reads = {"uv": self._solver.version, "sdists.toml": self._sdists.digest}
        if self._url.rstrip("/") != PYPI:
            # An address may hold a password, so its digest stands for it.
            reads["index"] = "sha256:" + hashlib.sha256(self._url.encode()).hexdigest()
        for pin in cell.pins:
            release = self._index.project(pin.package).releases.get(pin.version)
            reads[f"{pin.package} {pin.version}"] = "absent" if release is None else release.digest
        return Question(cell=cell.name, probe=PROBE, tier=Tier.RESOLVE, tool=TOOL, reads=reads)

    def is_stale(self, cell: Cell, observation: Observation) -> bool:
        """Return whether an answer rests on index pages older than `max_age`; one as of a date never does."""
        if cell.as_of is not None or not observation.detail.get("volatile", True):
            return False
        return self._clock() - observation.at > self.max_age

    def lock(self, observation: Observation) -> str:
        """Return the `pylock.toml` of an answer; raises KeyError where it has none, CorruptFileError."""
        return self.locks.read(str(observation.detail["lock"]))

    def solve(self, problem: Problem) -> Answer:
        """Return uv's own answer to a problem that is no cell (it has other packages in it); it is not stored.

        Raises ToolError, IndexUnreachableError, NoSpaceError, UsageError: never a conflict.
        """
        return self._solver.solve(problem)

    def resolve(self, cell: Cell, *, shortcuts: bool = True) -> Observation:
        """Return the answer for one cell; without `shortcuts` uv is asked about this very cell.

        Raises ToolError, IndexUnreachableError, UnknownReleaseError, NoSpaceError, UsageError: never a conflict.
        """
        question = self.question(cell)
        start = time.monotonic()
        return self._observed(question, self._decider.decide(cell, shortcuts=shortcuts), start)

    def resolve_many(self, cells: Sequence[Cell], workers: int | None = None) -> Iterator[Observation]:
        """Yield an answer a cell, in any order, as each is had.

        Cells with the same requirements are asked together. A cell that raises is passed over until the others are
        done, then its error is raised; an unreachable index or a full disk is raised at once.
        """
        pool = ThreadPoolExecutor(workers or self._workers, thread_name_prefix="resolve")
        failures: list[MatrixError] = []
        halt = threading.Event()
        try:
            yield from self._in_groups(cells, pool, failures, halt)
        except BaseException:
            halt.set()
            self._solver.stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        if failures:
            raise failures[0]

    def _in_groups(
        self, cells: Sequence[Cell], pool: ThreadPoolExecutor, failures: list[MatrixError], halt: threading.Event
    ) -> Iterator[Observation]:
        """Yield what is decided at once, then what uv says, a group of cells at a time; collect what fails."""
        holds = [pool.submit(self._warm, cell) for cell in _one_per_pin(cells)]
        for future in holds:
            future.result()
        groups: dict[tuple[Hashable, ...], list[tuple[Case, Question]]] = {}
        for cell in cells:
            start = time.monotonic()
            try:
                question = self.question(cell)
                case = self._decider.read(cell)
                decision = self._decider.quick(case)
            except _FATAL:
                raise
            except MatrixError as error:
                failures.append(error)
                continue
            if decision is not None:
                yield self._observed(question, decision, start)
            elif isinstance(case, Case):
                groups.setdefault(self._decider.share_key(case) or (cell.name,), []).append((case, question))
        running = [pool.submit(self._group, group, halt) for group in groups.values()]
        for done in as_completed(running):
            answers, failed = done.result()
            failures += failed
            yield from answers

    def _warm(self, cell: Cell) -> None:
        """Read what the cell's pins need of the index; what goes wrong goes wrong again, and is told, in its turn."""
        try:
            self._decider.read(cell)
        except MatrixError:
            return

    def _group(
        self, group: Sequence[tuple[Case, Question]], halt: threading.Event
    ) -> tuple[list[Observation], list[MatrixError]]:
        """Return the answers to cells of the same requirements; the first is asked, the others follow from it."""
        answers: list[Observation] = []
        failed: list[MatrixError] = []
        for case, question in group:
            if halt.is_set():
                break
            start = time.monotonic()
            try:
                decision = self._decider.quick(case) or self._decider.slow(case)
            except _FATAL:
                raise
            except MatrixError as error:
                failed.append(error)
            else:
                answers.append(self._observed(question, decision, start))
        return answers, failed

    def _observed(self, question: Question, decision: Decision, start: float) -> Observation:
        return Observation(
            question=question,
            outcome=decision.outcome,
            reason=decision.reason,
            detail=decision.detail(),
            at=self._clock(),
            seconds=round(time.monotonic() - start, 4),
        )


def _one_per_pin(cells: Sequence[Cell]) -> list[Cell]:
    """Return the fewest first cells that name every pin, platform and date at least once."""
    seen: set[Hashable] = set()
    chosen = []
    for cell in cells:
        keys = {(pin, cell.platform, cell.as_of) for pin in cell.pins}
        if not keys <= seen:
            seen |= keys
            chosen.append(cell)
    return chosen
