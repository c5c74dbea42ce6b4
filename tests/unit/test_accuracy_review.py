"""The arithmetic behind the measured precision, and the data that it and the known failures are read from."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

from matrix.cell import Axis

FOLDER = Path(__file__).parents[1] / "accuracy"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"accuracy_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WILSON = [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.278), (5, 10, 0.237, 0.763), (10, 10, 0.722, 1.0), (98, 100, 0.930, 0.994)]


@pytest.mark.parametrize(("hits", "n", "low", "high"), WILSON)
def test_bounds_of_a_proportion(hits: int, n: int, low: float, high: float) -> None:
    assert script("review").wilson(hits, n) == (pytest.approx(low, abs=6e-4), pytest.approx(high, abs=6e-4))


def test_every_judged_finding_is_told_apart_and_says_why() -> None:
    judged = script("review").load()
    keys = [tuple(item[key] for key in ("sample", "verl", "target", "kind", "symbol", "used_at")) for item in judged]
    assert len(keys) == len(set(keys)) >= 200
    assert all(item["why"] and item["date"] for item in judged)


def test_known_failures_say_where_they_are_seen_or_why_not() -> None:
    known = script("known")
    failures = known.load()
    assert len({failure.id for failure in failures}) == len(failures)
    for failure in failures:
        assert bool(failure.beyond) is not bool(failure.affected and failure.fixed and failure.symbol)
    assert known.pinned("verl==0.8.0 vllm==0.12.0") == {Axis.VERL: Version("0.8.0"), Axis.VLLM: Version("0.12.0")}
