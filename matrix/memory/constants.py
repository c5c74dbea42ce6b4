"""The constants of the memory model: every number that no configuration tells, by name, with where it is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from matrix.datafile import Table, read

CONSTANTS = Path(__file__).with_name("constants.toml")


class Status(StrEnum):
    """How a constant came to its value."""

    DERIVED = "derived"
    ASSUMED = "assumed"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a constant is and where its value is from."""

    meaning: str
    status: Status
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The constants, each as constants.toml describes it; `origins` says of each what it is and where it is from."""

    allocator_overhead: float
    compiled_entropy_copies: float
    engine_context_bytes: float
    engine_other_bytes: float
    engine_token_copies: float
    engine_unaccounted_bytes: float
    engine_workspace_bytes: float
    graph_bytes_per_layer: float
    sampler_bytes_per_logit: float
    trainer_context_bytes: float
    trainer_other_bytes: float
    trainer_workspace_bytes: float
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)

    @property
    def values(self) -> dict[str, float]:
        """Return every constant by name."""
        return {name: getattr(self, name) for name in NAMES}

    def changed(self, values: Mapping[str, float]) -> Constants:
        """Return the constants with some of them changed, by name."""
        return replace(self, **values)  # type: ignore[arg-type]


NAMES = tuple(item.name for item in fields(Constants) if item.name != "origins")


def load_constants(path: Path = CONSTANTS) -> Constants:
    """Return the constants of a file; raises DataError where one is missing, unknown or negative."""
    data = read(path)
    values: dict[str, float] = {}
    origins: dict[str, Origin] = {}
    for row in data.tables("constant"):
        name = row.text("name")
        if name not in NAMES:
            raise row.error("name", f"`{name}` is no constant of the model")
        if name in values:
            raise row.error("name", f"`{name}` is there twice")
        values[name] = _number(row)
        origins[name] = _origin(row)
    data.end()
    missing = [name for name in NAMES if name not in values]
    if missing:
        raise data.error("constant", f"`{missing[0]}` is missing")
    return Constants(**values, origins=origins)


@cache
def constants() -> Constants:
    """Return the constants that come with this release."""
    return load_constants()


def _number(row: Table) -> float:
    row.has("value")
    value = row.values.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise row.error("value", "must be a number that is not negative")
    return float(value)


def _origin(row: Table) -> Origin:
    status = row.text("status")
    if status not in {item.value for item in Status}:
        raise row.error("status", f"is one of {', '.join(Status)}")
    row.moment("date")
    origin = Origin(meaning=row.text("is"), status=Status(status), source=row.text("source"))
    row.end()
    return origin
