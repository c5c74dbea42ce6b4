"""The observation: one probe's outcome on one cell; immutable, appended, never edited (docs/architecture.md: Words)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from matrix.tier import Outcome, Tier

SCHEMA = 1
MACHINE, THRESHOLD, TRIALS = "machine", "threshold/", ("trial/", "memory/")
"""What the probes are called that measure and judge nothing; their names begin so."""
LAUNCH = "launch/"
"""What a launch of a bench is called: its name begins so. It measures and judges nothing."""
COMPARE, STANDING = "compare/", "standing/"
"""What a comparison of launches is called, and what says that a toggle was not run; neither judges a cell."""
INSTALL = "install"
"""The probe under whose name it is kept that a cell was installed, or why it cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: a probe on a cell, by a version of this tool, over inputs named by their digests.

    Two equal questions have the same answer, so an answered one is never asked again. `reads` maps what the answer
    depends on to its digest (`"verl-0.9.1-py3-none-any.whl": "sha256:…"`, `"uv": "0.13.9"`).
    """

    cell: str
    probe: str
    tier: Tier
    tool: str
    reads: Mapping[str, str]

    @property
    def key(self) -> str:
        """Return the hex SHA-256 that names this question in the store."""
        body = {"cell": self.cell, "probe": self.probe, "tool": self.tool, "reads": dict(sorted(self.reads.items()))}
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    @property
    def slot(self) -> tuple[Tier, str, str]:
        """Return what a later answer takes the place of: one probe has one, a machine one for each state of it."""
        return self.tier, self.probe, self.reads.get("fingerprint", "") if self.probe == MACHINE else ""

    @property
    def measures(self) -> bool:
        """Return whether it measures and judges nothing: a machine's fingerprint, a threshold, a trial, a launch."""
        return self.probe == MACHINE or self.probe.startswith((THRESHOLD, *TRIALS, LAUNCH, COMPARE, STANDING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The answer to a question, with when and on what it was had.

    Attributes:
        question: what was asked.
        outcome: what the probe said.
        reason: one line for people; required for every outcome but `ok`.
        detail: plain JSON data of the probe (resolve: `chain`, `lock`, `versions`; surface: `findings`, …).
        machine: what it ran on, without host names; static tiers say `static`.
        at: when it ended, UTC.
        seconds: wall time of the probe.
        shipped: name of the store of evidence that holds it (matrix/evidence.py), "" for one made here; never stored.
    """

    question: Question
    outcome: Outcome
    reason: str = ""
    detail: Mapping[str, object] = field(default_factory=dict)
    machine: str = "static"
    at: datetime
    seconds: float = 0.0
    shipped: str = ""

    @property
    def answers(self) -> bool:
        """Return whether it says how the cell does: what was not tried does not, nor that it could be installed."""
        if self.question.measures or self.outcome is Outcome.UNTESTED:
            return False
        return not (self.question.probe == INSTALL and self.outcome is Outcome.OK)
