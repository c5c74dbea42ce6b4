"""A stage: torch and transformers alone, in a world of one rank; `trainer_raw_gpu.py cuda|cpu`."""

from __future__ import annotations

import sys

from kit.sections import section


def main(kind: str) -> None:
    """Run the sections about devices, attention and precision."""
    with section("world", stop=True) as out:
        import torch
        import torch.distributed as dist
        import trainer_world as world

        device = world.start(kind)
        one = torch.ones(4, device=device)
        dist.all_reduce(one)
        out["sum"] = one.tolist()
        out["torch"] = torch.__version__
        out["nccl"] = list(torch.cuda.nccl.version()) if kind == "cuda" else None
    import trainer_attention
    import trainer_device

    trainer_device.run(device)
    trainer_attention.run(device)
    with section("end") as out:
        dist.destroy_process_group()
        out["peak"] = torch.cuda.max_memory_allocated() if kind == "cuda" else 0


if __name__ == "__main__":
    main(sys.argv[1])
