"""How a cell is installed, as commands to copy: from its lock, or by plain uv with the pins that the lock chose."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any

from matrix.cell import Cell
from matrix.observe import Observation
from matrix.tier import Outcome, Tier
from matrix.verdict import Verdict, deviation_words


def install_document(verdict: Verdict) -> dict[str, Any]:
    """Return how the cell is installed (schema.json: `install`).

    `exact` installs the lock, file by file with its hashes, and needs this tool; "" where there is none. `plain` needs
    uv only: the pins, the axes at the versions of the lock, and the index as of when it was locked; "" where the set
    cannot be installed as it stands, and then `why_not` says why. `builds` are packages of the lock that have no wheel
    on the index; `deviation` says in which way the metadata are overruled.
    """
    cell, resolved = verdict.cell, verdict.observation(Tier.RESOLVE)
    locked = resolved is not None and resolved.outcome is Outcome.OK
    waived = cell.deviation is not None and cell.deviation.no_deps
    lock = str(resolved.detail.get("lock") or "") if resolved is not None and locked else ""
    packages = resolved.detail.get("packages") if resolved is not None and locked else None
    builds = resolved.detail.get("to_build") if resolved is not None and locked else None
    return {
        "exact": f"verl-matrix env build {shlex.quote(cell.name)}" if locked else "",
        "plain": plain(cell, resolved) if locked or waived else "",
        "lock": lock,
        "packages": packages if isinstance(packages, int) else 0,
        "builds": [str(name) for name in builds] if isinstance(builds, list | tuple) else [],
        "deviation": deviation_words(cell),
        "why_not": "" if locked or waived else _why_not(resolved),
    }


def plain(cell: Cell, resolved: Observation | None) -> str:
    """Return the lines that make a virtual environment of the cell with uv."""
    lines = [f"uv venv --python {cell.platform.python} .venv && . .venv/bin/activate"]
    words = ["uv", "pip", "install"]
    deviation = cell.deviation
    if deviation is not None and deviation.no_deps:
        words.append("--no-deps")
    if deviation is not None and deviation.overrides:
        overrides = " ".join(shlex.quote(item) for item in deviation.overrides)
        lines.append(f"printf '%s\\n' {overrides} > overrides.txt")
        words += ["--override", "overrides.txt"]
    moment = _moment(cell, resolved)
    if moment is not None:
        words += ["--exclude-newer", f"{moment:%Y-%m-%dT%H:%M:%SZ}"]
    lines.append(" ".join([*words, *(shlex.quote(item) for item in _pins(cell, resolved))]))
    return "\n".join(lines)


def _pins(cell: Cell, resolved: Observation | None) -> list[str]:
    """Return what to ask for: the cell's own words, then the axes that the lock chose, at its versions."""
    versions = resolved.detail.get("versions") if resolved is not None and resolved.outcome is Outcome.OK else None
    chosen: dict[str, Any] = dict(versions) if isinstance(versions, dict) else {}
    named = {pin.axis.value for pin in cell.pins}
    # An open axis keeps its extras, at the version that the lock has.
    asked = [pin.requirement for pin in cell.pins]
    for axis in cell.open_axes:
        named.add(axis.axis.value)
        extras = f"[{','.join(axis.extras)}]" if axis.extras else ""
        version = chosen.get(axis.axis.value)
        asked.append(f"{axis.axis.value}{extras}=={version}" if version else axis.requirement)
    rest = [f"{name}=={version}" for name, version in chosen.items() if name not in named]
    return [*asked, *rest, *cell.added]


def _moment(cell: Cell, resolved: Observation | None) -> datetime | None:
    """Return from when on the index is not looked at: the cell's own date, else when its lock was made."""
    if cell.as_of is not None:
        return cell.as_of
    return resolved.at if resolved is not None and resolved.outcome is Outcome.OK else None


def _why_not(resolved: Observation | None) -> str:
    if resolved is None or resolved.outcome is Outcome.UNTESTED:
        return "Whether this set can be installed was not tried, so there is no command that is known to install it."
    return "No set of packages satisfies these pins; installing it takes an override or --no-deps, and is another cell."
