"""A machine on which launches take no time and have figures by a known truth, for the tests of what asks for them."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import bench.choices
import bench.variant
from bench.choices import TUNED, choices
from bench.cli import asked
from bench.cli import commands as bench_commands
from bench.cli import tune as bench_tune
from bench.cli.main import main
from bench.composed import Composing
from bench.figures import Figure
from bench.launched import Fault, Launched, Measured, Repeat
from bench.place import Place
from bench.recipes import Kind, Recipe
from bench.sample import Side, WarmUp, order
from bench.toggle import Judged, Toggle, judge
from bench.variant import recorded_release
from matrix.gpus.inventory import Gpu, Inventory
from matrix.observe import Observation, Question
from matrix.provision.environment import Environment
from matrix.store import Store
from matrix.tier import Outcome, Tier
from tests.unit.bench_launches import environment
from tests.unit.cli_stack import Said
from tests.unit.run_fakes import AT

CELL = "verl0.9.1-vllm0.24.0-torch2.11.0-tf5.9.0"
_VERL = Version("0.9.1")
Truth = Callable[[Sequence[str]], float]
"""How much faster a launch with these words is than one without any."""


@functools.cache
def release(version: Version) -> Composing:
    """Return a recorded release, read once."""
    found = recorded_release(version)
    assert found is not None
    return found


_JUDGED: dict[tuple[object, ...], Judged] = {}
_CHOSEN: dict[tuple[object, ...], Any] = {}


def judged_once(toggle: Toggle, recipe: Recipe, composing: Composing) -> Judged:
    """Return what the real judge says, asked once a toggle, recipe and release: hydra takes its time."""
    key = (toggle.name, recipe.name, composing.version)
    if key not in _JUDGED:
        _JUDGED[key] = judge(toggle, recipe, composing)
    return _JUDGED[key]


def chosen_once(composing: Composing, recipe: Recipe, names: Sequence[str] = TUNED) -> Any:
    """Return the real choices, made once."""
    key = (composing.version, recipe.name, *names)
    if key not in _CHOSEN:
        _CHOSEN[key] = choices(composing, recipe, names)
    return _CHOSEN[key]


@dataclass
class FakeLauncher:
    """Launches in no time; keeps them in a store as the real one does."""

    environments: Mapping[str, Environment]
    store: Store
    cache: Path
    probes: Path
    truth: Truth = lambda _: 1.0
    noise: float = 0.005
    fault: Callable[[Place], Fault | None] = lambda _: None
    closed: str = ""
    launched: list[Place] = field(default_factory=list)

    def __enter__(self) -> FakeLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def _question(self, place: Place) -> Question:
        reads = {"series": place.series, "variants": " ".join(variant.digest for variant in place.variants)}
        return Question(
            cell=place.variants[0].cell, probe=place.probe, tier=Tier.BENCH, tool="bench 1", reads=reads
        )  # fmt: skip

    def stored(self, place: Place) -> Launched | None:
        found = self.store.get(self._question(place).key)
        return None if found is None else Launched.of(found)

    def launch(self, place: Place) -> Launched:
        self.launched.append(place)
        measured = Measured(fault=fault) if (fault := self.fault(place)) else self._measured(place)
        device = place.pairing.recipe.device
        detail: dict[str, Any] = {
            "series": place.series, "pairing": place.pairing.name, "recipe": place.pairing.recipe.name,
            "kind": place.kind.value, "side": "AB" if place.side is None else place.side.value, "place": place.number,
            "planned": place.planned, "warms": place.warms, "device": device, "measured": measured.to_json(),
            "disturbed": [], "conditions": {}, "workload": {}, "scripts": "s", "fingerprint": "f",
            "gpus": ["NVIDIA H200"] if device == "cuda" else [], "startup_s": 90.0, "notes": [],
            "says": {variant.side.value: variant.name for variant in place.variants},
            "cells": {variant.side.value: variant.cell for variant in place.variants},
        }  # fmt: skip
        observation = Observation(
            question=self._question(place), outcome=Outcome.BROKEN if measured.fault else Outcome.OK,
            reason=str(measured.fault or ""), detail=detail, machine="x86_64, 1 x NVIDIA H200",
            at=AT + timedelta(seconds=len(self.store)), seconds=150.0,
        )  # fmt: skip
        self.store.add(observation)
        return Launched.of(observation, recalled=False)

    def _measured(self, place: Place) -> Measured:
        source = random.Random(f"{place.series} {place.pairing.name} {place.number} {place.side}")

        def seconds(side: Side, base: float) -> float:
            words = place.pairing.of(side).overrides
            return base / self.truth(words) * math.exp(source.gauss(0, self.noise))

        numerics = {side: {"gap_k3": [2e-3 * math.exp(source.gauss(0, 0.01)) for _ in range(4)]} for side in Side}
        if place.side is not None:
            whole = seconds(place.side, 10.0)
            figures = {
                name: Figure.of_steps(name, [value, value, value], WarmUp(steps=1))
                for name, value in (
                    ("throughput", 50_000 / whole),
                    ("seconds/step", whole),
                    ("throughput/gen", 9_000 / whole),
                )
            }
            return Measured(figures=figures, numerics={place.side: numerics[place.side]}, dropped=1)
        phases = {Kind.UPDATE: ("update_actor", "update_critic"), Kind.ROLLOUT: ("gen",)}[place.kind]
        repeats: dict[str, list[Repeat]] = {}
        for at, side in enumerate(order(place.repeats or place.pairing.recipe.steps - 1)):
            for phase in phases:
                took = seconds(side, 2.0)
                repeats.setdefault(f"seconds/{phase}", []).append(Repeat(place=at, side=side, value=took))
                repeats.setdefault(f"throughput/{phase}", []).append(Repeat(place=at, side=side, value=9_000 / took))
        return Measured(repeats=repeats, numerics=numerics, within=True)


@dataclass
class Line:
    """The command line of the benches on a machine of `gpus` cards, over one home."""

    home: Path
    gpus: int = 1
    made: list[FakeLauncher] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def launcher(self, **parts: Any) -> FakeLauncher:
        self.made.append(FakeLauncher(**parts, **self.options))
        return self.made[-1]

    @property
    def launched(self) -> list[Place]:
        return [place for one in self.made for place in one.launched]

    def say(self, words: str) -> Said:
        """Return what the command line says."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*words.split(), "--home", str(self.home)] if "compare" not in words else words.split())
        return Said(code=code, out=out.getvalue(), err=err.getvalue())


def on_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, gpus: int = 1, **options: Any) -> Line:
    """Return a command line whose launches are fake and whose environment holds verl 0.9.1."""
    import matrix.evidence
    import matrix.gpus.inventory

    made = Line(home=tmp_path / "home", gpus=gpus, options=options)
    cards = tuple(
        Gpu(index=at, uuid=f"GPU-{at}", name="NVIDIA H200", memory=1 << 37, capability=(9, 0)) for at in range(gpus)
    )
    found = Inventory(gpus=cards, why="" if gpus else "no driver is loaded")
    monkeypatch.setattr(matrix.gpus.inventory, "take_inventory", lambda: found)
    monkeypatch.setattr(matrix.evidence, "SHIPPED", tmp_path / "evidence")
    monkeypatch.setattr(bench_commands, "Launcher", made.launcher)
    monkeypatch.setattr(bench_tune, "Launcher", made.launcher)
    monkeypatch.setattr(bench.variant, "judge", judged_once)
    monkeypatch.setattr(bench.choices, "judge", judged_once)
    monkeypatch.setattr(bench_tune, "choices", chosen_once)
    monkeypatch.setattr(asked, "composing", lambda version, _: release(version))
    held = environment(CELL, verl="0.9.1", vllm="0.24.0")
    monkeypatch.setattr(
        asked, "standing_here",
        lambda python, cell="": asked.Subject(cell=CELL, release=_VERL, environment=held),
    )  # fmt: skip
    return made
