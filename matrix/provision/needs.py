"""What the probes need inside a cell's environment: pytest, added so that nothing of the cell moves, and proved so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matrix.errors import ToolError
from matrix.provision.environment import Environment
from matrix.provision.installer import Installer
from matrix.provision.inventory import take_inventory
from matrix.provision.latch import Waiting, take
from matrix.resolve.process import surroundings

REQUIREMENTS = ("pytest>=8",)
NEEDS = frozenset(
    {"pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "typing-extensions"}
)
"""pytest and all that it may bring along (the last three on Python 3.10 only)."""
PATIENCE_S = 600.0


def add_probe_needs(environment: Environment, installer: Installer | None = None) -> Mapping[str, str]:
    """Return name and version of what was added to the environment; nothing else in it has changed.

    `installer` is the provisioner's. An environment that has pytest gets nothing; one that was not built by this tool
    (`here`) never does.

    Raises:
        ProvisionError: no pytest fits the cell's own packages.
        ToolError: pytest is missing where nothing is installed, or more changed than may.
        IndexUnreachableError, NoSpaceError, BusyError, CorruptFileError: as for installing.
    """
    before = _frozen(environment.python)
    if "pytest" in before:
        return {name: before[name] for name in sorted(before.keys() - environment.installed.keys())}
    if not environment.lock or installer is None:
        raise ToolError(
            f"pytest is not installed for {environment.python}, and nothing is installed there by this tool.",
            then=f"Run `uv pip install --python {environment.python} pytest`, or its own pip.",
        )
    folder = environment.python.parents[1]
    path = folder.parent / f".{folder.name}.needs"
    latch = take(Waiting(path=path, what=f"Adding pytest to {folder.name}", patience_s=PATIENCE_S), shared=False)
    try:
        before = _frozen(environment.python)
        if "pytest" not in before:
            installer.add(environment.python, REQUIREMENTS, before)
        after = _frozen(environment.python)
    finally:
        latch.drop()
    moved = sorted(name for name, version in before.items() if after.get(name) != version)
    added = {name: version for name, version in sorted(after.items()) if name not in environment.installed}
    if moved or not added.keys() <= NEEDS:
        more = sorted(added.keys() - NEEDS)
        raise ToolError(
            f"Adding pytest changed the cell: {', '.join([*moved, *more])}.",
            then="Remove the environment (`verl-matrix env remove`) and run again.",
        )
    return added


def _frozen(python: Path) -> Mapping[str, str]:
    return take_inventory(python, surroundings()).packages
