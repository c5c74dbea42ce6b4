"""Where a rollout worker of verl listens for weights, asked of the workers of two jobs on one GPU; no GPU is used."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

print("READY", flush=True)


def parallel() -> SimpleNamespace:
    """Return the configuration of an engine of one worker."""
    sizes = {"data_parallel_rank": 0, "data_parallel_rank_local": 0, "data_parallel_index": 0}
    one = SimpleNamespace(**sizes, world_size=1, tensor_parallel_size=1, pipeline_parallel_size=1)
    return SimpleNamespace(parallel_config=one, vllm_config=SimpleNamespace(parallel_config=one))


def socket(job: str) -> str:
    """Return where the worker of a job listens; it has of its own a rank and, where it is asked for, its GPU's name."""
    os.environ.update(VERL_RAY_JOB_ID=job, VERL_REPLICA_RANK="0")
    worker = object.__new__(vLLMColocateWorkerExtension)
    worker.local_rank = worker.rank = 0
    worker.device_uuid = "GPU-0"
    worker.model_runner = worker.vllm_config = parallel()
    return str(worker._get_zmq_handle())


print(json.dumps({"sockets": [socket("01000000"), socket("02000000")]}))
