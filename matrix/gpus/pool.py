"""The pool: whole GPUs, granted to one visit at a time on this machine, whichever process of whichever user asks.

A GPU is granted by a lock on a file of its own in a folder that all runs share. The kernel lets it go when the process
dies, however that comes. All that are asked for are taken or none, so two who wait never hold what the other wants;
within a process who asked first is served first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matrix.errors import BusyError, ToolError
from matrix.gpus.inventory import Gpu, Inventory
from matrix.gpus.need import Need, eligible, lacking

LEASES = Path("/tmp/verl-matrix-gpus")  # noqa: S108 - every user of the machine must find the same folder
LOOK_S = 0.2


class StoppedError(Exception):
    """The run is being ended, so no grant is made; never leaves the visit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Whole GPUs that nobody else who asks the pool has meanwhile, and when they were had (`clock`'s seconds)."""

    gpus: tuple[Gpu, ...]
    since: float = 0.0

    @property
    def visible(self) -> str:
        """Return the value of CUDA_VISIBLE_DEVICES that shows exactly these, with CUDA_DEVICE_ORDER=PCI_BUS_ID.

        Indices: vLLM before 0.24 makes a number of each word (`int()` in vllm/platforms/interface.py) and dies of a
        UUID.
        """
        return ",".join(str(gpu.index) for gpu in self.gpus)


@dataclass(slots=True, kw_only=True)
class Pool:
    """Hands out the GPUs of an inventory; thread-safe. A thread holds one grant at a time."""

    inventory: Inventory
    folder: Path = LEASES
    clock: Callable[[], float] = time.monotonic
    _turn: threading.Condition = field(default_factory=threading.Condition)
    _queue: deque[object] = field(default_factory=deque)
    _holding: set[int] = field(default_factory=set)
    _stopped: bool = False

    @contextlib.contextmanager
    def grant(
        self, need: Need, *, patience_s: float | None = None, waits: Callable[[], object] = lambda: None
    ) -> Iterator[Grant]:
        """Yield as many GPUs as are needed, and let them go after; calls `waits` once where it has to wait for them.

        Raises:
            ToolError: this machine does not have them, or the folder of the locks cannot be used.
            BusyError: others held them for `patience_s`.
            StoppedError: the pool was stopped meanwhile.
        """
        reason = lacking(need, self.inventory)
        if reason:
            raise ToolError(f"No GPU can be granted: {reason}.")
        thread = threading.get_ident()
        assert thread not in self._holding, "a thread that waits for a second grant while it holds one may wait forever"
        held = self._wait(need, patience_s, waits)
        self._holding.add(thread)
        try:
            yield Grant(gpus=tuple(gpu for gpu, _ in held), since=self.clock())
        finally:
            self._holding.discard(thread)
            _let_go(held)
            with self._turn:
                self._turn.notify_all()

    @property
    def stopped(self) -> bool:
        """Return whether the run is being ended."""
        return self._stopped

    def stop(self) -> None:
        """Have everybody who waits raise StoppedError, and whoever asks from now on."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()

    def granted(self) -> frozenset[int]:
        """Return the indices of the GPUs that some run on this machine holds now."""
        found = set()
        for gpu in self.inventory.gpus:
            path = self._path(gpu)
            lock = _locked(path) if path.exists() else None
            if lock is not None:
                os.close(lock)
            elif path.exists():
                found.add(gpu.index)
        return frozenset(found)

    def _wait(self, need: Need, patience_s: float | None, waits: Callable[[], object]) -> list[tuple[Gpu, int]]:
        """Return the GPUs with their locks, once it is this call's turn and enough are free."""
        ticket, told = object(), False
        deadline = None if patience_s is None else self.clock() + patience_s
        candidates = sorted(eligible(need, self.inventory), key=lambda gpu: gpu.uuid)
        with self._turn:
            self._queue.append(ticket)
            try:
                while True:
                    if self._stopped:
                        raise StoppedError
                    held = self._taken(candidates, need.gpus) if self._queue[0] is ticket else []
                    if held:
                        return held
                    if deadline is not None and self.clock() >= deadline:
                        raise BusyError(
                            f"{need.gpus} of {len(candidates)} GPUs did not come free in {patience_s:.0f} s.",
                            then="`verl-matrix gpus` shows which are granted.",
                        )
                    if not told:
                        told = True
                        waits()
                    # Another process lets go without a word, so a look now and then is needed.
                    self._turn.wait(LOOK_S)
            finally:
                self._queue.remove(ticket)
                self._turn.notify_all()

    def _taken(self, candidates: Sequence[Gpu], count: int) -> list[tuple[Gpu, int]]:
        """Return `count` of the candidates with their locks held, [] where fewer are free; then none is held."""
        self._make_folder()
        held: list[tuple[Gpu, int]] = []
        for gpu in candidates:
            lock = _locked(self._path(gpu))
            if lock is not None:
                held.append((gpu, lock))
            if len(held) == count:
                return sorted(held, key=lambda item: item[0].index)
        _let_go(held)
        return []

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
            with contextlib.suppress(PermissionError):
                # Whoever made it first: others must be able to add the file of a GPU, and to remove none.
                self.folder.chmod(0o1777)
        except OSError as error:
            raise _unusable(self.folder, error) from error

    def _path(self, gpu: Gpu) -> Path:
        return self.folder / f"{hashlib.sha256(gpu.uuid.encode()).hexdigest()[:16]}.lock"


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock of a file, None where another holds it; raises ToolError.

    Reading is enough for a lock, and all that is allowed of another user's file in a folder with the sticky bit
    (`fs.protected_regular`, proc_sys_fs(5)).
    """
    try:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise _unusable(path, error) from error
    return descriptor


def _let_go(held: Sequence[tuple[Gpu, int]]) -> None:
    for _, descriptor in held:
        os.close(descriptor)


def _unusable(path: Path, error: OSError) -> ToolError:
    return ToolError(
        f"GPUs cannot be granted: {path} cannot be used ({error.strerror or error}).",
        then="Remove it, or have its owner let others read it: the runs of a machine share it.",
    )
