"""Checks by what was observed: whether a known failure was reproduced, and what a recorded run logged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matrix.claims.checks import Look, Reader
from matrix.evidence import SHIPPED, shipped
from matrix.records import load_failures
from matrix.standing import Standing, stands

if TYPE_CHECKING:
    from matrix.claims.library import Library
    from matrix.datafile import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduced:
    """Whether the probe of a known failure reproduced it, by the evidence that is shipped (`reproduced`)."""

    failure: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"the failure {self.failure} was reproduced"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield one look; none where its probe was not tried, so that the claim stays untested."""
        for stand in stands([item for item in load_failures() if item.id == self.failure], shipped()):
            if stand.standing in (Standing.REPRODUCED, Standing.ABSENT, Standing.REFUTED):
                seen = stand.standing is Standing.REPRODUCED
                place = ", ".join(sorted({item.question.key[:12] for item in stand.seen})[:3])
                told = " ".join(stand.told.split())[:300]
                yield Look(subject=f"failure {self.failure}", supports=seen, text=told, place=f"observation {place}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """Whether a recorded run logged at least so many metrics in each step (`logged`)."""

    run: str
    least: int

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"the recorded run {self.run} logged at least {self.least} metrics a step"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield one look; none where the evidence is not here, so that the claim stays untested."""
        if not (SHIPPED / self.run).is_file():
            return
        lines = (SHIPPED / self.run).read_text(encoding="utf-8").splitlines()
        counts = [len(json.loads(line).get("data", ())) for line in lines if line.strip()]
        told = f"{min(counts, default=0)} to {max(counts, default=0)} metrics in each of {len(counts)} steps"
        enough = bool(counts) and min(counts) >= self.least
        yield Look(subject="a recorded PPO run", supports=enough, text=told, place=self.run)


def _reproduced(table: Table) -> Reproduced:
    # Whether there is such a record is asked when it is looked at: reading them all takes longer than all the claims.
    return Reproduced(failure=table.text("failure"))


def _logged(table: Table) -> Logged:
    found = Logged(run=table.text("run"), least=table.integer("least"))
    # Without any evidence beside this package a record is as good as before; it is only not judged.
    if SHIPPED.is_dir() and not (SHIPPED / found.run).is_file():
        raise table.error("run", f"there is no {found.run} in the evidence")
    return found


READERS: Mapping[str, Reader] = {"reproduced": _reproduced, "logged": _logged}
