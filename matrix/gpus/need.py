"""What a probe needs of GPUs, and why a machine does not have it."""

from __future__ import annotations

from dataclasses import dataclass

from matrix.gpus.inventory import Gpu, Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """So many whole GPUs, each of this compute capability at least and with so much memory (in GiB)."""

    gpus: int = 1
    capability: tuple[int, int] = (0, 0)
    memory_gib: float = 0.0


def read_capability(text: str) -> tuple[int, int]:
    """Return the compute capability that is written `9.0` or `9`, (0, 0) for ""; raises ValueError for another text."""
    if not text:
        return (0, 0)
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def eligible(need: Need, inventory: Inventory) -> tuple[Gpu, ...]:
    """Return the GPUs each of which is enough."""
    return tuple(gpu for gpu in inventory.gpus if not _too_little(need, gpu))


def lacking(need: Need, inventory: Inventory) -> str:
    """Return why the need cannot be met here, "" where it can."""
    if need.gpus <= len(eligible(need, inventory)):
        return ""
    wanted, held = _counted(need.gpus), len(inventory.gpus)
    if not held:
        return f"needs {wanted}; this machine has no GPU" + (f": {inventory.why}" if inventory.why else "")
    if held < need.gpus:
        more = f" ({inventory.why})" if inventory.why else ""
        return f"needs {wanted}; this machine has {_counted(held)}{more}"
    reasons = dict.fromkeys(filter(None, (_too_little(need, gpu) for gpu in inventory.gpus)))
    each = "" if need.gpus == 1 else f"needs {wanted}, each of which "
    return "; ".join(f"{each}{reason}" for reason in reasons)


def _too_little(need: Need, gpu: Gpu) -> str:
    if gpu.capability < need.capability:
        wanted = "{}.{}".format(*need.capability)
        return f"needs compute capability {wanted}; {gpu.name} has {gpu.capability_text}"
    if gpu.memory_gib < need.memory_gib:
        return f"needs {need.memory_gib:g} GiB; {gpu.name} has {gpu.memory_gib} GiB"
    return ""


def _counted(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
