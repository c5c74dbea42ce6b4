"""The turn: one nightly at a time in a home; another one waits for it, or is told who has it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from matrix.errors import BusyError

POLL_S = 0.2


@contextlib.contextmanager
def turn(folder: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the home's turn while the block runs; it is let go when the process dies, however it does.

    Raises:
        BusyError: another nightly had it for `wait_s` seconds.
    """
    import filelock

    folder.mkdir(parents=True, exist_ok=True)
    holder = folder / "turn.json"
    lock = filelock.FileLock(folder / "turn.lock", timeout=wait_s, poll_interval=POLL_S)
    try:
        lock.acquire()
    except filelock.Timeout:
        waited = f"It did not end within {wait_s:.0f} s." if wait_s else "It was not waited for."
        raise BusyError(
            f"Another nightly is running in {folder.parent}{_who(holder)}.",
            why=waited,
            then="Let it end, or wait for it with --wait SECONDS. Another --home has a turn of its own.",
        ) from None
    try:
        with contextlib.suppress(OSError):
            # Who holds it is a courtesy; a full disk is told where something is lost by it.
            holder.write_text(json.dumps({"pid": os.getpid(), "since": datetime.now(UTC).isoformat()}))
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _who(holder: Path) -> str:
    """Return who holds the turn, as far as it says so."""
    try:
        data = json.loads(holder.read_text(encoding="utf-8"))
        return f" (process {int(data['pid'])}, since {datetime.fromisoformat(data['since']):%Y-%m-%d %H:%M} UTC)"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
