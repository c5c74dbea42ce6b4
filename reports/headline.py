"""The headline of a run: what came out, of how many, on what, when, with which tools."""

from __future__ import annotations

from matrix.job import RunResult
from matrix.tier import Status


def title(result: RunResult) -> str:
    """Return the outcome with its denominator, as `13 of 36 cells work as far as tried`; how many only in part."""
    degraded = result.counts[Status.DEGRADED]
    works = result.counts[Status.WORKS] + degraded
    text = f"{works} of {_cells(result.planned)} {'works' if 1 in (works, result.planned) else 'work'} as far as tried"
    if not degraded:
        return text
    return text + (", but for some features" if degraded == works else f", {degraded} of them but for some features")


def denominator(result: RunResult) -> str:
    """Return how much of the plan ran, on what and when, as one sentence."""
    tiers = ", ".join(f"{tally.tier} {tally.ran} of {tally.planned}" for tally in result.tallies)
    ran = f"{result.ran} of {_cells(result.planned)} ran" + (f" ({tiers})" if tiers else "")
    cut = ", interrupted" if result.interrupted else ""
    return f"{ran}{cut}; {machines(result)}; {result.at:%Y-%m-%d %H:%M} UTC."


def machines(result: RunResult) -> str:
    """Return what the verdicts were had on."""
    found = sorted({verdict.machine for verdict in result.verdicts if verdict.machine} - {"static"})
    static = any(verdict.machine == "static" for verdict in result.verdicts)
    words = (["static analysis, nothing installed"] if static else []) + found
    return ", ".join(words) or "on no machine"


def effort(result: RunResult) -> str:
    """Return what was asked anew and what was already known, tier by tier, with seconds of wall time."""
    return "; ".join(
        f"{tally.tier}: {tally.new} new, {tally.reused} reused, {tally.untested} untested, {tally.seconds:.1f} s"
        for tally in result.tallies
    )


def provenance(result: RunResult) -> str:
    """Return the tools and their versions."""
    return ", ".join(f"{name} {version}" for name, version in result.tools.items())


def _cells(count: int) -> str:
    return f"{count} cell" if count == 1 else f"{count} cells"
