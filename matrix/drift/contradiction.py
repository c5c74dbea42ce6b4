"""The contradiction: two statements that cannot both hold, or one that the index contradicts, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from matrix.statements.statement import Place, Statement


class Kind(StrEnum):
    """What is wrong.

    `disjoint`: no version satisfies both. `outside`: a pin lies outside of the range that is stated elsewhere.
    `extras`: the same package with other extras. `absent`: no such release. `yanked`: a release that was withdrawn.
    `requires`: a pinned release itself asks for something that a statement beside it excludes. `python`: what is
    pinned does not run on the python that is stated.
    """

    DISJOINT = "disjoint"
    OUTSIDE = "outside"
    EXTRAS = "extras"
    ABSENT = "absent"
    YANKED = "yanked"
    REQUIRES = "requires"
    PYTHON = "python"


class Sureness(StrEnum):
    """How sure it is that something is wrong, best first.

    `certain`: both hold for one installation, and cannot. `likely`: they are meant for one, and nothing says that the
    difference is on purpose. `possible`: they may differ on purpose (another image, another backend, an old page).
    """

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"

    @property
    def weaker(self) -> Sureness:
        """Return one step less sure."""
        order = tuple(Sureness)
        return order[min(order.index(self) + 1, len(order) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Two places that cannot both be right, or one and the index.

    Attributes:
        first: what is wrong if the other is right; the one that would be corrected, as a rule.
        second: what it is held against; None for the index alone.
        together: why both are meant to hold at once, one line.
        why: why they cannot, one line.
        also: other places that say what `second` says.
    """

    kind: Kind
    package: str
    first: Statement
    second: Statement | None = None
    sureness: Sureness
    together: str = ""
    why: str
    also: tuple[Place, ...] = ()

    @property
    def counts(self) -> bool:
        """Return whether it makes the exit code 1: what may be on purpose does not."""
        return self.sureness is not Sureness.POSSIBLE

    @property
    def group(self) -> str:
        """Return where it is: the file that would be corrected, and the part of it."""
        return f"{self.first.place.file} ({self.first.scope})" if self.first.scope else self.first.place.file

    @property
    def order(self) -> tuple[object, ...]:
        """Return what to sort by: the surest first, then by place."""
        return tuple(Sureness).index(self.sureness), self.first.place, self.package, self.kind

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return {
            "kind": self.kind.value,
            "package": self.package,
            "sureness": self.sureness.value,
            "counts": self.counts,
            "first": _said(self.first),
            "second": _said(self.second) if self.second is not None else None,
            "also": [str(place) for place in self.also],
            "together": self.together,
            "why": self.why,
        }


def _said(statement: Statement) -> dict[str, object]:
    return {
        "place": str(statement.place),
        "text": statement.text,
        "scope": statement.scope,
        "source": statement.source.value,
        "force": statement.force.value,
    }
