"""The machine that probes run on, in words without host names, and the class of it that answers depend on."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from matrix.gpus.inventory import take_inventory

DEVICES = Path("/dev")
NVIDIA = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a machine is: architecture, GPUs by model, cores, memory."""

    architecture: str
    gpus: tuple[str, ...] = ()
    cores: int = 1
    memory_gib: int = 0

    @property
    def kind(self) -> str:
        """Return the class that answers depend on: the same probe says the same on two machines of one class."""
        return f"{self.architecture}, {self._gpu_words}"

    @property
    def words(self) -> str:
        """Return the machine in words, for the observations."""
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return f"{self.architecture}, {cores}, {self.memory_gib} GiB, {self._gpu_words}"

    @property
    def _gpu_words(self) -> str:
        counts = {name: self.gpus.count(name) for name in self.gpus}
        return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "no GPU"


def machine_of(kind: str) -> Machine:
    """Return a machine of that class (`Machine.kind`); of its cores and memory the class says nothing.

    Raises:
        ValueError: it names no class of machines.
    """
    architecture, _, rest = kind.partition(", ")
    gpus: list[str] = []
    for part in rest.split(", ") if rest != "no GPU" else ():
        match = re.fullmatch(r"(\d+) x (.+)", part)
        if match is None:
            raise ValueError(f"`{kind}` is no class of machines")
        gpus += [match[2]] * int(match[1])
    return Machine(architecture=architecture, gpus=tuple(gpus))


def this_machine(devices: Path = DEVICES, nvidia: Path = NVIDIA) -> Machine:
    """Return the machine this runs on, as the driver, /dev, /proc and the scheduler tell."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        architecture=platform.machine(),
        gpus=take_inventory(devices=devices).names or _gpus(devices, nvidia),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(total / 2**30),
    )


def _gpus(devices: Path, nvidia: Path) -> tuple[str, ...]:
    """Return the model of each GPU that has a device file here; a container may be given fewer than the host has."""
    count = sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in devices.glob("nvidia*"))
    models = []
    for path in sorted(nvidia.glob("*/information")):
        match = re.search(r"^Model:\s*(.+)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        models.append(match[1].strip() if match else "NVIDIA GPU")
    return tuple((models + ["NVIDIA GPU"] * count)[:count])
