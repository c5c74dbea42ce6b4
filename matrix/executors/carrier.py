"""What a worker of Ray does: unpack the parcel once a machine, run an errand there, hand on its lines.

Sent to the workers by value, since this tool is not installed there: it imports nothing but the standard library, and
ray only where it runs. The errand runs in a process of its own, so that neither Ray's variables nor its worker come
near a cell: what the worker was granted is all that the process is told.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
PATIENCE_S = 30.0
SAID_CHARS = 2000
UNUSED_S = 14 * 86400.0
"""A parcel that was not used for so long is removed when another one comes."""
_DROPPED = ("RAY_", "PYTHON", "CONDA_", "VIRTUAL_ENV", "OMP_NUM_THREADS", "__MODIN", "LD_PRELOAD")
"""Beginnings of the variables that Ray and its environment set for themselves, and that are no setting of a machine."""


def carry(body: bytes, digest: str, machine: str, errand: str) -> Iterator[str]:
    """Yield the lines of an errand as they come, first that it has begun and last how it ended."""
    import ray

    context = ray.get_runtime_context()
    gpus = [str(word) for word in context.get_accelerator_ids().get("GPU", [])]
    yield json.dumps({"event": "begun", "node": context.get_node_id(), "gpus": len(gpus)})
    if platform.machine() != machine:
        reason = f"it is {platform.machine()}, and the tool was sent from {machine}"
        yield json.dumps({"event": "ended", "code": None, "said": reason})
        return
    folder = unpack(body, digest)
    # -P: a `matrix` in the folder that the worker stands in is not this tool.
    command = [sys.executable, "-s", "-P", "-m", "matrix.executors.node"]
    yield from attended(command, surroundings(os.environ, folder, gpus), errand)


def surroundings(given: Mapping[str, str], folder: Path, gpus: Sequence[str]) -> dict[str, str]:
    """Return what the process is started with: the machine's own settings, and exactly the GPUs that were granted."""
    kept = {name: value for name, value in given.items() if not name.startswith(_DROPPED)}
    return {**kept, VISIBLE: ",".join(gpus), "PYTHONPATH": str(folder), "PYTHONNOUSERSITE": "1"}


def unpack(body: bytes, digest: str, parent: Path | None = None) -> Path:
    """Return the folder in which the parcel lies unpacked: made once, whole or not at all.

    Under the user's cache, so that a restart of Ray, which empties its own folders, does not unpack it again.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    root = parent or (Path(cache) if cache else Path.home() / ".cache") / "verl-matrix-parcels"
    folder = root / digest[:16]
    if folder.is_dir():
        os.utime(folder)
        return folder
    root.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="making-", dir=root))
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as parcel:
            for info in parcel.infolist():
                Path(parcel.extract(info, made)).chmod(info.external_attr >> 16 & 0o777 or 0o644)
        with contextlib.suppress(OSError):
            # Somebody else was quicker: theirs is as good.
            made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    for other in root.iterdir():
        # Of releases that nobody sends any more, and what a kill left half made.
        with contextlib.suppress(OSError):
            if other.stat().st_mtime < time.time() - UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)
    return folder


def attended(command: Sequence[str], env: Mapping[str, str], errand: str) -> Iterator[str]:
    """Yield the lines that a process writes, and at last how it ended; it is gone when this is, however that comes.

    Its standard input stays open while somebody listens: a worker that is killed closes it, and the process ends
    itself and all that it started. What it writes to standard error is told with its end.
    """
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=dict(env),
            start_new_session=True,
            text=True,
            encoding="utf-8",
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(f"{errand}\n")
                child.stdin.flush()
            for line in child.stdout:
                yield line.rstrip("\n")
        finally:
            _end(child)
        said.seek(0)
        text = said.read().decode("utf-8", "replace")[-SAID_CHARS:]
    yield json.dumps({"event": "ended", "code": child.returncode, "said": text})


def _end(child: subprocess.Popen[str]) -> None:
    """End a process: told first, which lets it clean up, then killed with its group."""
    with contextlib.suppress(OSError):
        assert child.stdin is not None
        child.stdin.close()
    try:
        child.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    finally:
        assert child.stdout is not None
        child.stdout.close()
