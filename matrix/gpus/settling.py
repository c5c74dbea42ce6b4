"""Settling: what a probe left on its GPUs, from what was in use before it to when that is all that is in use again.

Seen through the driver and not through the processes: memory that nobody can be named for is memory all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from matrix.gpus.inventory import Gpu
from matrix.gpus.nvml import MIB, Driver

PATIENCE_S = 15.0
"""So long the driver may take to give back what a dead process held: a few seconds for a full card."""
STILL_S = 3.0
"""After so long without any of it coming back, something still holds it."""
LOOK_S = 0.05
TOLERANCE_MIB = 0
"""What may be left. With the driver held open an idle card has the same in use before and after a process: on an H200
(driver 580.159.04, persistence on) 0 MiB after each of 87 probes, seen on 30 November 2026."""
BUSY_MIB = 256
"""More than this in use before anything of ours runs is somebody else's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a probe did to its GPUs; memory in MiB, times in seconds.

    Attributes:
        base_mib: in use before it, of the GPU with the most.
        peak_mib: the most that was seen in use of one GPU while it ran; looks are some 0.02 s apart.
        left_mib: more in use than before it, over all its GPUs, when waiting was given up; 0 where all came back.
        settle_s: from its end until then.
        held_s: from its begin until then.
        ended: what had to be ended for the memory to come back, by name.
    """

    base_mib: int = 0
    peak_mib: int = 0
    left_mib: int = 0
    settle_s: float = 0.0
    held_s: float = 0.0
    ended: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return what goes into the detail of an observation."""
        return {
            "gpu_base_mib": self.base_mib,
            "gpu_peak_mib": self.peak_mib,
            "gpu_left_mib": self.left_mib,
            "gpu_settle_s": round(self.settle_s, 3),
            "gpu_held_s": round(self.held_s, 3),
        } | ({"gpu_ended": list(self.ended)} if self.ended else {})


@dataclass(slots=True, kw_only=True)
class Settling:
    """Watches the memory of granted GPUs; `begin`, `look` while a probe runs, `settle` once it has ended.

    Attributes:
        gpus: the granted ones.
        ends: ways to end what may still hold memory, each stronger than the one before; each returns names.
    """

    driver: Driver
    gpus: Sequence[Gpu]
    ends: Sequence[Callable[[], Sequence[str]]] = ()
    patience_s: float = PATIENCE_S
    still_s: float = STILL_S
    tolerance_mib: int = TOLERANCE_MIB
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _base: dict[int, int] = field(default_factory=dict)
    _peak: int = 0
    _since: float = 0.0

    def others_mib(self) -> int:
        """Return how much is in use though nothing of ours runs, in MiB; 0 where it is what an idle card takes."""
        used = max((self.driver.used(gpu.index) for gpu in self.gpus), default=0) // MIB
        return used if used > BUSY_MIB else 0

    def begin(self) -> None:
        """Note what is in use now; raises NoDriverError where the driver stops answering."""
        self._base = self._used()
        self._peak = max(self._base.values(), default=0)
        self._since = self.clock()

    def look(self) -> None:
        """Note the most that is in use."""
        self._peak = max(self._peak, *self._used().values())

    def settle(self) -> Settled:
        """Return what came of it, once the memory is back or everything was tried.

        First it waits as long as some of it comes back; then each of `ends` is used in turn, with such a wait after it.
        After the last it waits in any case.
        """
        start, ended = self.clock(), []
        left = self._left_after_wait(last=not self.ends)
        for number, end in enumerate(self.ends, 1):
            if not left:
                break
            ended += list(end())
            left = self._left_after_wait(last=number == len(self.ends))
        now = self.clock()
        return Settled(
            base_mib=max(self._base.values(), default=0) // MIB,
            peak_mib=self._peak // MIB,
            left_mib=left,
            settle_s=now - start,
            held_s=now - self._since,
            ended=tuple(dict.fromkeys(ended)),
        )

    def _left_after_wait(self, *, last: bool) -> int:
        """Return the MiB that are left when the wait is over: at once where none are."""
        start = moved = self.clock()
        least = before = self._left()
        while least:
            now = self.clock()
            if now - start >= self.patience_s or (not last and now - moved >= self.still_s):
                break
            self.sleep(LOOK_S)
            least = self._left()
            if least < before:
                before, moved = least, self.clock()
        return least

    def _left(self) -> int:
        used = self._used()
        # Rounded up: a byte that is left is not nothing.
        more = [-((before - used[index]) // MIB) for index, before in self._base.items() if used[index] > before]
        left = sum(more)
        return left if left > self.tolerance_mib else 0

    def _used(self) -> dict[int, int]:
        return {gpu.index: self.driver.used(gpu.index) for gpu in self.gpus}
