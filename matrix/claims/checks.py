"""Checks of claims: what is looked at, and whether it supports the claim; all of them static, none runs a package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from matrix.claims.library import Library
    from matrix.datafile import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one check found in one release.

    Attributes:
        subject: what was looked at, e.g. `verl 0.9.1`.
        supports: whether it speaks for the claim.
        text: what was found, one line.
        place: file and line, or the part of the metadata; "" where there is none.
        release: of the package that the check goes through, "" where it goes through none.
    """

    subject: str
    supports: bool
    text: str
    place: str = ""
    release: str = ""


class Check(Protocol):
    """Looks at releases; raises MatrixError where one cannot be had."""

    @property
    def about(self) -> str:
        """Return what is checked, one line."""

    def look(self, library: Library) -> Iterator[Look]:
        """Yield what is found, release by release."""


Reader = Callable[["Table"], Check]


def readers() -> Mapping[str, Reader]:
    """Return how a check of each kind is read from its table; kinds are those of docs/claims.md."""
    from matrix.claims import configuring, counting, observing, packaging_checks, scoring, sourcing, surfacing

    return {
        **packaging_checks.READERS,
        **sourcing.READERS,
        **configuring.READERS,
        **scoring.READERS,
        **counting.READERS,
        **surfacing.READERS,
        **observing.READERS,
    }
