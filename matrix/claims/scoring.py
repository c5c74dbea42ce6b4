"""Checks of how GSM8K is scored and read: patterns on samples, and the scorer of each release as its code has it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matrix.cell import Axis
from matrix.claims.checks import Look, Reader
from matrix.dataset.releases import scorer_of_release

if TYPE_CHECKING:
    from matrix.claims.library import Library
    from matrix.datafile import Table

_VERL = Axis.VERL.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """Whether a pattern finds `gives` in a sample (`matches`); without `pattern` the scorer's of each release.

    `gives` is the first group of the match with commas taken out, as the scripts do; "" that nothing is found.
    """

    pattern: str
    sample: str
    gives: str
    releases: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"{self.pattern or 'the pattern of verl'} finds {self.gives or 'nothing'} in {self.sample!r}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield one look, or one a release."""
        if self.pattern:
            yield self._look(self.pattern, "the pattern", "")
            return
        for version in library.within(_VERL, self.releases):
            scorer = scorer_of_release(library.index, version)
            if scorer.gsm8k is not None:
                yield self._look(scorer.gsm8k.strict, f"verl {version}", str(version))

    def _look(self, pattern: str, subject: str, release: str) -> Look:
        match = re.search(pattern, self.sample)
        found = match[1].replace(",", "") if match is not None else ""
        told = f"`{pattern}` on {self.sample!r} gives {found or 'nothing'}"
        return Look(subject=subject, supports=found == self.gives, text=told, release=release)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Whether releases can score a `data_source` (`scores`); with `response` whether it counts as right for `truth`."""

    source: str
    response: str
    truth: str
    releases: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        more = f", and {self.response!r} is right for {self.truth}" if self.response else ""
        return f"verl ({self.releases}) scores data_source {self.source}{more}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release."""
        for version in library.within(_VERL, self.releases):
            scorer = scorer_of_release(library.index, version)
            module = scorer.module(self.source)
            if module is None:
                told, right = f"no scorer for `{self.source}`: NotImplementedError", False
            elif not self.response:
                told, right = f"`{self.source}` is scored by {module}", True
            elif scorer.gsm8k is None:
                # How that release scores could not be read, which says nothing.
                continue
            else:
                match = re.search(scorer.gsm8k.strict, self.response)
                found = match[1] if match is not None else ""
                for part in scorer.gsm8k.removed:
                    found = found.replace(part, "")
                right = found == self.truth
                told = f"`{scorer.gsm8k.strict}` takes {found or 'nothing'} out of {self.response!r}"
            yield Look(subject=f"verl {version}", supports=right, text=told, release=str(version))


def _matches(table: Table) -> Matches:
    pattern = table.text("pattern", "")
    try:
        re.compile(pattern)
    except re.error as error:
        raise table.error("pattern", f"is not a regular expression: {error}") from None
    return Matches(
        pattern=pattern,
        sample=table.text("sample"),
        gives=table.text("gives", ""),
        releases=table.text("releases", "all"),
    )


def _scores(table: Table) -> Scores:
    return Scores(
        source=table.text("source"),
        response=table.text("response", ""),
        truth=table.text("truth", ""),
        releases=table.text("releases", "all"),
    )


READERS: Mapping[str, Reader] = {"matches": _matches, "scores": _scores}
