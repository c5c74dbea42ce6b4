"""Predictions against measurements: what is read of observations and launches, and what comes out of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from matrix.memory.constants import constants
from matrix.memory.knob import Knob
from matrix.memory.phase import GIB, Phase
from matrix.memory.prediction import predict
from matrix.memory.shape import shape_named
from matrix.memory.workload import Workload
from matrix.observe import Observation, Question
from matrix.tier import Outcome, Tier
from tests.accuracy import memory

LOAD = Workload(shape=shape_named("qwen2.5-0.5b")).with_settings(
    {
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.rollout.max_model_len": 2048,
    }
)
TRUE = constants().changed({"trainer_workspace_bytes": 5e8, "allocator_overhead": 0.05, "compiled_entropy_copies": 0.5})


def observed(probe: str, detail: Mapping[str, object]) -> Observation:
    return Observation(
        question=Question(cell="c", probe=probe, tier=Tier.GPU, tool="t", reads={}),
        outcome=Outcome.OK,
        detail=detail,
        at=datetime(2026, 11, 30, tzinfo=UTC),
    )


def part(knob: Knob, phase: Phase, value: int, rows: int) -> dict[str, object]:
    """Return a part that took what the model says with the true constants."""
    load = LOAD.with_settings(
        {
            knob.value: value,
            "actor_rollout_ref.actor.ppo_mini_batch_size": rows,
            "critic.ppo_mini_batch_size": rows,
            "data.train_batch_size": rows,
        }
    )
    taken = predict(load, memory.WHOLE, given=TRUE).phases[phase].allocated
    peaks = {"allocated": round(taken), "reserved": round(taken * 1.05)}
    return {"part": phase.value, "ended": True, "seconds": 1.0, "peaks": peaks, "rows": rows, "tokens": rows * 1024}


def measured(knob: Knob, phase: Phase, value: int, rows: int, split: str = "fit") -> Observation:
    detail = {
        "split": split,
        "knob": knob.value,
        "value": value,
        "workload": LOAD.with_knob(knob, value).to_json(),
        "trial": {"ending": "pass", "parts": [part(knob, phase, value, rows)]},
    }
    return observed(f"memory/x/{knob.value}/{value}", detail)


STORED = [
    measured(Knob.ACTOR_MICRO_BATCH, Phase.ACTOR_UPDATE, 4, 8),
    measured(Knob.ACTOR_MICRO_BATCH, Phase.ACTOR_UPDATE, 16, 32),
    measured(Knob.ACTOR_MICRO_BATCH, Phase.ACTOR_UPDATE, 32, 64),
    measured(Knob.LOG_PROB_MICRO_BATCH, Phase.OLD_LOG_PROB, 4, 4),
    measured(Knob.LOG_PROB_MICRO_BATCH, Phase.OLD_LOG_PROB, 32, 32),
    measured(Knob.LOG_PROB_MICRO_BATCH, Phase.OLD_LOG_PROB, 16, 16, "check"),
]


def test_errors_are_those_of_the_constants() -> None:
    rows = memory.gather(STORED, TRUE)
    assert [row.error for row in rows] == pytest.approx([0.0] * len(STORED), abs=1e-6)
    assert all(row.error < 0 for row in memory.gather(STORED, constants()))


def test_constants_come_back_from_what_was_measured() -> None:
    proposed = memory.fitted(list(memory.passes(STORED)), constants())
    assert proposed["trainer_workspace_bytes"] == pytest.approx(5e8, rel=0.01)
    assert proposed["allocator_overhead"] == pytest.approx(0.05, abs=1e-3)
    assert proposed["compiled_entropy_copies"] == pytest.approx(0.5, rel=0.01)
    assert memory.fitted([], constants()) == {}


def test_what_failed_or_is_no_pass_is_left_out() -> None:
    broken = measured(Knob.ACTOR_MICRO_BATCH, Phase.ACTOR_UPDATE, 4, 8)
    detail = {**broken.detail, "trial": {"ending": "fail", "parts": []}}
    assert not list(memory.passes([observed("memory/x/k/4", detail), observed("machine", {})]))
    first = part(Knob.ACTOR_MICRO_BATCH, Phase.ACTOR_UPDATE, 4, 8) | {"part": "first step"}
    detail = {**broken.detail, "trial": {"ending": "pass", "parts": [first]}}
    assert not list(memory.passes([observed("memory/x/k/4", detail)]))


def threshold(found: float, parts: list[dict[str, object]], knob: Knob = Knob.ACTOR_MICRO_BATCH) -> Observation:
    detail: dict[str, object] = {
        "knob": knob.value,
        "workload": LOAD.with_settings({"actor_rollout_ref.actor.ppo_mini_batch_size": 1024}).to_json(),
        "cap": {"name": "RTX-4090", "bytes": round(23.61 * GIB)},
        "beside": 0,
        "largest_pass": found,
        "smallest_fail": found + 1,
        "device_total": 150_109_880_320,
        "pass": {"value": found, "parts": parts},
    }
    return observed(f"threshold/w/{knob.value}/RTX-4090", detail)


def test_thresholds_are_predicted_anew() -> None:
    whole = memory.gather([threshold(20, [part(Knob.ACTOR_MICRO_BATCH, Phase.ACTOR_UPDATE, 20, 40)])], constants())
    assert {row.kind for row in whole} == {"allocated", "threshold"}
    (row,) = [row for row in whole if row.kind == "threshold"]
    assert 10 < row.predicted < 40
    tight = constants().changed({"trainer_other_bytes": 4e9})
    (less,) = [row for row in memory.gather([threshold(20, [])], tight) if row.kind == "threshold"]
    assert less.predicted < row.predicted


def test_what_the_engine_said_is_compared() -> None:
    told = {"part": "generation", "ended": True, "peaks": {"allocated": 1}, "kv_cache_bytes": 9e9, "model_bytes": 1e9}
    rows = memory.gather([threshold(256, [told], Knob.MAX_NUM_SEQS)], constants())
    assert {row.phase for row in rows if row.kind == "engine"} == {"kv_cache_bytes", "model_bytes"}


def test_a_launch_is_compared_whole(tmp_path: Path) -> None:
    words = ["python", "data.train_batch_size=8", "data.max_response_length=64", "trainer.nnodes=1", "x"]
    words += ["actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.rollout.max_model_len=512"]
    step = {"data": {"global_seqlen/mean": 8 * 100.0, "actor/perf/max_memory_allocated_gb": 15.0}}
    seen = {"gpu": {"plan": {"shape": "qwen2.5-0.5b"}, "peak": 71 * GIB, "before": GIB}}
    for folder, names in ((tmp_path / "ppo", {}), (tmp_path / "raw", {"result.json": "json"})):
        folder.mkdir()
        prefix = "ppo-A." if names else ""
        texts = {"command.json": words, "metrics.jsonl": step, "result.json": seen}
        for name, data in texts.items():
            (folder / f"{prefix}{names.get(name, name)}").write_text(json.dumps(data), encoding="utf-8")
    for where in (tmp_path / "ppo", tmp_path / "raw" / "ppo-A"):
        allocated, card = memory.launch_rows(where, constants())
        assert (allocated.measured, card.measured) == (15.0 * GIB, 70.0 * GIB)
        assert abs(allocated.error) < 0.2
    assert memory._raw(str(tmp_path)) == [tmp_path / "raw" / "ppo-A.metrics.jsonl"]


def test_the_summary_counts_what_is_near() -> None:
    rows = memory.gather(STORED, TRUE)
    lines = list(memory.summary(rows))
    assert lines[-1].split()[:2] == ["all", "6"]
    assert "6 of 6 within 10 %" in lines[-1]
    assert list(memory.summary([])) == []
