"""What is gathered of a series: of each pairing and metric the sample, and whatever speaks against comparing it.

Rebuilt from stored observations alone, so that a series that was stopped, or brought from another machine, reads as one
that ran through.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from bench.conditions import differing, other_host, other_workload
from bench.figures import metric_named, rank
from bench.launched import Launched
from bench.recipes import Kind
from bench.sample import Launch, Metric, Sample, Side
from matrix.observe import LAUNCH, Observation
from matrix.tier import Tier

APART_S = 900.0
"""The launches of a pair lie close in time while no more than this passed between them."""
BLOCK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """One metric of one pairing of one series.

    Attributes:
        replicate: `launch`, or `repeat` where the places are repeats within launches that hold both sides.
        sample: everything that was tried, in order, with the reasons why some has no figure.
        reasons: why the sides cannot be compared, () where they can.
        notes: what to know, a line each; they change no verdict.
        raw: the values of each place as measured, of which the first `dropped` are warm-up.
        numerics: numbers of training by side and name, one a launch (or a repeat), the median of its steps that count.
        within: whether one launch of both sides gave the same numbers from the same weights; None where not told.
        cells: the cell of each side; `says` what its launches were, in one line.
        machine: what they ran on, in words; `gpus` the models of the cards of one launch.
        seconds: wall time of all launches, of the warming ones too; `gpu_seconds` times GPUs.
        startup: the share of the launches' wall time before training began; None where it is not told.
        at: when the first and the last of them ended.
        planned: whole pairs that were wanted.
    """

    series: str
    pairing: str
    recipe: str
    kind: Kind
    device: str
    metric: Metric
    replicate: Literal["launch", "repeat"]
    sample: Sample
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    raw: Mapping[int, tuple[float, ...]]
    dropped: int
    numerics: Mapping[Side, Mapping[str, tuple[float, ...]]]
    within: bool | None
    cells: Mapping[Side, str]
    says: Mapping[Side, str]
    machine: str
    gpus: tuple[str, ...]
    fingerprint: str
    seconds: float
    gpu_seconds: float
    startup: float | None
    at: tuple[datetime, datetime]
    planned: int


def launches_of(observations: Iterable[Observation]) -> tuple[Launched, ...]:
    """Return the launches among observations, each place once (the latest), in order of series, pairing and place."""
    found: dict[tuple[str, ...], Launched] = {}
    for item in sorted(observations, key=lambda item: item.at):
        if item.question.tier is Tier.BENCH and item.question.probe.startswith(LAUNCH):
            launched = Launched.of(item)
            key = (launched.series, _device(launched), item.question.probe)
            found.pop(key, None)
            found[key] = launched
    order = sorted(found, key=lambda key: (key[0], key[1], found[key].recipe, found[key].pairing, found[key].place))
    return tuple(found[key] for key in order)


def gathered(observations: Iterable[Observation]) -> tuple[Gathered, ...]:
    """Return what is gathered, by series, pairing and metric, the bench's main metric first."""
    groups: dict[tuple[str, str, str, str], list[Launched]] = {}
    for launched in launches_of(observations):
        key = (launched.series, _device(launched), launched.recipe, launched.pairing)
        groups.setdefault(key, []).append(launched)
    return tuple(item for group in groups.values() for item in _of_pairing(group))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One metric of a pairing: its launches for the sample, and the raw values by place."""

    launches: tuple[Launch, ...]
    raw: Mapping[int, tuple[float, ...]] = field(default_factory=dict)


def _of_pairing(group: Sequence[Launched]) -> list[Gathered]:
    counted = [item for item in group if not item.warms]
    if not counted:
        return []
    last = counted[-1]
    repeats = last.side is None
    reasons, lost = _disturbances(counted)
    lost = {**lost, **split(counted)}
    columns = _repeated(counted, lost) if repeats else _single(counted, lost)
    machine_reasons, notes = _conditions(counted)
    seconds = sum(item.seconds for item in group)
    before = [value for item in group if isinstance(value := item.observation.detail.get("startup_s"), int | float)]
    detail = last.observation.detail
    return [
        Gathered(
            series=last.series,
            pairing=last.pairing,
            recipe=last.recipe,
            kind=last.kind,
            device=_device(last),
            metric=metric_named(name),
            replicate="repeat" if repeats else "launch",
            sample=Sample(metric=metric_named(name), launches=column.launches),
            reasons=(*reasons, *machine_reasons),
            notes=notes,
            raw=column.raw,
            dropped=max(item.measured.dropped for item in counted),
            numerics=_numerics(counted),
            within=_within(counted),
            cells=_told(counted, "cells"),
            says=_told(counted, "says"),
            machine=last.observation.machine,
            gpus=_words(detail.get("gpus")),
            fingerprint=str(detail.get("fingerprint", "")),
            seconds=seconds,
            gpu_seconds=sum(item.gpu_seconds for item in group),
            startup=sum(before) / seconds if before and seconds > 0 else None,
            at=(min(item.observation.at for item in group), max(item.observation.at for item in group)),
            planned=max(item.planned for item in counted),
        )
        for name, column in sorted(columns.items(), key=lambda entry: rank(entry[0], last.kind.value))
    ]


def _disturbances(counted: Sequence[Launched]) -> tuple[tuple[str, ...], Mapping[int, str]]:
    """Return why the launches cannot be compared, and those that are left out instead because others replaced them.

    A disturbed launch (throttled, not alone on its card) makes the comparison incomparable, until there are as many
    whole pairs without one as were wanted. Which count is so decided by the machine alone, never by a figure.
    """
    disturbed = {item.place: "; ".join(item.disturbed) for item in counted if item.disturbed and item.fault is None}
    if not disturbed:
        return (), {}
    pairs: dict[int, list[Launched]] = {}
    for item in counted:
        pairs.setdefault(item.place // 2 if item.side is not None else item.place, []).append(item)
    whole = [pair for pair in pairs.values() if len(pair) == 2 or pair[0].side is None]
    faulted = sum(any(item.fault is not None for item in pair) for pair in whole)
    clean = sum(not any(item.disturbed or item.fault is not None for item in pair) for pair in whole)
    if clean and clean + faulted >= max(item.planned for item in counted):
        return (), disturbed
    reasons = dict.fromkeys(f"launch {place}: {what}" for place, what in disturbed.items())
    return tuple(reasons), {}


def split(launches: Sequence[Launched]) -> dict[int, str]:
    """Return the launches, by place, whose pair ran on two hosts, and in what these differ; of a CPU none.

    A host is no matter from pair to pair, but within one it is a difference between the sides.
    """
    by_place = {item.place: item for item in launches if item.side is not None and not item.warms}
    found = {}
    for place, item in by_place.items():
        other = by_place.get(place ^ 1)
        if other is not None and _device(item) != "cpu":
            what = other_host(_table(by_place[min(place, place ^ 1)], "conditions"),
                              _table(by_place[max(place, place ^ 1)], "conditions"))  # fmt: skip
            if what:
                found[place] = f"its pair ran on two hosts ({what})"
    return found


def _single(counted: Sequence[Launched], lost: Mapping[int, str]) -> dict[str, _Column]:
    """Return the columns of launches of one side each."""
    names = dict.fromkeys(name for item in counted for name in item.figures if item.fault is None)
    found = {}
    for name in names:
        launches = []
        raw: dict[int, tuple[float, ...]] = {}
        for item in counted:
            assert item.side is not None
            figure = item.figures.get(name)
            if figure is not None:
                raw[item.place] = figure.raw
            fault = str(item.fault) if item.fault is not None else lost.get(item.place, "")
            if figure is None or figure.value is None:
                fault = fault or (figure.fault if figure is not None else "it has no such figure")
            value = figure.value if figure is not None and not fault else None
            launches.append(Launch(place=item.place, side=item.side, value=value, fault=fault))
        found[name] = _Column(launches=tuple(launches), raw=raw)
    return found


def _repeated(counted: Sequence[Launched], lost: Mapping[int, str]) -> dict[str, _Column]:
    """Return the columns of launches that hold both sides, one launch's repeats after the other's."""
    stride, places = 0, [0]
    for item in counted:
        most = max((repeat.place for repeats in item.measured.repeats.values() for repeat in repeats), default=-1)
        stride += -(-(most + 1) // BLOCK) * BLOCK
        places.append(stride)
    found: dict[str, _Column] = {}
    names = dict.fromkeys(name for item in counted for name in item.measured.repeats)
    for name in names:
        launches: list[Launch] = []
        for item, first in zip(counted, places, strict=False):
            why = lost.get(item.place, "")
            for repeat in item.measured.repeats.get(name, ()):
                fault = repeat.fault or why
                value = repeat.value if not fault else None
                launches.append(Launch(place=first + repeat.place, side=repeat.side, value=value, fault=fault))
        raw = {launch.place: (launch.value,) for launch in launches if launch.value is not None}
        found[name] = _Column(launches=tuple(launches), raw=raw)
    return found


def _conditions(counted: Sequence[Launched]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what of machine, workload and time speaks against comparing, and what is only to be known."""
    # What a launch of both sides measured before its fault counts, and so do its conditions.
    ran = [item for item in counted if item.fault is None or item.measured.repeats]
    reasons, notes = differing([(item.place, _table(item, "conditions")) for item in ran], _device(counted[-1]))
    reasons += other_workload([(item.place, _table(item, "workload")) for item in ran])
    more = list(notes)
    scripts = {str(item.observation.detail.get("scripts")) for item in ran}
    if len(scripts) > 1:
        more.append(f"launched by {len(scripts)} versions of the scripts")
    if len({item.observation.question.tool for item in ran}) > 1:
        more.append("launched by several versions of the tool")
    more += [str(line) for item in ran for line in _words(item.observation.detail.get("notes"))]
    by_place = {item.place: item for item in ran if item.side is not None}
    for place, item in by_place.items():
        other = by_place.get(place + 1) if place % 2 == 0 else None
        if other is not None:
            apart = abs((other.observation.at - item.observation.at).total_seconds()) - other.seconds
            if apart > APART_S:
                more.append(f"{apart / 60:.0f} min lie between the launches {place} and {place + 1}, which are a pair")
    return reasons, tuple(dict.fromkeys(more))


def _numerics(counted: Sequence[Launched]) -> dict[Side, dict[str, tuple[float, ...]]]:
    """Return the numbers of training by side and name: of a launch the median, of repeats each one's."""
    found: dict[Side, dict[str, list[float]]] = {side: {} for side in Side}
    for item in counted:
        for side, numbers in item.measured.numerics.items():
            for name, values in numbers.items():
                kept = list(values[item.measured.dropped :])
                if item.side is not None:
                    whole = all(math.isfinite(value) for value in kept)
                    kept = [statistics.median(kept) if whole else math.nan] if kept else []
                found[side].setdefault(name, []).extend(kept)
    return {side: {name: tuple(values) for name, values in numbers.items()} for side, numbers in found.items()}


def _within(counted: Sequence[Launched]) -> bool | None:
    told = [item.measured.within for item in counted if item.measured.within is not None]
    return all(told) if told else None


def _told(counted: Sequence[Launched], name: str) -> dict[Side, str]:
    """Return what the launches say of each side."""
    found: dict[Side, str] = {}
    for item in counted:
        found |= {Side(side): str(value) for side, value in _table(item, name).items()}
    return found


def _table(item: Launched, name: str) -> Mapping[str, object]:
    value = item.observation.detail.get(name)
    return value if isinstance(value, Mapping) else {}


def _device(item: Launched) -> str:
    return str(item.observation.detail.get("device", "cpu"))


def _words(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()
