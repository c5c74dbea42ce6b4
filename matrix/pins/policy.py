"""The policy: how deep a set must have been tried, on which GPU, how much slower it may be, which features count."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.datafile import read
from matrix.errors import UsageError
from matrix.failure import Failure
from matrix.finding import Effect, Kind
from matrix.nearness import near_names
from matrix.tier import Tier

FEATURES = Path(__file__).with_name("features.toml")
PROFILE = Path(__file__).parents[1] / "surface" / "verl.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a set has to keep to be advised.

    Attributes:
        min_tier: the least depth at which a set counts as proven.
        asked: whether somebody asked for that depth, so that a set that is not proven does not qualify.
        gpu: text that the machine of the tiers `gpu` and `bench` must hold, e.g. `H200`; "" for any.
        max_slowdown: 0.03 where no comparison may show more than 3 % less throughput; None for no limit.
        uses: features in use; what hurts others alone does not count.
    """

    min_tier: Tier = Tier.GPU
    asked: bool = False
    gpu: str = ""
    max_slowdown: float | None = None
    uses: tuple[str, ...] = ()

    def uses_feature(self, *texts: str) -> bool:
        """Return whether one of these texts (a feature, a condition) speaks of a feature in use."""
        known = patterns()
        return any(
            text and (word == text or (word in known and known[word].search(text) is not None))
            for word in self.uses
            for text in texts
        )

    def counts(self, finding: Mapping[str, object], *, broken: bool = True) -> bool:
        """Return whether a finding is a break here: certain, and on the ordinary path or that of a used feature.

        What breaks an import is on the ordinary path where its probe says `broken`: else it is a feature's own import.
        """
        certain = bool(finding.get("certain", True)) and finding.get("kind") != Kind.PACKAGE_ABSENT
        effect = finding.get("effect")
        if not certain or effect == Effect.GUARDED:
            return False
        feature = str(finding.get("feature") or "")
        ordinary = bool(finding.get("default_path")) or (effect == Effect.BREAKS_IMPORT and (broken or not feature))
        return ordinary or self.uses_feature(feature)

    def touches(self, failure: Failure) -> bool:
        """Return whether a known failure hurts a feature in use."""
        return self.uses_feature(failure.feature, failure.needs)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data (evidence.schema.json: `policy`)."""
        return {
            "min_tier": self.min_tier.value,
            "min_tier_asked": self.asked,
            "gpu": self.gpu,
            "max_slowdown": self.max_slowdown,
            "uses": list(self.uses),
        }


@functools.cache
def patterns(path: Path = FEATURES) -> Mapping[str, re.Pattern[str]]:
    """Return the pattern of each feature word; raises DataError where the file is not as it should be."""
    whole = read(path)
    found: dict[str, re.Pattern[str]] = {}
    for table in whole.tables("feature"):
        name, text = table.text("name"), table.text("matches")
        table.end()
        try:
            found[name] = re.compile(text, re.IGNORECASE)
        except re.error as error:
            raise table.error("matches", f"is not a regular expression: {error}") from None
    whole.end()
    return found


def profile_features(path: Path = PROFILE) -> tuple[str, ...]:
    """Return the features that findings of the surface tier name, sorted; each is a word of its own."""
    import tomllib

    rows = tomllib.loads(path.read_text(encoding="utf-8"))["feature"]
    return tuple(sorted({str(row["name"]) for row in rows}))


def parse_uses(words: Sequence[str], more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the features of `--uses`, sorted; `more` are names that are known besides those of the file.

    Raises:
        UsageError: a word is no feature; the message has near ones.
    """
    known = {*patterns(), *more}
    found = set()
    for word in filter(None, (part.strip().lower() for text in words for part in text.split(","))):
        if word not in known:
            near = near_names(word, known)
            hint = f"Closest: {', '.join(near)}." if near else ""
            raise UsageError(
                f"--uses: there is no feature `{word}`.", why=hint, then=f"They are {', '.join(sorted(known))}."
            )
        found.add(word)
    return tuple(sorted(found))


def parse_share(text: str) -> float:
    """Return the share that `3%` or `0.03` says; raises UsageError for what is none, or is not below 100 %."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)\s*(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= share < 1:
        raise UsageError(f"--max-slowdown: `{text}` is not a share like 3% or 0.03.")
    return share
