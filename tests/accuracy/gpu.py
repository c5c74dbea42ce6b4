"""Prints the figures of the tier gpu from evidence: ``python tests/accuracy/gpu.py [--store DIR]... [--json]``.

GPU probes run, known failures reproduced as predicted, surprises; thresholds foretold and measured; seconds of GPU time
per verdict; the start-up of a PPO launch; memory left after every probe and over the forced failures. A store is the
evidence that is shipped (reports/evidence/gpu), or that of a home (HOME/store). Exits with 1 where a surprise or a MiB
is left, 10 where no GPU probe ran.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from matrix.errors import UsageError  # noqa: E402
from matrix.evidence import Evidence  # noqa: E402
from matrix.figures import (  # noqa: E402
    Limit,
    by_cell,
    gpu_probes,
    held_seconds,
    left_mib,
    limits,
    machines,
    median,
    start_ups,
)
from matrix.memory.workload import Workload  # noqa: E402
from matrix.observe import Observation  # noqa: E402
from matrix.plan import load_cells  # noqa: E402
from matrix.thresholds.cap import Cap  # noqa: E402
from matrix.thresholds.foretell import foretold  # noqa: E402
from matrix.thresholds.knobs import knob_named  # noqa: E402
from matrix.thresholds.question import Asked  # noqa: E402
from matrix.tier import Outcome, Tier  # noqa: E402
from reports.gpu import machine_rows, threshold_lines  # noqa: E402
from tests.accuracy.evidence import RAW, latest  # noqa: E402

SHIPPED = ROOT / "reports" / "evidence" / "gpu"
START_GOAL_S = 90.0
"""A launch of PPO is to begin its first step within this (on an H200)."""
GOAL = 0.1
"""So near a foretold threshold is to be to the measured one."""
GPU_GROUP = "gpu"
"""The planned cells that are there for this tier."""
SLOWEST = 5
"""So many of the longest probes are named."""


def lines(
    items: Sequence[Observation], pushed: Sequence[Mapping[str, Any]] = (), launched: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Yield the figures as text, a heading before each of its parts."""
    probes, cells = gpu_probes(items), by_cell(item for item in items if item.question.tier is Tier.GPU)
    for digest, item in machines(items).items():
        facts = item.detail.get("facts")
        rows = dict(machine_rows(facts)) if isinstance(facts, dict) else {}
        yield f"machine {digest}: {item.machine}; driver {rows.get('driver')}, CUDA {rows.get('CUDA of the driver')}"
    yield ""
    yield probes.line
    yield from (f"  surprise: {line}" for line in probes.surprises)
    for cell, held in cells.items():
        yield f"  {cell}: {gpu_probes(held).line}"
    planned = [item.cell.name for item in load_cells() if GPU_GROUP in item.groups]
    missing = [name for name in planned if not gpu_probes(cells.get(name, ())).ran]
    yield f"cells of the group `{GPU_GROUP}`: {len(planned) - len(missing)} of {len(planned)} have an answer"
    yield from (f"  untested: {name}" for name in missing)
    yield from _untested(probes.untested)
    yield from _per_verdict(cells)
    yield from _thresholds(items)
    yield from _starts(items, launched or {})
    yield from _left(items, pushed)


def _untested(found: Sequence[tuple[str, str]]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for name, reason in found:
        reasons.setdefault(reason, []).append(name.removeprefix("compat/"))
    if reasons:
        yield ""
        yield f"untested: {len(found)} probes"
    for reason, names in sorted(reasons.items()):
        told = list(dict.fromkeys(names))
        yield f"  {reason}: {', '.join(told)}"


def _per_verdict(cells: dict[str, list[Observation]]) -> Iterator[str]:
    found = [gpu_probes(held) for held in cells.values()]
    seconds = [probes.seconds for probes in found if probes.ran]
    yield ""
    if seconds:
        mean, least, most = sum(seconds) / len(seconds), min(seconds), max(seconds)
        spread = f"median {median(seconds):.0f}, {least:.0f} to {most:.0f}"
        yield f"GPU seconds per verdict: {mean:.0f} (mean of {len(seconds)} cells), {spread}"
    slow = sorted((item for held in cells.values() for item in held), key=held_seconds, reverse=True)
    for item in slow[:SLOWEST]:
        if held_seconds(item):
            yield f"  {held_seconds(item):.0f} s  {item.question.probe.removeprefix('compat/')}"


def _thresholds(items: Sequence[Observation]) -> Iterator[str]:
    """Yield the thresholds: what was foretold before the search, what was measured, what the model foretells now."""
    found = limits(items)
    answered = [limit for limit in found if limit.answered]
    yield ""
    yield f"thresholds: {len(answered)} of {len(found)} measured"
    now = [replace(limit, predicted=_foretold_now(limit)) for limit in found]
    yield f"  foretold before the search: {_errors(answered)}"
    yield f"  foretold by the model as it is now: {_errors([limit for limit in now if limit.answered])}"
    if found:
        heads, *rows = threshold_lines(found)
        told = ["now", *(_shown(limit) for limit in now)]
        width = max(len(word) for word in told)
        yield from (f"  {word:<{width}}  {line}" for word, line in zip(told, (heads, *rows), strict=True))


def _errors(found: Sequence[Limit]) -> str:
    errors = [abs(limit.error) for limit in found if limit.error is not None]
    if not errors:
        return "none"
    within = sum(error <= GOAL for error in errors)
    spread = f"median error {median(errors):.0%}, largest {max(errors):.0%}"
    return f"{len(errors)} of {len(found)}, {within} of them within {GOAL:.0%}; {spread}"


def _shown(limit: Limit) -> str:
    error = limit.error
    value = "none" if limit.predicted is None else f"{limit.predicted:g}"
    return value if error is None else f"{value} ({error:+.0%})"


def _foretold_now(limit: Limit) -> float | None:
    """Return what the memory model foretells today of a question that was asked then; None where it cannot be read."""
    detail = limit.observation.detail
    cap, workload = detail.get("cap"), detail.get("workload")
    if not isinstance(cap, Mapping) or not isinstance(workload, Mapping):
        return None
    try:
        asked = Asked(
            knob=knob_named(limit.knob),
            workload=Workload.from_json(workload),
            cap=Cap(name=str(cap["name"]), bytes=int(cap["bytes"])),
            beside=int(str(detail.get("beside") or 0)),
        )
        return foretold(asked)
    except (UsageError, KeyError, ValueError):
        return None


def _starts(items: Sequence[Observation], launched: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    found = [(item.cell, dict(item.reached)) for item in start_ups(items)]
    told_of = [reached for _, reached in found]
    by_hand = [(name, dict(result["reached"])) for name, result in launched.items() if result.get("reached")]
    # What a probe launched may lie there too, as it was.
    found += [(name, reached) for name, reached in by_hand if reached not in told_of]
    yield ""
    if not found:
        yield "start of a PPO launch: none is recorded"
    for name, reached in found:
        first = reached.get("fit")
        told = "no first step" if first is None else f"{first:.1f} s to the first step (goal {START_GOAL_S:.0f} s)"
        phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in reached.items())
        yield f"start of a PPO launch, {name}: {told}; {phases}"


def launches(folders: Sequence[Path]) -> dict[str, Any]:
    """Return the results of launches that lie beside the observations (`raw/ppo*.json`), by their names."""
    files = [path for folder in folders for path in sorted((folder / RAW).glob("ppo*.json"))]
    results = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}
    # a launch's command line lies there too, as a list of its words
    return {name: result for name, result in results.items() if isinstance(result, dict)}


def _left(items: Sequence[Observation], pushed: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    gpu = [item for item in items if "gpu_left_mib" in item.detail]
    yield ""
    yield f"MiB left: {sum(map(left_mib, gpu))} after {len(gpu)} probes"
    for item in filter(left_mib, gpu):
        yield f"  {left_mib(item)} MiB: {item.question.cell}: {item.question.probe}"
    ran = [item for item in pushed if item.get("told") != "untested"]
    if not ran:
        yield "MiB left over forced failures: untested, none is recorded (`verl-matrix gpus forced` forces them)"
        return
    over, meant = sum(int(item.get("left_mib") or 0) for item in ran), sum(bool(item.get("as_meant")) for item in ran)
    slowest = max(_settled(item) for item in ran)
    what = f"{len(ran)} of {len(pushed)} forced failures, {meant} as meant"
    yield f"MiB left: {over} over {what}; the slowest back after {slowest:.2f} s"
    for entry in pushed:
        if _is_off(entry):
            yield f"  {entry.get('name')}: {entry.get('told')}, {entry.get('left_mib')} MiB left; {entry.get('reason')}"


def _settled(entry: Mapping[str, Any]) -> float:
    return float(entry.get("settle_s") or 0.0)


def _is_off(entry: Mapping[str, Any]) -> bool:
    """Return whether a failure that was forced left memory, or did not happen as it was meant to."""
    return entry.get("told") != "untested" and (bool(entry.get("left_mib")) or not entry.get("as_meant"))


def forced(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the forced failures that lie beside the observations (`raw/forced*.jsonl`)."""
    files = [path for folder in folders for path in sorted((folder / RAW).glob("forced*.jsonl"))]
    held = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line) for line in held if line.strip()]


def failures(items: Sequence[Observation], pushed: Sequence[Mapping[str, Any]] = ()) -> int:
    """Return how many surprises there are, and probes and forced failures that left memory."""
    other = sum(bool(left_mib(item)) for item in items if "::" not in item.question.probe)
    return len(gpu_probes(items).surprises) + other + sum(map(_is_off, pushed))


def main(argv: list[str] | None = None) -> int:
    """Print the figures; 1 where a surprise or memory is left, 10 where no GPU probe ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", type=Path, action="append", help="folder of a store; may be repeated")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    options = parser.parse_args(argv)
    folders = options.store or [SHIPPED]
    items, pushed = latest(Evidence(folders)), forced(folders)
    if options.json:
        found = gpu_probes(items)
        data = {"probes": found.to_json(), "thresholds": [limit.to_json() for limit in limits(items)]}
        data |= {"forced": pushed}
        sys.stdout.write(f"{json.dumps(data, indent=1)}\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines(items, pushed, launches(folders)))
    if not any(item.question.tier is Tier.GPU and item.outcome is not Outcome.UNTESTED for item in items):
        sys.stdout.write("no GPU probe ran: nothing is shown of any GPU\n")
        return 10
    return 1 if failures(items, pushed) else 0


if __name__ == "__main__":
    sys.exit(main())
