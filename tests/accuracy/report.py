"""Measures the report of a thousand cells: ``python tests/accuracy/report.py [--cells N] [--keep DIR] [--json]``.

The cells are made up, what is observed of them is not: each has the observations of a cell of the evidence that is
shipped (findings, probes and all), stored anew under its name, so that the report reads as much as that of a real run.
Told are the seconds of building it (all four files, from the store), the size of the page, and, where a Chromium and
playwright are at hand, the milliseconds from opening the file to the first matrix drawn, the median of several. Exits
with 1 where a goal is missed, 10 where there is no evidence to make cells of.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from typing import Any

from packaging.version import Version

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from matrix.cell import Axis, Cell, Pin  # noqa: E402
from matrix.evidence import shipped  # noqa: E402
from matrix.job import RunResult, Tally  # noqa: E402
from matrix.plan import Planned  # noqa: E402
from matrix.store import Store  # noqa: E402
from matrix.tier import Tier  # noqa: E402
from matrix.verdict import judge  # noqa: E402
from reports.build import build  # noqa: E402
from tests.browser.conftest import chromium_path  # noqa: E402

BUILD_GOAL_S = 10.0
OPEN_GOAL_MS = 1000.0
SIZE_GOAL = 3_000_000
"""The page of a real run; that of a thousand cells is told beside it."""
OPENINGS = 5
FIRST_VIEW = "performance.getEntriesByName('first-view').map((one) => one.startTime)[0]"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; 0 where every goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=1000, metavar="N", help="so many cells (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the report here")
    parser.add_argument("--page", type=Path, metavar="FILE", help="only open this page, of a real run")
    parser.add_argument("--json", action="store_true", help="print data")
    args = parser.parse_args(argv)
    if args.page is not None:
        figures: dict[str, Any] = {"cells": None, "build_s": None, "bytes": args.page.stat().st_size}
        figures |= opened(args.page)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            made = built(args.cells, Path(scratch), args.keep or Path(scratch) / "report")
            if made is None:
                sys.stderr.write("There is no evidence to make cells of.\n")
                return 10
            figures = made
    sys.stdout.write(json.dumps(figures, indent=1) + "\n" if args.json else _told(figures))
    return 0 if _met(figures) else 1


def built(count: int, scratch: Path, out: Path) -> dict[str, Any] | None:
    """Return what building and opening the report of `count` cells took; None where nothing is shipped."""
    evidence = shipped()
    found = [evidence.for_cell(name) for name in evidence.cells]
    models = [items for items in found if any(item.question.tier is Tier.SURFACE for item in items)]
    if not models:
        return None
    cells = list(_cells(count))
    Store(scratch / "store").add(
        *(
            replace(item, question=replace(item.question, cell=cell.name), shipped="")
            for cell, items in zip(cells, cycle(models), strict=False)
            for item in items
        )
    )
    began, cpu = time.perf_counter(), time.process_time()
    # From the store on the disk, as `report` does it: what a run holds in memory already is quicker.
    store = Store(scratch / "store")
    verdicts = tuple(judge(cell, store.for_cell(cell.name)) for cell in cells)
    at = max(item.at for items in models for item in items)
    tallies = tuple(Tally(tier=tier, planned=count, reused=count) for tier in (Tier.RESOLVE, Tier.SURFACE))
    plan = {cell.name: Planned(cell=cell, groups=("made-up",)) for cell in cells}
    files = build(RunResult(verdicts=verdicts, tallies=tallies, at=at, plan=plan), out)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    return {
        "cells": count,
        "observations": sum(len(verdict.evidence) for verdict in verdicts),
        "build_s": round(seconds, 2),
        "build_cpu_s": round(used, 2),
        "bytes": files.html.stat().st_size,
        **opened(files.html),
    }


def _cells(count: int) -> Iterator[Cell]:
    """Yield cells of so many releases of verl and vLLM, each pair with several releases of torch in the end."""
    pairs = product(range(20), range(4), range(25))
    for (major, torch, minor), _ in zip(pairs, range(count), strict=False):
        versions = {Axis.VERL: f"1.{major}.0", Axis.VLLM: f"1.{minor}.0", Axis.TORCH: f"3.{torch}.0"}
        yield Cell(pins=tuple(Pin(axis=axis, version=Version(text)) for axis, text in versions.items()))


def opened(path: Path) -> dict[str, Any]:
    """Return the milliseconds from opening the page to its first view, several times; why not where that cannot be."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {"open_ms": None, "why": "playwright is not installed"}
    chromium = chromium_path()
    if chromium is None:
        return {"open_ms": None, "why": "there is no Chromium on this machine"}
    taken, version = [], ""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        for _ in range(OPENINGS):
            # A new browser each time: nothing is warm but what the disk holds.
            started = driver.chromium.launch(executable_path=chromium, args=arguments)
            version = started.version
            tab = started.new_page(viewport={"width": 1440, "height": 1000})
            tab.goto(path.resolve().as_uri())
            while not (
                mark := tab.evaluate("performance.getEntriesByName('first-view').map((one) => one.startTime)[0]")
            ):
                tab.wait_for_timeout(20)
            taken.append(round(float(mark)))
            started.close()
    return {"open_ms": statistics.median(taken), "openings_ms": taken, "chromium": version}


def _met(figures: dict[str, Any]) -> bool:
    quick = figures["build_s"] is None or figures["build_s"] <= BUILD_GOAL_S
    small = figures["cells"] is not None or figures["bytes"] <= SIZE_GOAL
    return quick and small and (figures["open_ms"] is None or figures["open_ms"] <= OPEN_GOAL_MS)


def _told(figures: dict[str, Any]) -> str:
    lines = []
    if figures["build_s"] is not None:
        lines.append(
            f"{figures['cells']} cells, {figures['observations']} observations: built in {figures['build_s']:.1f} s "
            f"({figures['build_cpu_s']:.1f} s of CPU; goal {BUILD_GOAL_S:.0f} s)"
        )
    goal = "" if figures["cells"] is not None else f" (goal {SIZE_GOAL / 1e6:.0f} MB)"
    lines.append(f"page: {figures['bytes'] / 1e6:.2f} MB{goal}")
    if figures["open_ms"] is None:
        lines.append(f"opening it was not tried: {figures['why']}")
    else:
        each = ", ".join(map(str, figures["openings_ms"]))
        lines.append(
            f"first matrix drawn after {figures['open_ms']:.0f} ms in Chromium {figures['chromium']} "
            f"(goal {OPEN_GOAL_MS:.0f} ms; each: {each})"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
