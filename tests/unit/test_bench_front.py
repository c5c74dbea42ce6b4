"""The suites on pytest-benchmark: what they record, what they skip and why, and that a saved run compares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import front as front_module
from bench.clock import CLOCK, LaunchClock
from bench.comparison import Verdict
from bench.front import Entry, Front, entries, kept_cells, machine_info, subject_of
from bench.launched import Fault, Trouble
from bench.recipes import Kind
from bench.replay import replay
from bench.sample import Side
from bench.saved import KEY, read_saved, within
from matrix.errors import NothingRanError, UsageError
from matrix.home import Home
from tests.unit.bench_fakes import CELL, Line, on_machine

ROOT = Path(__file__).parents[2]


def made(line: Line, **more: Any) -> Front:
    from bench.cli import asked

    return Front(
        subject=lambda _: asked.standing_here("x"), home=Home.find(str(line.home)), launching=line.launcher, **more
    )


def entry(
    side: Side, toggle: str = "chunked-prefill", recipe: str = "ppo-short", metric: str = "seconds/step"
) -> Entry:
    return Entry(recipe=recipe, toggle=toggle, side=side, metric=metric)


class Benchmark:
    """What a test needs of the fixture: it times with the clock as the plug-in does."""

    def __init__(self) -> None:
        self.group = ""
        self.extra_info: dict[str, Any] = {}
        self.samples: list[float] = []

    def pedantic(self, target: Callable[[], None], rounds: int, iterations: int) -> None:
        assert iterations == 1
        for _ in range(rounds):
            start = CLOCK()
            target()
            self.samples.append(CLOCK() - start)


def test_the_samples_are_the_seconds_of_the_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch, truth=lambda words: 0.8 if any("True" in word for word in words) else 1.0)
    front = made(line, launches=6)
    benches = []
    for side in Side:
        mine = Benchmark()
        replay(mine, entry(side), front)  # type: ignore[arg-type]
        values, extra = front.figures(entry(side))
        assert mine.samples == pytest.approx(values)
        assert mine.group == "ppo-short chunked-prefill seconds/step"
        assert len(extra[KEY]["places"]) == 6
        benches.append({"fullname": side.value, "stats": {"data": mine.samples}, "extra_info": mine.extra_info})
    # Both sides are of one series, whose launches were had once.
    assert len(line.launched) == 12
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"machine_info": {}, "benchmarks": benches}, allow_nan=False), encoding="utf-8")
    (found,) = within(read_saved(path), 0.02)
    assert found.comparison.verdict is Verdict.SLOWER
    assert found.comparison.ratio == pytest.approx(1.25, rel=0.02)
    assert extra[KEY]["verdicts"]["throughput"]["verdict"] == "slower"


def test_a_pair_that_failed_is_told_beside_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oom = Fault(trouble=Trouble.MEMORY, text="CUDA out of memory")
    line = on_machine(tmp_path, monkeypatch, fault=lambda place: oom if place.number == 1 else None)
    front = made(line, launches=4)
    values, extra = front.figures(entry(Side.A))
    assert len(values) == 4
    assert extra[KEY]["faults"] == {"0": "the other launch of its pair has no figure"}
    assert "out of memory" in front.figures(entry(Side.B))[1][KEY]["faults"]["1"]


def test_updates_are_timed_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    front = made(on_machine(tmp_path, monkeypatch), repeats=4)
    values, extra = front.figures(entry(Side.A, "checkpointing-actor", "update-short", "seconds/update_critic"))
    assert (len(values), extra[KEY]["replicate"]) == (4, "repeat")


SKIPPED = [
    (entry(Side.A, "ulysses"), 1, "it needs 2 GPUs, and there is 1"),
    (entry(Side.A), 0, "no driver is loaded"),
    (entry(Side.A, "ulysses-critic-old-key"), 2, "inert: "),
    (entry(Side.A, "ulysses", "ppo-tiny"), 0, "a CPU has no ranks"),
    (entry(Side.A, metric="seconds/gen"), 1, "gave a figure"),
]


@pytest.mark.parametrize(("one", "gpus", "said"), SKIPPED)
def test_what_does_not_run_is_skipped_with_the_reason(
    one: Entry, gpus: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = made(on_machine(tmp_path, monkeypatch, gpus=gpus), launches=2)
    with pytest.raises(pytest.skip.Exception, match=said):
        replay(Benchmark(), one, front)  # type: ignore[arg-type]
    # The reason is known the second time without asking again.
    with pytest.raises(NothingRanError, match=said):
        front.figures(one)


def test_nothing_is_begun_when_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    front = made(on_machine(tmp_path, monkeypatch), deadline=0.0)
    with pytest.raises(NothingRanError, match="has ended"):
        front.figures(entry(Side.A))
    assert Front.until(None) == float("inf")
    assert Front.until(1.0) < float("inf")


def test_the_benches_of_a_suite() -> None:
    found = entries(Kind.PPO, [], [])
    assert found[0].id == "ppo-short-ulysses-off"
    assert found[1].id == "ppo-short-ulysses-on"
    assert {one.recipe for one in found} == {"ppo-short", "ppo-tiny"}
    update = entries(Kind.UPDATE, ["update-long"], ["checkpointing"])
    assert [one.id for one in update][::2] == [
        "update-long-checkpointing-off-update_actor", "update-long-checkpointing-off-update_critic",
    ]  # fmt: skip
    assert entries(Kind.ROLLOUT, ["ppo-short"], []) == []
    with pytest.raises(UsageError):
        entries(Kind.PPO, ["nope"], [])
    assert len({one.id for kind in Kind for one in entries(kind, [], [])}) == sum(
        len(entries(kind, [], [])) for kind in Kind
    )


def test_environments_that_are_kept_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.cli import asked

    home = Home.find(str(tmp_path))
    assert kept_cells(home) == []
    for device in ("cpu", "cuda"):
        with pytest.raises(NothingRanError, match=r"--bench-python"):
            subject_of(home, None, None, device)
    monkeypatch.setattr(front_module, "kept_cells", lambda _: ["verl0.9.1-vllmcpu0.24.0", CELL])
    monkeypatch.setattr(asked, "kept", lambda name, home: name)
    monkeypatch.setattr(asked, "standing_here", lambda python, cell: f"{python} {cell}")
    assert str(subject_of(home, None, None, "cpu")) == "verl0.9.1-vllmcpu0.24.0"
    assert str(subject_of(home, None, None, "cuda")) == CELL
    assert str(subject_of(home, None, "x", "cuda")) == "x"
    assert str(subject_of(home, "p", "x", "cuda")) == "p x"


def test_the_machine_of_a_saved_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matrix.gpus.nvml

    class Driver:
        def versions(self) -> dict[str, str]:
            return {"driver": "580.1"}

    monkeypatch.setattr(matrix.gpus.nvml, "driver", Driver)
    on_machine(tmp_path, monkeypatch, gpus=2)
    assert machine_info() == {"gpus": "NVIDIA H200, NVIDIA H200", "driver": "580.1"}
    on_machine(tmp_path, monkeypatch, gpus=0)
    assert machine_info() == {}


def test_the_clock_moves_by_hand() -> None:
    clock = LaunchClock()
    assert clock() == clock() == 0.0
    clock.advance(2.5)
    assert clock() == 2.5
    with pytest.raises(ValueError, match="took 0"):
        clock.advance(0)


def suites(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "VERL_MATRIX_HOME": str(tmp_path / "home"), "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "bench", "-p", "no:cacheprovider", "-q", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_suites_skip_on_a_machine_without_anything_to_run(tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    done = suites(tmp_path, "--benchmark-only", "--bench-recipe", "ppo-tiny", f"--benchmark-json={saved}")
    # Nothing ran: no pass.
    assert done.returncode == 10, done.stdout + done.stderr
    assert "No environment of a cell for a CPU is kept here" in done.stdout
    assert "no recipe of this bench is asked for" in done.stdout
    assert "passed" not in done.stdout
    wrong = suites(tmp_path, "--bench-toggle", "nope")
    assert wrong.returncode == 4
    assert "There is no toggle `nope`" in wrong.stderr


def test_a_name_that_is_given_twice_is_one_bench() -> None:
    once = entries(Kind.PPO, ["ppo-tiny"], ["checkpointing"])
    assert entries(Kind.PPO, ["ppo-tiny", "ppo-tiny"], ["checkpointing", "checkpointing"]) == once
