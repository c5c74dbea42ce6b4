"""The knob: one setting of verl whose value a search may raise, and what raising it does to memory."""

from __future__ import annotations

from enum import StrEnum


class Unit(StrEnum):
    """What a knob counts."""

    FRACTION = "fraction"
    SEQUENCES = "sequences"
    TOKENS = "tokens"


class Direction(StrEnum):
    """What a higher value does: `more` needs more memory throughout; `window` fits between two bounds only.

    vLLM refuses to start where `gpu_memory_utilization` leaves no room for one sequence, and where it asks for more
    than is free: both a lower and an upper bound.
    """

    MORE = "more"
    WINDOW = "window"


class Knob(StrEnum):
    """A knob; the value is verl 0.9.1's key.

    Of the critic's three, verl 0.9.1 with its default trainer (`trainer.use_v1`) reads
    `critic.ppo_infer_max_token_len_per_gpu` alone, for the values and for the update; with the older trainer the update
    reads `critic.ppo_max_token_len_per_gpu`. No trainer of 0.9.1 reads the critic's micro-batch
    (verl/trainer/ppo/v1/trainer_base.py, verl/trainer/ppo/ray_trainer.py).
    """

    GPU_MEMORY_UTILIZATION = "actor_rollout_ref.rollout.gpu_memory_utilization"
    MAX_NUM_SEQS = "actor_rollout_ref.rollout.max_num_seqs"
    MAX_NUM_BATCHED_TOKENS = "actor_rollout_ref.rollout.max_num_batched_tokens"
    MAX_MODEL_LEN = "actor_rollout_ref.rollout.max_model_len"
    RESPONSE_LENGTH = "data.max_response_length"
    ACTOR_MICRO_BATCH = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    ACTOR_TOKENS = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    CRITIC_MICRO_BATCH = "critic.ppo_micro_batch_size_per_gpu"
    CRITIC_TOKENS = "critic.ppo_max_token_len_per_gpu"
    CRITIC_INFER_TOKENS = "critic.ppo_infer_max_token_len_per_gpu"
    LOG_PROB_MICRO_BATCH = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"
    LOG_PROB_TOKENS = "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"

    @property
    def unit(self) -> Unit:
        """Return what the knob counts."""
        match self:
            case Knob.GPU_MEMORY_UTILIZATION:
                return Unit.FRACTION
            case Knob.MAX_NUM_SEQS | Knob.ACTOR_MICRO_BATCH | Knob.CRITIC_MICRO_BATCH | Knob.LOG_PROB_MICRO_BATCH:
                return Unit.SEQUENCES
            case _:
                return Unit.TOKENS

    @property
    def direction(self) -> Direction:
        """Return what a higher value does to memory."""
        return Direction.WINDOW if self is Knob.GPU_MEMORY_UTILIZATION else Direction.MORE

    @property
    def step(self) -> float:
        """Return the smallest difference that a search tells apart: 0.01 of a fraction, one sequence, one token."""
        return 0.01 if self.unit is Unit.FRACTION else 1

    @property
    def short(self) -> str:
        """Return the last word of the key, with its owner where two share it: `actor.ppo_max_token_len_per_gpu`."""
        owner, _, last = self.value.rpartition(".")
        return f"{owner.rpartition('.')[2]}.{last}" if last.startswith("ppo_") else last
