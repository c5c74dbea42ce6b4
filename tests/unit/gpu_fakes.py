"""A driver of made-up GPUs: what is in use is what a test says, or what files of living processes say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from matrix.gpus.inventory import Gpu, Inventory
from matrix.gpus.nvml import GIB, MIB, Holder, NoDriverError, Told

H200 = Told(index=0, uuid="GPU-aaaa-1", name="NVIDIA H200", memory=141 * GIB, capability=(9, 0))
T4 = Told(index=1, uuid="GPU-bbbb-2", name="NVIDIA T4", memory=15 * GIB, capability=(7, 5))
T = TypeVar("T")
FACTS: dict[str, Any] = {"clock_max_mhz": {"sm": 1980, "memory": 3201}, "power_limit_w": 700.0, "mig": False}


@dataclass
class FakeDriver:
    """Answers from its fields; `silent` is raised by all once it is set. `held` gives the bytes in use of a GPU."""

    told: list[Told] = field(default_factory=lambda: [H200])
    held: Callable[[int], int] = lambda index: 4 * MIB
    named: list[Holder] = field(default_factory=list)
    silent: str = ""

    def gpus(self) -> list[Told]:
        return self._answer(self.told)

    def used(self, index: int) -> int:
        return self._answer(self.held(index))

    def holders(self, index: int) -> list[Holder]:
        return self._answer(self.named)

    def facts(self, index: int) -> Mapping[str, Any]:
        return self._answer(FACTS)

    def versions(self) -> Mapping[str, str]:
        return self._answer({"driver": "580.159.04", "cuda": "13.0"})

    def links(self, first: int, second: int) -> Mapping[str, Any]:
        return self._answer({"ancestor": "system", "p2p": True, "nvlink": True})

    def _answer(self, value: T) -> T:
        if self.silent:
            raise NoDriverError(self.silent)
        return value


def gpu(told: Told = H200) -> Gpu:
    """Return the GPU that a driver tells of."""
    return Gpu(index=told.index, uuid=told.uuid, name=told.name, memory=told.memory, capability=told.capability)


def inventory(*told: Told, why: str = "") -> Inventory:
    """Return the inventory of these."""
    return Inventory(gpus=tuple(gpu(item) for item in told), why=why)


def many(count: int) -> list[Told]:
    """Return so many H200s."""
    return [
        Told(index=number, uuid=f"GPU-{number}", name="NVIDIA H200", memory=141 * GIB, capability=(9, 0))
        for number in range(count)
    ]


def held_by_files(folder: Path, idle: int = 4 * MIB) -> Callable[[int], int]:
    """Return what gives the bytes in use: `idle`, and what the file named by the id of a living process says."""

    def used(index: int) -> int:
        total = idle
        for path in folder.iterdir():
            try:
                stat = Path("/proc", path.name.partition("-")[0], "stat").read_text(encoding="utf-8")
                alive = stat.rpartition(")")[2].split()[0] not in ("Z", "X")
                total += int(path.read_text(encoding="utf-8")) if alive else 0
            except (OSError, ValueError):
                continue
        return total

    return used


@dataclass
class FakeClock:
    """A clock that `sleep` moves, and nothing else; `at` maps a moment to what is done once it is reached."""

    now: float = 100.0
    events: dict[float, Callable[[], object]] = field(default_factory=dict)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in sorted(self.events):
            if self.now >= moment:
                self.events.pop(moment)()
