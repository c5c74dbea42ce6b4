"""A stage: ranks over NCCL, each a process; `distributed_nccl_gpu.py SECTION… [--backend gloo]`, or one rank of it.

A rank that is killed, that sleeps or that shares a GPU is the matter here, so nothing of it happens in the stage's own
process. `--backend gloo` runs the same over CPUs, for a try of the code.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from kit.sections import section

WAIT_S = 8.0
"""What a collective may take in a world that is meant to fail."""
LIMIT_S = 120.0
"""What the stage waits for a rank before it kills it."""


def rank_main(what: str, backend: str, rank: int, size: int, where: str, device: int) -> None:
    """Be one rank: print what it saw as a line of JSON."""
    import torch
    import torch.distributed as dist

    # Without a network a host's own name may not resolve, and gloo and NCCL look for an interface by it.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    place = f"cuda:{device}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(device)
    short = timedelta(seconds=WAIT_S)
    limit = timedelta(seconds=60) if what in ("sum", "shared") else short
    dist.init_process_group(backend, init_method=where, rank=rank, world_size=size, timeout=limit)
    values = torch.full((1 << 20,), float(rank + 1), device=place)
    dist.all_reduce(values)
    said: dict[str, Any] = {"sum": float(values[0]), "even": bool((values == values[0]).all())}
    if what == "dies" and rank == 1:
        print(json.dumps(said), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "late" and rank == 1:
        time.sleep(LIMIT_S)
    if what in ("dies", "late"):
        start = time.monotonic()
        try:
            dist.all_reduce(values)
            float(values[0])
        finally:
            print(json.dumps({**said, "waited": time.monotonic() - start}), flush=True)
    print(json.dumps(said), flush=True)
    dist.destroy_process_group()


def world(what: str, backend: str, devices: tuple[int, ...], out: dict[str, Any], patience: float = LIMIT_S) -> str:
    """Start a rank for each device and return what those that failed wrote; their ends are in `out`."""
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    where = f"file://{folder}/meeting"
    start = time.monotonic()
    ranks = []
    for rank, device in enumerate(devices):
        argv = [sys.executable, __file__, "--rank", what, backend, str(rank), str(len(devices)), where, str(device)]
        with (folder / f"{rank}.out").open("wb") as file:
            # No session of its own: the stage's end is theirs.
            ranks.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file))
    # The other ranks are what is looked at: one that sleeps on purpose is not waited for.
    watched = ranks[:1] if what in ("late", "dies") else ranks
    for one in watched:
        try:
            one.wait(max(patience - (time.monotonic() - start), 0.1))
        except subprocess.TimeoutExpired:
            out["hung"] = True
    out["seconds"] = round(time.monotonic() - start, 2)
    for one in ranks:
        one.kill()
        one.wait()
    texts = [(folder / f"{rank}.out").read_text(encoding="utf-8", errors="replace") for rank in range(len(ranks))]
    out["codes"] = [one.returncode for one in ranks]
    out["said"] = [_said(text) for text in texts]
    out["nvls"] = sum(text.count("NVLS") for text in texts)
    return "\n".join(text[-8000:] for text, one in zip(texts, ranks, strict=True) if one.returncode)


def _said(text: str) -> dict[str, Any]:
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}


def nobody(backend: str, out: dict[str, Any]) -> None:
    """Look for a meeting place where nobody listens, for five seconds at most."""
    import torch
    import torch.distributed as dist

    if backend == "nccl":
        torch.cuda.set_device(0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        start = time.monotonic()
        try:
            dist.init_process_group(backend, init_method=where, rank=1, world_size=2, timeout=timedelta(seconds=5))
        finally:
            out["seconds"] = round(time.monotonic() - start, 2)


def main(names: list[str], backend: str) -> None:
    """Run the sections asked for."""
    for name in names:
        with section(name) as out:
            if name == "nobody":
                nobody(backend, out)
                continue
            devices = (0, 0) if name == "shared" else (0, 1)
            fault = world(name, backend, devices, out)
            if fault:
                raise RuntimeError(f"a rank failed:\n{fault}")


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        what, backend, rank, size, where, device = sys.argv[2:]
        rank_main(what, backend, int(rank), int(size), where, int(device))
    else:
        chosen = sys.argv[1:]
        kind = chosen[chosen.index("--backend") + 1] if "--backend" in chosen else "nccl"
        main([one for one in chosen if one not in ("--backend", kind)], kind)
