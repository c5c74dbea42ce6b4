"""Measures what the harness of the benches costs: the bare command of verl against the same one through the launcher.

    python tests/accuracy/overhead.py --python CELL/bin/python --home DIR [--recipe ppo-tiny] [--launches 4]

Side A is `python -m verl.trainer.main_ppo` with the very words, files and variables of a launch, and nothing beside it:
no meter of memory, no follower of the log, no telemetry. Side B is a launch as any series has it. They take turns, A B
B A, and are kept as the series `overhead`, so that a run that was stopped goes on. Told is the ratio of their steps'
seconds with its interval: how much longer a step takes because it is watched. It says nothing of start-up, in which a
launch does more beside the command (on a GPU kernels are compiled); that is told as seconds of a whole launch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import outcome
from bench.comparison import Comparison, Verdict, compare
from bench.errand import command
from bench.gathered import Gathered, gathered, launches_of
from bench.launched import Launched
from bench.launcher import Ended, Launcher
from bench.place import Place
from bench.recipes import recipe_named
from bench.sample import Side
from bench.series import Series, run
from bench.variant import of_settings
from matrix.home import Home
from matrix.probing import processes
from matrix.probing.folder import probes_folder
from matrix.probing.surroundings import scratch
from matrix.provision.standing import here
from matrix.store import Store

NAME = "overhead"
PAIRING = "harness"
MARGIN = 0.01
"""A step may take so much longer for being watched."""
BARE, WATCHED = Side.A, Side.B


@dataclass(slots=True, kw_only=True)
class Both:
    """Has launches of both kinds: side A bare, side B through the launcher."""

    launcher: Launcher

    @property
    def closed(self) -> str:
        """Return why nothing more is launched."""
        return self.launcher.closed

    def stored(self, place: Place) -> Launched | None:
        """Return the launch of a place as it is kept."""
        return self.launcher.stored(place)

    def launch(self, place: Place) -> Launched:
        """Return how a launch ended, kept in the same form on both sides."""
        return self._bare(place) if place.side is BARE else self.launcher.launch(place)

    def _bare(self, place: Place) -> Launched:
        """Run the command itself; its result, which nobody wrote, is made of what is known without watching it."""
        launcher, limits = self.launcher, self.launcher.limits(place)
        where = launcher.lane_of(place)
        facts = launcher.facts(place, where)
        settling = where.settling() if where.gpus else None
        with scratch() as given:
            out, token = given.work / "out", processes.new_token()
            argv = [*command(place, launcher.environments, launcher.probes, out, limits), "--bare"]
            env = launcher.surroundings(place, where, given, token)
            start, began = time.time(), time.monotonic()
            with (given.root / "launch.txt").open("wb") as log:
                child = subprocess.Popen(
                    argv, cwd=given.work, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
                limit = limits.whole_s + limits.wait_s
                try:
                    code, over = child.wait(limit), ""
                except subprocess.TimeoutExpired:
                    code, over = outcome.LIMIT_CODE, f"it was not over after {limit:.0f} s"
                finally:
                    processes.end(token)
                    child.wait()
            seconds = time.monotonic() - began
            result = _result(out, code, seconds, [gpu.name for gpu in where.gpus])
            said = outcome.tail(given.root / "launch.txt")
            measured = outcome.of_ppo(out, BARE, outcome.fault_of(code, said, over=over), start=start)
            rows = tuple(outcome.read_rows(out / "metrics.jsonl"))
        settled = settling.settle() if settling is not None else None
        ended = Ended(
            code=code, over=over, seconds=seconds, start=start, facts=facts, measured=measured, result=result,
            rows=rows, said=said, settled={} if settled is None else settled.to_json(),
        )  # fmt: skip
        return launcher.keep(place, where, ended)


def _result(out: Path, code: int, seconds: float, gpus: Sequence[str]) -> dict[str, Any]:
    """Return the result of a bare launch, which nobody wrote, and write it where it is looked for."""
    try:
        told = json.loads((out / "bare.json").read_text(encoding="utf-8"))
        shutil.rmtree(told.pop("temporary"), ignore_errors=True)
    except (OSError, ValueError, KeyError):
        return {}
    device = "cuda" if gpus else "cpu"
    gpu = {**told.get("gpu", {}), "devices": list(gpus)} if gpus else {}
    result = {**told, "code": code, "seconds": round(seconds, 1), "device": device, "gpu": gpu}
    (out / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return result


def lines_of(items: Sequence[Gathered], launches: Sequence[Launched]) -> list[str]:
    """Return what was measured, a line each."""
    found = []
    for item in items:
        if item.metric.name not in ("seconds/step", "throughput"):
            continue
        told = compare(item.sample, margin=MARGIN, reasons=item.reasons)
        found.append(
            f"{item.metric.name}, watched over bare: {_ratio(told)}, n = {told.n[0]} + {told.n[1]}, {told.verdict}"
        )
        found += [f"  {side.value} {'bare' if side is BARE else 'watched'}: {_values(item, side)}" for side in Side]
        found += [f"  note: {line}" for line in item.notes]
    ran = [item for item in launches if item.fault is None]
    for side, word in ((BARE, "bare"), (WATCHED, "watched")):
        seconds = [item.seconds for item in ran if item.side is side]
        if seconds:
            found.append(f"a whole launch, {word}: {statistics.median(seconds):.1f} s (median of {len(seconds)})")
    spent = [
        (float(result["watching"]), float(result["seconds"]))
        for item in ran
        if isinstance(result := item.observation.detail["result"], dict) and "watching" in result
    ]
    if spent:
        busy, whole = (sum(column) for column in zip(*spent, strict=True))
        found.append(f"watching took {busy / whole:.2%} of one core ({busy:.1f} s of processor time in {whole:.0f} s)")
    return found


def _ratio(told: Comparison) -> str:
    if told.ratio is None:
        return "no ratio" + (f" ({'; '.join(told.reasons)})" if told.reasons else "")
    if told.interval is None:
        return f"{told.ratio:.4f} (too few launches for an interval)"
    return f"{told.ratio:.4f} [{told.interval[0]:.4f}, {told.interval[1]:.4f}]"


def _values(item: Gathered, side: Side) -> str:
    return ", ".join(f"{value:.4g}" for value in item.sample.values(side)) or "none"


def main(argv: Sequence[str] | None = None) -> int:
    """Launch what is missing and print what was measured; 1 where there is nothing to compare, or it is slower."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="the interpreter of a cell")
    parser.add_argument("--home", help="where launches are kept (VERL_MATRIX_HOME)")
    parser.add_argument("--recipe", default="ppo-tiny", help="default: %(default)s; ppo-short on a GPU")
    parser.add_argument("--launches", type=int, default=4, help="a side; default: %(default)s")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no launch begins that would end later")
    options = parser.parse_args(argv)
    home = Home.find(options.home)
    home.prepare()
    environment, store = here(options.python), Store(home.store)
    pairing = of_settings(PAIRING, recipe_named(options.recipe), environment.cell, (), ())
    series = Series(name=NAME, pairings=(pairing,), launches=options.launches)
    with Launcher(
        environments={environment.cell: environment}, store=store, cache=home.cache, probes=probes_folder()
    ) as launcher:
        deadline = time.monotonic() + 60 * options.minutes
        for _ in run(series, Both(launcher=launcher), tell=_tell, deadline=deadline):
            pass
    kept = [item for item in store if item.question.reads.get("series") == NAME]
    found = gathered(kept)
    for line in lines_of(found, launches_of(kept)):
        sys.stdout.write(f"{line}\n")
    steps = next((item for item in found if item.metric.name == "seconds/step"), None)
    told = compare(steps.sample, margin=MARGIN, reasons=steps.reasons) if steps is not None else None
    return 0 if told is not None and told.ratio is not None and told.verdict is not Verdict.SLOWER else 1


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
