"""The settings: what verl, vLLM and Ray are told so that they run small and on a CPU, with no patch at all."""

from __future__ import annotations

from pathlib import Path

from ppo.workload import Workload

MIB = 1 << 20
_EXACT = "{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}"


def environment(workload: Workload, compat: Path, metrics: Path) -> dict[str, str]:
    """Return the variables that are set beside those of the launching process."""
    return {
        # verl's plug-in points.
        "VERL_USE_EXTERNAL_MODULES": "ppo.plugin",
        "VERL_PLATFORM": "cpu",
        # the engines are registered for "cuda" and "npu"; they hold nothing that needs one
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "PYTHONPATH": str(compat),
        "PYTHONHASHSEED": str(workload.seed),
        # No compiler is needed then: a part of FSDP's loss is compiled otherwise.
        "TORCHDYNAMO_DISABLE": "1",
        # Two threads, no network.
        "OMP_NUM_THREADS": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        # Ray: an agent may take a minute to start on a loaded machine, and its own limits are 15 to 30 s.
        "RAY_agent_register_timeout_ms": "300000",
        "RAY_worker_register_timeout_seconds": "300",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",
    }


def overrides(workload: Workload, folder: Path, agents: Path) -> list[str]:
    """Return the hydra overrides that make it small and let it run on a CPU."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    length = workload.prompt_length + workload.response_length
    return [
        "trainer.device=cpu",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=1",
        "trainer.logger=[file]",
        "trainer.project_name=verl-matrix",
        "trainer.experiment_name=ppo-cpu",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        f"trainer.save_freq={workload.steps}",
        "trainer.resume_mode=disable",
        f"trainer.default_local_dir={folder / 'checkpoints'}",
        f"trainer.rollout_data_dir={folder / 'rollouts'}",
        "data.dataloader_num_workers=0",
        "data.filter_overlong_prompts=False",
        # FSDP1 wants an accelerator; FSDP2 takes the device it is given.
        f"{actor}.strategy=fsdp2",
        "critic.strategy=fsdp2",
        f"{actor}.use_torch_compile=False",
        f"{actor}.fsdp_config.use_torch_compile=False",
        # Exact numbers: what is left between rollout and actor is then rounding, and a stale weight stands out.
        f"+{actor}.fsdp_config.mixed_precision={_EXACT}",
        f"+critic.fsdp.mixed_precision={_EXACT}",
        f"{actor}.checkpoint.save_contents=[hf_model]",
        "critic.checkpoint.save_contents=[hf_model]",
        "actor_rollout_ref.model.use_remove_padding=False",
        "critic.model.use_remove_padding=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=eager",
        "+critic.model.override_config.attn_implementation=eager",
        f"{rollout}.name=vllm",
        f"{rollout}.mode=async",
        f"{rollout}.dtype=float32",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.enforce_eager=True",
        f"{rollout}.free_cache_engine=False",
        f"+{rollout}.enable_sleep_mode=False",
        f"{rollout}.max_model_len={-(-length // 32) * 32}",
        f"{rollout}.max_num_batched_tokens=512",
        f"{rollout}.max_num_seqs=16",
        f"+{rollout}.engine_kwargs.vllm.kv_cache_memory_bytes={64 * MIB}",
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes=16",
        f"{rollout}.agent.num_workers=1",
        f"{rollout}.agent.agent_loop_config_path={agents}",
        f"{rollout}.agent.default_agent_loop=seeded",
        "reward.num_workers=1",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "transfer_queue.backend.SimpleStorage.total_storage_size=1000",
        # logical: verl asks for three for its pool and one for most other actors, and waits without a word for more
        "ray_kwargs.ray_init.num_cpus=10",
        "+ray_kwargs.ray_init.num_gpus=1",
        "+ray_kwargs.ray_init.include_dashboard=False",
        f"+ray_kwargs.ray_init.object_store_memory={100 * MIB}",
    ]
