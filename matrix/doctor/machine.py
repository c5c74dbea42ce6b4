"""Checks of the machine: room, limits, ports, leftovers of earlier runs, and variables that are known to hurt."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from matrix.doctor.checkup import Check, Grade, ok, unknown

ROOM, LIMITS, LEFTOVERS, VARIABLES = "room", "limits", "leftovers", "variables"
_GIB = 1 << 30
_TMP_FREE = 0.05
_SHM_BYTES = 2 * _GIB
"""Docker's default is 64 MiB; NCCL and data workers need some hundred, ray's object store what it was sized to."""
_FILES = 65_536
_PROCESSES = 4096
_PORTS = {
    6379: "ray's head (GCS)",
    8265: "ray's dashboard",
    10001: "ray's client server",
    8000: "vLLM's API server",
    29500: "torchrun's rendezvous",
}
_OURS = ("raylet", "gcs_server", "VLLM::", "vllm serve", "EngineCore", "main_ppo", "ray::")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a machine is looked at; tests give folders of their own."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    shm: Path = Path("/dev/shm")  # noqa: S108
    tmp: Path = Path("/tmp")  # noqa: S108
    variables: Mapping[str, str] = field(default_factory=dict)


def check_room(machine: Machine, folder: Path) -> Iterator[Check]:
    """Yield checks of disks, shared memory and memory, the container's limit among them."""
    for path, what in ((folder, "this folder"), (machine.tmp, "the temporary folder")):
        yield _disk(path, what)
    yield _shared_memory(machine.shm)
    yield _memory(machine)


def _disk(path: Path, what: str) -> Check:
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return unknown(ROOM, f"{path} cannot be looked at: {error.strerror}")
    text = f"{usage.free / _GIB:.1f} GiB of {usage.total / _GIB:.1f} GiB free on the disk of {path} ({what})"
    if usage.free < _TMP_FREE * usage.total:
        return Check(
            topic=ROOM,
            grade=Grade.BAD,
            what=text,
            why="ray refuses work on a node whose disk is more than 95 % full; a checkpoint is some times the model.",
            then="Free some space, or give ray another folder with RAY_TMPDIR.",
        )
    return ok(ROOM, text)


def _shared_memory(path: Path) -> Check:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return unknown(ROOM, f"there is no {path}")
    text = f"{usage.free / _GIB:.2f} GiB of {usage.total / _GIB:.2f} GiB of shared memory free ({path})"
    if usage.free < _SHM_BYTES:
        return Check(
            topic=ROOM,
            grade=Grade.BAD if usage.total <= _GIB // 4 else Grade.WARN,
            what=text,
            why="Ray's object store, NCCL and data workers share it; full, they end with bus errors.",
            then="docker run --shm-size=16g or --ipc=host; in Kubernetes an emptyDir with medium Memory.",
        )
    return ok(ROOM, text)


def _memory(machine: Machine) -> Check:
    total, available = _meminfo(machine.proc / "meminfo")
    if total is None:
        return unknown(ROOM, "the memory cannot be read")
    limit, used = _number(machine.cgroup / "memory.max"), _number(machine.cgroup / "memory.current")
    text = f"{(available or 0) / _GIB:.1f} GiB of {total / _GIB:.1f} GiB of memory available"
    if limit is not None and limit < total:
        text += f"; this container may use {limit / _GIB:.1f} GiB and uses {(used or 0) / _GIB:.1f}"
        return Check(
            topic=ROOM,
            grade=Grade.WARN,
            what=text,
            why="What looks at the machine's memory does not see the limit; beyond it the kernel kills.",
            then="Size ray's object store (ray_init) and offloading by the limit.",
        )
    return ok(ROOM, text)


def _meminfo(path: Path) -> tuple[int | None, int | None]:
    try:
        rows = dict(line.split(":", 1) for line in path.read_text(encoding="utf-8").splitlines() if ":" in line)
        return int(rows["MemTotal"].split()[0]) * 1024, int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None, None


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def check_limits(machine: Machine) -> Iterator[Check]:
    """Yield checks of the limits on open files, processes and locked memory, and of the processors there really are."""
    yield _limit(resource.RLIMIT_NOFILE, _FILES, "open files (ulimit -n)", "Ray opens some for every worker.")
    yield _limit(resource.RLIMIT_NPROC, _PROCESSES, "processes (ulimit -u)", "Every worker has dozens of threads.")
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if soft not in (resource.RLIM_INFINITY, -1) and soft < _GIB:
        yield Check(
            topic=LIMITS,
            grade=Grade.WARN,
            what=f"{soft // 1024} KiB of memory may be locked (ulimit -l)",
            why="NCCL over InfiniBand, and pinned buffers, need more.",
            then="ulimit -l unlimited, or docker run --ulimit memlock=-1.",
        )
    else:
        yield ok(LIMITS, "memory may be locked")
    pids = _number(machine.cgroup / "pids.max")
    if pids is not None and pids < _PROCESSES:
        yield Check(
            topic=LIMITS,
            grade=Grade.BAD,
            what=f"this container may have {pids} processes and threads",
            why="Ray starts a worker a processor, each with dozens of threads; beyond it they cannot register.",
            then="docker run --pids-limit=-1, or ray_init.num_cpus=8.",
        )
    yield _processors(machine)


def _limit(kind: int, wanted: int, what: str, why: str) -> Check:
    soft = resource.getrlimit(kind)[0]
    if soft in (resource.RLIM_INFINITY, -1) or soft >= wanted:
        return ok(LIMITS, f"{'no limit' if soft in (resource.RLIM_INFINITY, -1) else soft} on {what}")
    return Check(
        topic=LIMITS, grade=Grade.WARN, what=f"at most {soft} {what}", why=why, then=f"Raise it to {wanted} or more."
    )


def _processors(machine: Machine) -> Check:
    seen, allowed = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    try:
        quota, period = (machine.cgroup / "cpu.max").read_text(encoding="utf-8").split()
        allowed = min(allowed, max(1, int(quota) // int(period))) if quota != "max" else allowed
    except (OSError, ValueError):
        pass
    if allowed < seen:
        return Check(
            topic=LIMITS,
            grade=Grade.WARN,
            what=f"{seen} processors are seen, {allowed} may be used",
            why="Ray starts a worker for each it sees; that is how raylets fail to register workers in containers.",
            then=f"ray_kwargs.ray_init.num_cpus={allowed} (ray_init.num_cpus in verl 0.4 and 0.5).",
        )
    return ok(LIMITS, f"{allowed} processors")


def check_leftovers(machine: Machine) -> Iterator[Check]:
    """Yield checks of processes, sessions, addresses and ports that an earlier run may have left."""
    found = list(_leftovers(machine))
    yield from found
    if not found:
        ports = ", ".join(map(str, _PORTS))
        yield ok(LEFTOVERS, f"no processes or sessions of earlier runs; the default ports ({ports}) are free")


def _leftovers(machine: Machine) -> Iterator[Check]:
    running = _processes(machine.proc)
    for name, pids in sorted(running.items()):
        yield Check(
            topic=LEFTOVERS,
            grade=Grade.WARN,
            what=f"{len(pids)} of `{name}` run here (pid {', '.join(map(str, pids[:5]))})",
            why="Of a run that goes on, or left by one that died: those hold GPUs, ports and memory.",
            then="If no run should be going on: ray stop --force, and end the others by their pid.",
        )
    sessions = sorted((machine.tmp / "ray").glob("session_2*")) if (machine.tmp / "ray").is_dir() else []
    if sessions and not {"raylet", "gcs_server"} & set(running):
        yield Check(
            topic=LEFTOVERS,
            grade=Grade.WARN,
            what=f"{len(sessions)} old ray sessions in {machine.tmp / 'ray'}, and no ray is running",
            why="They fill the disk, and ray_current_cluster may send `ray.init` to a cluster that is gone.",
            then=f"Remove {machine.tmp / 'ray'}.",
        )
    address = machine.variables.get("RAY_ADDRESS", "")
    if address and address != "local" and not _reachable(address):
        yield Check(
            topic=LEFTOVERS,
            grade=Grade.BAD,
            what=f"RAY_ADDRESS is {address}, and nothing answers there",
            why="ray.init connects to it instead of starting a cluster of its own.",
            then="unset RAY_ADDRESS",
        )
    taken = [f"{port} ({what})" for port, what in _PORTS.items() if _taken(port)]
    if taken:
        yield Check(
            topic=LEFTOVERS,
            grade=Grade.WARN,
            what=f"ports in use: {', '.join(taken)}",
            why="What starts there by default cannot, or finds a stranger.",
            then="ss -ltnp shows who listens.",
        )


def _processes(proc: Path) -> dict[str, list[int]]:
    """Return the processes of ray, vLLM and verl that run here, by what they are."""
    found: dict[str, list[int]] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        command = b" ".join(words).decode("utf-8", "replace")
        if int(folder.name) == os.getpid():
            continue
        program = Path(words[0].decode("utf-8", "replace")).name
        for word in _OURS:
            if program == word or (word not in ("raylet", "gcs_server") and word in command):
                found.setdefault(word.strip(":"), []).append(int(folder.name))
                break
    return found


def _reachable(address: str) -> bool:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        # A name like `auto` is looked up by ray itself.
        return True
    try:
        with socket.create_connection((host, int(port)), timeout=2.0):
            return True
    except (OSError, OverflowError):
        return False


def _taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
