"""A child that holds memory of a GPU through torch and fails, or waits to be killed; the first word says how."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

GIB = 2**30


def main(kind: str) -> None:
    """Hold, say so, and do it."""
    import torch

    held = torch.zeros(2 * GIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    globals()[f"_{kind.replace('-', '_')}"](torch, held)
    time.sleep(600)


def _said() -> None:
    sys.stdout.write("holding\n")
    sys.stdout.flush()
    time.sleep(0.3)


def _assert(torch: Any, held: Any) -> None:
    _said()
    held[torch.tensor([held.numel() + 7], device="cuda")].sum().item()


def _oom(torch: Any, held: Any) -> None:
    _said()
    pieces = [held]
    while True:
        pieces.append(torch.empty(4 * GIB, dtype=torch.uint8, device="cuda"))


_expandable_oom = _oom


def _illegal(torch: Any, held: Any) -> None:
    """Write to an address that is nobody's, in the context that torch has."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from gpu_failures.driver_child import Cuda

    _said()
    Cuda().launch("stray", held.data_ptr())
    torch.cuda.synchronize()


def _nccl(torch: Any, held: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    torch.distributed.all_reduce(held.view(torch.float32)[:1024])
    torch.cuda.synchronize()
    _said()


def _shared(torch: Any, held: Any) -> None:
    """Give the tensor to a child, which holds on to it."""
    _spawned(torch, (held,))
    _said()


def _workers(torch: Any, held: Any) -> None:
    """Have two children that hold memory of their own."""
    for _ in range(2):
        _spawned(torch, (None,))
    _said()


def _spawned(torch: Any, words: tuple[Any, ...]) -> None:
    context = torch.multiprocessing.get_context("spawn")
    ready = context.Event()
    context.Process(target=_keep, args=(ready, *words), daemon=True).start()
    if not ready.wait(60):
        raise SystemExit("the child did not start")


def _keep(ready: Any, held: Any) -> None:
    import torch

    held = torch.zeros(GIB, dtype=torch.uint8, device="cuda") if held is None else held
    held[:1024].sum().item()
    ready.set()
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1])
