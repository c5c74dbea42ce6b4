"""What an executor is: it visits the cells of a run, each once, wherever it finds a machine for them."""

from __future__ import annotations

from typing import Protocol

from matrix.job import Visitor


class Executor(Visitor, Protocol):
    """Visits cells, several at once in threads of the caller, as many as `width` says.

    `visit` returns once the cell's observations are in the store of this machine, whatever machine made them. A machine
    that is lost on the way costs what ran there: the cell is tried again elsewhere, so often and no more, and what had
    been observed by then stays.
    """

    def close(self) -> None:
        """Let go of what the visits held; no visit is under way and none comes after it."""
