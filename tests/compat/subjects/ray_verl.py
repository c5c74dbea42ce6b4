"""Does one thing of verl with Ray; argv[1] names it; last line: the numbers as JSON."""

import importlib
import json
import os
import sys
import threading
import time
from inspect import signature

REFUSED = {"NO_RESOURCES", "INFEASIBLE"}


def logical_cpus() -> dict[str, object]:
    """Return whether verl's pool for one GPU gets its place where Ray counts two CPUs.

    It is refused where Ray has said for fifteen seconds on end that no node can take it while verl went on waiting.
    """
    import ray

    for name in ("verl.single_controller.ray", "verl.trainer.ppo.ray_trainer"):
        module = importlib.import_module(name)
        manager = getattr(module, "ResourcePoolManager", None)
        if manager is not None:
            break
    assert manager is not None
    print("READY", flush=True)
    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False)
    held = manager(resource_pool_spec={"pool": [1]}, mapping={})
    placed = threading.Event()

    def place() -> None:
        held.create_resource_pool()
        (pool,) = held.resource_pool_dict.values()
        pool.get_placement_groups()
        placed.set()

    thread = threading.Thread(target=place, daemon=True)
    thread.start()
    states: set[str] = set()
    refused: float | None = None
    deadline = time.monotonic() + 200
    while not placed.wait(0.5) and (refused is None or time.monotonic() - refused < 15):
        if not thread.is_alive() and not placed.is_set():
            raise RuntimeError("the pool was refused with an error")
        if time.monotonic() > deadline:
            raise RuntimeError(f"neither placed nor refused within 200 s: {states}")
        states = {str(table["stats"]["scheduling_state"]) for table in ray.util.placement_group_table().values()}
        refused = (refused or time.monotonic()) if states & REFUSED else None
    print(json.dumps({"placed": placed.is_set(), "states": sorted(states)}), flush=True)
    os._exit(0)


def job_environment() -> dict[str, object]:
    """Start Ray as verl's trainer does, inside a submitted job that sets TOKENIZERS_PARALLELISM as verl does too."""
    import ray
    from omegaconf import OmegaConf
    from verl.trainer import main_ppo

    print("READY", flush=True)
    job = {"runtime_env": {"env_vars": {"TOKENIZERS_PARALLELISM": "true"}}}
    os.environ.update(TOKENIZERS_PARALLELISM="true", RAY_JOB_CONFIG_JSON_ENV_VAR=json.dumps(job))
    start = ray.init

    def start_and_stop(**given: object) -> None:
        start(**{**given, "num_cpus": 2, "include_dashboard": False})
        print(json.dumps({}), flush=True)
        os._exit(0)

    ray.init = start_and_stop
    rollout = {"full_determinism": False, "seed": 0}
    config = OmegaConf.create({
        "ray_init": {"num_cpus": 2}, "ray_kwargs": {"ray_init": {"num_cpus": 2}}, "trainer": {"logger": []},
        "actor_rollout_ref": {"rollout": rollout, "actor": {"strategy": "fsdp2"}}, "critic": {"strategy": "fsdp2"},
        "reward": {"reward_model": {"enable": False, "rollout": rollout}}, "transfer_queue": {"enable": False},
        "global_profiler": {"tool": None},
    })  # fmt: skip
    # Asked for after Ray has started, so none is missed; from 0.9.0 it must be given.
    runner = {"task_runner_class": None} if "task_runner_class" in signature(main_ppo.run_ppo).parameters else {}
    main_ppo.run_ppo(config, **runner)
    return {}


def checkpoint_engine() -> dict[str, object]:
    """Ask verl for its NCCL checkpoint engine where cupy is not installed."""
    from verl.checkpoint_engine import CheckpointEngineRegistry

    print("READY", flush=True)
    CheckpointEngineRegistry.get("nccl")
    return {}


CASES = {function.__name__: function for function in (logical_cpus, job_environment, checkpoint_engine)}
if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()))
