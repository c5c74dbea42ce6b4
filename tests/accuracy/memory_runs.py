"""Measures what the memory model predicts: passes of verl's own trainer in a cell, several at a time on one GPU.

    python tests/accuracy/memory_runs.py --python CELL/bin/python --home DIR [--only NAME] [--at-once GIB]

Runs are those of memory_runs.toml. Each is a process of its own (tests/compat/trials/update.py), so its allocator's
peaks are its own whatever runs beside it; as many run at a time as the model thinks fit into --at-once. Every pass is
kept at once as an observation `memory/RUN/KNOB/VALUE` of tier gpu; `tests/accuracy/memory.py` compares them with
predictions. A run without passes of the critic has no critic.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from matrix.datafile import Table, read
from matrix.home import Home
from matrix.job import now
from matrix.memory.knob import Knob
from matrix.memory.phase import GIB, Phase
from matrix.memory.prediction import predict
from matrix.memory.workload import Value
from matrix.observe import Observation, Question
from matrix.probing.cellfile import digest
from matrix.probing.folder import probes_folder
from matrix.probing.surroundings import scratch
from matrix.provision.standing import here
from matrix.store import Store
from matrix.thresholds.ask import Bench
from matrix.thresholds.child import Child, Errands
from matrix.thresholds.question import Asked, asked
from matrix.thresholds.spec import spec_of
from matrix.thresholds.trial import Ending, Trial
from matrix.tier import Outcome, Tier

RUNS = Path(__file__).with_name("memory_runs.toml")
TOOL = "memory runs 1"
LIMIT_S = 240.0
KNOBS = {
    "actor": Knob.ACTOR_MICRO_BATCH,
    "old": Knob.LOG_PROB_MICRO_BATCH,
    "critic": Knob.CRITIC_INFER_TOKENS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One workload and the passes that are measured of it."""

    name: str
    split: str
    model: str
    passes: tuple[tuple[Knob, int], ...]
    settings: Mapping[str, Value] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def asked(self, knob: Knob) -> Asked:
        """Return the run as a question about a knob, which settles the settings that the knob needs."""
        roomy: dict[str, Value] = {"actor_rollout_ref.actor.ppo_mini_batch_size": 1024}
        roomy |= {"critic.ppo_mini_batch_size": 4096, "data.train_batch_size": 4096}
        with_critic = any(key is Knob.CRITIC_INFER_TOKENS for key, _ in self.passes)
        roomy |= {} if with_critic else {"critic.enable": False}
        return asked(self.model, knob.value, None, {**roomy, **self.settings})

    @property
    def peak(self) -> float:
        """Return what the model thinks that the worst of the passes holds, in bytes."""
        worst = 0.0
        for knob, value in self.passes:
            load = self.asked(knob).settled.with_knob(knob, value)
            small = {key.value: 1 for key in (Knob.ACTOR_MICRO_BATCH, Knob.LOG_PROB_MICRO_BATCH) if key is not knob}
            small |= {Knob.CRITIC_INFER_TOKENS.value: load.length} if knob is not Knob.CRITIC_INFER_TOKENS else {}
            found = predict(load.with_settings(small), 1 << 40)
            passes = [holding for phase, holding in found.phases.items() if phase not in _ENGINE]
            worst = max(worst, *(holding.allocated for holding in passes))
        return worst + 2 * GIB


def load_runs(path: Path = RUNS) -> tuple[Run, ...]:
    """Return the runs of the data file; raises DataError where it is wrong."""
    whole = read(path)
    found = tuple(_run(row) for row in whole.tables("run"))
    whole.end()
    return found


def _run(row: Table) -> Run:
    passes = tuple((KNOBS[word], int(value)) for word in KNOBS if row.has(word) for value in row.values[word])  # type: ignore[attr-defined]
    made = Run(
        name=row.text("name"),
        split=row.text("split"),
        model=row.text("model"),
        passes=passes,
        settings=dict(row.table("settings").values) if row.has("settings") else {},  # type: ignore[arg-type]
        env={key: str(value) for key, value in row.table("env").values.items()} if row.has("env") else {},
    )
    row.end()
    return made


_ENGINE = (Phase.ROLLOUT_INIT, Phase.WAKE_UP, Phase.GENERATION)


class Room:
    """The memory that runs share: each waits until what it needs is free."""

    def __init__(self, total: float) -> None:
        self._left = total
        self._total = total
        self._changed = threading.Condition()

    def take(self, size: float) -> float:
        """Return the size that was taken; one that is larger than all waits until it is alone."""
        size = min(size, self._total)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= size)
            self._left -= size
        return size

    def give(self, size: float) -> None:
        with self._changed:
            self._left += size
            self._changed.notify_all()


def measure(run: Run, bench: Bench, number: int) -> Iterator[tuple[Knob, int, Asked, Trial]]:
    """Yield each pass with how it went; all are tried in one process, which a death replaces."""
    first = run.asked(run.passes[0][0])
    with scratch() as given:
        spec = spec_of(first, device=bench.device, models=bench.caches / "models")
        path = given.root / "spec.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        argv = [str(bench.python), str(bench.probes / "trials" / "update.py"), "--spec", str(path)]
        env = {**bench.env(given), **run.env}
        errands = Errands(argv=argv, env=env, work=given.work, limit_s=LIMIT_S)
        child = Child(errands, number)
        try:
            for at, (knob, value) in enumerate(run.passes):
                if not child.lives:
                    child = Child(errands, number + 1000 * (at + 1))
                trial = child.run(float(value), {"trial": f"m{at}", "knob": knob.value, "value": value})
                yield knob, value, run.asked(knob), trial
        finally:
            child.end()


def keep(store: Store, base: Mapping[str, Any], run: Run, found: tuple[Knob, int, Asked, Trial]) -> None:
    """Store one pass."""
    knob, value, question, trial = found
    workload = question.settled.with_knob(knob, value).to_json()
    reads = {"lock": base["lock"], "workload": digest(workload), "machine": base["kind"], "env": digest(dict(run.env))}
    probe = f"memory/{run.name}/{knob.value}/{value}"
    detail = {
        "fingerprint": base["fingerprint"],
        "run": run.name,
        "split": run.split,
        "env": dict(run.env),
        "knob": knob.value,
        "value": value,
        "workload": workload,
        "trial": trial.to_json(),
    }
    unable = trial.ending is Ending.UNABLE
    store.add(
        Observation(
            question=Question(cell=base["cell"], probe=probe, tier=Tier.GPU, tool=TOOL, reads=reads),
            outcome=Outcome.UNTESTED if unable else Outcome.OK,
            reason=f"{trial.ending.value} {trial.how} {trial.part}".strip(),
            detail=detail,
            machine=base["machine"],
            at=now(),
            seconds=trial.seconds,
        )
    )


def main() -> int:
    """Return 0 where every pass gave a figure, 1 where one did not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="the cell's interpreter")
    parser.add_argument("--home", required=True, metavar="DIR", help="where observations, models and kernels are kept")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this run; may be repeated")
    parser.add_argument("--at-once", type=float, default=130.0, metavar="GIB", help="what runs may take together")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--runs", type=Path, default=RUNS, metavar="FILE")
    args = parser.parse_args()
    runs = [run for run in load_runs(args.runs) if not args.only or run.name in args.only]
    home = Home.find(args.home)
    home.prepare()
    environment = here(args.python)
    lock = environment.lock or digest(dict(sorted(environment.installed.items())))
    bench = Bench(
        python=environment.python, probes=probes_folder(), caches=home.cache / "thresholds", device=args.device
    )
    bench.caches.mkdir(parents=True, exist_ok=True)
    store, room, start = Store(home.store), Room(args.at_once * GIB), time.monotonic()
    with ExitStack() as stack:
        base: dict[str, Any] = {"cell": environment.cell, "lock": lock, "fingerprint": "", "kind": "cpu"}
        base["machine"] = "cpu"
        if args.device == "cuda":
            from dataclasses import replace

            from matrix.thresholds.card import card

            granted = stack.enter_context(card(environment))
            bench = replace(bench, visible=granted.visible)
            base |= {"kind": granted.machine.kind, "machine": granted.machine.words, "fingerprint": granted.digest}
            store.add(granted.observation(environment.cell, lock, now()))
        else:
            stack.enter_context(nullcontext())
        bad = _all(runs, bench, store, base, room, start)
    sys.stdout.write(f"{time.monotonic() - start:.0f} s; {bad} passes without a figure\n")
    return 1 if bad else 0


def _all(runs: list[Run], bench: Bench, store: Store, base: Mapping[str, Any], room: Room, start: float) -> int:
    bad = 0
    lock = threading.Lock()

    def one(number: int, run: Run) -> None:
        nonlocal bad
        size = room.take(run.peak)
        try:
            for found in measure(run, bench, number):
                knob, value, _, trial = found
                with lock:
                    keep(store, base, run, found)
                    bad += not trial.passed
                    peaks = {part.name: round(part.peaks.get("allocated", 0) / GIB, 2) for part in trial.parts}
                    told = trial.text.strip().splitlines()[-1][:200] if trial.text and not trial.passed else ""
                    at = time.monotonic() - start
                    sys.stdout.write(
                        f"{at:5.0f} s {run.name} {knob.short}={value} {trial.ending.value} {peaks} {told}\n"
                    )
                    sys.stdout.flush()
        finally:
            room.give(size)

    leaders = list({run.model: run for run in runs}.values())
    with ThreadPoolExecutor(max_workers=8) as pool:
        # Each model is written once, before several look for it.
        list(pool.map(lambda pair: _written(pair, bench), enumerate(leaders)))
        list(pool.map(lambda pair: one(*pair), enumerate(sorted(runs, key=lambda run: -run.peak))))
    return bad


def _written(pair: tuple[int, Run], bench: Bench) -> None:
    """Have the model of a run written, by the workload's own code in the cell."""
    import subprocess

    run = pair[1]
    folder = bench.caches / "models" / run.asked(run.passes[0][0]).workload.shape.name
    code = (
        "import sys; from pathlib import Path; from workload.model import model_for; "
        "model_for(sys.argv[1], Path(sys.argv[2]))"
    )
    with scratch() as given:
        subprocess.run(
            [str(bench.python), "-c", code, folder.name, str(folder)],
            env={**bench.env(given), "CUDA_VISIBLE_DEVICES": ""},
            cwd=given.work,
            timeout=300,
            check=True,
        )


if __name__ == "__main__":
    sys.exit(main())
