"""What one tier said of a cell, by where it was tried: on this machine, or on the one the shipped evidence is from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from matrix.observe import Observation
from matrix.tier import RANKS, Outcome, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """How a tier was tried at one place.

    Attributes:
        tier: how deep.
        shipped: name of the store of evidence that says so; "" for what was tried here.
        outcome: the worst of its probes that ran; `untested` where none did.
        ran: how many probes have an answer.
        planned: how many there are, with those that are untested.
        machines: on what, each once.
        at: when the latest answer was had (UTC).
        seconds: wall time of the probes together.
        other_lock: whether it was another set of packages than the cell resolves to now.
    """

    tier: Tier
    shipped: str
    outcome: Outcome
    ran: int
    planned: int
    machines: tuple[str, ...]
    at: datetime
    seconds: float
    other_lock: bool = False

    @property
    def line(self) -> str:
        """Return it as a line, e.g. `gpu: ok, 41 of 44 probes, NVIDIA H200, 2026-11-30, shipped evidence`."""
        count = f"{self.ran} of {self.planned} probes, " if self.planned > 1 else ""
        where = "".join(f"{short(machine)}, " for machine in self.machines if machine != "static")
        return f"{self.tier}: {self.outcome}, {count}{where}{self.at:%Y-%m-%d}{self.aside}"

    @property
    def aside(self) -> str:
        """Return how far the answers speak for this machine and this set: "" for what was tried here."""
        words = (["shipped evidence"] if self.shipped else []) + (["another lock"] if self.other_lock else [])
        return "".join(f", {word}" for word in words)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data (reports/schema.json: `tried`)."""
        return {
            "tier": self.tier.value,
            "shipped": self.shipped,
            "outcome": self.outcome.value,
            "ran": self.ran,
            "planned": self.planned,
            "machines": list(self.machines),
            "at": self.at.isoformat(),
            "seconds": round(self.seconds, 3),
            "other_lock": self.other_lock,
            "line": self.line,
        }


def tried(evidence: Iterable[Observation]) -> tuple[Tried, ...]:
    """Return what each tier said, shallow first, what was tried here before what others recorded."""
    found: dict[tuple[Tier, str], list[Observation]] = {}
    for item in evidence:
        if item.question.measures:
            continue
        found.setdefault((item.question.tier, item.shipped), []).append(item)
    resolved = [item for (tier, _), items in found.items() if tier is Tier.RESOLVE for item in items]
    lock = next((item.detail.get("lock") for item in resolved), None)
    ordered = sorted(found, key=lambda slot: (slot[0].depth, slot[1]))
    return tuple(_tried(tier, name, found[tier, name], lock) for tier, name in ordered)


def _tried(tier: Tier, name: str, items: Sequence[Observation], lock: object) -> Tried:
    ran = [item for item in items if item.outcome is not Outcome.UNTESTED]
    locks = {item.question.reads.get("lock") for item in ran if tier.is_deep} - {None}
    return Tried(
        tier=tier,
        shipped=name,
        outcome=max((item.outcome for item in items if item.answers), key=RANKS.index, default=Outcome.UNTESTED),
        ran=len(ran),
        planned=len(items),
        machines=tuple(dict.fromkeys(item.machine for item in ran)),
        at=max(item.at for item in ran or items),
        seconds=sum(item.seconds for item in items),
        other_lock=bool(lock and locks and locks != {lock}),
    )


def short(machine: str) -> str:
    """Return a machine in the words that tell it from others: its GPUs where it has some, else all that is known."""
    match = re.search(r"(\d+) x (.+)$", machine)
    if match is None:
        return machine
    return match[2] if match[1] == "1" else f"{match[1]} x {match[2]}"
