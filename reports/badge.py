"""The badge: what a Shields endpoint badge reads (schemaVersion 1), with its denominator and its day."""

from __future__ import annotations

from matrix.nightly.record import Night
from matrix.tier import Status

GREEN, AMBER, RED, GREY = "brightgreen", "yellow", "red", "lightgrey"
"""Named colours of Shields."""


def badge(night: Night, *, new_failures: int, label: str = "verl-matrix") -> dict[str, object]:
    """Return the badge as plain JSON data: `31/33 work · 2026-12-01`, of the cells that ran; red with new failures.

    Cells that did not run are no part of it, and where some did not the message says how many were planned.
    """
    counts = night.counts
    works, ran, planned = counts[Status.WORKS] + counts[Status.DEGRADED], counts["ran"], counts["planned"]
    judged = sum(counts[status] for status in Status if status is not Status.UNTESTED)
    if not ran:
        return _badge(label, f"nothing ran · {night.at:%Y-%m-%d}", GREY)
    untried = f", {planned - judged} not judged" if judged < planned else ""
    colour = RED if new_failures else GREEN if works == judged else AMBER
    return _badge(label, f"{works}/{judged} work{untried} · {night.at:%Y-%m-%d}", colour)


def _badge(label: str, message: str, colour: str) -> dict[str, object]:
    return {"schemaVersion": 1, "label": label, "message": message, "color": colour}
