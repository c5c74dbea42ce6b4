"""The settings of a run on GPUs: what verl 0.7.1, 0.8.0 and 0.9.x are told, with nothing of them patched or edited.

What makes a launch start sooner is named in `_quick` and in the comments; the rest are the keys of an ordinary PPO run,
with the rollout's log-probabilities kept so that they can be compared with the actor's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
GRAPHS = {
    # Graphs of decoding alone, of few sizes, and nothing compiled: most of the start is left out, little of the speed.
    "few": "{mode:0,cudagraph_mode:FULL_DECODE_ONLY,cudagraph_capture_sizes:[1,2,4,8,16,32,64,96,128]}",
    "eager": "",
    # As vLLM and verl have it: a minute of compilation and capture.
    "default": "",
}


@dataclass(frozen=True)
class Plan:
    """What is trained on a GPU and for how long; lengths in tokens, batches in prompts."""

    shape: str = "qwen2.5-0.5b"
    steps: int = 3
    batch: int = 128
    prompt: int = 512
    response: int = 256
    samples: int = 1
    estimator: str = "gae"
    """`gae` trains a critic too, `grpo` has none."""
    graphs: str = "few"
    """How vLLM decodes: `few` graphs, `eager`, or its `default` compilation."""
    utilization: float = 0.4
    tokens: int = 8_192
    """Tokens of a micro-batch of the trainer, where sequences are packed: their logits in 32 bits are 5 GB."""
    seed: int = 17
    lr: float = 1e-4
    """Of the actor. On random weights 1e-6 would be lost in the bf16 of the rollout: its steps at 0.02 are 6e-5."""
    devices: int = 1
    ignore_eos: bool = True
    """Every response gets its full length: random weights end a text once in 151,936 tokens, and launches compare."""
    more: tuple[str, ...] = ()
    """Overrides on top of all others."""

    @property
    def mini_batch(self) -> int:
        """Return the prompts of one update: two updates a step where that is even."""
        return self.batch // 2 if self.batch % 2 == 0 else self.batch

    @property
    def sequences(self) -> int:
        """Return how many sequences the rollout decodes at once at most."""
        return min(256, self.batch * self.samples)

    @property
    def critic(self) -> bool:
        """Return whether a critic is trained."""
        return self.estimator == "gae"


@dataclass(frozen=True)
class Place:
    """Where the parts of a run lie: the model, the data, the folder that is written to, the reward (None: verl's)."""

    model: Path
    train: Path
    test: Path
    out: Path
    reward: Path | None


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a release of verl: (0, 9, 1) of `0.9.1` and of `0.9.1.dev3`."""
    return tuple(int(word) for word in version.split(".")[:3] if word.isdigit())


def environment(plan: Plan, compat: Path, metrics: Path) -> dict[str, str]:
    """Return the variables that are set beside those of the launching process."""
    # Small functions of vLLM and verl are compiled at their first call otherwise: seconds, in three places.
    eager = {"TORCHDYNAMO_DISABLE": "1"} if plan.graphs != "default" else {}
    return {
        **eager,
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "PYTHONPATH": str(compat),
        "PYTHONHASHSEED": "17",
        "PYTHONUNBUFFERED": "1",
        # Indices then mean the same to CUDA and to the driver.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # verl sets WARN where nothing is set: the phases of the engine's start would not be told.
        "VLLM_LOGGING_LEVEL": "INFO",
        # Its kernels would be compiled on the machine, which needs a CUDA compiler.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        # NVLink multicast is not to be had in every container, and one GPU needs none of it.
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",
        "RAY_AUTH_MODE": "disabled",
        # Workers started ahead have no environment of verl's, are never used and take the time of those that are.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_agent_register_timeout_ms": "300000",
        "RAY_worker_register_timeout_seconds": "300",
    }


def overrides(plan: Plan, place: Place, version: str, flash: bool) -> list[str]:
    """Return the hydra overrides for a release of verl; `flash` is whether flash-attn can be imported.

    What `plan.more` sets comes last and is never renamed: it is what somebody asks for.
    """
    made = [
        *_data(plan, place),
        *_actor(plan, place, flash),
        # Named without a critic too: its configuration is read whether there is one or not.
        f"critic.model.path={place.model}",
        *_packing("critic", plan, flash),
        *_rollout(plan, flash),
        *(_critic(plan, version, flash) if plan.critic else []),
        *_trainer(plan, place),
        *_quick(version),
    ]
    return [*fitted(made, version), *plan.more]


_RENAMED = (
    # key or node as it is named here, the release that named it so first, its name before ("" for none)
    ("reward.custom_reward_function", (0, 7, 1), "custom_reward_function"),
    ("reward.num_workers", (0, 7, 1), ""),
)


def fitted(words: list[str], version: str) -> list[str]:
    """Return overrides written for verl 0.7.1 and newer with the names of a release; what it does not have is left out.

    Only keys that say where things are or how a launch starts are renamed here; what a toggle sets never is.
    """
    found = []
    for word in words:
        key, equals, value = word.partition("=")
        for node, since, before in _RENAMED:
            if (key == node or key.startswith(f"{node}.")) and release(version) < since:
                key = before + key[len(node) :] if before else ""
        if key:
            found.append(f"{key}{equals}{value}")
    return found


def _data(plan: Plan, place: Place) -> list[str]:
    reward = [
        f"reward.custom_reward_function.path={place.reward}",
        "reward.custom_reward_function.name=compute_score",
    ]
    return [
        f"algorithm.adv_estimator={plan.estimator}",
        f"data.train_files={place.train}",
        f"data.val_files={place.test}",
        f"data.train_batch_size={plan.batch}",
        f"data.max_prompt_length={plan.prompt}",
        f"data.max_response_length={plan.response}",
        "data.shuffle=False",
        "data.filter_overlong_prompts=False",
        *(reward if place.reward is not None else []),
    ]


def _packing(where: str, plan: Plan, flash: bool) -> list[str]:
    """Return how a role packs its sequences: only flash-attention keeps packed ones apart."""
    if flash:
        return [f"{where}.ppo_max_token_len_per_gpu={plan.tokens}"]
    # verl wants it to divide the mini-batch.
    return [f"{where}.ppo_micro_batch_size_per_gpu={math.gcd(8, plan.mini_batch * plan.samples)}"]


def _actor(plan: Plan, place: Place, flash: bool) -> list[str]:
    actor, model = "actor_rollout_ref.actor", "actor_rollout_ref.model"
    attention = [] if flash else [f"+{model}.override_config.attn_implementation=sdpa"]
    return [
        f"{model}.path={place.model}",
        f"{model}.use_remove_padding={flash}",
        *attention,
        f"{actor}.optim.lr={plan.lr}",
        f"{actor}.ppo_mini_batch_size={plan.mini_batch}",
        f"{actor}.use_dynamic_bsz={flash}",
        *_packing(actor, plan, flash),
    ]


def _critic(plan: Plan, version: str, flash: bool) -> list[str]:
    attention = [] if flash else ["+critic.model.override_config.attn_implementation=sdpa"]
    # The trainer of 0.9 takes the critic's budget from a key that its own configuration does not list.
    later = flash and release(version) >= (0, 9)
    return [
        f"critic.model.use_remove_padding={flash}",
        *attention,
        *([f"+critic.ppo_infer_max_token_len_per_gpu={plan.tokens}"] if later else []),
    ]


def _rollout(plan: Plan, flash: bool) -> list[str]:
    rollout = "actor_rollout_ref.rollout"
    engine = [f"+{rollout}.engine_kwargs.vllm.compilation_config={GRAPHS['few']}"] if plan.graphs == "few" else []
    # -O0: neither compiled nor autotuned; the graphs that are asked for above stay.
    engine += [f"+{rollout}.engine_kwargs.vllm.optimization_level=0"] if plan.graphs != "default" else []
    return [
        f"{rollout}.name=vllm",
        f"{rollout}.mode=async",
        f"{rollout}.n={plan.samples}",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.gpu_memory_utilization={plan.utilization}",
        f"{rollout}.max_model_len={plan.prompt + plan.response}",
        f"{rollout}.max_num_seqs={plan.sequences}",
        f"{rollout}.enforce_eager={plan.graphs == 'eager'}",
        f"{rollout}.calculate_log_probs=True",
        f"{rollout}.ignore_eos={plan.ignore_eos}",
        *([] if flash else [f"{rollout}.log_prob_micro_batch_size_per_gpu=8"]),
        *engine,
    ]


def _trainer(plan: Plan, place: Place) -> list[str]:
    return [
        "trainer.nnodes=1",
        f"trainer.n_gpus_per_node={plan.devices}",
        "trainer.logger=[console,file]",
        "trainer.project_name=verl-matrix",
        "trainer.experiment_name=ppo-gpu",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        f"trainer.default_local_dir={place.out / 'checkpoints'}",
        f"trainer.rollout_data_dir={place.out / 'rollouts'}",
        "trainer.total_epochs=100",
        f"trainer.total_training_steps={plan.steps}",
        f"hydra.run.dir={place.out / 'hydra'}",
    ]


def _quick(version: str) -> list[str]:
    """Return what makes a launch start sooner: fewer processes that each import torch and verl, and no compilation."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    units = "transfer_queue.backend.SimpleStorage.num_data_storage_units=1"
    return [
        "data.dataloader_num_workers=0",
        f"{rollout}.agent.num_workers=2",
        "reward.num_workers=1",
        *([units] if release(version) >= (0, 9) else []),
        f"{actor}.use_torch_compile=False",
        f"{actor}.fsdp_config.use_torch_compile=False",
        # Logical ones: verl asks for one or three for most of its actors, and waits without a word where there are few.
        "ray_kwargs.ray_init.num_cpus=16",
        "+ray_kwargs.ray_init.include_dashboard=False",
        f"+ray_kwargs.ray_init.object_store_memory={2048 * MIB}",
    ]
