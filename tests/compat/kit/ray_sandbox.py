"""A sandbox for Ray: a short temporary directory and an environment of its own; what it starts ends with it.

Machines that run probes are loaded: nothing here relies on a time but as a last limit, and what only sets the scene (a
head node to talk to) is tried again where it fails.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kit.child import Ended, run_python

_TAG = "VERL_MATRIX_RAY"
_PATIENT = {
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_DEDUP_LOGS": "0",
    "CUDA_VISIBLE_DEVICES": "",
}
_TOLD = ("raylet.", "gcs_server.", "runtime_env_agent.", "dashboard_agent.", "python-core-driver")
_NOISE = re.compile(
    r"^\s*$|\[state-dump\]|Event stats:|Global stats:|(Queueing|Execution) time:|\(\+0x[0-9a-f]+\) \[0x[0-9a-f]+\]"
)
"""Lines that say nothing of what went wrong and are most of these logs: statistics, and addresses of a C++ stack."""
_LINES, _READ = 200, 2_000_000
_AFTER_S = 60.0
"""So long what outlives a child may take to log what is waited for."""
_READY_S = 90.0


@dataclass(frozen=True)
class RaySandbox:
    """A place where Ray may start: `folder` is its temporary directory, `env` what every process of it inherits."""

    folder: Path
    env: Mapping[str, str]

    def run(
        self,
        *argv: str,
        timeout: float,
        env: Mapping[str, str] | None = None,
        shows: Callable[[str], bool] | None = None,
        linger: float = math.inf,
    ) -> Ended:
        """Return how `python *argv` ended, what Ray's daemons logged before its own standard error.

        `shows` says of a text whether it has what the logs are expected to say: from then on the child may go on for
        `linger` seconds, and where it ends before, the daemons that are left have a minute to say it.
        """
        since: list[float] = []

        def enough() -> bool:
            if shows is not None and not since and shows(self.logs()):
                since.append(time.monotonic())
            return bool(since) and time.monotonic() - since[0] >= linger

        watched = enough if shows is not None and linger < math.inf else None
        # A folder that stays: what a head starts may still be starting when the command that started it has ended.
        home, given = Path(self.env["HOME"]), {**self.env, **(env or {})}
        ended = run_python(*argv, timeout=timeout, env=given, cwd=home, until=watched)
        deadline = time.monotonic() + _AFTER_S
        while shows is not None and time.monotonic() < deadline and not shows(self.logs()) and self.is_alive():
            time.sleep(0.5)
        return replace(ended, stderr=f"{self.logs()}\n{ended.stderr}")

    def logs(self) -> str:
        """Return the last lines of what raylet, GCS, agents and drivers wrote, without their statistics."""
        told = []
        for path in sorted(self.folder.glob("**/session_2*/logs/*")):
            if path.name.startswith(_TOLD) and path.is_file():
                lines = [line for line in _end_of(path).splitlines() if not _NOISE.search(line)]
                told += [f"({path.name}) {line}" for line in lines[-_LINES:]]
        return "\n".join(told)

    def is_alive(self) -> bool:
        """Return whether anything that was started here still runs."""
        return any(True for _ in _started(self.env[_TAG], self.folder))

    def clear(self) -> None:
        """End all that was started here and remove Ray's sessions, so that another head can be started."""
        _end_all(self.env[_TAG], self.folder)
        shutil.rmtree(self.folder / "ray", ignore_errors=True)

    def raylet_socket(self) -> Path | None:
        """Return the socket of the raylet that runs here once it answers, None where it does not within a while."""
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline and self.is_alive():
            for path in self.folder.glob("**/session_2*/sockets/raylet"):
                if _answers(path):
                    return path
            time.sleep(0.2)
        return None


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _READ))
        return file.read().decode("utf-8", "replace")


def _answers(path: Path) -> bool:
    """Return whether a connection to the socket is taken."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(5)
        try:
            asked.connect(str(path))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def ray_sandbox() -> Iterator[RaySandbox]:
    """Give a sandbox; afterwards no process that was started in it is left, nor any file."""
    folder = Path(tempfile.mkdtemp(prefix="vm", dir="/tmp"))
    tag = uuid.uuid4().hex
    home = folder / "home"
    home.mkdir()
    try:
        yield RaySandbox(folder, {**_PATIENT, _TAG: tag, "RAY_TMPDIR": str(folder), "HOME": str(home)})
    finally:
        _end_all(tag, folder)
        shutil.rmtree(folder, ignore_errors=True)


def _end_all(tag: str, folder: Path) -> None:
    """End every process that was started in the sandbox (Ray's daemons leave the group); wait until none is left."""
    deadline = time.monotonic() + 30
    while (left := list(_started(tag, folder))) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _started(tag: str, folder: Path) -> Iterator[int]:
    """Yield the processes whose environment carries `tag`, or that have a file of `folder` open.

    Ray's agents and workers write a title over their environment; their logs lie in the folder.
    """
    wanted, inside = f"{_TAG}={tag}".encode(), f"{folder}/"
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0") or _has_open(entry / "fd", inside):
                    yield int(entry.name)


def _has_open(descriptors: Path, inside: str) -> bool:
    for descriptor in descriptors.iterdir():
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()).startswith(inside):
                return True
    return False


def overlay(folder: Path, package: Path, relative: str) -> Path:
    """Return the path of a private copy of `package/relative`, in a tree under `folder` that else links to `package`.

    With `folder` first on PYTHONPATH the copy is used; the installed file, which other environments may share by a hard
    link, is never touched.
    """
    there = folder / package.name
    original = package
    for part in Path(relative).parts:
        there.mkdir(parents=True, exist_ok=True)
        for entry in original.iterdir():
            # A cache of bytecode that is linked would be written to where it is shared.
            if entry.name not in (part, "__pycache__") and not (there / entry.name).exists():
                (there / entry.name).symlink_to(entry)
        there, original = there / part, original / part
    shutil.copy2(original, there)
    return there
