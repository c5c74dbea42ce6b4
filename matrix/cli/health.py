"""`health LOG`: what is wrong in a training log and since which step; 0 where nothing is, 1 where something is."""

from __future__ import annotations

import argparse
import errno
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.cli.front import Front
from matrix.errors import NoSpaceError, UsageError

if TYPE_CHECKING:
    from matrix.health.diagnosis import Diagnosis
    from matrix.health.history import Run
    from matrix.health.names import Metric
    from matrix.health.symptom import Symptom


def run(args: argparse.Namespace, front: Front) -> int:
    """Print what is wrong in the log, draw it where asked; 0 nothing (or notes only), 1 something."""
    from matrix.health.diagnosis import diagnose
    from matrix.health.plot import drawing

    plot = Path(args.plot) if args.plot else None
    if plot is not None and plot.suffix not in (".svg", ".html", ".htm"):
        raise UsageError(f"--plot {plot.name} is neither .svg nor .html.", then="Name it health.svg or health.html.")
    found = diagnose(args.log)
    if plot is not None:
        _write(plot, drawing(found, plot.suffix))
    if args.json:
        sys.stdout.write(json.dumps(found.to_json(), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(_text(found))
    if plot is not None:
        sys.stderr.write(f"wrote {plot}\n")
    return 0 if found.healthy else 1


def _text(found: Diagnosis) -> str:
    from matrix.health.diagnosis import SHORT

    lines = []
    for one, lacking in zip(found.log.runs, found.unjudged, strict=True):
        lines.append(_about(one, lacking))
        if len(one.steps) < SHORT:
            lines.append(f"  too short for a baseline of its own ({SHORT} steps): only fixed limits were judged")
        lines += [line for item in found.symptoms if item.run == one.number for line in _symptom(item)]
    notes = found.log.notes
    if notes.damaged:
        lines.append(f"{notes.damaged} damaged or cut-off lines were passed over")
    errors, warnings, rest = (
        sum(item.gravity == gravity for item in found.symptoms) for gravity in ("error", "warning", "note")
    )
    total = f"{_counted(errors, 'error')}, {_counted(warnings, 'warning')}, {_counted(rest, 'note')}"
    lines.append(f"healthy as far as judged: {total}" if found.healthy else f"unhealthy: {total}")
    return "\n".join(lines) + "\n"


def _about(one: Run, lacking: tuple[Metric, ...]) -> str:
    from matrix.health.names import Metric

    what = f"run {one.number}: {_counted(len(one.steps), 'step')}, {one.steps[0]} to {one.steps[-1]}"
    if one.stride > 1:
        what += f" (every {one.stride}th looked at)"
    if one.restarts:
        what += f", {_counted(len(one.restarts), 'restart')} at step " + ", ".join(str(at) for _, at in one.restarts)
    if one.rounded:
        what += "; numbers have three decimals"
    if not lacking:
        return what
    there = [metric.value for metric in Metric if metric not in lacking]
    if len(lacking) > len(there):
        return f"{what}\n  of {len(Metric)} metrics this log has {len(there)}: {', '.join(there) or 'none'}"
    return f"{what}\n  not in this log: {', '.join(metric.value for metric in lacking)}"


def _symptom(item: Symptom) -> list[str]:
    since = f"since step {item.since}" if item.until is None else f"steps {item.since} until {item.until}"
    lines = [f"  {item.gravity.value}: {item.metric} {since}: {item.message}", f"    limit: {item.limit}"]
    if item.fails:
        lines.append(f"    may come from: {'; '.join(item.causes)}")
        lines.append(f"    look at: {'; '.join(item.look)}")
    return lines


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(f"No room is left for {path}.", then="Free some space.") from error
        why = error.strerror or str(error)
        raise UsageError(f"{path} cannot be written: {why}.", then="Give another file with --plot.") from error
