"""Whether tier `surface` tells the known failures: ``python tests/accuracy/known.py [ID…]`` prints a table.

`known.toml` says for each failure on which sets the tier must report it (recall) and on which it must not. Releases
are read from the index and kept in the cache of ``--home``. A finding that is not certain counts as seen where
everything else fits, and the table says so. The exit code is 1 where something is missed or reported wrongly.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from matrix.cell import Axis, Cell, Pin  # noqa: E402
from matrix.finding import Finding  # noqa: E402
from matrix.home import Home  # noqa: E402
from matrix.index.simple import SimpleIndex  # noqa: E402
from matrix.surface.check import SurfaceChecker  # noqa: E402

DATA = Path(__file__).with_name("known.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A known failure: which finding it is, on which sets it is seen and on which not; or why no set can show it."""

    id: str
    symbol: str = ""
    effects: frozenset[str] = frozenset()
    affected: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    beyond: str = ""

    def is_meant(self, finding: Finding) -> bool:
        """Return whether a finding is this failure."""
        return finding.effect in self.effects and fnmatchcase(finding.symbol, self.symbol)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One set, what was expected of it and what was seen: the worst finding that is meant, None when there is none."""

    failure: Failure
    pins: str
    expected: bool
    seen: Finding | None

    @property
    def right(self) -> bool:
        """Return whether what was seen is what was expected."""
        return (self.seen is not None) is self.expected

    @property
    def result(self) -> str:
        """Return `hit` or `miss` of an affected set, `clean` or `false` of a fixed one."""
        return ("hit" if self.right else "miss") if self.expected else ("clean" if self.right else "false")

    def line(self) -> str:
        """Return a row of the table."""
        found = "-"
        if self.seen is not None:
            doubt = "" if self.seen.certain else ", not certain"
            found = f"{self.seen.effect} [{self.seen.feature}] at {self.seen.used_at}{doubt}"
        expected = "reported" if self.expected else "not reported"
        return f"| {self.failure.id} | {self.pins} | {expected} | {found} | {self.result} |"


def load(path: Path = DATA) -> tuple[Failure, ...]:
    """Return the failures in the file's order."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    if data["schema"] != 1:
        raise ValueError(f"{path}: schema {data['schema']}")
    return tuple(
        Failure(
            id=item["id"],
            symbol=item.get("symbol", ""),
            effects=frozenset(item.get("effects", ())),
            affected=tuple(item.get("affected", ())),
            fixed=tuple(item.get("fixed", ())),
            beyond=item.get("beyond", ""),
        )
        for item in data["failure"]
    )


def pinned(text: str) -> dict[Axis, Version]:
    """Return the versions that `verl==0.8.0 vllm==0.12.0` names."""
    pairs = (word.split("==") for word in text.split())
    return {Axis(name): Version(version) for name, version in pairs}


def rows(failures: Sequence[Failure], checker: SurfaceChecker) -> Iterator[Row]:
    """Yield what was seen on each set; sets of one release of verl follow each other."""
    asked = [(failure, pins, True) for failure in failures for pins in failure.affected]
    asked += [(failure, pins, False) for failure in failures for pins in failure.fixed]
    order = sorted(range(len(asked)), key=lambda at: str(pinned(asked[at][1])[Axis.VERL]))
    known: dict[str, tuple[Finding, ...]] = {}
    answers: dict[int, Row] = {}
    for at in order:
        failure, pins, expected = asked[at]
        if pins not in known:
            known[pins] = findings(pinned(pins), checker)
        meant = [finding for finding in known[pins] if failure.is_meant(finding)]
        seen = min(meant, key=lambda finding: not finding.certain, default=None)
        answers[at] = Row(failure=failure, pins=pins, expected=expected, seen=seen)
    position = {failure.id: place for place, failure in enumerate(failures)}
    yield from sorted(answers.values(), key=lambda row: (position[row.failure.id], not row.expected))


def findings(versions: Mapping[Axis, Version], checker: SurfaceChecker) -> tuple[Finding, ...]:
    """Return what the tier finds on a set."""
    cell = Cell(pins=tuple(Pin(axis=axis, version=version) for axis, version in versions.items()))
    found = checker.observe(cell, versions).detail["findings"]
    assert isinstance(found, list)
    return tuple(Finding.from_json(item) for item in found)


def main() -> int:
    """Print the table and the two rates; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--home", help="where downloads are kept")
    options = parser.parse_args()
    failures = [failure for failure in load() if not options.ids or failure.id in options.ids]
    cache = Home.find(options.home).cache
    checker = SurfaceChecker(SimpleIndex.from_environment(cache_dir=cache), cache)
    seen = list(rows([failure for failure in failures if not failure.beyond], checker))
    head = ("failure", "set", "expected", "seen", "result")
    sys.stdout.write(f"| {' | '.join(head)} |\n{'|---' * len(head)}|\n")
    sys.stdout.write("".join(f"{row.line()}\n" for row in seen))
    hits = [row for row in seen if row.expected and row.right]
    clean = [row for row in seen if not row.expected and row.right]
    affected = sum(row.expected for row in seen)
    told = {row.failure.id for row in hits} - {row.failure.id for row in seen if not row.right}
    asked = {row.failure.id for row in seen}
    fixed = len(seen) - affected
    sys.stdout.write(
        f"\nreported on {len(hits)} of {affected} affected sets, silent on {len(clean)} of {fixed} fixed ones; "
        f"{len(told)} of {len(asked)} failures right on every set\n"
    )
    beyond = [failure for failure in failures if failure.beyond]
    if beyond:
        sys.stdout.write(f"\nout of reach ({len(beyond)}):\n")
        sys.stdout.write("".join(f"- {failure.id}: {failure.beyond}\n" for failure in beyond))
    return 0 if all(row.right for row in seen) else 1


if __name__ == "__main__":
    sys.exit(main())
