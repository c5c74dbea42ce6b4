"""A run on GPUs, made ready: what verl is told, in which environment, with which model and data, watched by what."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from workload.gsm8k import write_dataset
from workload.model import MODEL, model_for

from ppo import gpu_settings
from ppo.customize import customize
from ppo.gpu import VISIBLE, Device, Driver, GpuMeter, visible
from ppo.gpu_settings import Place, Plan

DATA = "VERL_MATRIX_DATA"
"""The variable that names a folder with a real train.parquet and test.parquet."""
_WARM = """
from vllm.model_executor.models.registry import ModelRegistry
ModelRegistry.models["Qwen2ForCausalLM"].inspect_model_cls()
import verl.trainer.main_ppo, verl.workers.engine_workers, vllm.v1.engine.async_llm, vllm.v1.worker.gpu_worker
"""
"""What a run does later, done beside its beginning: vLLM's look at the model's class, which it keeps in its own cache
and for which it starts a process (6.5 s on an H200's host), and reading from the disk what processes will import."""
_KERNEL = """
import signal, sys
signal.alarm(60)
import torch
from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton
rows, words = int(sys.argv[1]), int(sys.argv[2])
ones = torch.ones(rows, device="cuda")
apply_top_k_top_p_triton(torch.zeros(rows, words, device="cuda"), ones.long() * (words - 1), ones * 0.9)
torch.cuda.synchronize()
"""
"""Likewise, on the GPU: Triton compiles the kernel that vLLM's profiling run samples with, for just these sizes, and
keeps it in its own cache. The first engine in a HOME took 8 s to profile on an H200, the second 1.6 s; this one kernel
takes 7 s to compile. It is over, or ended by the alarm, before the engine looks at the GPU. vLLM 0.12 has none."""


@dataclass
class GpuRun:
    """What a launch starts with, and what it has seen of the GPU when it has ended."""

    plan: Plan
    words: list[str]
    environment: dict[str, str]
    facts: dict[str, Any]
    vocabulary: int
    meter: GpuMeter | None = None
    seen: dict[str, Any] = field(default_factory=dict)
    beside: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def warm(self, environment: dict[str, str], out: Path) -> None:
        """Start what can be done beside the beginning: one process without a GPU, one that compiles a kernel on it.

        Both end with the launch, and what they say is in `warm.txt` and `kernel.txt`.
        """
        self._begin("warm", [_WARM], environment | {VISIBLE: ""}, out)
        if self.facts["devices"]:
            self._begin("kernel", [_KERNEL, str(self.plan.sequences), str(self.vocabulary)], environment, out)

    def _begin(self, name: str, code: list[str], environment: dict[str, str], out: Path) -> None:
        with (out / f"{name}.txt").open("wb") as log:
            started = subprocess.Popen(
                [sys.executable, "-c", *code],
                cwd=out,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.beside.append(started)

    def settle(self) -> None:
        """Note what the GPU's memory was, and what of it has not come back."""
        if self.meter is not None:
            self.meter.stop()
            self.seen = {
                "before": self.meter.before,
                "peak": self.meter.peak,
                "left": self.meter.returned(),
                "samples": self.meter.samples,
            }

    def told(self) -> dict[str, Any]:
        """Return what the result says of the run and of the GPU; bytes and seconds."""
        return {**self.facts, "plan": asdict(self.plan), **self.seen}


def prepare(out: Path, plan: Plan, compat: Path, *, estimator: str = "auto", hide_flash: bool = False) -> GpuRun:
    """Write model and data of a plan below `out` and return the run, ready to start.

    `estimator` `auto` is `gae` with flash-attn and `grpo` without, because verl's critic asks for flash-attn whatever
    it is told. Raises OSError where the GPU cannot be asked, ValueError where there is no such shape, or too few GPUs
    are visible.
    """
    flash = not hide_flash and importlib.util.find_spec("flash_attn") is not None
    version = importlib.metadata.version("verl")
    plan = _resolved(plan, estimator, flash)
    place = _written(plan, out)
    environment = gpu_settings.environment(plan, compat, out / "metrics.jsonl")
    site = customize(out / "site", hidden="flash_attn" if hide_flash else "")
    environment["PYTHONPATH"] = f"{site}{os.pathsep}{compat}"
    meter, devices = _meter(plan.devices)
    if devices:
        # As indices: vLLM up to 0.21 turns each word of the variable into a number, which a UUID is not.
        environment[VISIBLE] = ",".join(str(device.index) for device in devices)
    facts = {
        "release": version,
        "flash_attn": flash,
        "model": "given" if os.environ.get(MODEL) else plan.shape,
        "devices": [device.name for device in devices],
    }
    words = gpu_settings.overrides(plan, place, version, flash)
    vocabulary = int(json.loads((place.model / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    return GpuRun(plan=plan, words=words, environment=environment, facts=facts, vocabulary=vocabulary, meter=meter)


def _resolved(plan: Plan, estimator: str, flash: bool) -> Plan:
    """Return the plan with its estimator; without a critic each prompt gets two answers, of half as many prompts."""
    wanted = estimator if estimator != "auto" else "gae" if flash else "grpo"
    given = bool(os.environ.get(MODEL))
    if wanted == "grpo":
        plan = replace(plan, samples=2, batch=max(2, plan.batch // 2))
    return replace(plan, estimator=wanted, ignore_eos=not given, lr=1e-6 if given else plan.lr)


def _written(plan: Plan, out: Path) -> Place:
    given = os.environ.get(DATA)
    if given:
        train, test = Path(given, "train.parquet"), Path(given, "test.parquet")
    else:
        # A step's prompts, for as many steps as are asked: the whole set would be read by verl at every start.
        train, test = write_dataset(out / "data", train=plan.batch * (plan.steps + 1), test=16, seed=plan.seed)
    model = model_for(plan.shape, out / "model", seed=plan.seed)
    # GSM8K's answer would be worth 0 to every response of random weights, and every gradient with it.
    reward = None if os.environ.get(MODEL) else Path(__file__).with_name("reward.py")
    return Place(model=model, train=train, test=test, out=out, reward=reward)


def _meter(count: int) -> tuple[GpuMeter | None, list[Device]]:
    """Return what watches the first `count` of the visible GPUs, and them; (None, []) where no driver answers."""
    with contextlib.suppress(OSError):
        driver = Driver()
        devices = visible(driver.devices(), os.environ.get(VISIBLE))
        if len(devices) < count:
            # Ray would wait for the others without a word.
            raise ValueError(f"{count} GPUs are asked for, and {len(devices)} are visible")
        return GpuMeter(driver, devices[:count]), devices[:count]
    return None, []
