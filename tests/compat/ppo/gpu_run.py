"""A run on GPUs, made ready: what verl is told, in which environment, with which model and data, watched by what."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from workload.gsm8k import write_dataset
from workload.model import MODEL, model_for

from ppo import gpu_settings
from ppo.gpu import VISIBLE, Device, Driver, GpuMeter, visible
from ppo.gpu_settings import Place, Plan
from ppo.hidden import hide

DATA = "VERL_MATRIX_DATA"
"""The variable that names a folder with a real train.parquet and test.parquet."""
_WARM = """
from vllm.model_executor.models.registry import ModelRegistry
ModelRegistry.models["Qwen2ForCausalLM"].inspect_model_cls()
import verl.trainer.main_ppo, verl.workers.engine_workers, vllm.v1.engine.async_llm, vllm.v1.worker.gpu_worker
"""
"""What a run does later, done beside its beginning: vLLM's look at the model's class, which it keeps in its own cache
and for which it starts a process (6.5 s on an H200's host), and reading from the disk what processes will import."""


@dataclass
class GpuRun:
    """What a launch starts with, and what it has seen of the GPU when it has ended."""

    plan: Plan
    words: list[str]
    environment: dict[str, str]
    facts: dict[str, Any]
    meter: GpuMeter | None = None
    seen: dict[str, Any] = field(default_factory=dict)

    def warm(self, environment: dict[str, str], out: Path) -> None:
        """Start a process that reads from the disk what others will import; it sees no GPU and ends with the launch."""
        with (out / "warm.txt").open("wb") as log:
            subprocess.Popen(
                [sys.executable, "-c", _WARM],
                cwd=out,
                env=environment | {VISIBLE: ""},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

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
    it is told. Raises OSError where the GPU cannot be asked, ValueError where there is no such shape.
    """
    flash = not hide_flash and importlib.util.find_spec("flash_attn") is not None
    version = importlib.metadata.version("verl")
    plan = _resolved(plan, estimator, flash)
    place = _written(plan, out)
    environment = gpu_settings.environment(plan, compat, out / "metrics.jsonl")
    if hide_flash:
        environment["PYTHONPATH"] = f"{hide('flash_attn', out / 'hidden')}{os.pathsep}{compat}"
    meter, devices = _meter()
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
    return GpuRun(plan=plan, words=words, environment=environment, facts=facts, meter=meter)


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


def _meter() -> tuple[GpuMeter | None, list[Device]]:
    """Return what watches the visible GPUs, and them; (None, []) where no driver answers."""
    with contextlib.suppress(OSError):
        driver = Driver()
        devices = visible(driver.devices(), os.environ.get(VISIBLE))
        return GpuMeter(driver, devices), devices
    return None, []
