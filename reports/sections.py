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


def _claims(result: RunResult) -> dict[str, object] | None:
    return _shipped_claims()


@functools.cache
def _shipped_claims() -> dict[str, object] | None:
    """Return the section of claims, which are of releases and of no run: read once."""
    from reports.claims import section

    return section()


MAKERS: Mapping[str, Section] = {"benches": _benches, "claims": _claims}
"""What makes each section, by its name; the name is that of its view in the page, too."""


def sections_of(result: RunResult) -> dict[str, object]:
    """Return the sections that have something to say of this run, by name."""
    made = {name: make(result) for name, make in MAKERS.items()}
    return {name: data for name, data in made.items() if data is not None}
