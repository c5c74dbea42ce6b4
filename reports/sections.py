"""The sections of the report that other parts of the project make: what each has to say of a run, as plain JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from matrix.errors import DataError, NewerSchemaError
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


def shipped_sections() -> tuple[Mapping[str, object], tuple[str, ...]]:
    """Return the sections that are of releases and of no run, by name, and a note for each that cannot be read.

    They stand in a report, not in the answer to a question about one cell. A file of theirs that is malformed costs the
    section and not the report: the claims.
    """
    try:
        claims = _claims()
    except (DataError, NewerSchemaError) as error:
        return {}, (f"The claims are left out: {error.what}",)
    return ({} if claims is None else {"claims": claims}), ()


@functools.cache
def _claims() -> dict[str, object] | None:
    from reports.claims import section

    return section()


def sections_of(result: RunResult) -> dict[str, object]:
    """Return the sections that have something to say of this run, by name."""
    made = {name: make(result) for name, make in MAKERS.items()}
    return {name: data for name, data in made.items() if data is not None}
