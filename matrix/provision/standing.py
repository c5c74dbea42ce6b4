"""The environment one stands in: a container image, a conda environment; nothing is installed there."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from packaging.version import InvalidVersion, Version

from matrix.cell import MACHINES, VARIANTS, Axis, Cell, Pin, Platform
from matrix.provision.environment import Environment
from matrix.provision.inventory import Inventory, take_inventory


def here(python: Path | None = None) -> Environment:
    """Return the environment of `python`, by default of this interpreter, as a probe started there would see it.

    Its cell is named by the axes that are installed. Raises ToolError when the interpreter does not answer.
    """
    python = python or Path(sys.executable)
    inventory = take_inventory(python, dict(os.environ))
    notes = [f"{item} is there too, shadowed by another version of it" for item in inventory.shadowed]
    if inventory.nameless:
        notes.append(f"{inventory.nameless} dist-info without a name: an interrupted removal left them")
    return Environment(
        cell=cell_name(inventory),
        python=python,
        python_version=inventory.python,
        installed=inventory.packages,
        reused=True,
        notes=tuple(notes),
    )


def cell_name(inventory: Inventory) -> str:
    """Return the name of the cell that the installed axes make, "" where none is installed."""
    pins = [pin for axis in Axis if (pin := _pin(axis, inventory.packages)) is not None]
    if not pins:
        return ""
    machine = inventory.machine if inventory.machine in MACHINES else Platform().machine
    where = Platform(python=".".join(inventory.python.split(".")[:2]), machine=machine)
    return Cell(pins=tuple(pins), platform=where).name


def _pin(axis: Axis, packages: Mapping[str, str]) -> Pin | None:
    """Return the pin of what is installed for an axis; a variant before an alias of the axis's own name."""
    for variant in (*VARIANTS.get(axis, ()), ""):
        text = packages.get(f"{axis.value}-{variant}" if variant else axis.value)
        if text:
            try:
                return Pin(axis=axis, version=Version(text), variant=variant)
            except InvalidVersion:
                continue
    return None
