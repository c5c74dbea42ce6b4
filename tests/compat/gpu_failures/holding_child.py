"""A child that was started to hold a GPU: what it has said, and how it was made to end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
LATER_S = 0.35
"""So long memory is held before the end, so that it is seen by whoever looks ten times a second."""


class Held:
    """A running child; `say` waits for a line of it."""

    def __init__(self, child: subprocess.Popen[bytes], out: Path) -> None:
        """Watch `child`, which writes to `out`."""
        self.child = child
        self._out = out

    @property
    def text(self) -> str:
        """Return all that it has written."""
        return self._out.read_text(encoding="utf-8", errors="replace")

    def await_line(self, start: str, limit: float) -> str:
        """Return the rest of its first line that begins with `start`; fails where it ends, or is silent, before."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            for line in self.text.splitlines():
                if line.startswith(start):
                    return line.removeprefix(start).strip()
            if self.child.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"did not say `{start}` in {limit:.0f} s (code {self.child.poll()}): {self.text[-1500:]}")

    def kill(self, pid: int | None = None) -> None:
        """Kill it, or the process `pid` that it started, once it has held long enough."""
        time.sleep(LATER_S)
        os.kill(pid or self.child.pid, signal.SIGKILL)

    def code(self, limit: float) -> int:
        """Return how it ended; fails where it goes on."""
        try:
            return self.child.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"went on for {limit:.0f} s: {self.text[-1500:]}") from None


@contextlib.contextmanager
def holding(script: str, *words: str, env: dict[str, str] | None = None, end: bool = True) -> Iterator[Held]:
    """Yield a child that runs a script beside this file; with `end` its process group is gone afterwards."""
    with tempfile.NamedTemporaryFile(prefix="held-", delete=False) as out:
        child = subprocess.Popen(
            [sys.executable, str(HERE / script), *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    try:
        yield Held(child, Path(out.name))
    finally:
        if end:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
