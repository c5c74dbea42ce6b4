"""The latch of an environment: one builder or remover alone, or any number of users; let go when a process dies.

An advisory `flock` on a file beside the environment, because the kernel releases it however the holder ends, because it
can be shared, and because a child that inherits the open file (uv) keeps it held after its parent was killed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matrix.errors import BusyError, NoSpaceError, UsageError

POLL_S = 0.2
TELL_EVERY_S = 15.0


@dataclass(slots=True, kw_only=True)
class Latch:
    """A held latch; `fd` is its open file. Not safe for threads: each holder takes its own."""

    path: Path
    fd: int
    shared: bool

    def share(self) -> None:
        """Become a user instead of the only one; another may come between, so look again at what is there."""
        fcntl.flock(self.fd, fcntl.LOCK_SH)
        self.shared = True

    def drop(self) -> None:
        """Let go."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Waiting for a latch: how long at most, for what (in words), and who is told; `pause` is one look's distance."""

    path: Path
    what: str
    patience_s: float
    say: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _began: float | None = None
    _told: float = float("-inf")

    def pause(self) -> None:
        """Sleep a little; raises BusyError when it was waited for long enough."""
        now = self.clock()
        self._began = now if self._began is None else self._began
        if now - self._began >= self.patience_s:
            raise BusyError(
                f"{self.what} is in use{_holder(self.path)}.",
                why=f"It was waited for, {now - self._began:.0f} s.",
                then="Let that run end, or stop it, then run again.",
            )
        if now - self._told >= TELL_EVERY_S:
            self._told = now
            self.say(f"waiting for {self.what}: another run has it{_holder(self.path)}")
        self.sleep(POLL_S)


def take(waiting: Waiting, *, shared: bool) -> Latch:
    """Return the latch, held; raises BusyError where others still hold it then, and as `attempt` does."""
    while (latch := attempt(waiting.path, shared=shared)) is None:
        waiting.pause()
    return latch


def is_held(path: Path) -> bool:
    """Return whether anybody, this process included, holds the latch."""
    if not path.exists():
        return False
    latch = attempt(path, shared=False, note=False)
    if latch is None:
        return True
    latch.drop()
    return False


def attempt(path: Path, *, shared: bool, note: bool = True) -> Latch | None:
    """Return the latch, or None where it cannot be had now.

    Raises:
        UsageError: the file cannot be made there.
        NoSpaceError: no room for it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(f"No room is left for {path}.", then="Free some disk space.") from error
        raise UsageError(
            f"No environment can be kept in {path.parent}: {error.strerror}.",
            then="Make it writable, or keep things elsewhere with --home.",
        ) from error
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        # Whoever removed the environment removed this file too: a latch on a file that is gone guards nothing.
        if os.fstat(fd).st_nlink == 0 or not os.path.samestat(os.fstat(fd), path.stat()):
            raise FileNotFoundError
    except (BlockingIOError, FileNotFoundError):
        os.close(fd)
        return None
    if note and not shared:
        _note(fd)
    return Latch(path=path, fd=fd, shared=shared)


def _note(fd: int) -> None:
    """Write who holds it, for the message to those who wait; only the one who is alone writes."""
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"pid": os.getpid(), "since": time.time()}).encode(), 0)
    except OSError:
        return


def _holder(path: Path) -> str:
    """Return who took the latch last, in words, as far as is known."""
    try:
        data = json.loads(path.read_bytes())
        pid, since = int(data["pid"]), float(data["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f" (process {pid} took it {max(0.0, time.time() - since):.0f} s ago)"
