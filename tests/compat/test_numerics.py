"""Known failures of the numerics: means over empty masks, packed sequences, advantages over gaps, silent rewards."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from kit import Cell, Trial
from kit.measure import data, engine, measure, on_both, raw_gpu, reached, run_subject


@pytest.mark.failure("masked-mean-empty-nan")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl", "torch")
@pytest.mark.limit(240)
def test_mean_of_an_empty_mask(trial: Trial) -> None:
    """The mean over a mask that selects nothing is NaN."""
    mean = measure("numerics_verl", "empty_mask")["mean"]
    trial.observed(math.isnan(mean), f"masked_mean over an empty mask gives {mean}", mean=mean)


@pytest.mark.failure("masked-mean-nan-outside-mask")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl", "torch")
@pytest.mark.limit(240)
def test_nan_outside_the_mask(trial: Trial) -> None:
    """A NaN at a place that the mask leaves out makes verl's mean NaN."""
    mean = measure("numerics_verl", "nan_outside")["mean"]
    trial.observed(math.isnan(mean), f"masked_mean of [nan, 3] over the second gives {mean}", mean=mean)


@pytest.mark.failure("ulysses-head-divisibility")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.3.0.post1", "transformers")
@pytest.mark.limit(240)
def test_ulysses_heads(trial: Trial) -> None:
    """14 attention heads cannot be split over 4 ranks, and verl says so when it patches the model."""
    trial.judge(run_subject("numerics_verl", "ulysses_heads"))


@pytest.mark.failure("gae-masked-tokens")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl", "torch")
@pytest.mark.limit(240)
def test_gae_over_a_gap(trial: Trial) -> None:
    """The critic's values at masked tokens inside a response move the advantages of the policy's own tokens."""
    moved = measure("numerics_verl", "gae_gap")["moved"]
    trial.observed(
        moved > 1e-6, f"advantages move by {moved:.3g} with what the critic says of masked tokens", moved=moved
    )


@pytest.mark.failure("reinforce-plus-plus-gap")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.2", "torch")
@pytest.mark.limit(240)
def test_reinforce_plus_plus_over_a_gap(trial: Trial) -> None:
    """The reward at the end does not reach the tokens before a masked stretch."""
    found = measure("numerics_verl", "reinforce_gap")
    before = found["returns"][:2]
    trial.observed(
        max(before) == 0.0, f"returns {found['returns']} of a reward of 1 at the end", returns=found["returns"]
    )


@pytest.mark.tier("behave")
@pytest.mark.needs("verl", "torch")
@pytest.mark.limit(240)
def test_core_algorithms() -> None:
    """The KL estimators and GAE of this release give what their formulas say, worked out by hand."""
    found = measure("numerics_verl", "algorithms")
    apart = [0.5, -1.0, 0.0]
    expected = {
        "kl": apart,
        "abs": [abs(x) for x in apart],
        "mse": [x * x / 2 for x in apart],
        "low_var_kl": [math.exp(-x) + x - 1 for x in apart],
        "gae_returns": [0.92675, 0.965, 1.0],
    }
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=1e-5), name


@pytest.mark.failure("math-verify-sigalrm-in-ray-thread")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.3.0.post0", "math-verify")
@pytest.mark.limit(240)
def test_math_verify_in_a_thread(trial: Trial) -> None:
    """A right answer that scores 1 in the main thread scores 0 in any other."""
    scores = measure("numerics_verl", "math_verify_thread", timeout=200)
    assert scores["main"] == 1.0, f"a right answer scores {scores['main']} in the main thread"
    trial.observed(scores["thread"] == 0.0, f"a right answer scores {scores}", **scores)


@pytest.mark.failure("filter-overlong-vlm-patch-size")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.6.0")
@pytest.mark.limit(240)
def test_patch_size_of_the_filter(trial: Trial) -> None:
    """The data set takes patches of 14 pixels for a processor whose patches have 16."""
    size = measure("numerics_verl", "overlong_patch")["patch_size"]
    trial.observed(size == 14, f"counts with patches of {size} for a processor of 16", patch_size=size)


@pytest.mark.failure("chunked-prefill-batched-tokens-check")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.3.0.post0,<0.7.0", "vllm")
@pytest.mark.limit(300)
def test_chunked_prefill_guard(trial: Trial) -> None:
    """Refused by verl: chunked prefill for a context longer than the batch, which is what chunked prefill is for."""
    trial.judge(run_subject("numerics_verl", "chunked_guard", timeout=250))


@pytest.mark.failure("packed-sdpa-crosses-sequences")
@pytest.mark.tier("behave")
@pytest.mark.needs("transformers>=4.48", "torch")
@pytest.mark.limit(240)
def test_packed_sequences_under_sdpa(trial: Trial) -> None:
    """Two sequences packed into one row, with positions that restart: the second reads the first."""
    found = measure("numerics_packed", "verl")
    trial.observed(found["error"] > 1e-4, f"logits differ by {found['error']:.2g} from a forward alone", **found)


@pytest.mark.failure("packed-sdpa-mask-or-cache")
@pytest.mark.tier("behave")
@pytest.mark.needs("transformers>=4.48", "torch")
@pytest.mark.limit(240)
def test_packed_sequences_with_a_mask(trial: Trial) -> None:
    """The same with an attention mask of ones: the block boundaries are not looked for."""
    found = measure("numerics_packed", "mask")
    trial.observed(found["error"] > 1e-4, f"logits differ by {found['error']:.2g} from a forward alone", **found)


@pytest.mark.gpus(1)
@pytest.mark.needs("torch>=2.6", "transformers>=4.53.1")
@pytest.mark.limit(330)
@pytest.mark.hurts("packed sequences under sdpa")
def test_packed_under_sdpa_on_a_gpu(cell: Cell, record_property: Callable[[str, object], None]) -> None:
    """On the GPU as on a CPU the second of two packed sequences is alone without a mask, not with one of ones."""
    found = data(raw_gpu(cell), "packed-sdpa")
    record_property("relative", found)
    assert found["none"] < 0.05, found
    assert found["ones"] > 0.2, found


@pytest.mark.parametrize("kind", ["eager", "sdpa", "flash_attention_2"])
@pytest.mark.gpus(1, memory_gib=16)
@pytest.mark.needs("torch>=2.6", "transformers>=4.48")
@pytest.mark.limit(330)
@pytest.mark.hurts("log-probabilities in bf16", default_path=True)
def test_log_probs_against_fp32(cell: Cell, kind: str, record_property: Callable[[str, object], None]) -> None:
    """The log-probabilities of a model of 0.5B random weights in bf16 keep near those in fp32."""
    if kind == "flash_attention_2" and cell.version("flash-attn") is None:
        pytest.skip("flash-attn is not installed in this cell")
    found = data(raw_gpu(cell), f"log-probs-{kind}")
    for name, value in found.items():
        record_property(name, value)
    assert found["mean_abs"] < 0.1, found
    assert abs(found["k3_kl"]) < 0.02, found


@pytest.mark.failure("torch29-conv3d-no-cudnn")
@pytest.mark.gpus(1)
@pytest.mark.needs("torch>=2.6", "transformers>=4.48")
@pytest.mark.limit(330)
def test_convolution_of_a_vision_tower(trial: Trial) -> None:
    """The patch embedding of a vision tower in bf16 does without cuDNN, where fp32 has it."""
    found = data(raw_gpu(trial.cell), "conv3d")
    assert found["bfloat16_error"] < 0.02, found
    slow = any("slow_conv" in name for name in found["bfloat16_ops"])
    times = found["bfloat16_s"] / found["float32_s"]
    trial.observed(slow, f"bf16 takes {times:.3g} times as long as fp32, by {found['bfloat16_ops']}", **found)


@pytest.mark.failure("engine-autocast-hardcoded-bf16")
@pytest.mark.parametrize("device", on_both())
@pytest.mark.needs("verl>=0.7.0", "transformers>=4.48")
@pytest.mark.limit(450)
def test_precision_that_was_asked_for(trial: Trial, device: str) -> None:
    """The output of a linear layer has the type that `mixed_precision.param_dtype` names."""
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    got = {name: data(engine(trial.cell, device), f"precision-{name}")["output"] for name in names}
    assert got["bf16"] == "bfloat16", got
    trial.observed(got != names, f"asked and got: {got}", **got)


LINEAR = ("qwen35-gdn-packing-boundary", "qwen35-gdn-fallback-ignores-boundaries")


@pytest.mark.parametrize("record", [pytest.param(one, marks=pytest.mark.failure(one)) for one in LINEAR])
@pytest.mark.parametrize("device", on_both())
@pytest.mark.needs("verl>=0.8.0", "transformers>=5.2")
@pytest.mark.limit(450)
def test_linear_attention_in_a_packed_row(trial: Trial, record: str, device: str) -> None:
    """A row of a Qwen3.5 has other log-probabilities behind other rows than alone: its state is carried over."""
    found = data(engine(trial.cell, device), "qwen3.5-packing")
    if trial.record.applies == "yes" and record == LINEAR[1] and found["kernels"]["fla"]:
        pytest.skip("flash-linear-attention is installed; the failure is about its absence")
    others = [one for one in LINEAR if one != record and trial.cell.records[one].applies == "yes"]
    if trial.record.applies == "no" and others:
        pytest.skip(f"hidden by {others[0]}, which this cell has too")
    assert found["first"] < 1e-2, f"the first row has none before it: {found}"
    trial.observed(found["behind"] > 1e-2, f"log-probabilities move by {found['behind']:.3g} behind others", **found)


@pytest.mark.failure("fsdp-engine-model-output-retention-oom")
@pytest.mark.gpus(1, memory_gib=16)
@pytest.mark.needs("verl>=0.7.0", "transformers>=4.48")
@pytest.mark.limit(450)
def test_memory_of_micro_batches(trial: Trial) -> None:
    """The peak of an update grows with the number of micro-batches; here below what would be out of memory."""
    found = data(engine(trial.cell, "cuda"), "retention")
    kept = (found["peak_16"] - found["peak_2"]) / 14 / found["logits"]
    what = f"each of 14 more micro-batches adds {kept:.2f} times its logits to the peak"
    trial.observed(kept > 0.5, what, **found)


@pytest.mark.failure("ulysses-larger-than-world")
@pytest.mark.parametrize("device", on_both())
@pytest.mark.needs("verl>=0.7.0", "transformers>=4.48")
@pytest.mark.limit(450)
def test_ulysses_on_one_rank(trial: Trial, device: str) -> None:
    """An engine that is to split sequences over two ranks is made in a world of one."""
    trial.judge(reached(engine(trial.cell, device), "ulysses-alone").fault)


@pytest.mark.parametrize("device", on_both())
@pytest.mark.needs("verl>=0.7.0", "transformers>=4.48")
@pytest.mark.limit(450)
@pytest.mark.hurts("gradient checkpointing")
def test_checkpointing_is_not_reentrant(cell: Cell, device: str) -> None:
    """Verl's engine checkpoints with use_reentrant=False, and learns with it."""
    found = data(engine(cell, device), "checkpointing")
    assert found["reentrant"] == ["False"], found
    assert found["moved"] > 1e-5, found
