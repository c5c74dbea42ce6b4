"""The cap: how much memory a card has that is asked about, by the card's name or as so many GiB."""

from __future__ import annotations

from dataclasses import dataclass

from matrix.memory.gpu import gpu_named
from matrix.memory.phase import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """A card: its name and the bytes that a program sees as its total memory."""

    name: str
    bytes: int

    def words(self, total: int, by: str) -> str:
        """Return how a card of `total` bytes stood in for this one: `capped: 79.2 of 139.8 GiB, by …`.

        A card that is no smaller than the one it stands in for was not capped.
        """
        if self.bytes >= total > 0:
            return f"not capped: the card has {total / GIB:.1f} GiB"
        return f"capped: {self.bytes / GIB:.1f} of {total / GIB:.1f} GiB, by {by}"


def cap_named(word: str) -> Cap:
    """Return the card of that name, or of that size (`24GiB`); raises UsageError for neither."""
    gpu = gpu_named(word)
    return Cap(name=gpu.name, bytes=gpu.total)
