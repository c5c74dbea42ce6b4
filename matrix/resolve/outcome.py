"""From an answer to what an observation says of it: outcome, one line, and plain JSON detail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from matrix.resolve.facts import Fact
from matrix.resolve.lock import Lock
from matrix.tier import Outcome


class DecidedBy(StrEnum):
    """By what a cell was decided; all but `uv` without asking uv about this very cell."""

    INDEX = "index"
    REQUIREMENTS = "requirements"
    CORE = "core"
    SHARED = "shared"
    UV = "uv"

    @property
    def is_shortcut(self) -> bool:
        """Return whether uv could be asked the same and must say the same (a rule of ours is no shortcut)."""
        return self in (DecidedBy.REQUIREMENTS, DecidedBy.CORE, DecidedBy.SHARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was found out about a cell, before it is tied to a question and a time.

    `lasting` when no later change of the rest of the index can alter it. `raw` is uv's own text, "" when it was not
    asked. `lock` and `digest` are there for `ok` and `backtracked`.
    """

    outcome: Outcome
    by: DecidedBy
    reason: str = ""
    chain: tuple[Fact, ...] = ()
    raw: str = ""
    hints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lasting: bool = False
    lock: Lock | None = None
    digest: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)

    def detail(self) -> dict[str, object]:
        """Return the observation's detail as plain JSON data."""
        detail: dict[str, object] = {
            "decided_by": self.by.value,
            "volatile": not self.lasting,
            "chain": [fact.to_json() for fact in self.chain],
            "versions": dict(self.versions),
            "notes": list(self.notes),
            **self.more,
        }
        if self.raw:
            detail["raw"] = self.raw
        if self.hints:
            detail["hints"] = list(self.hints)
        if self.lock is not None:
            detail["lock"] = self.digest
            detail["packages"] = len(self.lock.packages)
            detail["to_build"] = list(self.lock.to_build)
        return detail


_FACTS_IN_A_LINE = 5


def in_one_line(facts: Iterable[Fact]) -> str:
    """Return the facts as one line for people, the first few of a long chain."""
    texts = [fact.text for fact in facts]
    more = len(texts) - _FACTS_IN_A_LINE
    return "; ".join(texts[:_FACTS_IN_A_LINE]) + (f"; and {more} more facts" if more > 0 else "")
