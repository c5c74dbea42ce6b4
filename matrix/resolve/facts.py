"""One fact of a chain that decides a cell: what is stated, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A statement for people and where it can be read again.

    `source` is a file of the index (`vllm-0.33.0-….whl METADATA`), an index page (`index: transformers`), the cell
    itself (`cell`) or, for what only the resolver said, `uv`.
    """

    text: str
    source: str

    def __str__(self) -> str:
        """Return the statement with its source in brackets."""
        return f"{self.text} [{self.source}]"

    def to_json(self) -> dict[str, str]:
        """Return plain JSON data; `from_json` gives the equal fact back."""
        return {"text": self.text, "source": self.source}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Fact:
        """Return the fact that `to_json` wrote; raises KeyError where a part is missing."""
        return cls(text=str(data["text"]), source=str(data["source"]))
