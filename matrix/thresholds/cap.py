"""The cap: how much memory a card has that is asked about, by the card's name or as so many GiB."""

from __future__ import annotations

import re
from dataclasses import dataclass

from matrix.errors import UsageError

GIB = 2**30
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(GiB|GB|MiB)", re.IGNORECASE)
_UNITS = {"gib": GIB, "gb": 10**9, "mib": 2**20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """A card: its name and the bytes that a program sees as its total memory."""

    name: str
    bytes: int

    def words(self, total: int, by: str) -> str:
        """Return how a card of `total` bytes stood in for this one: `capped: 79.2 of 139.8 GiB, by …`."""
        return f"capped: {self.bytes / GIB:.1f} of {total / GIB:.1f} GiB, by {by}"


def cap_named(word: str) -> Cap:
    """Return the card of that name, or of that size (`24GiB`); raises UsageError for neither."""
    size = _SIZE.fullmatch(word)
    if size is not None:
        return Cap(name=word, bytes=int(float(size[1]) * _UNITS[size[2].lower()]))
    raise UsageError(f"There is no card `{word}`.", then="Name one like A100-80GB, or a size like 24GiB.")
