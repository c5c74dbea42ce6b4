"""Does one thing with torch.distributed, alone or as two gloo ranks; argv[1] names it; last line: numbers as JSON."""

import json
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path


def nccl_alone() -> dict[str, object]:
    """Start a process group on NCCL where no GPU is visible."""
    import torch.distributed as dist

    print("READY", flush=True)
    store = Path(tempfile.mkdtemp(), "store")
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)
    return {}


def verl_backend() -> dict[str, object]:
    """Start the global process group as verl's workers do, on what device verl finds here."""
    from verl.utils.distributed import initialize_global_process_group_ray

    print("READY", flush=True)
    store = Path(tempfile.mkdtemp(), "store")
    os.environ.update(RANK="0", WORLD_SIZE="1", DIST_INIT_METHOD=f"file://{store}")
    initialize_global_process_group_ray()
    return {}


def backend_name() -> dict[str, object]:
    """Ask verl for the backend between GPUs, where it finds none."""
    from verl.utils.device import get_nccl_backend

    print("READY", flush=True)
    return {"backend": get_nccl_backend()}


def missing_rank() -> dict[str, object]:
    """Wait five seconds at most for a second rank that never comes."""
    import socket

    import torch.distributed as dist

    print("READY", flush=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    dist.init_process_group("gloo", init_method=where, rank=0, world_size=2, timeout=timedelta(seconds=5))
    return {}


def strided() -> dict[str, object]:
    """Return whether a strided shard counts as a shard."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    print("READY", flush=True)
    placement = _StridedShard(0, split_factor=2)
    return {"is_shard": placement.is_shard(), "isinstance": isinstance(placement, Shard)}


def merge_strided() -> dict[str, object]:
    """Let verl's model merger join two pieces of a strided shard."""
    import torch
    from torch.distributed.tensor.placement_types import _StridedShard
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger

    print("READY", flush=True)
    merger = object.__new__(FSDPModelMerger)
    merger._merge_by_placement([torch.zeros(2), torch.ones(2)], _StridedShard(0, split_factor=2))
    return {}


def fsdp2_clip() -> dict[str, object]:
    """Clip a gradient with the function that verl uses under FSDP2."""
    import torch
    from verl.utils import fsdp_utils

    print("READY", flush=True)
    # From 0.9.0 verl names a GPU as the device where there is none; the norm may stay where it was computed.
    if hasattr(fsdp_utils, "get_device_id"):
        fsdp_utils.get_device_id = lambda: "cpu"
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return {"norm": float(fsdp_utils.fsdp2_clip_grad_norm_([parameter], 1.0))}


def resume() -> dict[str, object]:
    """Load a checkpoint's extra state, which holds numpy's random state, with verl's own checkpoint manager."""
    import contextlib
    from types import SimpleNamespace

    import torch
    from verl.utils.checkpoint import fsdp_checkpoint_manager as module

    print("READY", flush=True)
    # The random state of a GPU is saved too; where there is none that of the CPU, a tensor of bytes as well, stands in.
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda *_: None
    folder = tempfile.mkdtemp()
    manager = object.__new__(module.FSDPCheckpointManager)
    nothing = SimpleNamespace(load_state_dict=lambda *_, **__: None)
    vars(manager).update(rank=0, world_size=1, model=nothing, optimizer=nothing, lr_scheduler=nothing,
                         checkpoint_contents=["model", "optimizer", "extra"])  # fmt: skip
    for name in ("model", "optim"):
        torch.save({}, f"{folder}/{name}_world_size_1_rank_0.pt")
    extra = {"lr_scheduler": {}, "rng": manager.get_rng_state()}
    torch.save(extra, f"{folder}/extra_state_world_size_1_rank_0.pt")
    module.FSDP = SimpleNamespace(state_dict_type=lambda *_, **__: contextlib.nullcontext())
    module.get_fsdp_state_ctx = lambda *_, **__: contextlib.nullcontext()
    manager.load_checkpoint(folder)
    return {}


def nested_rows() -> dict[str, object]:
    """Return whether rows of equal length survive verl's selection of rows: mRoPE positions, (4, 50) each."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    print("READY", flush=True)
    rows = [torch.arange(200).reshape(4, 50) + 1000 * row for row in range(4)]
    build = getattr(tu, "nested_tensor_from_tensor_list", None)
    nested = build(rows, ragged_idx=2) if build else torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    data = TensorDict({"position_ids": nested}, batch_size=[4])
    fix = getattr(tu, "maybe_fix_3d_position_ids", lambda _: None)
    try:
        fix(data)
        chosen = tu.index_select_tensor_dict(data, [0, 2])
        fix(chosen)
        values = chosen["position_ids"].values()
        kept = [tuple(row.shape) for row in chosen["position_ids"].unbind()]
    except RuntimeError as error:
        return {"values": [], "rows": [], "error": str(error).splitlines()[0]}
    return {"values": list(values.shape), "rows": kept, "error": ""}


def runtime_env() -> dict[str, object]:
    """Return CUDA_DEVICE_MAX_CONNECTIONS of the runtime environment that verl gives to every worker of an FSDP run."""
    import inspect

    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    print("READY", flush=True)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    config = OmegaConf.create({"actor_rollout_ref": {"actor": {"strategy": "fsdp2"}}, "critic": {"strategy": "fsdp2"}})
    takes = inspect.signature(get_ppo_ray_runtime_env).parameters
    found = get_ppo_ray_runtime_env(config) if takes else get_ppo_ray_runtime_env()
    return {"value": found["env_vars"].get("CUDA_DEVICE_MAX_CONNECTIONS")}


def _list_all_to_all(rank: int) -> object:
    import torch
    import torch.distributed as dist
    from verl.utils.ulysses import all_to_all_tensor

    return all_to_all_tensor(torch.arange(4.0) + 4 * rank, 0, 0, dist.group.WORLD).tolist()


def _micro_batches(rank: int) -> object:
    import torch
    import torch.distributed as dist
    import verl
    from verl import DataProto
    from verl.utils import seqlen_balancing

    # From 0.9.0 verl names a GPU as the device where there is none, and puts the counts there to compare them.
    if hasattr(seqlen_balancing, "get_device_name"):
        seqlen_balancing.get_device_name = lambda: "cpu"
    lengths = [100, 100, 100, 100] if rank == 0 else [10, 10, 10, 10]
    mask = torch.stack([(torch.arange(100) < length).long() for length in lengths])
    data = DataProto.from_dict(tensors={"attention_mask": mask, "input_ids": mask})
    # As the callers of the release do: the workers of up to 0.7 name no group, the engines of later ones name theirs.
    old = Path(verl.__path__[0], "workers", "actor", "dp_actor.py").is_file()
    group = {} if old else {"dp_group": dist.group.WORLD}
    return len(seqlen_balancing.prepare_dynamic_batch(data, max_token_len=200, **group)[0])


RANKED = {"list_all_to_all": _list_all_to_all, "micro_batches": _micro_batches}


def _rank(rank: int, case: str, store: str) -> None:
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    Path(f"{store}.{rank}").write_text(json.dumps(RANKED[case](rank)))
    dist.destroy_process_group()


def _two_ranks(case: str) -> dict[str, object]:
    import torch.multiprocessing
    import verl  # noqa: F401
    from verl.utils import seqlen_balancing, ulysses  # noqa: F401

    print("READY", flush=True)
    store = str(Path(tempfile.mkdtemp(), "store"))
    torch.multiprocessing.spawn(_rank, args=(case, store), nprocs=2)
    return {"ranks": [json.loads(Path(f"{store}.{rank}").read_text()) for rank in (0, 1)]}


_ALONE = (
    nccl_alone,
    verl_backend,
    backend_name,
    missing_rank,
    strided,
    merge_strided,
    fsdp2_clip,
    resume,
    nested_rows,
    runtime_env,
)
CASES = {function.__name__: function for function in _ALONE}
if __name__ == "__main__":
    name = sys.argv[1]
    print(json.dumps(_two_ranks(name) if name in RANKED else CASES[name]()))
