"""What the memory model foretells of a question, in the search's own values; None where it foretells nothing."""

from __future__ import annotations

from matrix.thresholds.question import Asked


def foretold(asked: Asked) -> float | None:
    """Return the largest value that the memory model lets survive under the question's cap."""
    return None
