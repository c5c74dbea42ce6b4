"""What each kind of symptom may come from, and what to look at to tell: never one cause where several fit."""

from __future__ import annotations

from collections.abc import Mapping

from matrix.health.symptom import Kind

_SYNC = "weights that did not reach the rollout engine, or reached it damaged"
_RATE = "a learning rate too high for the batch"
_REWARD = "a reward that changed, or that the policy learned to exploit"

MEANINGS: Mapping[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Kind.NOT_FINITE: (
        ("overflow in low precision", _RATE, "an empty response mask (all responses aborted or masked)", _SYNC),
        ("which metric is the first, and at which step", "grad_norm just before", "the rollouts of that step: `!!!!`?"),
    ),
    Kind.IMPOSSIBLE: (
        ("the log is damaged or mixed from several processes", "changed metric code", "numerical error"),
        ("the line of that step in the log",),
    ),
    Kind.KL_RUNAWAY: (
        (_RATE, "a KL coefficient of 0 or too small, or KL not used at all", _REWARD, "rewards without a scale"),
        ("score and response length from the same step on", "actor/kl_loss, kl_coef and use_kl_loss in the config"),
    ),
    Kind.KL_HIGH: (
        ("a long training without a KL term, which may be intended", _RATE, "a reference that is not the start model"),
        ("validation score against training score", "whether the policy is meant to stay near its reference"),
    ),
    Kind.UPDATE_TOO_LARGE: (
        (_RATE, "too many mini-batches or epochs per batch", "old log-probabilities of another model or precision"),
        ("ppo_epochs, train_batch_size / ppo_mini_batch_size", "pg_clipfrac", "the rollout gap"),
    ),
    Kind.PG_LOSS_JUMP: (
        ("advantages that lost their scale (no whitening, outliers in the reward)", _RATE, "changed aggregation"),
        ("critic/advantages/max and min", "loss_agg_mode", "grad_norm"),
    ),
    Kind.CLIPPED: (
        (_RATE, "too many updates per batch", "old log-probabilities that do not fit the policy"),
        ("actor/ppo_kl", "clip_ratio in the config", "the rollout gap"),
    ),
    Kind.ENTROPY_COLLAPSE: (
        ("the policy has become nearly deterministic: converged, or stuck on one answer", _REWARD, _RATE),
        ("the score: still rising, or stuck", "several responses to one prompt: are they the same"),
    ),
    Kind.ENTROPY_RISE: (
        ("an entropy bonus that outweighs the reward", _RATE, "a model that computes nonsense in the trainer"),
        ("entropy_coeff", "samples of the rollout", "the rollout gap"),
    ),
    Kind.GRADIENT_EXPLOSION: (
        (_RATE, "outliers in rewards or returns", "low precision", "a few very long or broken responses"),
        ("grad_clip", "advantages/max and min", "the steps before"),
    ),
    Kind.GRADIENT_SPIKES: (
        ("single batches with outliers; clipped by grad_clip, and the run went on",),
        ("critic/rewards/min and advantages/min of those steps",),
    ),
    Kind.NO_GRADIENT: (
        ("advantages that are all zero", "rewards that are all equal", "frozen parameters", "a masked-out response"),
        ("critic/advantages/max and min", "critic/score/max and min", "actor/lr"),
    ),
    Kind.NO_RATE: (
        ("actor.optim.lr of 0", "a schedule that has ended (total_training_steps too small)", "warm-up without end"),
        ("optim.* in the printed config",),
    ),
    Kind.VALUE_LOSS_RISE: (
        ("a critic learning rate too high", _REWARD, "returns of another scale than before"),
        ("critic/returns/max and min", "critic/grad_norm", "vf_explained_var"),
    ),
    Kind.VALUE_USELESS: (
        ("a critic that has not learned yet, or whose learning rate is too low or too high", "noise in the reward"),
        ("critic/vf_loss and critic/grad_norm", "critic_warmup"),
    ),
    Kind.REWARDS_EQUAL: (
        (
            "a reward that cannot be earned: the answer's format is not the one the scorer looks for",
            "data_source or ground_truth that the scorer does not know",
            "every prompt solved, or none",
            "a batch too small to differ",
        ),
        ("a few responses beside their ground truth", "`verl-matrix data` on the training file"),
    ),
    Kind.NO_ADVANTAGE: (
        ("groups of one (rollout.n = 1 with a group-relative estimator)", "all responses of each group score the same"),
        ("rollout.n and adv_estimator", "sampling temperature", "critic/score/max and min"),
    ),
    Kind.SCORE_FALL: (
        ("policy collapse (see KL, entropy, length, gradient)", "harder data from that step on", _SYNC),
        ("what else begins at the same step", "the validation score"),
    ),
    Kind.SCORE_FLAT: (
        ("a task too hard or already solved", "a learning rate too small", "a reward without signal", _SYNC),
        ("grad_norm and ppo_kl: does the policy move at all", "share of groups with different scores"),
    ),
    Kind.LENGTH_COLLAPSE: (
        ("a reward that short answers earn", "an end-of-sequence token that became too likely", _SYNC),
        ("samples of the rollout", "the score from the same step on"),
    ),
    Kind.LENGTH_CLIPPED: (
        ("responses that never end: repetition, or no end-of-sequence learned", "max_response_length too small", _SYNC),
        ("samples of the rollout: cut off or repeating", "score of clipped against finished responses"),
    ),
    Kind.ABORTED: (
        ("rollout requests that are aborted or time out", "prompts longer than the engine takes"),
        ("the rollout engine's log",),
    ),
    Kind.ROLLOUT_GAP: (
        (
            _SYNC,
            "log-probabilities of another kind (temperature, raw against processed)",
            "other kernels or precision in the rollout engine",
            "stale caches after a weight update",
        ),
        ("is it there at the first step, or only after an update", "`verl-matrix failures --family numerics`"),
    ),
    Kind.EFFECTIVE_SAMPLES: (
        ("a rollout policy far from the trained one: stale, or numerically different",),
        ("rollout_corr/kl, rollout_probs_diff_mean", "staleness settings of asynchronous training"),
    ),
    Kind.SLOWER: (
        ("another job on the same machines", "throttled clocks", "fragmented or swapped memory", "slower storage"),
        ("which timing_s/* grew", "clocks and temperatures of the GPUs from that time on"),
    ),
}
