"""Known failures of the numerics: means over empty masks, packed sequences, advantages over gaps, silent rewards."""

from __future__ import annotations

import math

import pytest
from kit import Trial
from kit.measure import measure, run_subject


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
