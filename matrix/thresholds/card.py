"""The card: a GPU that a search has for itself, what it was like, and the proof that nothing was left on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from matrix.gpus import fingerprint
from matrix.gpus.inventory import take_inventory
from matrix.gpus.need import Need
from matrix.gpus.nvml import Driver, driver
from matrix.gpus.pool import Pool
from matrix.gpus.settling import Settled, Settling
from matrix.gpus.warming import warm
from matrix.observe import Observation, Question
from matrix.probing.machine import Machine, this_machine
from matrix.provision.environment import Environment
from matrix.tier import Outcome, Tier

PATIENCE_S = 120.0
"""So long another run may hold the card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A granted GPU.

    Attributes:
        visible: what CUDA_VISIBLE_DEVICES has to be to see it and no other.
        machine: the class of machine it is in.
        facts: the fingerprint; `digest` names it.
        settling: knows what was in use before.
    """

    visible: str
    machine: Machine
    facts: Mapping[str, Any] = field(default_factory=dict)
    settling: Settling

    @property
    def digest(self) -> str:
        """Return the digest that every observation made on it names."""
        return fingerprint.digest(self.facts)

    def settle(self) -> Settled:
        """Return what is left once all that ran has ended."""
        return self.settling.settle()

    def observation(self, cell: str, lock: str, at: datetime) -> Observation:
        """Return the observation that holds the whole fingerprint."""
        reads = {"lock": lock, "machine": self.machine.kind, "fingerprint": self.digest}
        return Observation(
            question=Question(
                cell=cell, probe=fingerprint.PROBE, tier=Tier.GPU, tool=fingerprint.TOOL, reads=reads
            ),
            outcome=Outcome.OK,
            detail={"fingerprint": self.digest, "facts": dict(self.facts)},
            machine=self.machine.words,
            at=at,
        )  # fmt: skip


@contextmanager
def card(
    environment: Environment,
    *,
    asked: Driver | None = None,
    pool: Pool | None = None,
    warmed: Callable[[str], None] = warm,
) -> Iterator[Card]:
    """Yield one GPU that no other run of this tool has meanwhile.

    Raises:
        ToolError: there is none, or no driver that answers.
        BusyError: others held all of them for two minutes.
    """
    speaks = asked or driver()
    pool = pool or Pool(inventory=take_inventory())
    with pool.grant(Need(), patience_s=PATIENCE_S) as grant:
        warmed(grant.visible)
        facts = fingerprint.fingerprint(
            speaks, pool.inventory, python=environment.python_version, installed=environment.installed,
            environ=os.environ,
        )  # fmt: skip
        settling = Settling(driver=speaks, gpus=grant.gpus)
        settling.begin()
        machine = replace(this_machine(), gpus=tuple(gpu.name for gpu in grant.gpus))
        yield Card(visible=grant.visible, machine=machine, facts=facts, settling=settling)
