"""Saved runs of pytest-benchmark, compared by our verdicts: the pairs of one run, or one run against another.

A run of `pytest bench` has, for each side of a pairing, a bench whose samples are the seconds of its launches; the rest
stands in its `extra_info` under `verl_matrix`. Runs of other suites can be compared too, by the names of their benches.
Two runs lay apart in time, so the comparison of two says so (docs/statistics.md: what changed in between counts).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.comparison import Comparison, compare, judge_together
from bench.record import why
from bench.sample import Better, Launch, Metric, Sample, Side
from matrix.errors import DataError

KEY = "verl_matrix"
SCHEMA = 1
SECONDS = Metric(name="seconds", unit="s", better=Better.LOWER)
_MACHINE = ("machine", "system", "processor", "python_version", "gpus", "driver")
"""What two runs must have in common to be compared, where both tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One bench of a saved run: its samples in seconds, with places and faults where it is one of ours."""

    name: str
    samples: tuple[float, ...]
    ours: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pair(self) -> tuple[str, str, str]:
        """Return what its two sides have in common: series, recipe with metric, pairing."""
        return (
            str(self.ours.get("series", "")),
            f"{self.ours.get('recipe', '')} {self.ours.get('metric', '')}",
            str(self.ours.get("pairing", "")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A saved run: where it was read, its benches by name, and what it ran on."""

    path: Path
    entries: tuple[Entry, ...]
    machine: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What was compared, under the name that both sides share."""

    name: str
    comparison: Comparison

    @property
    def line(self) -> str:
        """Return it in one line, with what is to be known."""
        cautions = "; ".join(f"{one.about}: {one.text}" for one in self.comparison.cautions)
        return f"{self.name}: {why(self.comparison)}" + (f" ({cautions})" if cautions else "")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        from bench.plain import verdict

        return {"name": self.name, "metric": self.comparison.metric.name, **verdict(self.comparison)}


def read_saved(path: Path) -> Saved:
    """Return a saved run; raises DataError where the file is none, or holds no samples."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        machine = whole["machine_info"]
        entries = tuple(_entry(path, item) for item in whole["benchmarks"])
    except OSError as error:
        raise DataError(path, "", f"cannot be read: {error}", then="Check the path.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        then = "`pytest bench --benchmark-json FILE` makes one."
        raise DataError(path, "", f"is no saved run of pytest-benchmark: {error}", then=then) from error
    told = {name: str(machine[name]) for name in _MACHINE if machine.get(name)}
    return Saved(path=path, entries=entries, machine=told)


def _entry(path: Path, item: Mapping[str, Any]) -> Entry:
    data = item["stats"].get("data")
    if not data:
        raise DataError(
            path,
            str(item["fullname"]),
            "has no samples",
            then="Save them too: --benchmark-json, or --benchmark-save-data.",
        )
    ours = item.get("extra_info", {}).get(KEY, {})
    if not isinstance(ours, dict) or ours.get("schema", SCHEMA) != SCHEMA:
        raise DataError(path, str(item["fullname"]), f"its {KEY} is of another form than schema {SCHEMA}")
    return Entry(name=str(item["fullname"]), samples=tuple(float(value) for value in data), ours=ours)


def within(run: Saved, margin: float) -> tuple[Compared, ...]:
    """Return the pairs of one run, judged together: side B against side A, in the order in which they ran."""
    pairs: dict[tuple[str, str, str], dict[str, Entry]] = {}
    for entry in run.entries:
        if entry.ours:
            pairs.setdefault(entry.pair, {})[str(entry.ours.get("side"))] = entry
    names, found = [], []
    for (_, recipe, pairing), sides in pairs.items():
        if set(sides) == {Side.A.value, Side.B.value}:
            launches = [launch for side in Side for launch in _launches(sides[side.value], side)]
            sample = Sample(metric=SECONDS, launches=tuple(launches))
            reasons = [str(line) for line in sides[Side.A.value].ours.get("reasons", ())]
            found.append(compare(sample, margin=margin, reasons=reasons))
            names.append(f"{pairing}, {recipe}")
    return tuple(
        Compared(name=name, comparison=one) for name, one in zip(names, judge_together(found), strict=True)
    )  # fmt: skip


def _launches(entry: Entry, side: Side) -> list[Launch]:
    """Return a side's launches at the places where they ran, failed ones with their reason."""
    faults = entry.ours.get("faults", {})
    failed = [Launch(place=int(place), side=side, fault=str(text)) for place, text in faults.items()]
    places: Sequence[int] = entry.ours.get("places", ())
    kept = [Launch.of(int(place), side, value) for place, value in zip(places, entry.samples, strict=True)]
    return [*kept, *failed]


def between(first: Saved, second: Saved, margin: float) -> tuple[Compared, ...]:
    """Return the benches that both runs have, the second against the first, judged together; with the caution of it."""
    theirs = {entry.name: entry for entry in second.entries}
    names, found = [], []
    for mine in first.entries:
        other = theirs.get(mine.name)
        if other is not None:
            sample = Sample.separate(SECONDS, mine.samples, other.samples)
            found.append(compare(sample, margin=margin, reasons=_reasons(first, second, mine, other)))
            names.append(mine.name)
    return tuple(
        Compared(name=name, comparison=one) for name, one in zip(names, judge_together(found), strict=True)
    )  # fmt: skip


def _reasons(first: Saved, second: Saved, mine: Entry, other: Entry) -> list[str]:
    """Return why two runs of a bench cannot be compared: another machine, or another workload."""
    found = [
        f"{name} was {first.machine[name]}, and is {second.machine[name]}"
        for name in _MACHINE
        if name in first.machine and name in second.machine and first.machine[name] != second.machine[name]
    ]
    for name in ("workload", "machine", "device"):
        was, now = mine.ours.get(name), other.ours.get(name)
        if was is not None and now is not None and was != now:
            found.append(f"{name} was {was}, and is {now}")
    return found
