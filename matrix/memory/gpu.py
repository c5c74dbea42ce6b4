"""The card: what a GPU is called, and how much of its memory CUDA can give out (`gpus.toml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matrix.datafile import Table, read
from matrix.errors import UsageError
from matrix.memory.phase import GIB

GPUS = Path(__file__).with_name("gpus.toml")
BF16 = (8, 0)
"""The capability from which bfloat16 and flash-attention 2 run; verl's defaults need both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A card. `total` is what CUDA calls its total memory, in bytes; `nvidia_smi_mib` what nvidia-smi shows."""

    name: str
    total: int
    nvidia_smi_mib: int
    capability: tuple[int, int]
    source: str

    @property
    def has_bf16(self) -> bool:
        """Return whether verl's defaults run on it at all."""
        return self.capability >= BF16


def load_gpus(path: Path = GPUS) -> dict[str, Gpu]:
    """Return the cards of the data file by name; raises DataError where it is wrong."""
    data = read(path)
    found = {}
    for row in data.tables("gpu"):
        gpu = _of_row(row)
        if gpu.name in found:
            raise row.error("name", f"`{gpu.name}` is there twice")
        found[gpu.name] = gpu
    data.end()
    return found


def gpu_named(name: str, gpus: Mapping[str, Gpu] | None = None) -> Gpu:
    """Return the card of a name (`A100-80GB`, `a100-80g`, `h200`), or one of so many GiB (`48GiB`).

    Raises:
        UsageError: the name is of no card, or of several.
    """
    known = load_gpus() if gpus is None else gpus
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*gib", name.strip().lower())
    if size:
        total = round(float(size[1]) * GIB)
        if total < 1:
            raise UsageError(f"A card of {name} holds nothing.", then="Give a size that CUDA reports, like 44.4GiB.")
        return Gpu(name=name, total=total, nvidia_smi_mib=total >> 20, capability=BF16, source="the command line")
    for gpu in known.values():
        if gpu.name.lower() == name.strip().lower():
            return gpu
    asked = _plain(name)
    exact = [gpu for gpu in known.values() if _plain(gpu.name) == asked]
    found = exact or [gpu for gpu in known.values() if asked and _plain(gpu.name).startswith(asked)]
    if len(found) == 1:
        return found[0]
    then = f"Cards: {', '.join(known)}; or a size that CUDA reports, like 44.4GiB."
    if found:
        raise UsageError(f"`{name}` may be {' or '.join(gpu.name for gpu in found)}.", then=then)
    raise UsageError(f"There is no card `{name}` in the data.", then=then)


def _plain(name: str) -> str:
    """Return the name as people abbreviate it: no signs, no unit, no maker."""
    text = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia)?(geforce)?(tesla)?(rtx)?", "", re.sub(r"g(i?b)?$", "", text))


def _of_row(row: Table) -> Gpu:
    row.has("cuda_gib")
    size = row.values.get("cuda_gib")
    if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
        raise row.error("cuda_gib", "must be a number above 0")
    match = re.fullmatch(r"(\d+)\.(\d)", row.text("capability"))
    if match is None:
        raise row.error("capability", "is written X.Y")
    gpu = Gpu(
        name=row.text("name"),
        total=round(size * GIB),
        nvidia_smi_mib=row.integer("nvidia_smi_mib"),
        capability=(int(match[1]), int(match[2])),
        source=row.text("source"),
    )
    row.moment("checked")
    row.end()
    return gpu
