"""Children of a probe: Python processes that may hang, crash or be killed without taking the probe with them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TAIL = 200_000
"""So many characters of each stream are kept: the end, where the traceback is."""

_LOOK_S = 0.5
_NOT_PASSED_ON = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "RAY_ADDRESS", "VERL_MATRIX_GO", "VERL_MATRIX_TRIALS")
_QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
          "RAY_USAGE_STATS_ENABLED": "0", "TOKENIZERS_PARALLELISM": "false", "PYTHONFAULTHANDLER": "1"}  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How a child ended: `code` as of subprocess (negative for a signal), None where it was killed.

    It is killed for its time, or, where `enough`, because what it was started for had been seen.
    """

    code: int | None
    stdout: str
    stderr: str
    seconds: float
    enough: bool = False

    @property
    def text(self) -> str:
        """Return all that it wrote, standard error last."""
        return f"{self.stdout}\n{self.stderr}"

    @property
    def fault(self) -> str | None:
        """Return what a fingerprint is looked for in, None where the child ended well."""
        if self.code == 0:
            return None
        killed = "still ran when enough was seen" if self.enough else "killed when its time ran out"
        how = killed if self.code is None else f"exit code {self.code}"
        return f"{self.text}\n[{how}]"

    @property
    def last_line(self) -> str:
        """Return the last line of standard error that is not blank, "" where there is none."""
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""


def run_python(
    *argv: str,
    timeout: float = 100.0,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    command: Sequence[str] | None = None,
    until: Callable[[], bool] | None = None,
) -> Ended:
    """Return how `python *argv` (or `command`) ended; its whole process group is gone when this returns.

    The environment is this one's without what would change the answer, offline, with `env` on top. Once `until`, asked
    every half second, holds, the child is ended: enough was seen.
    """
    passed = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("wb") as stdout, err.open("wb") as stderr:
            child = subprocess.Popen(
                list(command) if command else [sys.executable, *argv],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**passed, **_QUIET, **(env or {})},
                cwd=cwd or folder,
                start_new_session=True,
            )
            try:
                code, enough = _wait(child, timeout, until)
            finally:
                _end_group(child)
        seconds = time.monotonic() - start
        return Ended(code=code, stdout=_tail(out), stderr=_tail(err), seconds=seconds, enough=enough)


def _wait(child: subprocess.Popen[bytes], timeout: float, until: Callable[[], bool] | None) -> tuple[int | None, bool]:
    """Return the code a child ended with, None where it still runs, and whether that is because enough was seen."""
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        try:
            return child.wait(max(left if until is None else min(left, _LOOK_S), 0.0)), False
        except subprocess.TimeoutExpired:
            if until is not None and until():
                return None, True
            if time.monotonic() >= deadline:
                return None, False


def _end_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        return file.read().decode("utf-8", "replace")
