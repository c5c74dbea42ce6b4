"""Which micro-batch each phase of a workload runs on one GPU, which budgets cut it, and which knobs are in force."""

from __future__ import annotations

from collections.abc import Iterator

from matrix.memory.knob import Knob
from matrix.memory.tokens import Pass, by_sequences, by_tokens
from matrix.memory.workload import Forward, Training, Workload


def update_pass(load: Workload) -> Pass:
    """Return the largest micro-batch of the actor's update, on one GPU."""
    actor = load.actor
    total = _share(min(actor.ppo_mini_batch_size, load.train_batch_size), load, actor)
    if actor.use_dynamic_bsz:
        return _by_tokens(total, load, actor, actor.ppo_max_token_len_per_gpu)
    return _by_sequences(total, load, actor, actor.ppo_micro_batch_size_per_gpu)


def critic_pass(load: Workload, *, update: bool) -> Pass:
    """Return the largest micro-batch of the critic's update, or of its values; always cut by tokens (`Knob`)."""
    critic = load.critic
    assert critic is not None
    older = update and not load.use_v1
    budget = critic.ppo_max_token_len_per_gpu if older else critic.ppo_infer_max_token_len_per_gpu
    batch = min(critic.ppo_mini_batch_size, load.train_batch_size) if update else load.train_batch_size
    return _by_tokens(_share(batch, load, critic), load, critic, budget)


def actor_pass(load: Workload, forward: Forward) -> Pass:
    """Return the largest micro-batch of the old (or the reference's) log-probabilities, on one GPU."""
    total = _share(load.train_batch_size, load, load.actor)
    if forward.use_dynamic_bsz:
        return _by_tokens(total, load, load.actor, forward.max_token_len_per_gpu)
    return _by_sequences(total, load, load.actor, forward.micro_batch_size_per_gpu)


def in_force(load: Workload) -> tuple[Knob, ...]:
    """Return the knobs that the settings of a workload put in force; the others are read by nothing."""
    actor = (Knob.ACTOR_TOKENS,) if load.actor.use_dynamic_bsz else (Knob.ACTOR_MICRO_BATCH,)
    log_prob = (Knob.LOG_PROB_TOKENS,) if load.log_prob.use_dynamic_bsz else (Knob.LOG_PROB_MICRO_BATCH,)
    critic: tuple[Knob, ...] = ()
    if load.critic is not None:
        critic = (Knob.CRITIC_INFER_TOKENS,) if load.use_v1 else (Knob.CRITIC_INFER_TOKENS, Knob.CRITIC_TOKENS)
    engine = (Knob.GPU_MEMORY_UTILIZATION, Knob.MAX_NUM_SEQS, Knob.MAX_NUM_BATCHED_TOKENS, Knob.MAX_MODEL_LEN)
    return (*engine, *actor, *critic, *log_prob, Knob.RESPONSE_LENGTH)


def budgets(load: Workload) -> Iterator[tuple[str, int]]:
    """Yield the budgets of tokens in force, by key: verl refuses one that does not hold the longest sequence."""
    actor, critic = load.actor, load.critic
    if actor.use_dynamic_bsz:
        yield "actor.ppo_max_token_len_per_gpu holds a sequence", actor.ppo_max_token_len_per_gpu * _parallel(actor)
    if load.log_prob.use_dynamic_bsz:
        tokens = load.log_prob.max_token_len_per_gpu * _parallel(actor)
        yield "log_prob_max_token_len_per_gpu holds a sequence", tokens
    if critic is not None:
        tokens = critic.ppo_infer_max_token_len_per_gpu * _parallel(critic)
        yield "critic.ppo_infer_max_token_len_per_gpu holds a sequence", tokens
        if not load.use_v1:
            tokens = critic.ppo_max_token_len_per_gpu * _parallel(critic)
            yield "critic.ppo_max_token_len_per_gpu holds a sequence", tokens


def _parallel(settings: Training) -> int:
    """Return over how many GPUs Ulysses spreads each sequence."""
    return settings.ulysses_sequence_parallel_size


def _share(prompts: int, load: Workload, settings: Training) -> int:
    """Return how many sequences of a batch each group of GPUs gets that share a sequence."""
    return max(1, prompts * load.n * _parallel(settings) // load.n_gpus)


def _by_tokens(total: int, load: Workload, settings: Training, budget: int) -> Pass:
    return _spread(by_tokens(total, load.length, budget * _parallel(settings)), settings)


def _by_sequences(total: int, load: Workload, settings: Training, micro_batch: int | None) -> Pass:
    return _spread(by_sequences(total, load.length, micro_batch or total), settings)


def _spread(one: Pass, settings: Training) -> Pass:
    """Return the pass as one GPU has it: of each sequence its share of the tokens."""
    return Pass(sequences=one.sequences, tokens=-(-one.tokens // _parallel(settings)), passes=one.passes)
