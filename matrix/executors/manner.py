"""How cells are visited: what of them is tried, and with what; the same on this machine and on any other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.errors import ToolError
from matrix.tier import Tier

if TYPE_CHECKING:
    from matrix.home import Home
    from matrix.job import Visitor
    from matrix.observe import Observation
    from matrix.probing.machine import Machine
    from matrix.provision import Environment
    from matrix.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """What the options of a run say of its visits.

    Attributes:
        tiers: the tiers that need an installation and are tried.
        patterns: only probes whose id matches one of these globs; all where there is none.
        memory_gib: the memory that a probe may take; 0 for the usual.
        keep: whether the environments that are made stay.
        index_url: the package index, None for that of the machine's own settings.
        offline: whether only what is cached is used.
        here: the interpreter of an environment that is there already, None where cells are installed.
        cell: the name that this environment is given, "" for what is installed.
        again: whether what was answered is asked again.
        since: what was answered after that moment is not, all the same.
    """

    tiers: frozenset[Tier] = field(default_factory=frozenset)
    patterns: tuple[str, ...] = ()
    memory_gib: int = 0
    keep: bool = False
    index_url: str | None = None
    offline: bool = False
    here: Path | None = None
    cell: str = ""
    again: bool = False
    since: datetime | None = None

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data of what another machine has to know; what was answered travels with each cell."""
        return {
            "tiers": sorted(self.tiers),
            "patterns": list(self.patterns),
            "memory_gib": self.memory_gib,
            "keep": self.keep,
            "index_url": self.index_url,
            "offline": self.offline,
            "here": None if self.here is None else str(self.here),
            "cell": self.cell,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manner:
        """Return what `to_json` told; raises KeyError, ValueError for anything else."""
        return cls(
            tiers=frozenset(Tier(word) for word in data["tiers"]),
            patterns=tuple(str(text) for text in data["patterns"]),
            memory_gib=int(data["memory_gib"]),
            keep=bool(data["keep"]),
            index_url=data["index_url"],
            offline=bool(data["offline"]),
            here=Path(data["here"]) if data["here"] else None,
            cell=str(data["cell"]),
        )


def open_visitor(
    manner: Manner,
    *,
    home: Home,
    store: Store,
    lock: Callable[[Observation], str],
    say: Callable[[str], None],
    uv: Path | None = None,
    machine: Machine | None = None,
    heed: Callable[[Path], object] = lambda path: None,
) -> Visitor:
    """Return what installs and probes cells on this machine, or probes the environment that is there.

    `heed` is told the files in which it is remembered what there is to run.

    Raises:
        ToolError: there is no uv to install with, or no probes.
        DataError: a record of a known failure is malformed.
    """
    from matrix.probing import visit
    from matrix.probing.cellfile import by_id
    from matrix.probing.machine import this_machine
    from matrix.probing.prober import Prober
    from matrix.probing.session import GIB, Limits
    from matrix.provision import Provisioner, add_probe_needs, here
    from matrix.provision.inventory import take_inventory
    from matrix.records import load_failures
    from matrix.resolve.process import surroundings

    limits = Limits.usual()
    make = functools.partial(
        Prober,
        store=store,
        cache=home.cache,
        failures=by_id(load_failures()),
        tiers=manner.tiers,
        patterns=manner.patterns,
        again=manner.again,
        since=manner.since,
        limits=replace(limits, memory=manner.memory_gib * GIB, asked=True) if manner.memory_gib else limits,
        machine=machine or this_machine(),
        heed=heed,
    )
    if manner.here is not None:
        where = surroundings()
        prober = make(equip=_has_pytest, frozen=lambda python: take_inventory(python, where).packages)
        # `Path("")`, which is the interpreter that this runs in, has no parts.
        return visit.Stay(prober=prober, environment=here(manner.here if manner.here.parts else None, manner.cell))
    provisioner = Provisioner(
        home=home, index_url=manner.index_url, offline=manner.offline, keep=manner.keep, say=say, uv=uv
    )
    installer = provisioner.installer
    prober = make(
        equip=lambda environment: add_probe_needs(environment, installer),
        frozen=lambda python: take_inventory(python, installer.environment, children=installer.children).packages,
    )
    return visit.Visitor(prober=prober, provisioner=provisioner, lock=lock)


def _has_pytest(environment: Environment) -> None:
    """Raise ToolError where pytest is missing in an environment in which nothing is installed by this tool."""
    if "pytest" not in environment.installed:
        raise ToolError(
            f"pytest is not installed for {environment.python}, and --here installs nothing.",
            then=f"Run `uv pip install --python {environment.python} pytest`, or its own pip.",
        )
