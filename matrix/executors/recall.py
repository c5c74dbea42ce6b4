"""What is answered of a cell already, by whatever machine: such a cell is sent nowhere."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.atomic import replace_file
from matrix.cell import Cell
from matrix.executors.manner import Manner
from matrix.job import Probed
from matrix.observe import Observation
from matrix.probing.machine import Machine, machine_of
from matrix.store import Store

if TYPE_CHECKING:
    from matrix.failure import Failure

_NAME = re.compile(r"[0-9a-f]{32}\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Knows what machines have told of what there is to run, and what the store holds of it.

    Attributes:
        store: what was observed.
        cache: where it is remembered what there is to run, as on the machines (matrix/probing/prober.py).
        manner: what is tried of a cell.
    """

    store: Store
    cache: Path
    manner: Manner

    def keep(self, name: str, text: str) -> None:
        """Remember what a machine told of what there is to run; a name that is none of ours is passed over."""
        path = self.cache / "probes" / name
        if _NAME.fullmatch(name) and not path.exists():
            replace_file(path, text.encode())

    def probed(self, cell: Cell, resolved: Observation, suits: Callable[[Machine], bool]) -> Probed | None:
        """Return the observations of a cell where one kind of machine that suits has made them all; else None."""
        from matrix.probing.prober import Prober
        from matrix.probing.visit import versions_of

        stored = [item for item in self.store.for_cell(cell.name) if item.question.tier in self.manner.tiers]
        for kind in dict.fromkeys(item.question.reads.get("machine", "") for item in reversed(stored)):
            machine = _machine(kind)
            if machine is None or not suits(machine):
                continue
            prober = Prober(
                store=self.store,
                cache=self.cache,
                failures=_failures(),
                equip=lambda environment: None,
                frozen=lambda python: {},
                tiers=self.manner.tiers,
                patterns=self.manner.patterns,
                again=self.manner.again,
                since=self.manner.since,
                machine=machine,
            )
            found = prober.recall(prober.subject(cell, str(resolved.detail["lock"]), versions_of(resolved)))
            if found is not None:
                return found
        return None


def _machine(kind: str) -> Machine | None:
    try:
        return machine_of(kind)
    except ValueError:
        return None


@functools.cache
def _failures() -> Mapping[str, Failure]:
    from matrix.probing.cellfile import by_id
    from matrix.records import load_failures

    return by_id(load_failures())
