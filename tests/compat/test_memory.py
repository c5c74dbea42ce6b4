"""Known failures of memory: settings that exclude each other, and sleep and wake-up of the engine on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit import Cell, Trial
from kit.measure import measure, run_subject
from kit.rollout import judge, measured, part
from kit.stage import Part, stage


@pytest.mark.failure("cumem-expandable-segments-assert")
@pytest.mark.tier("import")
@pytest.mark.needs("vllm>=0.7.0")
@pytest.mark.limit(300)
def test_sleep_mode_with_expandable_segments(trial: Trial) -> None:
    """The sleep-mode allocator of vLLM with the setting that is advised against running out of memory."""
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    trial.judge(run_subject("memory_cumem", env=env, timeout=250))


gpu = pytest.mark.gpus(1, capability="8.0", memory_gib=32)
stage_limit = pytest.mark.limit(460)
engine = pytest.mark.needs("verl>=0.7.0", "vllm>=0.11.1", "torch", "transformers")
MIB = 1 << 20


@pytest.mark.failure("cumem-expandable-segments-assert")
@gpu
@engine
@stage_limit
def test_engine_sleeps_with_expandable_segments(trial: Trial, cell: Cell) -> None:
    """An engine with sleep mode, started where torch's segments may grow; the newer ones switch that off themselves."""
    found = part(cell, "expandable")
    if found.fault is None:
        assert freed(found.data["memory"], found.data["asleep"]) > 0.9
    judge(trial, found)


@pytest.mark.hurts("", default_path=True)
@gpu
@engine
@stage_limit
@pytest.mark.parametrize("name", ["sleep2", "sleep1"])
def test_sleep_gives_memory_back(cell: Cell, record_property: Callable[[str, Any], None], name: str) -> None:
    """An engine that sleeps gives back its weights and its KV cache, and takes them again; first the weights alone."""
    found = measured(cell, name)
    record_property(name, found)
    awake, asleep, again = found["awake"], found["asleep"], found["awake_again"]
    pool = awake["pool_weights"] + awake["pool_kv_cache"]
    assert asleep["free"] - awake["free"] > 0.95 * pool
    assert abs(again["free"] - awake["free"]) < 1024 * MIB
    if "weights_awake" in found:
        taken = asleep["free"] - found["weights_awake"]["free"]
        assert 0.9 * awake["pool_weights"] < taken < awake["pool_weights"] + 256 * MIB


@pytest.mark.failure("sleep-level2-broken-lt-085")
@gpu
@engine
@stage_limit
def test_answers_after_the_deepest_sleep(trial: Trial, cell: Cell) -> None:
    """Level 2 throws the weights away; once they are sent again the engine answers as before."""
    found = measured(cell, "sleep2")
    wrong = found["agree"] < 0.5 or found["gap"]["probs"] > 0.1
    trial.observed(wrong, f"{found['agree']:.0%} of the tokens agree, gap {found['gap']}", **found)


@pytest.mark.failure("vllm-wakeup-oom-before-tags")
@gpu
@engine
@stage_limit
def test_wake_up_beside_a_trainer(trial: Trial, cell: Cell) -> None:
    """verl wakes the weights, sends, frees and then wakes the KV cache, on a card that would not hold it before."""
    at_once = part(cell, "wake_all")
    assert at_once.fault is not None, "waking all at once was no trouble, so the probe could see none"
    assert trial.record.matches(at_once.fault), at_once.last_line
    trial.detail["at_once"] = {**at_once.found, "shown": trial.record.shown(at_once.fault)}
    found = part(cell, "staged_wake")
    if found.found.get("free_beside_ballast"):
        assert found.found["free_beside_ballast"] < found.found["kv_cache"], "there was room for everything"
    judge(trial, found)


@pytest.mark.failure("wakeup-oom-cached-allocator-blocks")
@gpu
@engine
@stage_limit
def test_wake_up_after_blocks_that_torch_keeps(trial: Trial, cell: Cell) -> None:
    """What torch keeps of freed memory counts as used; verl's own emptying gives it to the KV cache."""
    found = part(cell, "staged_wake")
    if found.fault is None:
        assert found.data["free_with_cached_blocks"] < found.data["kv_cache"], "nothing was kept, so nothing is tried"
        assert found.data["cached_after"] < found.data["cached"] / 10
    judge(trial, found)


@pytest.mark.failure("vllm-cudagraph-estimate-shrinks-kv")
@gpu
@engine
@stage_limit
def test_kv_cache_beside_the_estimate_of_graphs(trial: Trial, cell: Cell) -> None:
    """The KV cache is smaller by what vLLM thinks its CUDA graphs will take."""
    found = measured(cell, "graphs")
    facts = found["facts"]
    known = ("requested_memory", "weights_memory", "non_torch_memory", "peak_activation_memory")
    left = facts["requested_memory"] - sum(facts[name] for name in known[1:])
    missing = left - facts["available_kv_cache_memory_bytes"]
    estimate = facts["cudagraph_memory_estimate"] or 0
    trial.observed(
        missing > 0.5 * estimate > 0, f"{missing / MIB:.0f} MiB less, {estimate / MIB:.0f} MiB estimated",
        missing_bytes=missing, estimate_bytes=estimate, kv_tokens=found["kv_tokens"], facts=facts,
    )  # fmt: skip


def freed(before: dict[str, int], after: dict[str, int]) -> float:
    """Return the share of the sleeping pool that became free."""
    return (after["free"] - before["free"]) / (before["pool_weights"] + before["pool_kv_cache"])


pair = pytest.mark.gpus(2, capability="8.0", memory_gib=16)


def of_pair(cell: Cell, name: str) -> Part:
    """Return what a section of the stage of two shards found; a skip where it was not reached."""
    found = stage(cell, "engine_pair.py", str(cell.scratch / "engine"), limit=150.0).part(name)
    if not found.reached:
        pytest.skip(f"{name} was not reached: {found.last_line}")
    return found


@pytest.mark.failure("dp-rollout-sleep-one-shard")
@pair
@engine
@pytest.mark.limit(200)
def test_both_shards_sleep(trial: Trial, cell: Cell) -> None:
    """Put to sleep as the installed verl does it, both shards of an engine give their memory back."""
    started, found = of_pair(cell, "pair_start"), of_pair(cell, "pair_sleep")
    for one in (started, found):
        assert one.fault is None, one.last_line
    asleep = found.data[f"asleep_by_{started.data['way_of_verl']}"]
    shares = [(awake - now) / (awake - before) for before, awake, now in
              zip(started.data["before"], found.data["awake"], asleep, strict=True)]  # fmt: skip
    trial.observed(min(shares) < 0.5, f"given back: {', '.join(f'{share:.0%}' for share in shares)}",
                   **started.data, **found.data)  # fmt: skip


@pytest.mark.failure("partial-wakeup-illegal-memory")
@pair
@engine
@pytest.mark.limit(200)
def test_shards_that_are_awake_in_part(trial: Trial, cell: Cell) -> None:
    """Six seconds with the weights awake and the KV cache not, as while weights are sent, kill no shard."""
    started = of_pair(cell, "pair_start")
    assert started.fault is None, started.last_line
    judge(trial, of_pair(cell, "pair_wake"))


@pytest.mark.failure("rollout-server-import-takes-context")
@gpu
@engine
@pytest.mark.limit(120)
def test_what_the_import_of_the_server_takes(trial: Trial) -> None:
    """The process that only starts the engine and passes requests on holds memory of the GPU for it."""
    found = measure("engine_import", timeout=100)
    trial.observed(found["context"], f"{found['bytes'] / MIB:.0f} MiB in use after the import", **found)
