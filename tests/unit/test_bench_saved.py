"""Saved runs of pytest-benchmark: pairs within one, one against another, and files that are none."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from bench.comparison import About, Verdict
from bench.saved import KEY, between, read_saved, within
from matrix.errors import DataError


def bench(name: str, data: list[float] | None, **ours: Any) -> dict[str, Any]:
    stats = {} if data is None else {"data": data}
    return {"fullname": name, "stats": stats, "extra_info": {KEY: {"schema": 1, **ours}} if ours else {}}


def saved(folder: Path, *benches: dict[str, Any], name: str = "run.json", **machine: str) -> Path:
    path = folder / name
    info = {"system": "Linux", "machine": "x86_64", **machine}
    path.write_text(json.dumps({"machine_info": info, "benchmarks": list(benches)}), encoding="utf-8")
    return path


def seconds(n: int, middle: float, seed: int) -> list[float]:
    source = random.Random(seed)
    return [middle * math.exp(source.gauss(0, 0.01)) for _ in range(n)]


A_PLACES, B_PLACES = [0, 3, 5, 6, 8, 11], [1, 2, 4, 7, 9, 10]


def side(which: str, data: list[float], places: list[int], **more: Any) -> dict[str, Any]:
    ours = {"series": "s", "recipe": "ppo-short", "pairing": "x", "metric": "seconds/step", "side": which,
            "places": places}  # fmt: skip
    return bench(f"bench/test_ppo.py::test_ppo[x-{which}]", data, **ours, **more)


def test_the_pairs_of_one_run_are_compared_as_they_ran(tmp_path: Path) -> None:
    a, b = side("A", seconds(6, 10, 1), A_PLACES), side("B", seconds(6, 9, 2), B_PLACES)
    (found,) = within(read_saved(saved(tmp_path, a, b, bench("other", [1.0, 2.0]))), 0.02)
    assert found.comparison.verdict is Verdict.FASTER
    assert About.SEPARATE not in {caution.about for caution in found.comparison.cautions}
    assert "x, ppo-short seconds/step: seconds: faster, ratio 0." in found.line
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["n"] == [6, 6]


def test_launches_that_failed_take_their_pair_along(tmp_path: Path) -> None:
    a = side("A", seconds(5, 10, 1), A_PLACES[:5], faults={"11": "the other launch of its pair has no figure"})
    b = side("B", seconds(5, 9, 2), B_PLACES[:5], faults={"10": "out of memory"})
    (found,) = within(read_saved(saved(tmp_path, a, b)), 0.02)
    assert found.comparison.n == (5, 5)
    assert "out of memory" in found.comparison.drops[0].reason


def test_a_side_alone_is_no_pair_and_reasons_make_it_incomparable(tmp_path: Path) -> None:
    a, b = side("A", seconds(6, 10, 1), A_PLACES, reasons=["throttled"]), side("B", seconds(6, 9, 2), B_PLACES)
    assert within(read_saved(saved(tmp_path, a)), 0.02) == ()
    (found,) = within(read_saved(saved(tmp_path, a, b)), 0.02)
    assert (found.comparison.verdict, found.comparison.reasons) == (Verdict.INCOMPARABLE, ("throttled",))


def test_a_run_against_a_saved_one_says_that_they_lay_apart(tmp_path: Path) -> None:
    first = read_saved(saved(tmp_path, bench("t[1]", seconds(8, 10, 1)), bench("gone", [1.0])))
    second = read_saved(saved(tmp_path, bench("t[1]", seconds(8, 11, 2)), name="2.json"))
    (found,) = between(first, second, 0.02)
    assert (found.name, found.comparison.verdict) == ("t[1]", Verdict.SLOWER)
    assert About.SEPARATE in {caution.about for caution in found.comparison.cautions}
    assert "not interleaved" in found.line


def test_runs_of_another_machine_or_workload_are_incomparable(tmp_path: Path) -> None:
    first = read_saved(saved(tmp_path, side("A", seconds(6, 10, 1), A_PLACES, machine="1 x H200"), gpus="H200"))
    second = read_saved(
        saved(tmp_path, side("A", seconds(6, 9, 1), A_PLACES, machine="1 x A100"), gpus="A100", name="2")
    )
    (found,) = between(first, second, 0.02)
    assert found.comparison.reasons == ("gpus was H200, and is A100", "machine was 1 x H200, and is 1 x A100")


BROKEN = [
    ("no json", "is no saved run"),
    ("[]", "is no saved run"),
    ('{"machine_info": {}, "benchmarks": [{"fullname": "t", "stats": {}}]}', "has no samples"),
    (
        json.dumps({"machine_info": {}, "benchmarks": [bench("t", [1.0], x=1) | {"extra_info": {KEY: {"schema": 2}}}]}),
        "another form",
    ),
]


@pytest.mark.parametrize(("text", "said"), BROKEN)
def test_files_that_are_no_saved_run(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=said):
        read_saved(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_saved(tmp_path / "none.json")
