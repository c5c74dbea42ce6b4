"""The lane: where the launches of a pairing run one after the other, on GPUs that no other run has meanwhile, or a CPU.

The same cards are kept from launch to launch, so that both sides of a pair run on the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.telemetry import Gauges, NvmlGauges
from matrix.gpus import fingerprint
from matrix.gpus.inventory import Gpu, Inventory, take_inventory
from matrix.gpus.need import Need
from matrix.gpus.nvml import Driver, Holder, Told, driver
from matrix.gpus.pool import Pool
from matrix.gpus.settling import Settling
from matrix.gpus.warming import warm
from matrix.observe import Observation, Question
from matrix.probing.machine import Machine, this_machine
from matrix.provision.environment import Environment
from matrix.tier import Outcome, Tier

PATIENCE_S = 600.0
"""So long another run may hold the cards."""


class NoDriver:
    """The answers of a machine that has no GPU."""

    def gpus(self) -> list[Told]:
        """Return none."""
        return []

    def used(self, index: int) -> int:
        """Return 0: there is no such GPU."""
        return 0

    def holders(self, index: int) -> list[Holder]:
        """Return none."""
        return []

    def facts(self, index: int) -> Mapping[str, Any]:
        """Return none."""
        return {}

    def versions(self) -> Mapping[str, str]:
        """Return none."""
        return {}

    def links(self, first: int, second: int) -> Mapping[str, Any]:
        """Return none."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Granted cards, none on a CPU, and what the machine is like.

    Attributes:
        driver: tells of the machine; `gauges` of what the cards do while a launch runs, None on a CPU.
        inventory: all cards of the machine; `gpus` the granted ones.
        visible: the value of CUDA_VISIBLE_DEVICES that shows these and no others.
        machine: the class of machine, and its words.
    """

    driver: Driver
    gauges: Gauges | None
    inventory: Inventory
    gpus: tuple[Gpu, ...]
    visible: str
    machine: Machine

    def settling(self) -> Settling:
        """Return what watches the memory of the cards from now on."""
        found = Settling(driver=self.driver, gpus=self.gpus)
        found.begin()
        return found

    def facts(self, environment: Environment) -> dict[str, Any]:
        """Return the fingerprint as it is now; raises NoDriverError where the driver has stopped answering."""
        return fingerprint.fingerprint(
            self.driver, self.inventory, python=environment.python_version, installed=environment.installed,
            environ=os.environ,
        )  # fmt: skip

    @property
    def places(self) -> tuple[int, ...]:
        """Return where the granted cards stand in the inventory."""
        held = [gpu.uuid for gpu in self.inventory.gpus]
        return tuple(held.index(gpu.uuid) for gpu in self.gpus)


def observed(
    environment: Environment, lock: str, machine: Machine, facts: Mapping[str, Any], at: datetime
) -> Observation:
    """Return the observation that holds a whole fingerprint."""
    name = fingerprint.digest(facts)
    return Observation(
        question=Question(
            cell=environment.cell,
            probe=fingerprint.PROBE,
            tier=Tier.BENCH,
            tool=fingerprint.TOOL,
            reads={"lock": lock, "machine": machine.kind, "fingerprint": name},
        ),
        outcome=Outcome.OK,
        detail={"fingerprint": name, "facts": dict(facts)},
        machine=machine.words,
        at=at,
    )


Opens = Callable[[int], AbstractContextManager[Lane]]
"""Opens a lane of so many GPUs."""


@contextmanager
def lane(
    gpus: int,
    *,
    asked: Driver | None = None,
    gauges: Gauges | None = None,
    pool: Pool | None = None,
    warmed: Callable[[str], None] = warm,
    devices: Path = Path("/dev"),
) -> Iterator[Lane]:
    """Yield a lane of so many GPUs, of none for a CPU.

    Raises:
        ToolError: there are not so many, or no driver that answers.
        BusyError: others held them for ten minutes.
    """
    if not gpus:
        # Named as a machine without one even where there is: nothing of it is used, and numbers must not meet.
        machine = replace(this_machine(devices), gpus=())
        yield Lane(driver=NoDriver(), gauges=None, inventory=Inventory(), gpus=(), visible="", machine=machine)
        return
    speaks = asked or driver()
    pool = pool or Pool(inventory=take_inventory())
    with pool.grant(Need(gpus=gpus), patience_s=PATIENCE_S) as grant:
        warmed(grant.visible)
        yield Lane(
            driver=speaks,
            gauges=gauges or NvmlGauges(),
            inventory=pool.inventory,
            gpus=grant.gpus,
            visible=grant.visible,
            machine=replace(this_machine(), gpus=tuple(gpu.name for gpu in grant.gpus)),
        )
