"""Surface checks in several processes: one release of verl stays loaded in a process while it goes over the others."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.asking import FATAL, Asking, Refusal
from matrix.cell import Axis, Cell
from matrix.errors import MatrixError, ToolError
from matrix.job import Checker, Job, Versions
from matrix.store import Store

if TYPE_CHECKING:
    from concurrent.futures import Future
    from multiprocessing.synchronize import Event

Told = tuple[str, "str | Refusal"]
"""The key of an errand, and the key of its answer or why there is none."""

FEWEST = 8
"""Fewer errands than this are done in this process: starting another one costs more than it saves."""
POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """A surface question that has to be asked, under the key that its answer will have."""

    cell: Cell
    versions: Versions
    key: str


def observe_all(job: Job, asking: Asking, errands: Sequence[Errand], checker: Checker) -> None:
    """Have every errand done and its answer stored; KeyboardInterrupt passes through once the workers have stopped."""
    groups = grouped(errands, job.workers)
    if job.workers < 2 or len(groups) < 2 or len(errands) < FEWEST:
        for group in groups:
            for errand in group:
                asking.ask(errand.cell, lambda e=errand: checker.observe(e.cell, e.versions))  # type: ignore[misc]
        return
    _observe_apart(job, asking, groups)


def grouped(errands: Sequence[Errand], workers: int) -> list[list[Errand]]:
    """Return the errands by release of verl, the largest group first, so that the last ones to run are short.

    A release that holds more than a worker's share is split, so that no worker is idle when all are about one release.
    """
    groups: dict[object, list[Errand]] = {}
    for errand in errands:
        groups.setdefault(errand.versions.get(Axis.VERL), []).append(errand)
    share = max(math.ceil(len(errands) / workers), FEWEST // 2)
    parts = [group[at : at + share] for group in groups.values() for at in range(0, len(group), share)]
    return sorted(parts, key=len, reverse=True)


def _observe_apart(job: Job, asking: Asking, groups: Sequence[Sequence[Errand]]) -> None:
    """Do the groups in worker processes; each stores its own answers, so a kill loses none that is finished."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, wait

    # Not fork: the index keeps threads and sockets, which a forked child would share.
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(
        min(job.workers, len(groups)), context, _start_worker, (job.checker, job.store.folder, stop)
    )
    waiting = {errand.key: errand for group in groups for errand in group}
    known = {key: stored.at for key in waiting if (stored := job.store.get(key)) is not None}
    try:
        futures = [pool.submit(_work, group) for group in groups]
        open_futures = set(futures)
        while open_futures:
            _, open_futures = wait(open_futures, timeout=POLL_S)
            _take_stored(job, asking, waiting, known)
        for future, group in zip(futures, groups, strict=True):
            _take_told(job, asking, _told(future, group), waiting)
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        _take_stored(job, asking, waiting, known)


def _take_stored(job: Job, asking: Asking, waiting: dict[str, Errand], known: Mapping[str, object]) -> None:
    """Count the answers that the workers have stored since."""
    job.store.refresh()
    for key in tuple(waiting):
        stored = job.store.get(key)
        if stored is not None and stored.at != known.get(key):
            asking.take(waiting.pop(key).cell, stored)


def _told(future: Future[list[Told]], group: Sequence[Errand]) -> list[Told]:
    """Return what the worker told of a group, or of all its errands that the worker died."""
    from concurrent.futures.process import BrokenProcessPool

    try:
        return future.result()
    except BrokenProcessPool:
        died = Refusal(error=ToolError, what="a worker process died", why="It may have run out of memory.")
        return [(errand.key, died) for errand in group]


def _take_told(job: Job, asking: Asking, told: Sequence[Told], waiting: dict[str, Errand]) -> None:
    """Count the refusals, and the answers that came under another key because an input changed meanwhile."""
    for key, came in told:
        if isinstance(came, Refusal) and issubclass(came.error, FATAL):
            raise came.raised()
        errand = waiting.pop(key, None)
        if errand is None:
            continue
        if isinstance(came, Refusal):
            asking.refuse(errand.cell, came)
        elif (stored := job.store.get(came)) is not None:
            asking.take(errand.cell, stored)


@dataclass(slots=True)
class _Worker:
    """What a worker process holds between groups."""

    checker: Checker
    store: Store
    stop: Event


_worker: _Worker | None = None


def _start_worker(checker: Callable[[], Checker], folder: Path, stop: Event) -> None:
    """Prepare this process; Ctrl-C is the parent's business, which sets `stop`."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = _Worker(checker=checker(), store=Store(folder), stop=stop)


def _end_with_parent() -> None:
    """End this process once its parent is gone (a hard kill): nobody would ever tell it to."""
    from multiprocessing import connection, parent_process

    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        # At once and without clean-up: what is stored is whole at any moment.
        os._exit(1)


def _work(group: Sequence[Errand]) -> list[Told]:
    """Store the answers of a group and tell how each errand ended."""
    if _worker is None:
        raise RuntimeError("this process is no worker")
    told: list[Told] = []
    for errand in group:
        if _worker.stop.is_set():
            break
        try:
            observation = _worker.checker.observe(errand.cell, errand.versions)
            _worker.store.add(observation)
            told.append((errand.key, observation.question.key))
        except MatrixError as error:
            told.append((errand.key, Refusal.of(error)))
            if isinstance(error, FATAL):
                break
    return told
