"""How long a nightly with nothing new takes: `python -m bench.nights [--home DIR]`, against the index as it is.

The home is made warm first, which is not timed. Then everything in it is made a day older, as it is the next night: the
resolver's answers, so that those which an index may change are asked again, and the pages of the index, so that each is
asked for. What is printed is the night after that.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

DAY = timedelta(days=1)
TARGET_S = 30.0
"""The issue's figure: a nightly with nothing new takes no longer."""


def nightly(home: Path, out: Path, words: list[str]) -> Mapping[str, object]:
    """Return how a nightly ended: exit code, wall and CPU seconds of it and its children, its report."""
    command = [sys.executable, "-m", "matrix", "nightly", "--home", str(home), "--out", str(out), *words]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - start
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if ended.returncode not in (0, 1):
        raise SystemExit(f"the nightly ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    night = json.loads((out / "nightly.json").read_text(encoding="utf-8"))
    return {"wall_s": wall, "cpu_s": cpu, "tiers": report["tiers"], "night": night}


def age(home: Path) -> None:
    """Make what a home holds a day older: the answers in the store; the index's pages, this tool's and uv's, are gone.

    A day later they would be asked for with a condition, and mostly not sent again; so this is the slower way.
    """
    store = home / "store" / "observations.jsonl"
    lines = [json.loads(line) for line in store.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line["at"] = (datetime.fromisoformat(line["at"]) - DAY).isoformat()
    store.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")
    shutil.rmtree(home / "cache" / "index-1" / "page", ignore_errors=True)
    for pages in (home / "cache" / "resolve" / "uv").glob("simple-*"):
        shutil.rmtree(pages, ignore_errors=True)


def main() -> int:
    """Print the figure; 0 where it is within the target."""
    parser = argparse.ArgumentParser(prog="python -m bench.nights", description=__doc__)
    parser.add_argument("--home", type=Path, help="a home to begin with, which is changed (default: a new one)")
    parser.add_argument("--nights", type=int, default=3, help="how many are timed (default: %(default)s)")
    parser.add_argument("words", nargs="*", help="words for the nightly, after --")
    args = parser.parse_args()
    words = args.words or ["--tiers", "resolve,surface"]
    with tempfile.TemporaryDirectory(prefix="verl-matrix-nights-") as scratch:
        home, out = args.home or Path(scratch) / "home", Path(scratch) / "out"
        warm = nightly(home, out, words)
        print_line("warming (not timed against the target)", warm)
        slowest = 0.0
        for number in range(args.nights):
            age(home)
            timed = nightly(home, out, words)
            print_line(f"night {number + 1}, a day later", timed)
            slowest = max(slowest, float(str(timed["wall_s"])))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    sys.stdout.write(f"slowest {slowest:.1f} s of {TARGET_S:.0f} s allowed; {os.cpu_count()} cores, load {load}\n")
    return 0 if slowest <= TARGET_S else 1


def print_line(what: str, timed: Mapping[str, object]) -> None:
    """Print one night: its seconds, what was asked anew, what changed."""
    night, tiers = timed["night"], timed["tiers"]
    assert isinstance(night, dict)
    assert isinstance(tiers, list)
    asked = ", ".join(f"{tier['tier']} {tier['new']} new {tier['reused']} reused" for tier in tiers)
    sys.stdout.write(f"{what}: {timed['wall_s']:.1f} s, {timed['cpu_s']:.1f} s of CPU; {asked}; {night['title']}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
