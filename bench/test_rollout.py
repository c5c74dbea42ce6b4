"""The rollout alone: the seconds of generation, a sample a repeat, both sides of each toggle in one launch."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.clock import CLOCK
from bench.front import Entry, Front
from bench.recipes import Kind
from bench.replay import replay

KIND = Kind.ROLLOUT


@pytest.mark.benchmark(timer=CLOCK, disable_gc=False, warmup=False)
def test_rollout(benchmark: BenchmarkFixture, entry: Entry, front: Front) -> None:
    """Record the seconds of one side of one toggle; skipped with the reason where it did not run."""
    replay(benchmark, entry, front)
