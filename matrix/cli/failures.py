"""The command `failures`: list the records, show one, say which apply, how they stand, and whether they are sound."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.axes import load_axes
from matrix.cli.front import Front
from matrix.doctor.remedy import remedies
from matrix.errors import DataError, ToolError, UsageError
from matrix.failure import Applies, Failure, Family, Reach, Severity
from matrix.known import Match, faults, matching, parse_installed
from matrix.nearness import near_names
from matrix.probing.folder import probes_folder
from matrix.records import load_failures

if TYPE_CHECKING:
    from matrix.observe import Observation


def run(args: argparse.Namespace, front: Front) -> int:
    """Print what was asked of the records; 0, or 1 where `for` finds one that applies, 3 where a record is unsound."""
    match args.action:
        case "show":
            return _show(args)
        case "for":
            return _for(args)
        case "summary":
            return _summary(args)
        case "lint":
            return _lint(args)
        case _:
            return _list(args)


def _chosen(args: argparse.Namespace) -> tuple[Failure, ...]:
    family = _word(args.family, tuple(Family), "family") if args.family else None
    testable = _word(args.testable, tuple(Reach), "tier") if args.testable else None
    return tuple(
        failure
        for failure in load_failures()
        if (family is None or failure.family == family) and (testable is None or failure.testable == testable)
    )


def _word(given: str, known: Sequence[str], what: str) -> str:
    if given not in known:
        raise UsageError(f"There is no {what} `{given}` of records.", then=f"They are {', '.join(known)}.")
    return given


def _list(args: argparse.Namespace) -> int:
    if args.spec:
        raise UsageError(
            f"`failures list` takes no words; `{args.spec[0]}` is one.",
            then="`failures show ID` or `failures for SPEC`.",
        )
    chosen = _chosen(args)
    if args.json:
        _say(json.dumps([failure.to_json() for failure in chosen], indent=2, ensure_ascii=False))
        return 0
    rows = [(item.id, item.severity.value, item.testable.value, _affects(item)) for item in chosen]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    family = None
    for failure, row in zip(chosen, rows, strict=True):
        if failure.family is not family:
            family = failure.family
            _say(f"{family.value}")
        cells = "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=False))
        _say(f"  {cells}  {row[3]}")
    _say(f"{len(chosen)} of {len(load_failures())} records; `failures show ID` tells more.")
    return 0


def _show(args: argparse.Namespace) -> int:
    known = {failure.id: failure for failure in load_failures()}
    if not args.spec:
        raise UsageError("`failures show` names no record.", then="`failures list` shows their ids.")
    for name in args.spec:
        if name not in known:
            near = near_names(name, known)
            hint = f"Closest: {', '.join(near)}." if near else ""
            raise UsageError(f"There is no record `{name}`.", why=hint, then="`failures list` shows their ids.")
    from matrix.standing import stands

    found = stands([known[name] for name in args.spec], _observations(args))
    if args.json:
        data = [{**item.failure.to_json(), "standing": item.standing.value, "stands": item.told} for item in found]
        _say(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        _say("\n\n".join(_text(item.failure, item.told) for item in found))
    return 0


def _for(args: argparse.Namespace) -> int:
    installed = parse_installed(args.spec)
    axes = load_axes()
    chosen = _chosen(args)
    found = sorted(matching(chosen, installed), key=_urgency)
    certain = sum(match.applies is Applies.YES for match in found)
    known = load_failures()
    ways = {
        match.failure.id: [remedy.requirement for remedy in remedies(match.failure, installed, known, axes)]
        for match in found
    }
    if args.json:
        data = [
            {
                **match.failure.to_json(),
                "applies": match.applies.value,
                "open_on": list(match.open_on),
                "remedies": ways[match.failure.id],
            }
            for match in found
        ]
        _say(json.dumps(data, indent=2, ensure_ascii=False))
        return 1 if certain else 0
    for match in found:
        failure = match.failure
        doubt = "" if match.applies is Applies.YES else f"  (if {' and '.join(_if(failure, match.open_on))})"
        _say(f"{failure.severity.value:<6}  {failure.id}: {failure.title}{doubt}")
        if failure.needs:
            _say(f"        when     {failure.needs}")
        _say(f"        way out  {' or '.join(ways[failure.id]) or '; '.join(failure.way_out)}")
    named = ", ".join(f"{package} {version}" for package, version in installed.items())
    _say(f"{certain} of {len(chosen)} records apply to {named}; {len(found) - certain} may, by versions not named.")
    return 1 if certain else 0


def _urgency(match: Match) -> tuple[bool, int]:
    """Return what to sort by: what certainly applies first, then the severe."""
    return match.applies is not Applies.YES, tuple(Severity).index(match.failure.severity)


def _if(failure: Failure, packages: Sequence[str]) -> list[str]:
    return [f"{package}{failure.affects[package]}" for package in packages]


def _summary(args: argparse.Namespace) -> int:
    from matrix.standing import Standing, by_family, stands

    found = stands(_chosen(args), _observations(args))
    if args.json:
        data = [
            {"id": item.failure.id, "family": item.failure.family.value, "standing": item.standing.value,
             "cells": list(item.cells), "why": item.line}
            for item in found
        ]  # fmt: skip
        _say(json.dumps(data, indent=2, ensure_ascii=False))
        return 0
    counts = by_family(found)
    words = tuple(Standing)
    _say(f"{'family':<13}{'held':>6}" + "".join(f"{word.value:>12}" for word in words))
    for family, row in counts.items():
        if sum(row.values()):
            _say(f"{family.value:<13}{sum(row.values()):>6}" + "".join(f"{row[word]:>12}" for word in words))
    total = {word: sum(row[word] for row in counts.values()) for word in words}
    _say(f"{'all':<13}{len(found):>6}" + "".join(f"{total[word]:>12}" for word in words))
    for item in found:
        if item.standing in (Standing.REFUTED, Standing.UNSETTLED):
            _say(f"{item.standing.value}: {item.failure.id} on {item.line}")
    _say(
        "absent: its probe ran, only where it is not predicted. elsewhere: takes a GPU, and none was at hand. "
        "unprobed: its record says why. By what was observed here and by the evidence that is shipped."
    )
    return 0


def _observations(args: argparse.Namespace) -> list[Observation]:
    """Return what is recorded with the project, then what this machine observed."""
    from matrix.evidence import shipped
    from matrix.home import Home
    from matrix.store import Store

    home = Home.find(args.home).store
    return [*shipped(args.evidence), *(Store(home) if home.is_dir() else ())]


def _lint(args: argparse.Namespace) -> int:
    failures = load_failures([Path(word) for word in args.spec])
    wrong = list(faults(failures, load_axes(), _probes()))
    for line in wrong:
        _say(line)
    if wrong:
        raise DataError("records", "", f"{len(wrong)} of {len(failures)} records are not sound")
    _say(f"{len(failures)} records are sound.")
    return 0


def _probes() -> Path | None:
    """Return the folder of the probes, None where they are not at hand."""
    try:
        return probes_folder()
    except ToolError:
        return None


def _affects(failure: Failure) -> str:
    return ", ".join(f"{package}{within}" for package, within in failure.affects.items())


def _text(failure: Failure, stands: str) -> str:
    """Return one record for people."""
    shows = failure.fingerprint
    seen = shows.example or shows.observable or " ".join(filter(None, (shows.exception, shows.pattern)))
    effect = "any ordinary run" if failure.default_path else failure.feature
    rows = [
        ("affects", _affects(failure) + (f"; when {failure.needs}" if failure.needs else "")),
        (
            "hurts",
            f"{effect} ({failure.effect.value}{', silently' if failure.silent else ''}); {failure.severity} severity",
        ),
        ("seen as", seen),
        ("cause", failure.cause),
        *(("way out", step) for step in failure.way_out),
        *(("mended by", f"{package}{within}") for package, within in failure.mended.items()),
        ("probe", failure.probe or f"none: {failure.unprobed}"),
        ("stands", stands),
        ("known by", f"{failure.confidence.value}, checked {failure.checked}; testable at {failure.testable.value}"),
        ("sources", ", ".join(failure.sources)),
        ("note", failure.note),
    ]
    lines = [f"{name:<9} {_hanging(text)}" for name, text in rows if text]
    return "\n  ".join([f"{failure.id} [{failure.family.value}]: {failure.title}", *lines])


def _hanging(text: str) -> str:
    """Return the text with the lines after its first one below it."""
    return "\n            ".join(line.rstrip() for line in text.strip("\n").splitlines())


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
