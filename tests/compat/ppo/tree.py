"""The processes below this one: all of them, their memory, and their end.

Ray's daemons leave their parent and their session, and rename themselves over their environment; as this process
adopts orphans (`prctl(PR_SET_CHILD_SUBREAPER)`), whatever is started below it stays below it. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import threading
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it; raises OSError where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process cannot adopt orphans")


def below(root: int) -> set[int]:
    """Return the processes below `root`, without those that have ended and only wait to be read."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            state, parent = _state(int(entry.name))
            if state not in ("", "Z"):
                children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), []):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


def _state(pid: int) -> tuple[str, int]:
    """Return a process's state and parent, ("", 0) where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", 0
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process itself has used, in seconds; 0 where it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / _TICKS


def memory(pid: int) -> tuple[int, int]:
    """Return the resident memory of a process and how much of it is shared (files, shared memory), in bytes."""
    try:
        words = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
        return int(words[1]) * _PAGE, int(words[2]) * _PAGE
    except (OSError, IndexError):
        return 0, 0


def segments(pid: int) -> set[Path]:
    """Return the named shared memory that a process has mapped and that still has its name."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return {Path(path) for path in re.findall(r" (/dev/shm/\S+)$", maps, re.MULTILINE)}


_SHARED = Path("/dev/shm")
_LOOKS = 3


def _shared_names() -> list[str]:
    """Return the names of all shared memory on this machine."""
    try:
        return [path.name for path in _SHARED.iterdir()]
    except OSError:
        return []


def named(pid: int) -> str:
    """Return what a process calls itself, or what the kernel calls it where it has wiped that."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        text = " ".join(word.decode("utf-8", "replace") for word in words[:4]).strip()
        return (text or Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip())[:120]
    except OSError:
        return ""


def end(root: int, patience: float = 20.0) -> list[str]:
    """Kill everything below `root` and return the names of what would not go within `patience` seconds."""
    deadline = time.monotonic() + patience
    while (left := below(root)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        _reap()
    return sorted(named(pid) for pid in left)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Meter(threading.Thread):
    """Watches the memory of everything below a process, in bytes.

    `resident` is the peak of the sum of resident memory, which counts a library once for each process that has it
    loaded; `own` is the peak of what the processes have for themselves plus the largest shared part, once. `parts` are
    the processes at the peak; `segments` the shared memory that any of them had mapped.

    Looking must cost next to nothing, since steps are timed beside it: what a process has mapped is a file of thousands
    of lines, so it is read only while there are new names of shared memory, a few times for each.
    """

    def __init__(self, root: int, every: float = 1.0) -> None:
        super().__init__(daemon=True)
        self.resident = 0
        self.own = 0
        self.parts: dict[str, int] = {}
        self.segments: set[Path] = set()
        self._spent: dict[int, float] = {}
        self._root, self._every = root, every
        self._stop_asked = threading.Event()
        self._names = dict.fromkeys(_shared_names(), 0)

    def run(self) -> None:
        while not self._stop_asked.wait(self._every):
            sizes = {pid: memory(pid) for pid in below(self._root)}
            # a process that is gone has no times any more, and not every parent reads them
            self._spent |= {pid: max(cpu_seconds(pid), self._spent.get(pid, 0.0)) for pid in sizes}
            if self._has_new_names():
                self.segments |= {path for pid in sizes for path in segments(pid)}
            total = sum(whole for whole, _ in sizes.values())
            shared = [part for _, part in sizes.values()]
            self.own = max(self.own, total - sum(shared) + max(shared, default=0))
            if total > self.resident:
                self.resident = total
                self.parts = {f"{named(pid)} [{pid}]": whole for pid, (whole, _) in sizes.items() if whole > 50 << 20}

    def _has_new_names(self) -> bool:
        """Return whether there is a name of shared memory that was looked for fewer than a few times.

        A process makes it first and maps it a moment later, and another may map it later still.
        """
        found = [name for name in _shared_names() if self._names.get(name, _LOOKS) > 0]
        for name in found:
            self._names[name] = self._names.get(name, _LOOKS) - 1
        return bool(found)

    @property
    def cpu(self) -> float:
        """Return the CPU time of all, in seconds, as last seen of each."""
        return sum(self._spent.values())

    def stop(self) -> None:
        """Stop watching; what was seen stays."""
        self._stop_asked.set()
        self.join()
