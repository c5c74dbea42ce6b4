"""The sections of the report that other parts of the project make: what each has to say of a run, as plain JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from matrix.job import RunResult

Section = Callable[[RunResult], dict[str, object] | None]


def _benches(result: RunResult) -> dict[str, object] | None:
    if not result.benches:
        return None
    # The statistics are heavy to import, and most runs have no bench.
    from reports.benches import section

    return section(result)


MAKERS: Mapping[str, Section] = {"benches": _benches}
"""What makes each section of a run, by its name; the name is that of its view in the page, too."""


@functools.cache
def shipped_sections() -> Mapping[str, object]:
    """Return the sections that are of releases and of no run, by name: the claims; read once.

    They stand in a report, not in the answer to a question about one cell.
    """
    from reports.claims import section

    claims = section()
    return {} if claims is None else {"claims": claims}


def sections_of(result: RunResult) -> dict[str, object]:
    """Return the sections that have something to say of this run, by name."""
    made = {name: make(result) for name, make in MAKERS.items()}
    return {name: data for name, data in made.items() if data is not None}
