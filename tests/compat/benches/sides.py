"""The outside of a side: its processes, one a rank, the orders they get and what they answer, and their end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppo.gpu import VISIBLE

_LEAVE_S = 5.0
_TAIL = 3000
_LOOK_S = 0.5
_SPLIT = 1 << 16


@dataclass(frozen=True)
class Fault:
    """Of what a side died: the order it was at, the kind, the last words."""

    where: str
    kind: str
    text: str

    @property
    def of_memory(self) -> bool:
        """Return whether it ran out of memory, the device's or the host's."""
        words = ("memory", "Memory", "KV cache", "cumem", "cuBLAS", "CUDA error", "SIGKILL")
        return any(word in self.kind for word in words)


class SideEndedError(Exception):
    """A side did not do what it was ordered, and has ended."""

    def __init__(self, side: str, fault: Fault) -> None:
        super().__init__(f"{side} ended in {fault.where}: {fault.kind}")
        self.side, self.fault = side, fault


class LimitError(Exception):
    """The launch's time ran out while a side was at an order."""

    def __init__(self, side: str, where: str) -> None:
        super().__init__(f"{side} was still at {where} when the time ran out")
        self.side, self.where = side, where


class Side:
    """The processes of one side, `ranks` of them, each in a session of its own."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path, ranks: int = 1) -> None:
        """Start them; they import while others go on."""
        self.name = name
        self._log = log
        self._at_work = False
        self._ranks: list[_Rank] = []
        port = _free_port() if ranks > 1 else 0
        with log.open("ab") as file:
            for rank in range(ranks):
                world = _world(rank, ranks, port, env.get(VISIBLE)) if ranks > 1 else {}
                self._ranks.append(_Rank(argv, {**env, **world}, file))

    def ask(self, do: str, deadline: float, **order: Any) -> list[dict[str, Any]]:
        """Return what each rank found on an order.

        Raises:
            SideEndedError: one of them failed or is gone.
            LimitError: `deadline` (of the monotonic clock) came first.
        """
        for rank in self._ranks:
            rank.order({"do": do, **order})
        where = str(order.get("phase", do))
        self._at_work = True
        try:
            found = [self._found(rank, where, deadline) for rank in self._ranks]
        except _GoneError:
            raise SideEndedError(self.name, self._gone(where)) from None
        self._at_work = False
        return found

    def _found(self, rank: _Rank, where: str, deadline: float) -> dict[str, Any]:
        line = rank.answer(deadline)
        if line is None:
            raise LimitError(self.name, where)
        if "fault" in line:
            raise SideEndedError(self.name, Fault(where, line["fault"]["kind"], line["fault"]["text"]))
        found: dict[str, Any] = line["found"]
        return found

    def _gone(self, where: str) -> Fault:
        codes = [code for code in (rank.code() for rank in self._ranks) if code is not None]
        code = next((code for code in codes if code), codes[0] if codes else 0)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Fault(where, how, self.said()[-_TAIL:])

    def said(self) -> str:
        """Return all that its processes have written."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.is_file() else ""

    def end(self) -> None:
        """End it, with everything in its sessions; what it holds of a device is given back by then."""
        for rank in self._ranks:
            rank.close()
        # One that has not answered would not leave by itself.
        deadline = time.monotonic() + (0.0 if self._at_work else _LEAVE_S)
        for rank in self._ranks:
            rank.end(deadline)
        self._ranks = []


class _GoneError(Exception):
    """A rank has closed its pipe."""


class _Rank:
    """One process and the pipe that it answers on."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Any) -> None:
        self._read, write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*argv, "--answers", str(write)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(env),
                pass_fds=(write,),
                start_new_session=True,
            )
        finally:
            os.close(write)
        self._text = b""

    def order(self, line: dict[str, Any]) -> None:
        # One that is gone is seen when its answer is waited for.
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()

    def answer(self, deadline: float) -> dict[str, Any] | None:
        """Return the next line, None where the deadline comes first; raises _GoneError where there will be none."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._read, selectors.EVENT_READ)
            while b"\n" not in self._text:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                if not ready.select(min(left, _LOOK_S)):
                    # An engine's core may hold the pipe open after the side itself has gone.
                    if self._process.poll() is not None:
                        raise _GoneError
                    continue
                piece = os.read(self._read, _SPLIT)
                if not piece:
                    raise _GoneError
                self._text += piece
        line, _, self._text = self._text.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def code(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(2.0)
        return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def end(self, deadline: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _world(rank: int, ranks: int, port: int, visible: str | None) -> dict[str, str]:
    """Return what Ray and verl set for a worker of one host: its rank, and one GPU that is its only one.

    Raises ValueError where fewer GPUs are visible than there are ranks; on a CPU (`visible` is empty) none is named.
    """
    found = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(ranks),
    }  # fmt: skip
    if visible == "":
        return found
    names = visible.split(",") if visible is not None else [str(index) for index in range(ranks)]
    if len(names) < ranks:
        raise ValueError(f"{ranks} ranks need as many GPUs, and {VISIBLE} names {len(names)}")
    return {**found, VISIBLE: names[rank].strip()}
