"""What the tests of the suites do: have a side's launches, and let pytest-benchmark record their seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.clock import CLOCK
from bench.front import Entry, Front
from matrix.errors import NothingRanError

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


def replay(benchmark: BenchmarkFixture, entry: Entry, front: Front) -> None:
    """Record the seconds of one side's launches, with the rest in `extra_info`; skips with the reason without any."""
    try:
        seconds, extra = front.figures(entry)
    except NothingRanError as why:
        pytest.skip(str(why))
    benchmark.group = f"{entry.recipe} {entry.toggle} {entry.metric}"
    benchmark.extra_info.update(extra)
    left = iter(seconds)
    benchmark.pedantic(lambda: CLOCK.advance(next(left)), rounds=len(seconds), iterations=1)  # type: ignore[no-untyped-call]
