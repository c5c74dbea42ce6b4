"""The memory model: what its parts add up to, that more needs more, and that its rules say what breaks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.memory.activations import token_bytes
from matrix.memory.constants import constants
from matrix.memory.engine import BLOCK, Engine
from matrix.memory.knob import Knob
from matrix.memory.passes import actor_pass, critic_pass, in_force, update_pass
from matrix.memory.phase import GIB, Holding, Part, Phase
from matrix.memory.prediction import predict
from matrix.memory.runner import Runner, runner_of
from matrix.memory.shape import Family, shape_named
from matrix.memory.threshold import threshold
from matrix.memory.tokens import Pass, by_sequences, by_tokens
from matrix.memory.trained import Trained
from matrix.memory.vocabulary import logits
from matrix.memory.workload import Attention, Optimizer, Rollout, Strategy, Training, Workload

HALF_B = shape_named("qwen2.5-0.5b")
SEVEN_B = shape_named("qwen2.5-7b")
CARD = round(79.14 * GIB)
SMALL = {
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.rollout.max_model_len": 4096,
}
LOAD = Workload(shape=HALF_B).with_settings(SMALL)


def trained(**changes: object) -> Trained:
    values: dict[str, object] = {
        "shape": HALF_B,
        "settings": Training(),
        "gpus": 1,
        "head": True,
        "flash_loss": True,
        "constants": constants(),
    }
    return Trained(**{**values, **changes})  # type: ignore[arg-type]


ONE = Pass(sequences=4, tokens=4096, passes=2)


def test_a_trained_model_rests_on_twelve_bytes_a_number() -> None:
    assert trained().resting().total == 12 * HALF_B.parameters
    assert trained().resting(trained=False).total == 4 * HALF_B.parameters
    assert trained(head=False).resting().total == 12 * (HALF_B.parameters + HALF_B.hidden_size + 1)
    assert trained(gpus=8).resting().total == 12 * HALF_B.parameters / 8
    assert trained(settings=Training(optimizer=Optimizer.SGD)).resting().total == 4 * HALF_B.parameters


def test_offloading_leaves_nothing_and_brings_it_back() -> None:
    away = trained(settings=Training(param_offload=True, optimizer_offload=True))
    assert away.resting().total == 0
    there = trained()
    for one, entropy in ((ONE, False), (ONE, True)):
        both = away.resting() + away.updating(one, entropy=entropy)
        assert both.total == pytest.approx((there.resting() + there.updating(one, entropy=entropy)).total)
    only_weights = away.inferring(ONE, entropy=False).parts
    assert only_weights[Part.WEIGHTS] == 4 * HALF_B.parameters
    assert Part.OPTIMIZER not in only_weights


def test_activations_of_one_layer() -> None:
    each = token_bytes(HALF_B, Attention.FLASH_2, 1024)
    # Two norms of 8 bytes a hidden number (and 4); q, out, k and v in bfloat16, a float32 a head; 8 a wide number.
    assert each.layer == 2 * (8 * 896 + 4) + 4 * 896 + 4 * 128 + 4 * 14 + 8 * 4864
    assert each.boundary == 2 * 896
    assert token_bytes(HALF_B, Attention.SDPA, 1024).layer > each.layer
    eager = token_bytes(HALF_B, Attention.EAGER, 1024)
    assert eager.layer > token_bytes(HALF_B, Attention.EAGER, 512).layer > each.layer
    assert token_bytes(shape_named("qwen3-0.6b"), Attention.FLASH_2, 1).layer > 0


def test_a_short_pass_peaks_at_the_optimizers_step() -> None:
    few = Pass(sequences=1, tokens=64, passes=2)
    for strategy in Strategy:
        worst = trained(settings=Training(strategy=strategy)).updating(few, entropy=False)
        # All gradients, and the square root of all second moments.
        assert worst.total == 8 * HALF_B.parameters
    plain = trained(settings=Training(optimizer=Optimizer.SGD)).updating(few, entropy=False)
    assert plain.total < 8 * HALF_B.parameters


MEASURED = [
    # H200, verl 0.9.1, torch 2.11.0: a trial of the actor's update in a cell with flash-attn, 1024 tokens a sequence.
    (4, 15_936_617_472),
]


@pytest.mark.parametrize(("micro", "allocated"), MEASURED)
def test_what_an_h200_showed(micro: int, allocated: int) -> None:
    rows = {"actor_rollout_ref.actor.ppo_mini_batch_size": 2 * micro, "data.train_batch_size": 2 * micro}
    load = LOAD.with_settings({**rows, Knob.ACTOR_MICRO_BATCH.value: micro})
    assert predict(load, CARD).phases[Phase.ACTOR_UPDATE].allocated == pytest.approx(allocated, rel=0.01)


def test_checkpointing_keeps_the_inputs_of_layers_only() -> None:
    long = Pass(sequences=32, tokens=32768, passes=2)
    kept = trained(settings=Training(enable_gradient_checkpointing=False)).updating(long, entropy=False)
    again = trained().updating(long, entropy=False)
    assert kept.parts[Part.ACTIVATIONS] > 10 * again.parts[Part.ACTIVATIONS]


LOGIT_BYTES = [
    ({}, False, True, 2, 2),
    ({}, False, False, 2, 6),
    ({"use_torch_compile": False}, True, True, 14, 26),
    ({"use_torch_compile": True}, True, True, 2, 6),
    ({"entropy_from_logits_with_chunking": True, "entropy_from_logits_chunk_size": 50}, True, True, 8, 20),
    ({"entropy_from_logits_with_chunking": True, "entropy_from_logits_chunk_size": 12.5}, True, True, 3.5, 13),
    ({"use_torch_compile": False, "entropy_checkpointing": True}, True, True, 14, 16),
    ({"use_remove_padding": False}, False, True, 4, 4),
    ({"use_remove_padding": False}, True, True, 14, 28),
]


@pytest.mark.parametrize(("changes", "entropy", "flash", "forward", "backward"), LOGIT_BYTES)
def test_bytes_a_logit(changes: dict[str, object], entropy: bool, flash: bool, forward: float, backward: float) -> None:
    plain = constants().changed({"compiled_entropy_copies": 0.0})
    found = logits(100, 1000, Training(**changes), plain, entropy=entropy, flash=flash)  # type: ignore[arg-type]
    assert (found.forward, found.backward) == (forward * 1e5, backward * 1e5)


def test_a_fused_head_holds_a_chunk_of_logits() -> None:
    fused = Training(use_fused_kernels=True)
    few, many = (logits(tokens, 1000, fused, constants(), entropy=True, flash=True) for tokens in (512, 1 << 20))
    assert few == many


CUTS = [
    (by_sequences(100, 10, 4), (4, 40, 25)),
    (by_sequences(3, 10, 4), (3, 30, 1)),
    (by_tokens(128, 768, 24576), (32, 24576, 4)),
    (by_tokens(10, 100, 250), (3, 300, 4)),
    (by_tokens(10, 100, 5000), (10, 1000, 1)),
    (by_tokens(2, 100, 10), (1, 100, 2)),
]


@pytest.mark.parametrize(("one", "expected"), CUTS)
def test_micro_batches(one: Pass, expected: tuple[int, int, int]) -> None:
    assert (one.sequences, one.tokens, one.passes) == expected


@given(st.integers(1, 5000), st.integers(1, 4000), st.integers(1, 100_000), st.integers(0, 5000))
def test_a_larger_budget_makes_no_smaller_pass(total: int, length: int, budget: int, more: int) -> None:
    one, two = by_tokens(total, length, budget), by_tokens(total, length, budget + more)
    assert one.tokens <= two.tokens <= total * length
    assert one.sequences * one.passes >= total


def test_which_keys_cut_which_pass() -> None:
    load = LOAD.with_settings(
        {"critic.ppo_infer_max_token_len_per_gpu": 4096, "critic.ppo_max_token_len_per_gpu": 2048}
    )
    assert (update_pass(load).sequences, actor_pass(load, load.log_prob).sequences) == (4, 4)
    assert (critic_pass(load, update=True).sequences, critic_pass(load, update=False).sequences) == (4, 4)
    older = load.with_settings({"trainer.use_v1": False})
    assert (critic_pass(older, update=True).sequences, critic_pass(older, update=False).sequences) == (2, 4)
    dynamic = {
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 8192,
    }
    tokens = load.with_settings(dynamic)
    assert (update_pass(tokens).sequences, actor_pass(tokens, tokens.log_prob).sequences) == (16, 8)
    assert Knob.ACTOR_TOKENS in in_force(tokens)
    assert Knob.ACTOR_MICRO_BATCH in in_force(load)
    assert Knob.CRITIC_TOKENS in in_force(older)
    assert Knob.CRITIC_TOKENS not in in_force(load)
    assert Knob.CRITIC_INFER_TOKENS not in in_force(load.with_settings({"critic.enable": False}))


def test_ulysses_shares_the_tokens_of_a_sequence() -> None:
    two = {"trainer.n_gpus_per_node": 2, "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 2}
    load = LOAD.with_settings(two)
    assert (update_pass(load).sequences, update_pass(load).tokens) == (4, 2048)
    budget = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    dynamic = {"actor_rollout_ref.actor.use_dynamic_bsz": True, budget: 1024}
    cut = update_pass(load.with_settings(dynamic))
    assert (cut.sequences, cut.tokens) == (2, 1024)
    # A budget of half a sequence a GPU holds a whole one together.
    assert predict(load.with_settings({**dynamic, budget: 512}), CARD).fits


def engine(total: int = CARD, **rollout: object) -> Engine:
    load = Workload(shape=HALF_B, rollout=Rollout(max_model_len=4096, **rollout))  # type: ignore[arg-type]
    return Engine(workload=load, total=total, constants=constants())


def test_the_engine_asks_for_its_share_of_the_whole_card() -> None:
    assert engine(gpu_memory_utilization=0.4).requested == math.ceil(CARD * 0.4)
    assert engine().bytes_per_token == 2 * 2 * 2 * 64 * 24 == 12_288
    found = engine()
    assert found.kv_tokens % BLOCK == 0
    assert 0 <= found.available - found.kv_tokens * found.bytes_per_token < BLOCK * found.bytes_per_token
    assert found.needed == 4096 * 12_288
    assert found.sequences == 256


def test_graphs_by_size() -> None:
    assert engine(enforce_eager=True).graphs == 0
    assert engine(max_num_seqs=256).graphs == 51 + 35
    assert engine(max_num_seqs=512).graphs == 51 + 51
    assert engine(max_num_seqs=2).graphs == 3 + 2
    assert engine(enforce_eager=True).available > engine().available
    older = replace(engine(), release="0.19.1")
    assert older.available == engine().available + older.graph_bytes


RUNNERS = [
    ("0.12.0", Family.QWEN2, False, True),
    ("0.20.2", Family.QWEN3, True, True),
    ("0.22.1", Family.QWEN3, False, False),
    ("0.24.0", Family.QWEN2, True, True),
    ("0.24.0", Family.LLAMA, False, False),
    ("0.26.0", Family.QWEN2, False, False),
]


@pytest.mark.parametrize(("release", "family", "graphs", "sampler"), RUNNERS)
def test_which_runner_profiles_what(release: str, family: Family, graphs: bool, sampler: bool) -> None:
    assert runner_of(release, family) == Runner(profiles_graphs=graphs, profiles_sampler=sampler)


H200 = 150_109_880_320
SAID = [
    # What vLLM's worker said on an H200 (evidence gpu): share, sequences, tokens of a pass, and its two figures.
    ("0.24.0", 0.3, 64, 2048, 257_195_520, 43_538_500_096),
    ("0.24.0", 0.3, 256, 2048, 819_560_448, 42_976_135_168),
    ("0.26.0", 0.3, 256, 2048, 116_992_512, 43_678_703_104),
]


@pytest.mark.parametrize(("release", "share", "sequences", "tokens", "peak", "kv_cache"), SAID)
def test_what_vllm_said_of_itself(
    release: str, share: float, sequences: int, tokens: int, peak: int, kv_cache: int
) -> None:
    settings = {"max_num_seqs": sequences, "max_num_batched_tokens": tokens, "gpu_memory_utilization": share}
    found = replace(engine(H200, enforce_eager=True, **settings), release=release)
    assert found.pass_bytes == pytest.approx(peak, rel=0.03)
    assert found.available == pytest.approx(kv_cache, rel=0.001)


def test_tensor_parallelism_shares_weights_and_heads() -> None:
    one, two = engine(), engine(tensor_model_parallel_size=2)
    assert two.weights == one.weights / 2
    assert two.bytes_per_token == one.bytes_per_token / 2
    assert engine(tensor_model_parallel_size=4).bytes_per_token == two.bytes_per_token


def test_what_is_left_asleep() -> None:
    assert Part.KV_CACHE not in engine().asleep().parts
    assert engine(free_cache_engine=False).asleep() == engine(free_cache_engine=False).awake()
    assert engine().asleep().total < engine().weighing().total < engine().awake().total


def test_a_prediction_has_the_phases_of_its_workload() -> None:
    assert Phase.REF_LOG_PROB not in predict(LOAD, CARD).phases
    less = LOAD.with_settings({"critic.enable": False, "actor_rollout_ref.actor.use_kl_loss": True})
    phases = set(predict(less, CARD).phases)
    assert Phase.REF_LOG_PROB in phases
    assert not {Phase.VALUES, Phase.CRITIC_UPDATE} & phases


def test_the_reference_lies_in_host_memory() -> None:
    load = LOAD.with_settings({"actor_rollout_ref.actor.use_kl_loss": True})
    found = predict(load, CARD).phases
    unit = max(trained().root, HALF_B.layer_parameters) * 4
    assert found[Phase.REF_LOG_PROB].parts[Part.WEIGHTS] == found[Phase.VALUES].parts[Part.WEIGHTS] + unit


def test_parts_add_up() -> None:
    for holding in predict(LOAD, CARD).phases.values():
        assert holding.total == pytest.approx(sum(holding.parts.values()))
        assert 0 < holding.allocated < holding.total
        assert all(size >= 0 for size in holding.parts.values())
    both = Holding(parts={Part.WEIGHTS: 1.0}) + Holding(parts={Part.WEIGHTS: 2.0, Part.LOGITS: 4.0})
    assert both.parts == {Part.WEIGHTS: 3.0, Part.LOGITS: 4.0}


def test_the_guides_half_a_billion_fits_and_seven_do_not() -> None:
    small = predict(LOAD, CARD)
    assert small.fits
    assert small.headroom == CARD - small.phases[small.peak].total > 0
    assert small.binding.holds
    large = predict(Workload(shape=SEVEN_B).with_settings(SMALL), CARD)
    assert not large.fits
    assert not large.binding.holds
    assert large.headroom < 0
    assert " > " in large.binding.text
    eight = predict(Workload(shape=SEVEN_B, n_gpus=8).with_settings(SMALL), CARD)
    assert eight.fits


BROKEN = [
    ({"actor_rollout_ref.rollout.gpu_memory_utilization": 0.99}, "vLLM's share is free at start-up"),
    ({"actor_rollout_ref.rollout.gpu_memory_utilization": 0.02}, "one sequence of max_model_len in the KV cache"),
    ({"actor_rollout_ref.rollout.max_num_seqs": 9000}, "max_num_seqs within max_num_batched_tokens"),
    ({"data.max_response_length": 4096}, "a sequence within max_model_len"),
    ({"actor_rollout_ref.rollout.max_model_len": 40_000}, "max_model_len within the model's own"),
    ({"critic.ppo_infer_max_token_len_per_gpu": 100}, "critic.ppo_infer_max_token_len_per_gpu holds a sequence"),
    (
        {"trainer.use_v1": False, "critic.ppo_max_token_len_per_gpu": 100},
        "critic.ppo_max_token_len_per_gpu holds a sequence",
    ),
    (
        {"actor_rollout_ref.actor.use_dynamic_bsz": True, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 100},
        "actor.ppo_max_token_len_per_gpu holds a sequence",
    ),
    (
        {
            "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
            "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 100,
        },
        "log_prob_max_token_len_per_gpu holds a sequence",
    ),
]


@pytest.mark.parametrize(("changes", "rule"), BROKEN)
def test_rules_say_what_breaks(changes: dict[str, bool | float], rule: str) -> None:
    found = predict(LOAD.with_settings(changes), CARD)
    assert rule in [item.name for item in found.rules if not item.holds]
    assert not found.fits


MORE = [knob for knob in Knob if knob is not Knob.GPU_MEMORY_UTILIZATION]
UNCUT = {
    "critic.enable": False,
    "actor_rollout_ref.actor.use_dynamic_bsz": False,
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": False,
}
"""Nothing is cut by tokens: with a budget a longer sequence can make a pass smaller, for only whole ones go into it."""
HOLDING = st.fixed_dictionaries(
    {
        "actor_rollout_ref.actor.strategy": st.sampled_from(["fsdp", "fsdp2"]),
        "actor_rollout_ref.model.enable_gradient_checkpointing": st.booleans(),
        "actor_rollout_ref.actor.use_dynamic_bsz": st.booleans(),
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": st.booleans(),
        "actor_rollout_ref.actor.entropy_coeff": st.sampled_from([0.0, 0.01]),
        "actor_rollout_ref.model.use_fused_kernels": st.booleans(),
        "actor_rollout_ref.actor.fsdp_config.param_offload": st.booleans(),
        "actor_rollout_ref.actor.fsdp_config.reshard_after_forward": st.booleans(),
        "actor_rollout_ref.rollout.enforce_eager": st.booleans(),
        "critic.fsdp.optimizer_offload": st.booleans(),
        "trainer.use_v1": st.booleans(),
        "trainer.n_gpus_per_node": st.sampled_from([1, 8]),
    }
)


@settings(max_examples=60, deadline=None)
@given(HOLDING, st.sampled_from(MORE), st.integers(1, 20_000), st.integers(1, 20_000))
def test_more_of_a_knob_needs_no_less(changes: dict[str, bool | str | float], knob: Knob, low: int, more: int) -> None:
    load = LOAD.with_settings({**changes, **(UNCUT if knob is Knob.RESPONSE_LENGTH else {})})
    before, after = (predict(load.with_knob(knob, value), CARD) for value in (low, low + more))
    for phase, holding in before.phases.items():
        grown = after.phases[phase]
        # The engine's share is fixed: what its pass takes more its KV cache has less.
        shared = (Part.KV_CACHE, Part.ENGINE_PEAK)
        less = [part for part in shared if part in holding.parts]
        assert grown.total - sum(grown.parts[part] for part in less) >= (
            holding.total - sum(holding.parts[part] for part in less) - 1
        )
    assert after.engine.available <= before.engine.available
    assert after.engine.needed >= before.engine.needed


@settings(max_examples=30, deadline=None)
@given(HOLDING)
def test_sharding_over_more_gpus_needs_no_more(changes: dict[str, bool | str | float]) -> None:
    load = LOAD.with_settings(changes)
    one, eight = (predict(load.with_settings({"trainer.n_gpus_per_node": n}), CARD) for n in (1, 8))
    for phase, holding in one.phases.items():
        assert eight.phases[phase].allocated <= holding.allocated + 1


TIGHT = LOAD.with_settings({"actor_rollout_ref.rollout.gpu_memory_utilization": 0.3})


@pytest.mark.parametrize("knob", in_force(LOAD))
def test_thresholds_are_where_it_stops_to_fit(knob: Knob) -> None:
    def ask(load: Workload) -> object:
        return predict(load, round(23.6 * GIB))

    found = threshold(TIGHT, knob, ask)  # type: ignore[arg-type]
    assert found.value is not None
    assert predict(TIGHT.with_knob(knob, found.value), round(23.6 * GIB)).fits
    if found.saturates:
        assert found.binds is None
    else:
        assert found.binds is not None
        assert not found.binds.holds
        assert not predict(TIGHT.with_knob(knob, found.value + knob.step), round(23.6 * GIB)).fits
    if knob is Knob.GPU_MEMORY_UTILIZATION:
        assert found.least is not None
        assert not predict(TIGHT.with_knob(knob, found.least - 0.01), round(23.6 * GIB)).fits


@pytest.mark.parametrize("knob", [Knob.GPU_MEMORY_UTILIZATION, Knob.ACTOR_MICRO_BATCH])
def test_where_nothing_fits_the_rule_is_named(knob: Knob) -> None:
    found = threshold(LOAD, knob, lambda load: predict(load, 4 * GIB))
    assert found.value is None
    assert found.binds is not None
    assert not found.binds.holds


TOKEN_KNOBS = (Knob.ACTOR_TOKENS, Knob.LOG_PROB_TOKENS, Knob.CRITIC_TOKENS, Knob.CRITIC_MICRO_BATCH)


@pytest.mark.parametrize("knob", TOKEN_KNOBS)
def test_knobs_that_are_not_in_force_change_nothing(knob: Knob) -> None:
    found = threshold(LOAD, knob, lambda load: predict(load, CARD))
    assert found.saturates


@pytest.mark.parametrize("strategy", list(Strategy))
def test_waking_up_needs_a_whole_copy_under_fsdp_only(strategy: Strategy) -> None:
    load = LOAD.with_settings({"actor_rollout_ref.actor.strategy": strategy.value})
    sent = predict(load, CARD).phases[Phase.WAKE_UP].parts[Part.SYNC]
    bucket = 2048 << 20
    copies = {Strategy.FSDP: 4 * HALF_B.parameters, Strategy.FSDP2: 8 * HALF_B.embedding_parameters}
    assert sent == bucket + copies[strategy]


def test_without_gradients_fsdp2_copies_the_root_twice() -> None:
    few = Pass(sequences=1, tokens=16, passes=1)
    copied = trained(settings=Training(strategy=Strategy.FSDP2)).inferring(few, entropy=False)
    assert copied.parts == {Part.GATHERED: 4.0 * trained().root}
