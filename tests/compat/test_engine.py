"""The rollout engine on a GPU, started by verl's own server: what every run needs of it, and how it dies.

One launch answers for all of it (subjects/engine_rollout.py): Qwen2.5-0.5B with random weights, on one GPU. What is
compared with transformers is the gap between rollout and trainer: the log-probability of each token that the engine
drew, by the engine and by a forward of the same weights in the same dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit import Cell, Trial
from kit.rollout import judge, measured, part

pytestmark = [
    pytest.mark.gpus(1, capability="8.0", memory_gib=32),
    pytest.mark.needs("verl>=0.7.0", "vllm>=0.11.1", "torch", "transformers"),
    pytest.mark.limit(460),
]
MIB = 1 << 20
CLOSE = 0.02
"""So far apart the probabilities of rollout and trainer may be on average, in bfloat16: twice what guides call well."""
Note = Callable[[str, Any], None]


@pytest.mark.hurts("", default_path=True)
def test_qwen2_is_inspected(cell: Cell, record_property: Note) -> None:
    """vLLM's registry answers for Qwen2ForCausalLM on a machine with a GPU, where it loads its compiled parts too."""
    found = measured(cell, "inspect")
    record_property("inspect", found)
    assert found == {"architecture": "Qwen2ForCausalLM", "generates": True}


@pytest.mark.hurts("", default_path=True)
def test_engine_starts(cell: Cell, record_property: Note) -> None:
    """verl's server starts vLLM with verl's arguments and worker extension; the KV cache holds a batch."""
    found = measured(cell, "start")
    record_property("start", found)
    assert found["load_format"] == "dummy"
    assert found["kv_tokens"] > 64 * 4096


@pytest.mark.hurts("", default_path=True)
def test_weights_from_disk_are_loaded(cell: Cell, record_property: Note) -> None:
    """vLLM alone loads the same model from its folder and answers the same twice."""
    found = measured(cell, "load")
    record_property("load", found)
    assert found["tokens"] == 8 * 16
    assert found["agree"] >= 0.9


@pytest.mark.hurts("", default_path=True)
def test_tokens_come(cell: Cell, record_property: Note) -> None:
    """A batch as of a training step is answered in full, at some speed."""
    found = measured(cell, "throughput")
    record_property("throughput", found)
    assert found["tokens"] == found["asked"]
    assert found["tokens_per_s"] > 100


@pytest.mark.hurts("", default_path=True)
def test_sent_weights_are_used(cell: Cell, record_property: Note) -> None:
    """The weights that verl's adapter sends are those the engine then answers with; before it had dummy ones."""
    found = measured(cell, "sync")
    record_property("sync", found)
    assert found["bytes"] > found["bucket_bytes"], "all went in one bucket"
    assert found["gap_of_dummy_weights"]["mean"] > 10 * found["gap"]["mean"]
    assert found["gap"]["probs"] < CLOSE


@pytest.mark.hurts("", default_path=True)
def test_rollout_and_trainer_agree(cell: Cell, record_property: Note) -> None:
    """The gap between rollout and trainer over a batch is rounding."""
    found = measured(cell, "gap")
    record_property("gap", found)
    assert found["probs"] < CLOSE
    assert abs(found["kl"]) < CLOSE


@pytest.mark.hurts("repeatable answers")
def test_answers_without_chance_repeat(cell: Cell, record_property: Note) -> None:
    """Greedy answers come again, but for ties that the order of a batch decides."""
    found = measured(cell, "greedy")
    record_property("greedy", found)
    assert found["distinct"] > 16, "the model says nearly nothing"
    assert found["agree"] >= 0.9


@pytest.mark.hurts("chunked prefill")
def test_prompt_longer_than_a_step_takes(cell: Cell, record_property: Note) -> None:
    """A prompt above max_num_batched_tokens is taken in chunks, and its answer is the trainer's too."""
    found = measured(cell, "chunked")
    record_property("chunked", found)
    assert found["chunked_prefill"]
    assert found["prompt_tokens"] > found["max_num_batched_tokens"]
    assert found["gap"]["probs"] < CLOSE


@pytest.mark.hurts("", default_path=True)
def test_weights_moved_under_an_engine_that_is_awake(cell: Cell, record_property: Note) -> None:
    """After verl's sync the answers are of the new weights; without its resets the old KV cache would speak too."""
    found = measured(cell, "stale")
    record_property("stale", found)
    assert found["gap"]["probs"] < CLOSE
    assert found["gap_after_reset"]["probs"] < CLOSE
    assert found["gap_without_reset"]["mean"] > 2 * found["gap"]["mean"], "the probe would see no stale cache"


@pytest.mark.hurts("compiled engines and CUDA graphs")
def test_engine_starts_compiled_and_with_graphs(cell: Cell, record_property: Note) -> None:
    """The engine starts as verl's default has it, compiled and with CUDA graphs."""
    found = measured(cell, "graphs")
    record_property("graphs", found)
    assert found["tokens"] == 64 * 16


@pytest.mark.hurts("an engine that dies is noticed")
def test_death_of_the_core_is_noticed(cell: Cell, record_property: Note) -> None:
    """A killed engine core ends what was asked with EngineDeadError, at once, and its memory comes back."""
    found = measured(cell, "death")
    record_property("death", found)
    assert found["pending"]["exception"] == found["next"]["exception"] == "EngineDeadError"
    assert found["pending_seconds"] < 15
    assert found["errored"]
    assert found["left_bytes"] < 2048 * MIB < found["held_bytes"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("crowded", "less than desired GPU memory utilization"),
        ("tight", "No available memory for the cache blocks"),
    ],
)
@pytest.mark.hurts("errors that say what is wrong")
def test_start_without_room_says_so(cell: Cell, record_property: Note, name: str, words: str) -> None:
    """An engine without room does not start, and the log says which room; the error itself does not."""
    found = part(cell, name)
    record_property(name, {**found.found, "seconds": found.seconds, "error": found.last_line})
    assert found.fault is not None, f"the engine started: {found.data}"
    assert words in found.fault, found.last_line


@pytest.mark.parametrize("name", ["main", "cold", "expandable", "crowded", "tight"])
@pytest.mark.hurts("memory that comes back")
def test_nothing_is_left_of_an_engine(cell: Cell, record_property: Note, name: str) -> None:
    """However an engine ended, its processes gone its memory is back."""
    found = measured(cell, f"scene {name}")
    record_property("scene", found)
    assert found["left_bytes"] < 64 * MIB


@pytest.mark.failure("vllm010-raw-logprobs-temperature")
def test_logprobs_at_another_temperature(trial: Trial, cell: Cell) -> None:
    """Log-probabilities of answers drawn at 0.7 are those of the logits divided by 0.7, as the trainer has them."""
    found = measured(cell, "temperature")
    apart = {name: found[name]["probs"] for name in ("gap", "gap_without_temperature")}
    assert max(apart.values()) > 2 * CLOSE, "divided or not is the same to this model, so nothing could be seen"
    wrong = apart["gap"] > apart["gap_without_temperature"]
    trial.observed(wrong, f"gap {found['gap']}, undivided {found['gap_without_temperature']}", **found)


@pytest.mark.hurts("log-probabilities of vLLM without verl")
def test_logprobs_of_vllm_alone_are_undivided(cell: Cell, record_property: Note) -> None:
    """What verl leaves since 0.7: vLLM's own default gives log-probabilities before the temperature."""
    found = measured(cell, "raw_logprobs")
    record_property("raw_logprobs", found)
    assert found["logprobs_mode"] == "raw_logprobs"
    assert found["gap_without_temperature"]["probs"] < CLOSE < found["gap"]["probs"]


@pytest.mark.failure("vllm-cascade-attention-mismatch")
def test_samples_of_one_long_prompt(trial: Trial, cell: Cell) -> None:
    """Many samples of one long prompt, decoded side by side, have the trainer's log-probabilities."""
    found = measured(cell, "cascade")
    if trial.record.applies == "yes" and not found["chosen"]:
        pytest.skip("vLLM's own rule does not take cascade attention for this model on this GPU")
    usual = measured(cell, "chunked")["gap"]
    wrong = found["gap"]["probs"] > max(0.01, 2 * usual["probs"])
    trial.observed(wrong, f"gap {found['gap']}, of other long prompts {usual}", **found)


@pytest.mark.failure("stale-prefix-cache-after-sync")
def test_prefix_cache_after_a_sync(trial: Trial, cell: Cell) -> None:
    """Prompts that were asked before a sync are answered by the new weights alone."""
    found = measured(cell, "stale")
    assert found["gap_without_reset"]["mean"] > 2 * found["gap_after_reset"]["mean"], "a stale cache would not be seen"
    wrong = found["gap"]["mean"] > (found["gap_without_reset"]["mean"] + found["gap_after_reset"]["mean"]) / 2
    trial.observed(wrong, f"gap {found['gap']}, without any reset {found['gap_without_reset']}", **found)


@pytest.mark.failure("stale-encoder-cache-after-sync")
def test_other_caches_after_a_sync(trial: Trial, cell: Cell) -> None:
    """A sync of weights resets what vLLM keeps of images too, not only the prefix cache."""
    found = measured(cell, "stale")["resets"]
    assert found["reset_prefix_cache"] > 0, "the sync reset nothing, or it was not counted"
    left = [name for name in ("reset_mm_cache", "reset_encoder_cache") if not found.get(name)]
    trial.observed(bool(left), f"not called: {', '.join(left) or 'none'}", resets=found)


@pytest.mark.failure("process-weights-per-bucket")
def test_weights_in_several_buckets(trial: Trial, cell: Cell) -> None:
    """Weights that come in several buckets are processed once, when all of them are there."""
    found = measured(cell, "sync")
    assert found["bytes"] > found["bucket_bytes"], "all went in one bucket"
    assert found["processed"] > 0, "processing was not counted"
    trial.observed(found["processed"] > 1, f"processed {found['processed']} times", **found)


@pytest.mark.failure("nan-exclamation-rollouts")
def test_answers_of_a_model_with_a_nan(trial: Trial, cell: Cell) -> None:
    """One NaN in the weights makes every token the first of the vocabulary; sound weights mend it."""
    found = measured(cell, "nan")
    assert found["gap_once_mended"]["probs"] < CLOSE, "the engine did not recover"
    trial.observed(found["first_token_share"] == 1.0, f"tokens {found['tokens']}", **found)


@pytest.mark.failure("nan-one-token-rollouts")
def test_answers_of_a_model_with_a_nan_and_the_second_runner(trial: Trial, cell: Cell) -> None:
    """One NaN in the weights makes every token the same, and no check for the first of the vocabulary sees it."""
    found = measured(cell, "nan")
    assert len(found["tokens"]) == 1, f"tokens {found['tokens']}"
    trial.observed(found["tokens"] != [0], f"tokens {found['tokens']}", **found)


@pytest.mark.failure("vllm-v1-default-model-executor")
def test_model_through_the_engine(trial: Trial, cell: Cell) -> None:
    """The executor is no attribute of the engine that a script holds: it lives in another process."""
    judge(trial, part(cell, "executor"))


@pytest.mark.failure("vllm-router-replay-index-error")
def test_router_replay_on_an_older_engine(trial: Trial, cell: Cell) -> None:
    """Where vLLM's buffers for routed experts are too small, verl 0.9 refuses to start the engine."""
    found = part(cell, "router_replay")
    if found.data.get("tried") is False:
        pytest.skip(found.data["why"])
    judge(trial, found)


@pytest.mark.failure("vllm-025-lora-stacked-mapper")
def test_adapter_that_is_sent(trial: Trial, cell: Cell) -> None:
    """An adapter that verl sends gives the answers of the model with the adapter merged into it."""
    found = measured(cell, "lora")
    assert found["gap_without_adapter"]["mean"] > 5 * found["gap"]["mean"] or found["gap"]["probs"] > CLOSE
    trial.observed(found["gap"]["probs"] > CLOSE, f"gap {found['gap']}", **found)


@pytest.mark.failure("fsdp-buffers-not-synced")
def test_buffer_that_is_sent(trial: Trial, cell: Cell) -> None:
    """A persistent buffer with a new value has it in the engine's worker once verl's update has taken it."""
    found = measured(cell, "buffer")
    assert found["value"] in (0.0, 1.0)
    trial.observed(found["value"] == 0.0, f"{found['value']} in the worker, 1.0 sent; {found['raised']}", **found)


@pytest.mark.failure("vllm-dp-config-only-with-ep")
def test_data_parallel_settings_reach_the_engine(trial: Trial, cell: Cell) -> None:
    """A rollout with data_parallel_size 2 and no expert parallelism is started as one of two shards."""
    found = measured(cell, "data_parallel")
    trial.observed(
        found["data_parallel_size"] != 2, f"vLLM gets data_parallel_size {found['data_parallel_size']}", **found
    )
