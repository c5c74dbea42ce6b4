"""The claim: a statement published somewhere about this stack, where it stands, and what would show that it holds.

Records are data (`matrix/claims/<topic>.toml`, read by `matrix.claims.loading`). A verdict is never written in a
record: it is computed from what the checks find (`matrix.claims.judging`), or it is by reading, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from matrix.claims.checks import Check


class Topic(StrEnum):
    """What a claim is about; one file each."""

    PINS = "pins"
    API = "api"
    CONFIG = "config"
    FLAGS = "flags"
    DATA = "data"
    CAUSES = "causes"
    METRICS = "metrics"
    PERFORMANCE = "performance"
    DISTRIBUTED = "distributed"


TITLES = {
    Topic.PINS: "Versions and pins",
    Topic.API: "Modules, classes and functions",
    Topic.CONFIG: "Configuration keys",
    Topic.FLAGS: "Commands and flags",
    Topic.DATA: "Data and checkpoints",
    Topic.CAUSES: "Causes of failures",
    Topic.METRICS: "Metrics and healthy ranges",
    Topic.PERFORMANCE: "Speed and memory",
    Topic.DISTRIBUTED: "Ray, NCCL and hardware",
}
"""What the topics are called in a report."""


class ClaimVerdict(StrEnum):
    """What is known of a claim, from good to bad to nothing.

    `holds`: in every release that was looked at. `depends`: in some of them, or under a condition that is named.
    `false`: in none. `untested`: it could be tested, and was not, with the reason. `not checkable`: no test could
    decide it (an opinion, or a thing that is not to be had).
    """

    HOLDS = "holds"
    DEPENDS = "depends"
    FALSE = "false"
    UNTESTED = "untested"
    NOT_CHECKABLE = "not checkable"


class How(StrEnum):
    """How a verdict was had: by checks that were run, by reading the sources named, or not at all."""

    COMPUTED = "computed"
    READING = "reading"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """Where claims stand; `address` is "" where it was published without a stable one: title and section name it."""

    id: str
    title: str
    about: str
    published: str
    language: str
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A verdict that somebody reached by reading, where no check can be run: on what it rests, and when."""

    verdict: ClaimVerdict
    rests_on: str
    on: date


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement under test.

    Attributes:
        id: letter of the guide and number.
        statement: what is claimed, in our own words, so that it is true or false.
        guide, section: where it stands.
        checks: what is run; in a release in which all of them support it, it holds.
        reading: what stands in for checks where there are none.
        untested: why nothing could be run or read; one of the three is there.
        beyond: what the checks do not cover, "" where they cover all of it.
        failures: records of known failures that it is about.
        pairings: ids in bench/claims.toml of the measurements of it.
        instead: what is right, or what to do, in one line.
    """

    id: str
    topic: Topic
    statement: str
    guide: str
    section: str
    checks: tuple[Check, ...] = ()
    reading: Reading | None = None
    untested: str = ""
    beyond: str = ""
    failures: tuple[str, ...] = ()
    pairings: tuple[str, ...] = ()
    instead: str = ""

    @property
    def uncheckable(self) -> bool:
        """Return whether no test could decide it."""
        return self.reading is not None and self.reading.verdict is ClaimVerdict.NOT_CHECKABLE
