"""The GPUs that may be used here: those the driver tells of, that the caller's environment shows, and are whole."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.gpus.nvml import GIB, Driver, NoDriverError, Told, driver

VISIBLE = "CUDA_VISIBLE_DEVICES"
_GIVEN = "NVIDIA_VISIBLE_DEVICES"
DEVICES = Path("/dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A whole GPU: the driver's index, its UUID (which never leaves this machine), model, memory in bytes."""

    index: int
    uuid: str
    name: str
    memory: int
    capability: tuple[int, int]

    @property
    def memory_gib(self) -> int:
        """Return its memory in whole GiB, as the driver tells it: a card sold as 16 GB has 15."""
        return self.memory // GIB

    @property
    def capability_text(self) -> str:
        """Return its compute capability, e.g. `9.0`."""
        return "{}.{}".format(*self.capability)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The GPUs that may be used; `why` says why there is none, or why some are left out."""

    gpus: tuple[Gpu, ...] = ()
    why: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the model of each."""
        return tuple(gpu.name for gpu in self.gpus)


def take_inventory(
    asked: Driver | None = None, environ: Mapping[str, str] | None = None, devices: Path = DEVICES
) -> Inventory:
    """Return the GPUs that may be used by this process; never raises.

    `CUDA_VISIBLE_DEVICES` and `NVIDIA_VISIBLE_DEVICES` of the caller are respected (empty: none). A GPU with MIG on is
    left out: a slice of it is not the card whose limits are asked for.
    """
    environ = os.environ if environ is None else environ
    if asked is None and not any(re.fullmatch(r"nvidia\d+|nvidiactl|dxg", path.name) for path in devices.glob("*")):
        # Spares the library: without a device file there is nothing that it could speak to.
        return Inventory()
    try:
        told = (driver() if asked is None else asked).gpus()
    except NoDriverError as error:
        return Inventory(why=f"no NVIDIA driver answers: {error}")
    shown = told
    for name in (_GIVEN, VISIBLE):
        shown = _shown(shown, told, environ.get(name), runtime=name == _GIVEN)
    hidden = "" if shown else f"{VISIBLE} or {_GIVEN} shows none of {_counted(told)}"
    sliced = [item for item in shown if item.sliced]
    why = f"MIG is on, so it is not whole: {', '.join(item.name for item in sliced)}" if sliced else hidden
    gpus = tuple(
        Gpu(index=item.index, uuid=item.uuid, name=item.name, memory=item.memory, capability=item.capability)
        for item in shown
        if not item.sliced
    )
    return Inventory(gpus=gpus, why=why if told else "the NVIDIA driver tells of no GPU")


def _shown(shown: list[Told], told: Sequence[Told], words: str | None, *, runtime: bool) -> list[Told]:
    """Return those of `shown` that a variable leaves visible, in its order, as CUDA reads it.

    CUDA stops at the first word that names no GPU (CUDA C++ Programming Guide, environment variables). The container
    runtime knows `all`, `void` and `none` besides, and has applied its variable already: an index of its own counts
    GPUs of the host, so only "none at all" is taken from it.
    """
    if words is None:
        return shown
    if runtime:
        return [] if words.strip() in ("void", "none") else shown
    kept: list[Told] = []
    for word in (word.strip() for word in words.split(",")):
        found = next((item for item in told if _names(word, item)), None)
        if found is None or found in kept:
            break
        if found in shown:
            kept.append(found)
    return kept


def _names(word: str, item: Told) -> bool:
    """Return whether a word of the variable names this GPU: its index, its UUID or the beginning of that."""
    if word.isdecimal():
        return int(word) == item.index
    if word.startswith("MIG-"):
        return False
    return len(word) > len("GPU-") and item.uuid.startswith(word)


def _counted(told: Sequence[Told]) -> str:
    return "1 GPU" if len(told) == 1 else f"{len(told)} GPUs"
