"""What a side runs in: the variables of a launch of verl, and, on a CPU, what lets verl and vLLM run there."""

from __future__ import annotations

import os
from pathlib import Path

from ppo import gpu_settings, settings
from ppo.workload import Workload

from benches.plan import Plan, keyed

COMPAT = Path(__file__).resolve().parent.parent
_NOT_PASSED_ON = (
    "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RANK", "WORLD_SIZE",
    "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_EXACT = "{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}"
ON_CPU = (
    "trainer.device=cpu",
    # FSDP1 wants an accelerator; FSDP2 takes the device it is given.
    f"{_ACTOR}.strategy=fsdp2",
    "critic.strategy=fsdp2",
    f"++{_ACTOR}.fsdp_config.mixed_precision={_EXACT}",
    f"++critic.fsdp.mixed_precision={_EXACT}",
    f"{_ACTOR}.fsdp_config.use_torch_compile=False",
    f"{_MODEL}.use_remove_padding=False",
    "critic.model.use_remove_padding=False",
    f"++{_MODEL}.override_config.attn_implementation=eager",
    "++critic.model.override_config.attn_implementation=eager",
    f"{_ROLLOUT}.dtype=float32",
    f"{_ROLLOUT}.enforce_eager=True",
    f"{_ROLLOUT}.free_cache_engine=False",
    f"++{_ROLLOUT}.enable_sleep_mode=False",
    f"++{_ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes={64 << 20}",
)
"""Overrides without which neither engine runs on a CPU (docs/cpu_ppo.md); a side's own come after them."""


def environment(plan: Plan, device: str, variant: str, out: Path) -> dict[str, str]:
    """Return the whole environment of a side's processes: as a launch of the plan's settings would set it."""
    passed = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    made = gpu_settings.Plan(shape=plan.shape, graphs=plan.graphs)
    found = {**passed, **gpu_settings.environment(made, COMPAT, out / "metrics.jsonl")}
    if device == "cpu":
        found |= settings.environment(Workload(), COMPAT, out / "metrics.jsonl")
        found |= {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    found["PYTHONPATH"] = f"{COMPAT}{os.pathsep}{COMPAT / 'subjects'}"
    return found | dict(plan.env.get(variant, {}))


def words(plan: Plan, device: str, variant: str, model: Path) -> tuple[str, ...]:
    """Return all overrides of a side: the common ones, its own, the device's, and where the model lies.

    What the sides differ in stays as the plan has it, on a CPU too.
    """
    given = (*plan.common, *plan.words(variant))
    # Where hydra writes is of no meaning here; on a CPU there are no graphs to capture.
    left_out = ("hydra.", *((f"{_ROLLOUT}.engine_kwargs.vllm.compilation_config",) if device == "cpu" else ()))
    kept = tuple(word for word in given if not word.lstrip("+").startswith(left_out))
    sizes = {
        "data.max_prompt_length": plan.prompt,
        "data.max_response_length": plan.response,
        f"{_ROLLOUT}.max_model_len": plan.prompt + plan.response,
    }
    return (
        f"{_ROLLOUT}.name=vllm",
        *(f"{key}={value}" for key, value in sizes.items()),
        *kept,
        *(word for word in ON_CPU if device == "cpu" and not set(keyed((word,))) & _toggled(plan)),
        f"{_MODEL}.path={model}",
        f"critic.model.path={model}",
    )


def _toggled(plan: Plan) -> set[str]:
    """Return the keys in which the sides differ; of one side alone all that it names."""
    off, on = keyed(plan.off), keyed(plan.on or ())
    return {key for key in {**off, **on} if off.get(key) != on.get(key)}
