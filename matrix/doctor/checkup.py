"""A check of an environment: what was looked at, how it is, why that matters and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class Grade(StrEnum):
    """How it is: `bad` breaks a run, `warn` may, `unknown` could not be looked at."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: `topic` groups it, `what` was found, `why` that matters, `then` is what to do; "" where nothing is.

    `minor` may be left out of a text: one of many that matter to few.
    """

    topic: str
    grade: Grade
    what: str
    why: str = ""
    then: str = ""
    minor: bool = False

    @property
    def data(self) -> dict[str, object]:
        """Return plain JSON data."""
        return {**asdict(self), "grade": self.grade.value}


def ok(topic: str, what: str) -> Check:
    """Return a check that found nothing wrong."""
    return Check(topic=topic, grade=Grade.OK, what=what)


def unknown(topic: str, what: str, why: str = "", then: str = "") -> Check:
    """Return a check that could not be made."""
    return Check(topic=topic, grade=Grade.UNKNOWN, what=what, why=why, then=then)


def sick(checks: Iterable[Check]) -> bool:
    """Return whether something is wrong: one check at least is `bad`."""
    return any(check.grade is Grade.BAD for check in checks)


_MARKS = {Grade.OK: "✓", Grade.WARN: "◐", Grade.BAD: "✕", Grade.UNKNOWN: "?"}


def checks_text(heading: str, checks: Sequence[Check], *, every: bool = True) -> str:
    """Return the checks for people, grouped by topic, with the count of each grade; minor ones only where `every`."""
    lines = [heading]
    for topic in dict.fromkeys(check.topic for check in checks):
        lines.append(f"\n{topic}")
        told = [check for check in checks if check.topic == topic]
        shown = [check for check in told if every or not check.minor]
        for check in shown:
            lines.append(f"  {_MARKS[check.grade]} {check.what}")
            lines += [f"      {text}" for text in (check.why, check.then) if text and check.grade is not Grade.OK]
        if len(shown) < len(told):
            lines.append(f"  … and {len(told) - len(shown)} more of lesser weight, each under a condition: --all")
    counts = ", ".join(f"{sum(check.grade is grade for check in checks)} {grade}" for grade in Grade)
    return "\n".join([*lines, "", f"{len(checks)} checks: {counts}."])


def checks_json(about: Mapping[str, object], checks: Sequence[Check]) -> dict[str, object]:
    """Return the checks as plain JSON data."""
    counts = {grade.value: sum(check.grade is grade for check in checks) for grade in Grade}
    return {"schema": 1, **about, "counts": counts, "checks": [check.data for check in checks]}
