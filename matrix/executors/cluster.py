"""The cluster as the executor sees it: its machines, errands sent to them, and the ways in which one is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from matrix.executors.demand import Demand, Machine


class LostError(Exception):
    """What an errand ran on is gone before it ended, or it never began; never leaves the executor.

    Attributes:
        reason: why, in words without the name or address of a machine.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Sent(Protocol):
    """An errand that was sent."""

    def lines(self, idle: Callable[[], object]) -> Iterator[str]:
        """Yield its lines as they come (matrix/executors/errand.py); `idle` is called now and then while none does.

        Raises what `idle` raises, and:
            LostError: no further line will come.
            KeyboardInterrupt: it was cancelled.
        """

    def cancel(self) -> None:
        """End it, wherever it runs; may be called from another thread."""


class Cluster(Protocol):
    """The machines; `matrix.executors.ray_cluster` has Ray's."""

    def machines(self) -> Sequence[Machine]:
        """Return those that are alive now; raises ToolError where the cluster does not answer."""

    def send(self, errand: str, demand: Demand, kind: str, machine: str) -> Sent:
        """Return the errand on its way, to a machine with that kind of GPU ("" for any), if possible to `machine`."""

    def close(self) -> None:
        """Let go of the cluster; what still runs for this process there is ended."""
