"""Observations as a GPU machine leaves them, in the form that the prober and the thresholds give them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from matrix.gpus.fingerprint import digest
from matrix.observe import Observation
from matrix.tier import Outcome, Tier
from tests.unit.run_fakes import AT, observation

CELL = "verl0.9.1+verl_core-vllm0.24.0-torch2.11.0-tf5.9.0-fa2.8.3.post2"
H200 = "x86_64, 16 cores, 128 GiB, 1 x NVIDIA H200"
KIND = "x86_64, 1 x NVIDIA H200"
LOCK = "sha256:" + "1" * 64
FACTS: dict[str, Any] = {
    "schema": 1,
    "gpus": [
        {
            "name": "NVIDIA H200",
            "memory_mib": 143771,
            "capability": "9.0",
            "clock_max_mhz": {"sm": 1980, "memory": 3201},
            "clock_application_mhz": {"sm": None, "memory": None},
            "power_limit_w": 700.0,
            "persistence": True,
            "ecc": True,
            "mig": False,
            "compute_mode": "default",
            "pcie_generation": 5,
            "pcie_width": 16,
            "nvlinks": 18,
        }
    ],
    "count": 1,
    "driver": "580.159.04",
    "cuda_driver": "13.0",
    "links": [],
    "cpu": {"model": "INTEL(R) XEON(R) PLATINUM 8558", "cores": 16},
    "memory_gib": 128,
    "kernel": "6.8.0-85",
    "hypervisor": "KVM",
    "python": "3.12.3",
    "cuda_runtime": "13.0.96",
    "nccl": "2.28.9",
    "cudnn": "9.15.1.9",
    "environment": {"NCCL_NVLS_ENABLE": "0"},
    "installed": {"torch": "2.11.0+cu130", "verl": "0.9.1", "vllm": "0.24.0"},
}
DIGEST = digest(FACTS)
GIB = 2**30


def machine(
    cell: str = CELL, facts: Mapping[str, Any] = FACTS, held_s: float = 480.0, at: datetime = AT
) -> Observation:
    """Return the observation that holds the whole fingerprint of a visit."""
    reads = {"lock": LOCK, "machine": KIND, "fingerprint": digest(facts)}
    detail = {"fingerprint": digest(facts), "held_s": held_s, "facts": dict(facts)}
    return observation(cell, Tier.GPU, detail=detail, probe="machine", reads=reads, machine=H200, at=at)


def probe(
    test: str,
    outcome: Outcome = Outcome.OK,
    reason: str = "",
    *,
    cell: str = CELL,
    tier: Tier = Tier.GPU,
    detail: Mapping[str, object] | None = None,
    held_s: float = 20.0,
    left_mib: int = 0,
    at: datetime = AT,
    lock: str = LOCK,
) -> Observation:
    """Return what a probe said that had a GPU, or at another tier that had none."""
    reads = {"lock": lock, "machine": KIND, test.partition("::")[0]: "sha256:ab"}
    held: dict[str, object] = dict(detail or {})
    if tier is Tier.GPU and outcome is not Outcome.UNTESTED:
        held |= {
            "fingerprint": DIGEST, "gpu": ["NVIDIA H200"], "gpu_base_mib": 5, "gpu_peak_mib": 61000,
            "gpu_left_mib": left_mib, "gpu_settle_s": 0.4, "gpu_held_s": held_s,
        }  # fmt: skip
    return observation(
        cell, tier, outcome, reason, detail=held, probe=f"compat/{test}", reads=reads, machine=H200, at=at
    )


def trial_of(failure: str, predicted: str, seen: str, wrong: str = "") -> dict[str, object]:
    """Return the detail of a trial of a known failure."""
    found: dict[str, object] = {
        "failure": failure, "title": f"what {failure} is", "predicted": predicted, "seen": seen, "way_out": ["pin it"],
    }  # fmt: skip
    return found | ({"disagreement": wrong, "proposal": f"affects of {failure}: vllm"} if wrong else {})


def threshold(
    knob: str = "actor_rollout_ref.rollout.gpu_memory_utilization",
    *,
    found: str = "threshold",
    largest: float | None = 0.9,
    smallest: float | None = 0.91,
    predicted: float | None = 0.88,
    cap: str = "A100-80GB",
    cell: str = CELL,
    at: datetime = AT,
) -> Observation:
    """Return a threshold with its neighbourhood, as `matrix.thresholds.records` keeps it."""
    name = f"threshold/qwen2.5-0.5b:512+512/{knob}/{cap}"
    end = {"repeats": 2, "fresh": 2, "peak": 70 * GIB, "part": "", "how": "", "text": "", "parts": []}
    died = {**end, "part": "rollout init", "how": "no KV cache", "text": "ValueError: No available memory"}
    detail = {
        "fingerprint": DIGEST,
        "workload_name": "qwen2.5-0.5b:512+512",
        "workload": {"shape": "qwen2.5-0.5b"},
        "knob": knob,
        "cap": {"name": cap, "bytes": 80 * GIB, "words": "capped at 80 GiB of 139.8 GiB"},
        "beside": 0,
        "device_total": 150 * 10**9,
        "found": found,
        "largest_pass": largest,
        "smallest_fail": smallest,
        "flaky": [],
        "reason": "",
        "line": f"{largest} survives, {smallest} dies",
        "pass": {"value": largest, **end} if largest is not None else None,
        "fail": {"value": smallest, **died} if smallest is not None else None,
        "predicted": predicted,
        "tried": [],
        "trials": 6,
        "recalled": 0,
        "gpu_seconds": 120.5,
    }
    outcome = Outcome.UNTESTED if found in ("unable", "cut short") else Outcome.OK
    reads = {"lock": LOCK, "machine": KIND, "spec": "sha256:cd", "trials": "sha256:ef"}
    return observation(
        cell, Tier.GPU, outcome, str(detail["line"]), detail=detail, probe=name, reads=reads, machine=H200, at=at
    )


def trial(value: float, number: int, fresh: bool = True) -> Observation:
    """Return one trial of a threshold."""
    reads = {"lock": LOCK, "machine": KIND, "spec": "sha256:cd", "fresh": str(fresh), "number": str(number)}
    detail = {"fingerprint": DIGEST, "trial": {"value": value, "ending": "pass", "seconds": 10.0}}
    name = f"trial/qwen2.5-0.5b:512+512/knob/A100-80GB/{value:g}"
    return observation(CELL, Tier.GPU, detail=detail, probe=name, reads=reads, machine=H200, at=AT)


def visit() -> list[Observation]:
    """Return what one visit to a cell leaves: two records as predicted, a plain probe, one that needs two GPUs."""
    return [
        machine(),
        probe("test_import.py::test_core", tier=Tier.IMPORT),
        probe("test_engine_gpu.py::test_sleep", detail=trial_of("sleep-leak", "no", "absent")),
        probe(
            "test_trainer_gpu.py::test_critic",
            Outcome.DEGRADED,
            "known failure critic-fa2: what critic-fa2 is",
            detail=trial_of("critic-fa2", "yes", "reproduced"),
            at=AT + timedelta(minutes=1),
        ),
        probe("test_engine_gpu.py::test_loads"),
        probe("test_nccl_gpu.py::test_two", Outcome.UNTESTED, "needs 2 GPUs; this machine has 1 GPU"),
    ]
