"""Launches of a bench as evidence: they travel whole, and nothing travels with them that is not on the list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.gathered import gathered
from bench.sample import Side
from matrix.store import Store
from tests.accuracy.evidence import faults, main
from tests.accuracy.launches import strange_launch
from tests.unit.bench_launches import CUDA, kept, launcher, on_gpus, pairing, place


def test_a_real_launch_of_a_stand_in_holds_what_is_on_the_list(tmp_path: Path) -> None:
    with launcher(tmp_path) as made:
        found = [made.launch(place()), made.launch(place(on_gpus()))]
        found.append(made.launch(place(pairing(recipe="update-short"), side=None, repeats=1)))
        found.append(made.launch(place(pairing(("fake.does=oom",), name="dies"))))
    for launched in found:
        assert list(strange_launch(launched.observation.detail)) == []
    assert CUDA.device == "cuda"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"host": "gpu-17"}, "host: not on the list"),
        ({"result": {"code": 0, "hostname": "x"}}, "result.hostname: not on the list"),
        ({"result": 5}, "result, telemetry_raw, conditions: one of them is not an object"),
        ({"telemetry_raw": {"columns": {"at": [], "uuid/0": []}}}, "telemetry_raw.columns.uuid/0: not on the list"),
        ({"telemetry_raw": {"company": {"pids": [1]}}}, "telemetry_raw.company.pids: not on the list"),
        ({"conditions": {"gpus": [{"uuid": "GPU-1"}]}}, "conditions.gpus[0].uuid: not on the list"),
    ],
)
def test_what_is_not_on_the_list_is_refused(
    more: dict[str, object], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    item = kept(0, **more)  # type: ignore[arg-type]
    assert list(strange_launch(item.detail)) == [told]
    Store(tmp_path / "store").add(kept(1), item)
    assert main([str(tmp_path / "gpu"), "--home", str(tmp_path)]) == 1
    assert "launch/ppo-short/toggle/A/00 is refused" in capsys.readouterr().out


def test_a_series_travels_with_its_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [kept(at, 100.0 + at, series=series) for series in ("s", "t") for at in range(4)]
    Store(tmp_path / "store").add(*items)
    to = tmp_path / "gpu"
    assert main([str(to), "--home", str(tmp_path)]) == 0
    assert "bench 8" in capsys.readouterr().out
    assert list(faults(Store(to))) == []
    assert gathered(Store(to)) == gathered(items)
    assert gathered(Store(to))[0].sample.values(Side.B) == (101.0, 102.0)
    assert json.loads((to / "observations.jsonl").read_text(encoding="utf-8").splitlines()[0])["tier"] == "bench"
