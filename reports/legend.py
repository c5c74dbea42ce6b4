"""The legend: how each status, outcome, effect and tier is worded and marked in every report.

A mark is a shape of its own, so that a report in greyscale, or read by somebody who does not tell the colours apart,
says the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from matrix.finding import Effect
from matrix.tier import Outcome, Status, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How one word is shown: its mark, its name, and what it means in one sentence."""

    mark: str
    name: str
    means: str


STATUSES: dict[Status, Entry] = {
    Status.WORKS: Entry(mark="✓", name="works", means="Nothing was found, as far as it was tried."),
    Status.DEGRADED: Entry(mark="◐", name="degraded", means="Works but for the features named."),
    Status.BROKEN: Entry(mark="✕", name="broken", means="The code of one release does not fit the other."),
    Status.CONFLICT: Entry(mark="≠", name="conflict", means="The metadata do not allow this set."),
    Status.UNTESTED: Entry(mark="?", name="untested", means="Whether the code fits was not tried. Never a pass."),
}

OUTCOMES: dict[Outcome, Entry] = {
    Outcome.OK: Entry(mark="✓", name="ok", means="Nothing was found."),
    Outcome.DEGRADED: Entry(mark="◐", name="degraded", means="Breaks or degrades in the features named only."),
    Outcome.BROKEN: Entry(mark="✕", name="broken", means="An entry point cannot be imported or used."),
    Outcome.CONFLICT: Entry(mark="≠", name="conflict", means="No set of versions satisfies all requirements."),
    Outcome.BACKTRACKED: Entry(mark="↶", name="backtracked", means="Resolves only with an old release of an axis."),
    Outcome.UNAVAILABLE: Entry(mark="∅", name="unavailable", means="No such release, or no wheel for this platform."),
    Outcome.UNTESTED: Entry(mark="?", name="untested", means="Not tried, or no answer could be had."),
}

EFFECTS: dict[Effect, str] = {
    Effect.BREAKS_IMPORT: "Breaks at import",
    Effect.BREAKS_FEATURE: "Breaks when the feature is used",
    Effect.DEGRADES: "Degrades silently",
    Effect.GUARDED: "Guarded: verl handles it",
}

TIERS: dict[Tier, str] = {
    Tier.RESOLVE: "may it be installed, by its metadata",
    Tier.SURFACE: "does the code of one release fit the other, read statically",
    Tier.IMPORT: "does it import",
    Tier.BEHAVE: "does it behave, on a CPU",
    Tier.GPU: "does it run, on GPUs",
    Tier.BENCH: "how fast is it",
}


def one_line(text: str) -> str:
    """Return the text on one line, without control characters: it may come from a package or a log."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())
