"""Known failures of torch.distributed, NCCL and FSDP, as far as one CPU shows them."""

from __future__ import annotations

import pytest
from kit import Cell, Trial
from kit.blame import judge_own
from kit.measure import data, engine, measure, on_both, pair, raw_gpu, reached, run_subject
from kit.stage import Stage, stage

pytestmark = pytest.mark.loopback
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.failure("nccl-without-gpu")
@pytest.mark.tier("behave")
@pytest.mark.needs("torch")
@pytest.mark.limit(240)
def test_nccl_where_no_gpu_is_visible(trial: Trial) -> None:
    """NCCL refuses to start where no GPU is visible."""
    trial.judge(run_subject("distributed_torch", "nccl_alone", env=NO_GPU))


@pytest.mark.failure("cpu-device-twice-in-backend")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.6.0", "torch")
@pytest.mark.limit(240)
def test_backend_that_names_the_cpu_twice(trial: Trial) -> None:
    """The process group of verl asks for `cpu:gloo,cpu:…` where it finds no GPU."""
    judge_own(trial, run_subject("distributed_torch", "verl_backend", env=NO_GPU))


@pytest.mark.failure("no-nccl-backend-on-cpu")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.4.1", "torch")
@pytest.mark.limit(240)
def test_backend_between_gpus_that_are_not_there(trial: Trial) -> None:
    """Asked for its backend between GPUs, verl raises where it finds no GPU."""
    trial.judge(run_subject("distributed_torch", "backend_name", env=NO_GPU))


@pytest.mark.failure("gloo-no-list-all-to-all")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.3.0.post0", "torch")
@pytest.mark.limit(300)
def test_ulysses_over_gloo(trial: Trial) -> None:
    """The exchange of Ulysses between two ranks over gloo."""
    trial.judge(run_subject("distributed_torch", "list_all_to_all", env=NO_GPU, timeout=250))


@pytest.mark.failure("init-process-group-missing-rank")
@pytest.mark.tier("behave")
@pytest.mark.needs("torch")
@pytest.mark.limit(240)
def test_a_rank_that_never_comes(trial: Trial) -> None:
    """The wait for a rank that never comes ends by itself, at the timeout that was asked for."""
    ended = run_subject("distributed_torch", "missing_rank", env=NO_GPU)
    assert ended.code is not None, "the wait outlived its timeout of 5 s by minutes"
    trial.judge(ended)


@pytest.mark.failure("torch210-stridedshard-not-shard")
@pytest.mark.tier("behave")
@pytest.mark.needs("torch>=2.5")
@pytest.mark.limit(240)
def test_strided_shard_is_no_shard(trial: Trial) -> None:
    """Code that asks a placement whether it is a shard hears no of a strided one."""
    found = measure("distributed_torch", "strided", env=NO_GPU)
    trial.observed(not (found["is_shard"] or found["isinstance"]), f"a _StridedShard answers {found}", **found)


@pytest.mark.failure("stridedshard-model-merger")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.4.1", "torch")
@pytest.mark.limit(240)
def test_merging_a_strided_shard(trial: Trial) -> None:
    """The model merger of verl gives up on a strided shard."""
    trial.judge(run_subject("distributed_torch", "merge_strided", env=NO_GPU))


@pytest.mark.failure("torch-lt26-fsdp2-path")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.4.0", "torch")
@pytest.mark.limit(240)
def test_clipping_under_fsdp2(trial: Trial) -> None:
    """Gradients are clipped under FSDP2 with functions that torch has from 2.6."""
    trial.judge(run_subject("distributed_torch", "fsdp2_clip", env=NO_GPU))


@pytest.mark.failure("torch26-weights-only")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.2,<0.4", "torch")
@pytest.mark.limit(240)
def test_resuming_from_a_checkpoint(trial: Trial) -> None:
    """The checkpoint manager of verl reads its own random state back."""
    trial.judge(run_subject("distributed_torch", "resume", env=NO_GPU))


@pytest.mark.failure("nested-tensor-equal-length-ambiguity")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.7.0", "tensordict")
@pytest.mark.limit(240)
def test_rows_of_equal_length(trial: Trial) -> None:
    """Positions of four rows of one length, of which two are selected."""
    found = measure("distributed_torch", "nested_rows", env=NO_GPU)
    wrong = found["rows"] != [[4, 50], [4, 50]]
    trial.observed(wrong, f"two rows of (4, 50) come back as {found['rows']} {found['error']}", **found)


@pytest.mark.failure("cuda-device-max-connections-fsdp2")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.5.0", "ray")
@pytest.mark.limit(240)
def test_runtime_env_of_an_fsdp_run(trial: Trial) -> None:
    """Every worker of an FSDP2 run gets CUDA_DEVICE_MAX_CONNECTIONS=1."""
    value = measure("distributed_torch", "runtime_env", env=NO_GPU)["value"]
    trial.observed(value == "1", f"CUDA_DEVICE_MAX_CONNECTIONS={value} in the workers' environment", value=value)


@pytest.mark.failure("dynamic-batch-micro-count-deadlock")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.6.0", "torch")
@pytest.mark.limit(300)
def test_micro_batches_of_two_ranks(trial: Trial) -> None:
    """Two ranks with long and short rows cut their batches into different numbers of micro-batches."""
    counts = measure("distributed_torch", "micro_batches", env=NO_GPU, timeout=250)["ranks"]
    trial.observed(counts[0] != counts[1], f"the two ranks run {counts} micro-batches", counts=counts)


@pytest.mark.failure("colocate-zmq-socket-collision")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.7.0", "vllm")
@pytest.mark.limit(300)
def test_sockets_of_two_jobs(trial: Trial) -> None:
    """The workers of two jobs on one GPU listen for weights at the same place."""
    found = measure("distributed_sockets", env=NO_GPU, timeout=250)["sockets"]
    trial.observed(found[0] == found[1], f"two jobs listen at {found}", sockets=found)


@pytest.mark.failure("fsdp2-forward-prefetch-dropped")
@pytest.mark.parametrize("device", on_both())
@pytest.mark.needs("verl>=0.7.0", "transformers>=4.48")
@pytest.mark.limit(450)
def test_forward_prefetch(trial: Trial, device: str) -> None:
    """With forward_prefetch=True FSDP2's layers know which one to gather next."""
    found = data(engine(trial.cell, device), "forward-prefetch")
    assert found["sharded"] > 1, found
    what = f"{found['prefetching']} of {found['sharded']} sharded modules prefetch"
    trial.observed(found["prefetching"] == 0, what, **found)


@pytest.mark.gpus(1)
@pytest.mark.needs("torch>=2.6", "transformers>=4.48")
@pytest.mark.limit(330)
@pytest.mark.hurts("NCCL", default_path=True)
def test_nccl_alone(cell: Cell) -> None:
    """NCCL starts for one rank, reduces its tensor, and the stage comes to its end."""
    found = data(raw_gpu(cell), "world")
    assert found["sum"] == [1.0] * 4
    assert found["nccl"]
    data(raw_gpu(cell), "end")


def ranks(cell: Cell, *sections: str) -> Stage:
    """Return the stage of ranks that are processes of their own."""
    return stage(cell, "distributed_nccl_gpu.py", *sections, limit=150.0 * len(sections))


@pytest.mark.failure("nccl-two-ranks-one-gpu")
@pytest.mark.gpus(1)
@pytest.mark.needs("torch>=2.6")
@pytest.mark.limit(330)
def test_two_ranks_on_one_gpu(trial: Trial) -> None:
    """Two ranks of one NCCL world share a GPU; none of them hangs."""
    part = reached(ranks(trial.cell, "nobody", "shared"), "shared")
    assert not part.found.get("hung"), part.found
    trial.judge(part.fault)


@pytest.mark.gpus(1)
@pytest.mark.needs("torch>=2.6")
@pytest.mark.limit(330)
@pytest.mark.hurts("an end to the wait for the first rank")
def test_nobody_at_the_meeting_place(cell: Cell) -> None:
    """A rank of NCCL that looks for a first one where nobody listens gives up about when it was told to."""
    part = reached(ranks(cell, "nobody", "shared"), "nobody")
    assert part.fault is not None
    assert "timed out" in part.fault, part.last_line
    assert part.found["seconds"] < 40, part.found


@pytest.mark.gpus(2)
@pytest.mark.needs("torch>=2.6")
@pytest.mark.limit(500)
@pytest.mark.hurts("NCCL between GPUs", default_path=True)
def test_sum_over_two_gpus(cell: Cell) -> None:
    """Two ranks on two GPUs reduce a tensor to its sum, every element of it."""
    found = data(ranks(cell, "sum", "dies", "late"), "sum")
    assert found["said"] == [{"sum": 3.0, "even": True}] * 2, found


@pytest.mark.parametrize("name", ["dies", "late"])
@pytest.mark.gpus(2)
@pytest.mark.needs("torch>=2.6")
@pytest.mark.limit(500)
@pytest.mark.hurts("an end to collectives that cannot be met")
def test_collective_without_the_other_rank(cell: Cell, name: str) -> None:
    """A rank whose partner was killed, or does not come, leaves the collective by itself, and not with success."""
    part = reached(ranks(cell, "sum", "dies", "late"), name)
    assert part.fault is not None, part.data
    assert not part.found.get("hung"), part.found
    assert part.found["codes"][0] not in (0, None), part.found


@pytest.mark.parametrize("name", ["fsdp", "fsdp2", "fsdp2-policy"])
@pytest.mark.gpus(2)
@pytest.mark.needs("verl>=0.7.0", "transformers>=4.48")
@pytest.mark.limit(330)
@pytest.mark.hurts("training over several GPUs", default_path=True)
def test_engine_over_two_gpus(cell: Cell, name: str) -> None:
    """Verl's engine, sharded over two GPUs, gives the log-probabilities of the bare model and learns."""
    hiding = cell.records["fsdp2-offload-policy-state-dict-storage"]
    if name == "fsdp2-policy" and hiding.applies == "yes":
        pytest.skip(f"hidden by {hiding.id}, which this cell has too")
    found = data(pair(cell, "cuda"), f"pair-{name}")
    assert found["gap"] < 0.5, found
    assert found["moved"] > 1e-5, found
    assert found["sent"] > 1_000_000, found


@pytest.mark.failure("ulysses-without-flash-attention")
@pytest.mark.parametrize("device", on_both(2))
@pytest.mark.needs("verl>=0.7.0", "transformers>=4.48")
@pytest.mark.limit(330)
def test_ulysses_without_flash_attention(trial: Trial, device: str) -> None:
    """Sequences over two ranks under sdpa: no heads are exchanged, and each rank attends to its own half alone."""
    found = data(pair(trial.cell, device), "ulysses-sdpa")
    what = f"log-probabilities differ by up to {found['gap']:.3g} from those of the whole sequence"
    trial.observed(found["gap"] > 0.5, what, **found)


@pytest.mark.gpus(2)
@pytest.mark.needs("verl>=0.7.0", "flash-attn", "transformers>=4.48")
@pytest.mark.limit(330)
@pytest.mark.hurts("ulysses sequence parallelism")
def test_ulysses_over_two_gpus(cell: Cell) -> None:
    """Sequences over two GPUs under flash attention have the log-probabilities of the whole, and are learned from."""
    found = data(pair(cell, "cuda"), "ulysses-flash_attention_2")
    assert found["gap"] < 0.5, found
    assert found["moved"] > 1e-5, found
