"""A sandbox for Ray: a short temporary directory and an environment of its own; what it starts ends with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
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
_TOLD = ("raylet.", "gcs_server.", "runtime_env_agent.", "python-core-driver")
_LINES = 60


@dataclass(frozen=True)
class RaySandbox:
    """A place where Ray may start: `folder` is its temporary directory, `env` what every process of it inherits."""

    folder: Path
    env: Mapping[str, str]

    def run(self, *argv: str, timeout: float, env: Mapping[str, str] | None = None) -> Ended:
        """Return how `python *argv` ended, the ends of Ray's own logs after its standard error."""
        ended = run_python(*argv, timeout=timeout, env={**self.env, **(env or {})})
        return replace(ended, stderr=f"{ended.stderr}\n{self.logs()}")

    def logs(self) -> str:
        """Return the last lines of what raylet, GCS, agent and drivers wrote."""
        told = []
        for path in sorted(self.folder.glob("**/session_2*/logs/*")):
            if path.name.startswith(_TOLD) and path.is_file():
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:]
                told += [f"({path.name}) {line}" for line in lines]
        return "\n".join(told)


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
        _end_tagged(tag)
        shutil.rmtree(folder, ignore_errors=True)


def _end_tagged(tag: str) -> None:
    """End every process whose environment carries `tag` (Ray's daemons leave the group) and wait until none is left."""
    deadline = time.monotonic() + 20
    while (left := list(_tagged(tag))) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _tagged(tag: str) -> Iterator[int]:
    wanted = f"{_TAG}={tag}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


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
            if entry.name != part and not (there / entry.name).exists():
                (there / entry.name).symlink_to(entry)
        there, original = there / part, original / part
    shutil.copy2(original, there)
    return there
