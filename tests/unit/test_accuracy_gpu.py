"""The command that prints the figures of the tier gpu: what it counts, and when it fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.observe import Observation
from matrix.store import Store
from matrix.thresholds.foretell import foretold
from matrix.thresholds.question import load_questions
from matrix.tier import Outcome
from tests.accuracy.evidence import main as copy
from tests.accuracy.gpu import main
from tests.unit.gpu_samples import CELL, machine, probe, threshold, trial, trial_of, visit
from tests.unit.run_fakes import observation

REACHED = {"ray": 8.1, "critic": 30.0, "engine": 70.2, "fit": 78.4, "step 1": 92.0}
START = probe("test_ppo_gpu.py::test_start_up_is_told", detail={"reached": REACHED, "prepared": {"model": 3.0}})
KILLED = {"name": "test_killed[1-gib]", "told": "passed", "as_meant": True, "left_mib": 0, "settle_s": 0.42}


def _printed(
    folder: Path, capsys: pytest.CaptureFixture[str], *items: Observation, forced: list[Mapping[str, Any]] | None = None
) -> tuple[int, str]:
    if items:
        Store(folder / "store").add(*items)
    raw: list[str] = []
    if forced is not None:
        (folder / "forced.txt").write_text("".join(f"{json.dumps(entry)}\n" for entry in forced), encoding="utf-8")
        raw = ["--raw", f"forced.jsonl={folder / 'forced.txt'}"]
    copy([str(folder / "gpu"), "--home", str(folder), *raw])
    capsys.readouterr()
    code = main(["--store", str(folder / "gpu")])
    return code, capsys.readouterr().out


def renamed(item: Observation) -> Observation:
    """Return the observation as one of a card of its own, so that it is another threshold."""
    return replace(item, question=replace(item.question, probe=f"{item.question.probe}-other"))


def test_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = {item.id: item.asked for item in load_questions()}["actor-24"]
    assert listed.cap is not None
    real = threshold(listed.knob.key, largest=25, smallest=26, predicted=25)
    cap = {"name": listed.cap.name, "bytes": listed.cap.bytes, "words": "capped"}
    real = replace(real, detail={**real.detail, "workload": listed.settled.to_json(), "cap": cap})
    wide = threshold("critic.ppo_micro", largest=8, smallest=9, predicted=10)
    items = [*visit(), START, threshold(), wide, renamed(real), trial(1, 1)]
    code, out = _printed(tmp_path, capsys, *items, forced=[KILLED, {**KILLED, "told": "untested", "as_meant": False}])
    assert code == 0
    lines = out.splitlines()
    seen = "1 known failures reproduced as predicted, 1 absent as predicted, 2 others passed, 0 surprises"
    phases = "ray 8.1, critic 30.0, engine 70.2, fit 78.4, step 1 92.0"
    for told in (
        f"4 of 5 GPU probes ran, {seen}; 80 s of GPU time, 0 MiB left",
        "untested: 1 probes",
        "  needs 2 GPUs; this machine has 1 GPU: test_nccl_gpu.py::test_two",
        "GPU seconds per verdict: 80 (mean of 1 cells), median 80, 80 to 80",
        "thresholds: 3 of 3 measured",
        "  foretold before the search: 3 of 3, 2 of them within 10%; median error 2%, largest 25%",
        f"start of a PPO launch, {CELL}: 78.4 s to the first step (goal 90 s); {phases}",
        "MiB left: 0 after 4 probes",
        "MiB left: 0 over 1 of 2 forced failures, 1 as meant; the slowest back after 0.42 s",
    ):
        assert told in lines
    # Of workloads that are none nothing is foretold now; of the real one it is, by the model as it is.
    now = foretold(listed)
    assert [line for line in lines if line.startswith(f"  {now:g} (")]
    assert "foretold by the model as it is now: 1 of 3" in out
    assert any(line.startswith("machine sha256:") and "driver 580.159.04, CUDA 13.0" in line for line in lines)
    assert main(["--store", str(tmp_path / "gpu"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["probes"]["ran"], len(data["thresholds"]), len(data["forced"])) == (4, 3, 2)


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (
            probe("test_x.py::test_y", detail=trial_of("x", "yes", "absent", "predicted and not seen")),
            f"  surprise: {CELL}: test_x.py::test_y: x: predicted and not seen",
        ),
        (probe("test_x.py::test_y", Outcome.BROKEN, "it dies"), f"  surprise: {CELL}: test_x.py::test_y: it dies"),
        (probe("test_x.py::test_y", left_mib=7), f"  7 MiB: {CELL}: compat/test_x.py::test_y"),
    ],
)
def test_a_surprise_or_a_mib_that_is_left_fails(
    item: Observation, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = _printed(tmp_path, capsys, machine(), item)
    assert code == 1
    assert told in out.splitlines()


@pytest.mark.parametrize("wrong", [{"left_mib": 3}, {"as_meant": False}])
def test_a_forced_failure_that_left_something_fails(
    wrong: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = _printed(tmp_path, capsys, *visit(), forced=[KILLED, {**KILLED, **wrong}])
    assert code == 1
    assert "  test_killed[1-gib]: passed" in out


def test_without_any_gpu_nothing_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(tmp_path / "gpu").add(observation("a", visit()[1].question.tier, probe="compat/x.py::one"))
    assert main(["--store", str(tmp_path / "gpu")]) == 10
    out = capsys.readouterr().out
    assert "no GPU probe ran" in out
    assert "start of a PPO launch: none is recorded" in out


def test_a_launch_by_hand_tells_of_its_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gpu" / "raw").mkdir(parents=True)
    (tmp_path / "gpu" / "raw" / "ppo-A.json").write_text('{"reached": {"ray": 8.6, "fit": 82.9}}', encoding="utf-8")
    (tmp_path / "gpu" / "raw" / "ppo-B.json").write_text('{"reached": {"ray": 8.6}}', encoding="utf-8")
    (tmp_path / "gpu" / "raw" / "ppo-B.command.json").write_text('["python", "-m", "verl"]', encoding="utf-8")
    _, out = _printed(tmp_path, capsys, *visit())
    assert "start of a PPO launch, ppo-A: 82.9 s to the first step (goal 90 s); ray 8.6, fit 82.9" in out
    assert "start of a PPO launch, ppo-B: no first step; ray 8.6" in out
    assert "MiB left over forced failures: untested" in out
    assert f"  untested: {CELL}" not in out
    assert "  untested: verl0.7.1+vllm-vllm0.12.0-torch2.9.0-tf4.57.6" in out.splitlines()


def test_a_launch_that_a_probe_told_of_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gpu" / "raw").mkdir(parents=True)
    (tmp_path / "gpu" / "raw" / "ppo-A.json").write_text(json.dumps({"reached": REACHED}), encoding="utf-8")
    _, out = _printed(tmp_path, capsys, *visit(), START)
    assert out.count("start of a PPO launch") == 1


def test_raw_files_travel_scrubbed_and_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _printed(tmp_path, capsys, *visit(), forced=[{**KILLED, "reason": "at /home/jdoe/x.log"}])
    held = tmp_path / "gpu" / "raw" / "forced.jsonl"
    assert "jdoe" not in held.read_text(encoding="utf-8")
    assert copy([str(tmp_path / "gpu"), "--home", str(tmp_path)]) == 0
    assert held.is_file()
    assert copy([str(tmp_path / "gpu"), "--check"]) == 0
    held.write_text("at /home/jdoe/x.log\n", encoding="utf-8")
    assert copy([str(tmp_path / "gpu"), "--check"]) == 1
    assert "raw/forced.jsonl:1" in capsys.readouterr().out
    for word in ("a/b=x", "name", "name="):
        assert copy([str(tmp_path / "gpu"), "--home", str(tmp_path), "--raw", word]) == 1
