"""The metrics that are judged, and what the releases of verl call them.

Read from the wheels of every release from 0.1 to 0.9.1: which name stands in whose code. From 0.8.0 on, workers hand
bare names (`grad_norm`, `kl_loss`) to the trainer, which puts `actor/` or `critic/` before them, so the log shows the
old names.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Metric(StrEnum):
    """A quantity, whatever the release calls it."""

    REFERENCE_KL = "reference-kl"
    KL_LOSS = "kl-loss"
    PPO_KL = "ppo-kl"
    PG_LOSS = "pg-loss"
    CLIP_FRACTION = "clip-fraction"
    ENTROPY = "entropy"
    ACTOR_GRADIENT = "actor-gradient"
    CRITIC_GRADIENT = "critic-gradient"
    ACTOR_RATE = "actor-rate"
    VALUE_LOSS = "value-loss"
    EXPLAINED = "explained-variance"
    RETURN_MAX = "return-max"
    RETURN_MIN = "return-min"
    ADVANTAGE_MAX = "advantage-max"
    ADVANTAGE_MIN = "advantage-min"
    SCORE = "score"
    SCORE_MAX = "score-max"
    SCORE_MIN = "score-min"
    LENGTH = "length"
    LENGTH_MAX = "length-max"
    LENGTH_CLIP = "length-clip"
    PROMPT_LENGTH = "prompt-length"
    ABORTED = "aborted"
    STEP_SECONDS = "step-seconds"
    GENERATION_SECONDS = "generation-seconds"
    THROUGHPUT = "throughput"
    TOKENS = "tokens"
    GAP = "gap"
    GAP_CORRELATION = "gap-correlation"
    GAP_K3 = "gap-k3"
    EFFECTIVE_SAMPLES = "effective-samples"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that releases log it under, the one to prefer first."""
        return SPELLINGS[self]


SPELLINGS: Mapping[Metric, tuple[str, ...]] = {
    # Only with a reference in the reward: `critic/kl` up to 0.3.0.post1, then only if algorithm.use_kl_in_reward.
    Metric.REFERENCE_KL: ("actor/reward_kl_penalty", "critic/kl"),
    Metric.KL_LOSS: ("actor/kl_loss",),
    Metric.PPO_KL: ("actor/ppo_kl",),
    Metric.PG_LOSS: ("actor/pg_loss",),
    Metric.CLIP_FRACTION: ("actor/pg_clipfrac",),
    # `actor/entropy_loss` up to 0.4.0 and `actor/entropy` from 0.4.1; from 0.7.1 both, where entropy is in the loss.
    Metric.ENTROPY: ("actor/entropy", "actor/entropy_loss"),
    Metric.ACTOR_GRADIENT: ("actor/grad_norm",),
    Metric.CRITIC_GRADIENT: ("critic/grad_norm",),
    # Not 0.1's `actor/lr(1e-4)`, which is in other units.
    Metric.ACTOR_RATE: ("actor/lr",),
    Metric.VALUE_LOSS: ("critic/vf_loss",),
    Metric.EXPLAINED: ("critic/vf_explained_var",),
    Metric.RETURN_MAX: ("critic/returns/max",),
    Metric.RETURN_MIN: ("critic/returns/min",),
    Metric.ADVANTAGE_MAX: ("critic/advantages/max",),
    Metric.ADVANTAGE_MIN: ("critic/advantages/min",),
    Metric.SCORE: ("critic/score/mean",),
    Metric.SCORE_MAX: ("critic/score/max",),
    Metric.SCORE_MIN: ("critic/score/min",),
    Metric.LENGTH: ("response_length/mean",),
    Metric.LENGTH_MAX: ("response_length/max",),
    Metric.LENGTH_CLIP: ("response_length/clip_ratio",),
    Metric.PROMPT_LENGTH: ("prompt_length/mean",),
    Metric.ABORTED: ("response/aborted_ratio",),
    Metric.STEP_SECONDS: ("perf/time_per_step", "timing_s/step"),
    Metric.GENERATION_SECONDS: ("timing_s/gen", "timing/gen"),
    Metric.THROUGHPUT: ("perf/throughput",),
    Metric.TOKENS: ("perf/total_num_tokens", "global_seqlen/mean"),
    Metric.GAP: ("training/rollout_probs_diff_mean",),
    Metric.GAP_CORRELATION: ("training/rollout_actor_probs_pearson_corr",),
    # `mismatch/` in 0.6.0 only.
    Metric.GAP_K3: ("rollout_corr/k3_kl", "mismatch/mismatch_k3_kl"),
    Metric.EFFECTIVE_SAMPLES: ("rollout_corr/rollout_is_eff_sample_size", "mismatch/rollout_is_eff_sample_size"),
}

KEPT: frozenset[str] = frozenset(name for names in SPELLINGS.values() for name in names)
"""The names whose values are kept; of every other metric only what is not finite is."""
