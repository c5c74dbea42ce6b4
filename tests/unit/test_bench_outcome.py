"""The outcome of a launch: faults told apart, figures out of the files that it left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.launched import Fault, Measured, Trouble
from bench.outcome import (
    fault_of,
    fault_told,
    of_ppo,
    of_repeats,
    read_result,
    read_rows,
    tail,
    tokens_of,
    with_power,
)
from bench.sample import Side

EVIDENCE = Path(__file__).parents[2] / "reports" / "evidence" / "gpu" / "raw"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB"
FAULTS = [
    (0, "anything that says OutOfMemoryError", "", None),
    (1, f"x\n(WorkerDict pid=17) {OOM}\nray.exceptions.RayTaskError: y", "", Trouble.MEMORY),
    (1, "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "",
     Trouble.MEMORY),
    (1, "ValueError: 3.5 GiB KV cache is needed, which is larger than the available KV cache memory (1.2 GiB)", "",
     Trouble.MEMORY),
    (1, f"{OOM}\nRuntimeError: CUDA error: GPU is lost", "", Trouble.GPU_LOST),
    (1, "A worker died or was killed while executing a task: (1) killed by SIGKILL by OOM killer", "", Trouble.KILLED),
    (124, "still going", "", Trouble.HUNG),
    (137, "", "", Trouble.KILLED),
    (143, "", "it said nothing for 150 s", Trouble.HUNG),
    (2, "usage: launch.py\nlaunch.py: error: argument --graphs", "", Trouble.REFUSED),
    (1, "a\n\x1b[36m(TaskRunner pid=3)\x1b[0m ValueError: no such key\n", "", Trouble.FAILED),
    (9, "", "", Trouble.FAILED),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text", "over", "expected"), FAULTS)
def test_faults_are_told_apart(code: int, text: str, over: str, expected: Trouble | None) -> None:
    found = fault_of(code, text, over=over)
    assert (None if found is None else found.trouble) == expected


def test_a_fault_says_what_it_was() -> None:
    assert str(fault_of(1, f"x\n{OOM}\ny")) == f"out of memory: {OOM}"
    assert str(fault_of(1, "\x1b[36m(TaskRunner pid=3)\x1b[0m ValueError: no such key\nbye")) == (
        "failed: exit code 1: ValueError: no such key"
    )
    assert str(fault_of(4, "first\nlast line")) == "failed: exit code 4: last line"
    assert str(fault_of(143, "", over="it was not over after 600 s")) == "hung: it was not over after 600 s"


TOLD = {"kind": "OutOfMemoryError", "where": "update_actor", "variant": "on", "text": f"Traceback\n{OOM}"}


@pytest.mark.parametrize(
    ("result", "code", "over", "expected"),
    [
        ({"fault": TOLD}, 1, "", "out of memory: update_actor of on: torch.OutOfMemoryError"),
        ({"fault": {"kind": "AssertionError", "text": "a\nAssertionError: odd"}}, 1, "",
         "failed: exit code 1: AssertionError: odd"),
        ({"fault": None}, 1, "", "failed: exit code 1: ValueError: from the log"),
        ({"fault": TOLD}, 143, "it said nothing for 240 s", "hung: it said nothing for 240 s"),
        ({"fault": TOLD}, 0, "", "None"),
        ({}, 0, "", "None"),
    ],
)  # fmt: skip
def test_a_launch_may_tell_of_its_fault_itself(result: dict[str, Any], code: int, over: str, expected: str) -> None:
    assert str(fault_told(result, code, "ValueError: from the log", over=over)).startswith(expected)


def launch(folder: Path, steps: list[dict[str, Any]], **told: Any) -> Path:
    """Return the folder of a launch of these steps."""
    lines = [
        json.dumps({"step": at, "data": {"timing_s/step": 2.0, "perf/total_num_tokens": 100, "perf/throughput": 50.0,
                                         "prompt_length/mean": 9, "prompt_length/min": 9, "prompt_length/max": 9,
                                         "response_length/mean": 1, "response_length/min": 1, "response_length/max": 1,
                                         **step}})
        for at, step in enumerate(steps, 1)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = {"code": 0, "seconds": 9.0, "release": "0.9.1", "plan": {"steps": len(steps)}, "began": 1000.0,
              "reached": {"fit": 3.0, **{f"step {at}": 3.0 + 2 * at for at in range(1, len(steps) + 1)}}}  # fmt: skip
    (folder / "result.json").write_text(json.dumps({**result, **told}), encoding="utf-8")
    return folder


def test_the_window_is_that_of_the_steps_that_count(tmp_path: Path) -> None:
    found = of_ppo(launch(tmp_path, [{}, {}, {}]), Side.B, None, start=990.0)
    assert found.fault is None
    assert found.window == (15.0, 19.0)
    assert found.figures["throughput"].value == 50.0
    assert found.figures["start-up"].value == 3.0
    assert found.dropped == 1
    assert tokens_of(tmp_path, 1) == [100.0, 100.0]


@pytest.mark.parametrize(
    ("steps", "told", "trouble"),
    [
        ([{}, {"actor/grad_norm": None}], {}, Trouble.NOT_FINITE),
        ([{}, {}], {"plan": {"steps": 3}}, Trouble.SHORT),
        ([{}], {}, Trouble.SHORT),
        ([], {}, Trouble.SHORT),
    ],
)
def test_launches_without_a_figure(
    tmp_path: Path, steps: list[dict[str, Any]], told: dict[str, Any], trouble: Trouble
) -> None:
    found = of_ppo(launch(tmp_path, steps, **told), Side.A, None, start=0.0)
    assert found.fault is not None
    assert found.fault.trouble is trouble


def test_a_fault_from_outside_goes_before_what_the_files_say(tmp_path: Path) -> None:
    oom = Fault(trouble=Trouble.MEMORY, text="x")
    assert of_ppo(launch(tmp_path, [{}, {"actor/grad_norm": None}]), Side.A, oom, start=0.0).fault is oom
    assert of_ppo(tmp_path / "nothing", Side.A, oom, start=0.0) == Measured(fault=oom)


def test_a_step_of_which_no_moment_is_known_has_no_window(tmp_path: Path) -> None:
    assert of_ppo(launch(tmp_path, [{}, {}], reached={}), Side.A, None, start=0.0).window is None
    assert of_ppo(launch(tmp_path, [{}, {}], began=0.0), Side.A, None, start=0.0).window is None


@pytest.mark.skipif(not (EVIDENCE / "ppo-A.json").is_file(), reason="the evidence of the H200 is not here")
def test_a_real_launch_on_an_h200(tmp_path: Path) -> None:
    for name, of in (("result.json", "ppo-A.json"), ("metrics.jsonl", "ppo-A.metrics.jsonl")):
        (tmp_path / name).write_text((EVIDENCE / of).read_text(encoding="utf-8"), encoding="utf-8")
    found = of_ppo(tmp_path, Side.A, None, start=0.0)
    assert found.fault is None
    throughput = found.figures["throughput"]
    assert throughput.value is not None
    assert len(throughput.raw) == 3
    assert 0.05 < (found.figures["mfu/update_actor"].value or 0) < 0.09
    assert 0.09 < (found.figures["mfu_verl/update_actor"].value or 0) < 0.12
    assert found.figures["start-up"].value == 94.75
    assert found.figures["memory/gpu"].value == pytest.approx(69.9, abs=0.1)
    assert {"gap_k3", "entropy", "actor_grad_norm"} <= set(found.numerics[Side.A])


def row(variant: str, place: int, phase: str = "update_actor", **more: Any) -> dict[str, Any]:
    """Return a line of samples."""
    told = {"variant": variant, "place": place, "warm_up": place < 0, "phase": phase, "at": 100.0 + place,
            "seconds": 0.5, "tokens": 1000, "rows": 2}  # fmt: skip
    return {**told, **more}


def samples(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Return the folder of a launch that told these lines."""
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows) + '{"half', "utf-8")
    return folder


LENGTHS = {"prompt_tokens": 1024, "squares": 2 * 768**2}
FULL = {"devices": ["NVIDIA H200"], "plan": {"shape": "qwen2.5-0.5b", "prompt": 512, "response": 256,
                                             "lengths": "full"}}  # fmt: skip


def test_repeats_of_both_sides(tmp_path: Path) -> None:
    rows = [
        row("off", -1), row("off", 0, memory={"allocated": 2 << 30}, more={"mfu": 0.1, "kv_tokens": 9, **LENGTHS}),
        row("on", 1, numerics={"grad_norm": 1.5, "finite": True}), row("on", 1, "update_critic", seconds=0.0),
    ]  # fmt: skip
    found = of_repeats(samples(tmp_path, rows), {**FULL, "numerics": {"within": False}}, None, start=90.0)
    value = {name: [(item.place, item.value) for item in items] for name, items in found.repeats.items()}
    assert value["throughput/update_actor"] == [(0, 2000.0), (1, 2000.0)]
    assert value["memory/update_actor"] == [(0, 2.0)]
    assert value["mfu_verl/update_actor"] == [(0, 0.1)]
    assert value["kv_cache/update_actor"] == [(0, 9.0)]
    assert found.repeats["seconds/update_critic"][0].fault == "it is 0.0"
    assert found.numerics[Side.B] == {"actor_grad_norm": (1.5,)}
    assert found.within is False
    assert found.window == (9.5, 11.0)
    # 2 sequences of 768 tokens, 6 FLOPs for each of 494 million weights less the embedding's look-up, in half a second.
    assert value["mfu/update_actor"][0][1] == pytest.approx(1536 * 6 * 0.494e9 / 0.5 / 989e12, rel=0.1)


@pytest.mark.parametrize(
    "result",
    [
        {},
        {**FULL, "devices": ["a card that nobody knows"]},
        {**FULL, "plan": {**FULL["plan"], "model": "/real"}},  # type: ignore[dict-item]
        {**FULL, "plan": {**FULL["plan"], "shape": "none"}},  # type: ignore[dict-item]
        {**FULL, "plan": {}},
    ],
)
def test_an_unknown_denominator_is_no_mfu(tmp_path: Path, result: dict[str, Any]) -> None:
    found = of_repeats(samples(tmp_path, [row("off", 0, more=LENGTHS)]), result, None, start=0.0)
    assert set(found.repeats) == {"seconds/update_actor", "throughput/update_actor"}


def test_lengths_that_are_not_told_are_no_mfu(tmp_path: Path) -> None:
    found = of_repeats(samples(tmp_path, [row("off", 0)]), FULL, None, start=0.0)
    assert "mfu/update_actor" not in found.repeats


def test_a_launch_that_told_of_no_repeat(tmp_path: Path) -> None:
    found = of_repeats(tmp_path, {}, None, start=0.0)
    assert found.fault == Fault(trouble=Trouble.SHORT, text="no repeat was told of")
    assert found.window is None


def test_power_and_energy(tmp_path: Path) -> None:
    whole = of_ppo(launch(tmp_path, [{}, {}, {}]), Side.A, None, start=0.0)
    found = with_power(whole, {"power_mean_w": 800.0, "gpus": [1, 2]}, 400.0)
    assert found.figures["power"].value == 400.0
    assert found.figures["energy"].value == 8.0
    assert "energy" not in with_power(whole, {"power_mean_w": 800.0, "gpus": [1]}, None).figures
    assert with_power(whole, {"power_mean_w": None}, 1.0) is whole
    assert with_power(whole, {"absent": "x"}, 1.0) is whole


def test_files_that_are_not_whole(tmp_path: Path) -> None:
    assert read_result(tmp_path) == {}
    (tmp_path / "result.json").write_text("[]", encoding="utf-8")
    assert read_result(tmp_path) == {}
    (tmp_path / "rows").write_text('{"a": 1}\n[1]\n{"b"', encoding="utf-8")
    assert read_rows(tmp_path / "rows") == [{"a": 1}]
    (tmp_path / "text").write_text("x" * 50 + "end", encoding="utf-8")
    assert tail(tmp_path / "text", 5) == "xxend"
    assert tail(tmp_path / "none") == ""
