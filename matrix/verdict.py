"""The verdict: what the observations of a cell say together (DESIGN: Words, Rules)."""

from __future__ import annotations

from dataclasses import dataclass

from matrix.cell import Cell
from matrix.observe import Observation
from matrix.tier import Status, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A cell's status, how deep it was tried, why, and the observations it rests on.

    `deepest` is None when nothing ran; then the status is `untested`. `reasons` are lines for people, the most
    important first.
    """

    cell: Cell
    status: Status
    deepest: Tier | None
    reasons: tuple[str, ...]
    evidence: tuple[Observation, ...]
