"""The closed sets of the vocabulary: tiers, outcomes of a probe, statuses of a cell (docs/architecture.md: Words)."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """How deep a cell was tried, shallow to deep; `depth` orders them."""

    RESOLVE = "resolve"
    SURFACE = "surface"
    IMPORT = "import"
    BEHAVE = "behave"
    GPU = "gpu"
    BENCH = "bench"

    @property
    def is_deep(self) -> bool:
        """Return whether a cell must be installed to be tried at this tier."""
        return self not in (Tier.RESOLVE, Tier.SURFACE)

    @property
    def depth(self) -> int:
        """Return 0 for `resolve` up to 5 for `bench`."""
        return list(Tier).index(self)


class Outcome(StrEnum):
    """What one probe said of one cell.

    `ok`, `conflict`, `backtracked`, `unavailable` come from the resolve tier; `ok`, `broken`, `degraded` from the
    surface tier and deeper; `untested` from any, always with a reason.
    """

    OK = "ok"
    CONFLICT = "conflict"
    BACKTRACKED = "backtracked"
    UNAVAILABLE = "unavailable"
    BROKEN = "broken"
    DEGRADED = "degraded"
    UNTESTED = "untested"


RANKS = (
    Outcome.UNTESTED,
    Outcome.OK,
    Outcome.DEGRADED,
    Outcome.BROKEN,
    Outcome.CONFLICT,
    Outcome.BACKTRACKED,
    Outcome.UNAVAILABLE,
)
"""The outcomes, from what says nothing to what weighs most."""


class Status(StrEnum):
    """What the observations of a cell say together."""

    WORKS = "works"
    DEGRADED = "degraded"
    BROKEN = "broken"
    CONFLICT = "conflict"
    UNTESTED = "untested"
