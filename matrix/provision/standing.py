"""The environment one stands in: a container image, a conda environment; nothing is installed there."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from packaging.version import InvalidVersion, Version

from matrix.cell import MACHINES, VARIANTS, Axis, Cell, Pin, Platform, parse_name
from matrix.errors import UsageError
from matrix.provision.environment import Environment, Manifest, read_manifest
from matrix.provision.inventory import Inventory, differences, same_release, take_inventory
from matrix.provision.needs import NEEDS
from matrix.resolve.lock import parse_lock

LOCK = "verl-matrix.pylock.toml"
"""The file beside the manifest of an environment out of a bundle in which its lock lies."""


def here(python: Path | None = None, cell: str = "") -> Environment:
    """Return the environment of `python`, by default of this interpreter, as a probe started there would see it.

    One that this tool made, on its shelf or out of a bundle, is the cell that its manifest names, with that cell's
    lock; in what it is no longer (or never was) what the lock says stands in `differing`. Any other is named `cell`,
    else by the axes that are installed.

    Raises:
        ToolError: the interpreter does not answer.
        UsageError: what is installed is not what `cell` names.
    """
    python = (python or Path(sys.executable)).absolute()
    inventory = take_inventory(python, dict(os.environ))
    notes = [f"{item} is there too, shadowed by another version of it" for item in inventory.shadowed]
    if inventory.nameless:
        notes.append(f"{inventory.nameless} dist-info without a name: an interrupted removal left them")
    manifest = manifest_of(python)
    if manifest is None:
        found = cell_name(inventory)
        _refuse_other(cell, inventory)
        return Environment(
            cell=cell or found,
            python=python,
            python_version=inventory.python,
            installed=inventory.packages,
            reused=True,
            notes=tuple(notes),
        )
    if cell not in ("", manifest.cell):
        raise UsageError(f"{python} is the environment of {manifest.cell}, not of {cell}.", then="Leave --cell away.")
    came = manifest.bundled
    return Environment(
        cell=manifest.cell,
        python=python,
        python_version=inventory.python,
        installed=inventory.packages,
        lock=came.lock if came is not None else manifest.lock.partition("+")[0],
        built=manifest.built,
        reused=True,
        notes=(*manifest.notes, *notes),
        left_out=came.left_out if came is not None else {},
        differing=_differing(manifest, python.parents[1], inventory),
    )


def manifest_of(python: Path) -> Manifest | None:
    """Return the manifest of the environment that `python` is of, None where this tool did not make it."""
    folder = python.absolute().parent.parent
    return read_manifest(folder)


def _differing(manifest: Manifest, folder: Path, inventory: Inventory) -> tuple[str, ...]:
    """Return in what the environment is not what its lock says; the manifest speaks where no lock lies beside it.

    What a bundle did not carry, what it took from the host under a local version, and pytest are no difference.
    """
    wanted = dict(manifest.installed)
    came = manifest.bundled
    if came is not None:
        try:
            lock = parse_lock((folder / LOCK).read_text(encoding="utf-8"))
        except OSError:
            return (f"{LOCK} is gone, so it cannot be compared with its lock",)
        locked = {name: str(version) for name, version in lock.versions.items() if name not in came.left_out}
        # An alias is in no lock; a wheel of the user's own may have a local version.
        wanted = {**{name: version for name, version in wanted.items() if name not in lock.versions}, **locked}
    found = {
        name: wanted[name] if name in wanted and same_release(wanted[name], version) else version
        for name, version in inventory.packages.items()
        if name in wanted or name not in NEEDS
    }
    return differences(wanted, found)


def _refuse_other(name: str, inventory: Inventory) -> None:
    """Raise UsageError where an axis is not installed as `name` has it."""
    wrong = []
    for pin in parse_name(name).pins if name else ():
        found = inventory.packages.get(pin.package)
        if found is None or not same_release(str(pin.version), found):
            wrong.append(f"{pin.package} is {found or 'not there'}, the name says {pin.version}")
    if wrong:
        raise UsageError(
            f"What is installed is not {name}: {'; '.join(wrong)}.", then="Leave --cell away, and it is named."
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
