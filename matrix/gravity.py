"""How bad something is that was found in a log or a data file."""

from __future__ import annotations

from enum import StrEnum


class Gravity(StrEnum):
    """`error` spoils the training, `warning` wants a look, `note` is worth knowing and fails nothing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """Return 0 for the worst."""
        return list(Gravity).index(self)
