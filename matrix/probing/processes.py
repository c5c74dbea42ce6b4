"""The processes of a run of probes: found by a tag in their environment, weighed, and ended to the last one.

A tag is inherited by everything that a probe starts, also by daemons that made a session of their own (Ray's), which
killing a process group does not reach. Read from /proc, so Linux only, as the stack is.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
GROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 2**60
TAG = "VERL_MATRIX_RUN"
PROBE = "VERL_MATRIX_PROBE"
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that carries the tag, or descends from one that does."""

    pid: int
    parent: int
    name: str
    probe: str = ""
    private_bytes: int = 0
    shared_bytes: int = 0


def tagged(token: str, proc: Path = PROC) -> list[Process]:
    """Return the living processes whose environment holds the tag with `token`, and their descendants."""
    mark = f"{TAG}={token}".encode()
    parents: dict[int, int] = {}
    found: dict[int, str] = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        parent = _parent(folder)
        if parent is None:
            continue
        pid = int(folder.name)
        parents[pid] = parent
        variables = _read(folder / "environ").split(b"\0")
        if mark in variables:
            start = f"{PROBE}=".encode()
            found[pid] = next(
                (v[len(start) :].decode("utf-8", "replace") for v in variables if v.startswith(start)), ""
            )
    own = os.getpid()
    grown = True
    while grown:
        # A process may have emptied its environment; its parent still tells where it is from.
        more = {pid: found[parent] for pid, parent in parents.items() if parent in found and pid not in found}
        found |= more
        grown = bool(more)
    return [_process(proc, pid, parents[pid], probe) for pid, probe in sorted(found.items()) if pid != own]


def _parent(folder: Path) -> int | None:
    """Return the parent of a process, None for one that is gone or dead and only not yet reaped."""
    stat = _read(folder / "stat").decode("utf-8", "replace")
    fields = stat.rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 and fields[0] not in ("Z", "X") else None


def _process(proc: Path, pid: int, parent: int, probe: str) -> Process:
    words = _read(proc / str(pid) / "statm").split()
    resident, shared = (int(words[1]) * _PAGE, int(words[2]) * _PAGE) if len(words) > 2 else (0, 0)
    return Process(
        pid=pid,
        parent=parent,
        name=_name(proc / str(pid)),
        probe=probe,
        private_bytes=resident - shared,
        shared_bytes=shared,
    )


def _name(folder: Path) -> str:
    """Return the program and its first word that is no option, e.g. `raylet`, `python default_worker.py`."""
    words = [Path(word.decode("utf-8", "replace")).name for word in _read(folder / "cmdline").split(b"\0") if word]
    if not words:
        return _read(folder / "comm").decode("utf-8", "replace").strip()
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    return f"{words[0]} {script}".strip() if words[0].startswith("python") else words[0]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def weight(processes: Sequence[Process]) -> int:
    """Return the memory that these hold together, in bytes: each one's own pages, and the largest shared part once.

    Pages that forks share until they are written count in each, so this is an upper estimate.
    """
    return sum(item.private_bytes for item in processes) + max((item.shared_bytes for item in processes), default=0)


def available_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return the memory that could be had now without swapping, in bytes; 0 where the system does not say.

    In a container that is what its control group leaves (cgroup v2 or v1), which /proc/meminfo does not know of.
    """
    system = 0
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith(b"MemAvailable:"):
            system = int(line.split()[1]) * 1024
    left = [
        _number(folder / limit) - _number(folder / used) + _reclaimable(folder / "memory.stat")
        for folder, limit, used in (
            (groups, "memory.max", "memory.current"),
            (groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        )
        if 0 < _number(folder / limit) < _UNLIMITED
    ]
    return max(min([system, *left]), 0) if system else 0


def _number(path: Path) -> int:
    """Return the number in a file of a control group, 0 for none (`max`: no limit)."""
    text = _read(path).strip()
    return int(text) if text.isdigit() else 0


def _reclaimable(stat: Path) -> int:
    """Return the bytes of files that are kept in memory and would be dropped first."""
    words = dict(line.split(None, 1) for line in _read(stat).splitlines() if b" " in line)
    return int(words.get(b"total_inactive_file", words.get(b"inactive_file", b"0")))


def new_token() -> str:
    """Return a token for a run of this process: its id, so that what outlives it can be told, and chance."""
    return f"{os.getpid()}-{secrets.token_hex(8)}"


def end_orphans(proc: Path = PROC) -> list[Process]:
    """Kill what a run left whose tool is gone (it was killed itself); return the processes that were there."""
    start = f"{TAG}=".encode()
    tokens = set()
    for folder in proc.iterdir():
        if folder.name.isdigit():
            variables = _read(folder / "environ").split(b"\0")
            tokens |= {word[len(start) :].decode("utf-8", "replace") for word in variables if word.startswith(start)}
    owners = {token: token.partition("-")[0] for token in sorted(tokens)}
    orphaned = [token for token, owner in owners.items() if owner.isdigit() and not (proc / owner).exists()]
    return [item for token in orphaned for item in end(token)]


def end(token: str, *, probe: str | None = None, patience_s: float = 10.0) -> list[Process]:
    """Kill every tagged process, or those that `probe` started; return the ones that were there.

    Goes on until none is left, since a process may start others while it is being killed, at most `patience_s`.
    """
    killed: dict[int, Process] = {}
    deadline = time.monotonic() + patience_s
    while True:
        living = [item for item in tagged(token) if probe is None or item.probe == probe]
        if not living or time.monotonic() > deadline:
            return list(killed.values())
        for item in living:
            killed.setdefault(item.pid, item)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(item.pid, signal.SIGKILL)
        time.sleep(0.02)


def end_strays(token: str, folder: Path, proc: Path = PROC) -> list[Process]:
    """Kill what works in `folder`, or was given a path in it, and is not tagged; return the processes that were there.

    For what has lost both its tag and its parent, and is ours all the same: the folder is. What the driver names as
    holding a GPU is no help here, since in a container it gives the ids of the host.
    """
    found, known = [], {os.getpid(), *(item.pid for item in tagged(token, proc))}
    for pid in sorted(int(item.name) for item in proc.iterdir() if item.name.isdigit()):
        parent = _parent(proc / str(pid))
        if parent is None or pid in known or not _is_in(proc / str(pid), folder):
            continue
        found.append(_process(proc, pid, parent, ""))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return found


def _is_in(process: Path, folder: Path) -> bool:
    here = f"{folder}/".encode()
    with contextlib.suppress(OSError):
        if f"{(process / 'cwd').readlink()}/".startswith(f"{folder}/"):
            return True
    return here in _read(process / "environ") or here in _read(process / "cmdline")
