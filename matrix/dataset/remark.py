"""The remark: one thing that a check of a data file has to say, about how many rows, and the first of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from matrix.gravity import Gravity


class Kind(StrEnum):
    """What a remark is about; the closed set of what is checked."""

    MISSING = "missing-file"
    UNREADABLE = "unreadable"
    EMPTY_FILE = "empty-file"
    NOT_PARQUET = "not-parquet"
    TRUNCATED = "truncated"
    SUFFIX = "suffix"
    NO_ROWS = "no-rows"
    COLUMN = "column"
    PROMPT = "prompt"
    REWARD = "reward-model"
    SOURCE = "data-source"
    ANSWER = "answer"
    EXTRA = "extra-info"
    DUPLICATE = "duplicate"
    LENGTH = "length"
    OVERLAP = "overlap"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One thing about one file; `rows` counts the rows concerned (0: the whole file), `first` is the first, from 0."""

    kind: Kind
    gravity: Gravity
    message: str
    rows: int = 0
    first: int | None = None
    then: str = ""

    @property
    def fails(self) -> bool:
        """Return whether the file is not fit as it is."""
        return self.gravity is not Gravity.NOTE

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return {
            "kind": self.kind.value,
            "gravity": self.gravity.value,
            "message": self.message,
            "rows": self.rows,
            "first_row": self.first,
            "then": self.then,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """What was found of one file or folder: size in bytes, rows, columns with their types, figures, remarks."""

    path: str
    size: int = 0
    rows: int | None = None
    row_groups: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[Remark, ...] = ()

    @property
    def fit(self) -> bool:
        """Return whether nothing but notes was found."""
        return not any(remark.fails for remark in self.remarks)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return {
            "path": self.path,
            "fit": self.fit,
            "bytes": self.size,
            "rows": self.rows,
            "row_groups": self.row_groups,
            "columns": dict(self.columns),
            "figures": dict(self.figures),
            "data_sources": dict(self.sources),
            "remarks": [remark.to_json() for remark in self.remarks],
        }
