"""Make vLLM's tensor-parallel group of one inside a world of two processes (gloo), as verl's SPMD rollout does."""

import os
import sys
import tempfile
from pathlib import Path

import torch.multiprocessing as multiprocessing


def worker(rank: int, meeting: str) -> None:
    """Join the world of two and divide it into two groups of one."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel

    init_distributed_environment(2, rank, f"file://{meeting}", rank, "gloo")
    initialize_model_parallel(1, 1, "gloo")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(worker, (str(Path(folder, "meeting")),), nprocs=2)
    print("grouped")
    sys.exit(0)
