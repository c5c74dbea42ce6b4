"""A stage: verl's FSDP engine over two ranks; `trainer_pair_gpu.py cuda|cpu`. Rank 0 writes the sections.

`cpu` does the same over gloo, as far as gloo goes: Ulysses under flash attention exchanges heads, for which it has no
form.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LENGTHS = (40, 17, 29, 33)
LIMIT_S = 240.0


def rank_main(kind: str, rank: int, folder: Path) -> None:
    """Be one of two ranks; the other one's sections go nowhere."""
    if rank:
        os.environ.pop("VERL_MATRIX_SECTIONS", None)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from kit.sections import section

    with section("world", stop=True) as out:
        if kind == "cuda":
            torch.cuda.set_device(rank)
        backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
        where = f"file://{folder}/meeting"
        dist.init_process_group(backend, init_method=where, rank=rank, world_size=2, timeout=timedelta(seconds=60))
        one = torch.full((4,), rank + 1.0, device=f"cuda:{rank}" if kind == "cuda" else "cpu")
        dist.all_reduce(one)
        out["sum"] = one.tolist()
        import trainer_world as world

        path = world.folder()
    sections(path, rank, kind)
    dist.destroy_process_group()


def sections(path: Path, rank: int, kind: str) -> None:
    """Run what takes two ranks: sharding, and one sequence over both."""
    import trainer_engine as engines
    from kit.sections import section

    exact = engines.reference(LENGTHS)
    kinds: dict[str, dict[str, Any]] = {"fsdp": {"strategy": "fsdp"}, "fsdp2": {"strategy": "fsdp2"}}
    kinds["fsdp2-policy"] = {"strategy": "fsdp2", "offload_policy": True}
    for name, asked in kinds.items():
        if kind == "cpu" and name != "fsdp2":
            continue
        with section(f"pair-{name}") as out:
            made = engines.make(path, **asked)
            mine = engines.batch(LENGTHS, rows=(0, 1) if rank == 0 else (2, 3))
            found = engines.log_probs(made, mine)
            out["gap"] = _gap(found, exact[:2] if rank == 0 else exact[2:])
            out |= engines.train(made, mine)
            sent, _ = made.get_per_tensor_param()
            out["sent"] = sum(value.numel() for _, value in sent)
    for name in ("sdpa", "flash_attention_2"):
        if kind == "cpu" and name != "sdpa":
            continue
        with section(f"ulysses-{name}") as out:
            attention = {"override_config": {"attn_implementation": name}}
            made = engines.make(path, ulysses_sequence_parallel_size=2, model=attention)
            out["gap"] = _gap(engines.log_probs(made, engines.batch(LENGTHS)), exact)
            out |= engines.train(made, engines.batch(LENGTHS))


def _gap(found: Any, exact: Any) -> float:
    return max(float((a[:-1] - b).abs().max()) for a, b in zip(found, exact, strict=True))


def main(kind: str) -> int:
    """Start both ranks, wait for them, and return the first code that is not 0."""
    folder = Path(tempfile.mkdtemp(prefix="pair-"))
    start = time.monotonic()
    # No session of their own: the stage's end is theirs.
    ranks = [subprocess.Popen([sys.executable, __file__, kind, str(rank), str(folder)]) for rank in range(2)]
    codes = []
    for one in ranks:
        try:
            codes.append(one.wait(max(LIMIT_S - (time.monotonic() - start), 1.0)))
        except subprocess.TimeoutExpired:
            one.kill()
            codes.append(one.wait())
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        rank_main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(main(sys.argv[1]) and 1)
