"""The failure: a known failure of the stack: the versions it affects, its fingerprint, its probe and its sources.

Records are data (`matrix/failures/<family>.toml`, read by `matrix.records`). Ranges are joined by AND: a failure
applies where every package it names is installed at a version in its range.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.finding import Effect


class Family(StrEnum):
    """What kind of trouble it is; one file of records and one file of probes each."""

    INSPECT = "inspect"
    DEVICE = "device"
    MEMORY = "memory"
    ATTENTION = "attention"
    RAY = "ray"
    VLLM = "vllm"
    TRANSFORMERS = "transformers"
    DEPENDENCIES = "dependencies"
    DISTRIBUTED = "distributed"
    NUMERICS = "numerics"


class Reach(StrEnum):
    """The least that it takes to see a failure."""

    METADATA = "metadata"
    SURFACE = "surface"
    IMPORT = "import"
    BEHAVE = "behave"
    GPU = "gpu"
    GPUS = "gpus"


class Confidence(StrEnum):
    """How a record is known, best first."""

    MEASURED = "measured"
    CONFIRMED = "confirmed"
    READ = "read"
    REPORTED = "reported"


class Severity(StrEnum):
    """How much it hurts those whom it hits."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Applies(StrEnum):
    """Whether a failure is to be expected of a set of versions; `unknown` where a package's version is not known."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """How a failure shows: an exception's class name and a pattern of its text, or what is seen where it is silent.

    Attributes:
        exception: class name without module; "" where nothing is raised.
        pattern: regular expression searched in the traceback or log; "" where nothing is written.
        place: regular expression of a path or module that the traceback must name too; "" where any will do.
        observable: for a silent failure, what is measured and what comes out wrong; "" for one that raises.
        example: a line as it occurs, in which exception and pattern are found.
    """

    exception: str = ""
    pattern: str = ""
    place: str = ""
    observable: str = ""
    example: str = ""

    def matches(self, text: str) -> bool:
        """Return whether `text` shows this failure; a silent one never shows in a text."""
        if not self.pattern:
            return False
        if self.exception and not re.search(rf"\b{re.escape(self.exception)}\b", text):
            return False
        return bool(_compiled(self.pattern).search(text)) and bool(not self.place or _compiled(self.place).search(text))


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A known failure.

    Attributes:
        id: the word that names it, lower case with dashes.
        family: what kind of trouble.
        title: what the user meets, one line.
        affects: package (or `python`) to the range in which it happens; all must hold.
        mended: package to a range in which it does not happen any more; any one is a way out.
        needs: what else must hold (a feature, a model, a setting, the environment); "" where any run meets it.
        testable: the least that it takes to see it.
        effect: what comes of it, as for a finding; `default_path` whether an ordinary run meets it.
        feature: the part of the stack that it hurts ("" with `default_path`).
        silent: nothing is raised.
        planted: the probe brings its trigger about (a lost file mode, a full address, a misuse), so seeing it says
            nothing against the versions: it is recorded and never decides a verdict.
        cause: why it happens.
        way_out: what to do, one line a step.
        probe: pytest id under tests/compat that reproduces it, "" with `unprobed` saying why there is none.
        sources: where it is described: `owner/repo#number`, a URL, or `package version: path`.
        checked: when somebody last compared the record with reality.
        note: what a careful reader should know (doubts, what did not hold of an earlier statement).
    """

    id: str
    family: Family
    title: str
    affects: Mapping[str, SpecifierSet]
    fingerprint: Fingerprint
    cause: str
    way_out: tuple[str, ...]
    sources: tuple[str, ...]
    testable: Reach
    confidence: Confidence
    severity: Severity
    effect: Effect
    checked: date
    mended: Mapping[str, SpecifierSet] = field(default_factory=dict)
    needs: str = ""
    feature: str = ""
    default_path: bool = False
    silent: bool = False
    planted: bool = False
    probe: str = ""
    unprobed: str = ""
    note: str = ""

    def applies(self, versions: Mapping[str, Version | None]) -> Applies:
        """Return whether these versions are affected; None means the package is known to be absent.

        One package outside its range, or absent, settles it; else one that is not named leaves it `unknown`.
        """
        unknown = False
        for package, wanted in self.affects.items():
            if package not in versions:
                unknown = True
                continue
            version = versions[package]
            if version is None or not wanted.contains(version, prereleases=True):
                return Applies.NO
        return Applies.UNKNOWN if unknown else Applies.YES

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data: the record as it is shown."""
        shows = self.fingerprint
        return {
            "id": self.id,
            "family": self.family.value,
            "title": self.title,
            "affects": {package: str(within) for package, within in self.affects.items()},
            "mended": {package: str(within) for package, within in self.mended.items()},
            "needs": self.needs,
            "testable": self.testable.value,
            "effect": self.effect.value,
            "feature": self.feature,
            "default_path": self.default_path,
            "silent": self.silent,
            "severity": self.severity.value,
            "confidence": self.confidence.value,
            "fingerprint": {
                "exception": shows.exception,
                "pattern": shows.pattern,
                "place": shows.place,
                "observable": shows.observable,
                "example": shows.example,
            },
            "cause": self.cause,
            "way_out": list(self.way_out),
            "sources": list(self.sources),
            "probe": self.probe,
            "unprobed": self.unprobed,
            "checked": self.checked.isoformat(),
            "note": self.note,
        }
