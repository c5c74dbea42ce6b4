"""The guard of GPUs: lets a probe begin once the one before has given its memory back, and proves that it did."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from matrix.gpus.nvml import NoDriverError
from matrix.gpus.settling import Settled, Settling
from matrix.probing import processes
from matrix.probing.lines import EndedProbe

GO = "VERL_MATRIX_GO"
"""Names the file in which a probe finds its id once it may begin (tests/compat/conftest.py waits for it)."""


@dataclass(slots=True, kw_only=True)
class Guard:
    """Stands between the probes of one grant of GPUs.

    Attributes:
        settling: watches the memory of the granted GPUs.
        go: the file that says who may begin.
        detail: what every observation of this grant says besides.
        closed: why no further probe may begin, "" while one may.
        halted: whether all processes were ended to get memory back, the next probe's among them.
        held_s: the seconds that probes had the GPUs, so far.
    """

    settling: Settling
    go: Path
    detail: Mapping[str, object] = field(default_factory=dict)
    closed: str = ""
    halted: bool = False
    held_s: float = 0.0

    def admit(self, test: str) -> None:
        """Note what is in use before a probe, and let it begin."""
        try:
            self.settling.begin()
        except NoDriverError as error:
            self.closed = _silent(error)
            return
        with self.go.open("a", encoding="utf-8") as file:
            file.write(f"{test}\n")

    def look(self) -> None:
        """Note what is in use while a probe runs; a driver that does not answer now is asked again at its end."""
        with contextlib.suppress(NoDriverError):
            self.settling.look()

    def halt(self, token: str) -> list[processes.Process]:
        """End every process of the run, pytest's among them, and return those that were there; a new one goes on."""
        self.halted = True
        return processes.end(token)

    def settle(self, ended: EndedProbe) -> EndedProbe:
        """Return the end of a probe with what it did to the GPUs, once they are as before or are given up."""
        try:
            settled = self.settling.settle()
        except NoDriverError as error:
            self.closed = _silent(error)
            return replace(ended, detail={**ended.detail, **self.detail, "gpu_silent": str(error)})
        self.held_s += settled.held_s
        if settled.left_mib:
            self.closed = f"{ended.test} left {settled.left_mib} MiB on the GPU, which did not come back"
        return replace(ended, detail=_merged(ended.detail, self.detail, settled))


def _merged(own: Mapping[str, object], more: Mapping[str, object], settled: Settled) -> dict[str, object]:
    """Return all details; what had to be ended for the memory's sake is among what the probe left."""
    merged = {**own, **more, **settled.to_json()}
    if settled.ended:
        before = own.get("left")
        merged["left"] = sorted({*(before if isinstance(before, list) else ()), *settled.ended})
    return merged


def _silent(error: NoDriverError) -> str:
    return f"the NVIDIA driver no longer answers: {error}"
