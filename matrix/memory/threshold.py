"""The threshold: the largest value of one knob for which a workload still fits, and the rule that ends it there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matrix.memory.knob import Knob, Unit
from matrix.memory.prediction import Prediction, Rule
from matrix.memory.workload import Workload

MOST = 1 << 22
"""No search looks beyond so many sequences or tokens."""
STEPS = 100
"""Steps of the fraction: 0.01 each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The largest value of a knob that fits, the others as they are.

    Attributes:
        knob: the knob.
        value: the largest that fits; None where none does.
        least: the smallest that fits, for a knob that fits in a window only.
        binds: the rule that breaks one step further; None where nothing ends it.
        saturates: whether more changes nothing any more: the batch (or the model's own length) is exhausted.
    """

    knob: Knob
    value: float | None
    least: float | None = None
    binds: Rule | None = None
    saturates: bool = False


def threshold(workload: Workload, knob: Knob, ask: Callable[[Workload], Prediction]) -> Threshold:
    """Return the largest value of `knob` for which `ask` says that the workload fits."""
    if knob.unit is Unit.FRACTION:
        return _window(workload, knob, ask)
    low, high = 0, _most(workload, knob)

    def at(value: int) -> Prediction:
        return ask(workload.with_knob(knob, value))

    if at(high).fits:
        return Threshold(knob=knob, value=float(high), saturates=True)
    # The budgets of tokens have a lower bound too, the longest sequence: below it nothing is asked.
    floor = _floor(workload, knob)
    if not at(floor).fits:
        return Threshold(knob=knob, value=None, binds=at(floor).binding)
    low = floor
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle).fits else (low, middle)
    return Threshold(knob=knob, value=float(low), binds=at(high).binding)


def _window(workload: Workload, knob: Knob, ask: Callable[[Workload], Prediction]) -> Threshold:
    """Return the bounds of a fraction: every hundredth is tried, because it fits between two bounds only."""
    found = {step: ask(workload.with_knob(knob, step / STEPS)) for step in range(1, STEPS + 1)}
    fitting = [step for step, prediction in found.items() if prediction.fits]
    if not fitting:
        closest = max(found.values(), key=lambda prediction: prediction.binding.slack)
        return Threshold(knob=knob, value=None, binds=closest.binding)
    last = fitting[-1]
    binds = found[last + 1].binding if last < STEPS else None
    return Threshold(knob=knob, value=last / STEPS, least=fitting[0] / STEPS, binds=binds)


def _floor(workload: Workload, knob: Knob) -> int:
    """Return the smallest value that is worth asking about."""
    match knob:
        case Knob.ACTOR_TOKENS | Knob.CRITIC_TOKENS | Knob.CRITIC_INFER_TOKENS | Knob.LOG_PROB_TOKENS:
            return workload.length
        case Knob.MAX_MODEL_LEN:
            return workload.length
        case Knob.MAX_NUM_BATCHED_TOKENS:
            return workload.rollout.max_num_seqs
        case _:
            return 1


def _most(workload: Workload, knob: Knob) -> int:
    """Return the value beyond which more changes nothing, or the first that is not allowed."""
    rows = max(1, workload.train_batch_size * workload.n // workload.n_gpus)
    mini = max(1, workload.actor.ppo_mini_batch_size * workload.n // workload.n_gpus)
    longest = workload.shape.max_position_embeddings
    match knob:
        case Knob.ACTOR_MICRO_BATCH:
            return mini
        case Knob.ACTOR_TOKENS:
            return max(mini, 1) * workload.length
        case Knob.LOG_PROB_MICRO_BATCH | Knob.CRITIC_MICRO_BATCH:
            return rows
        case Knob.LOG_PROB_TOKENS | Knob.CRITIC_TOKENS | Knob.CRITIC_INFER_TOKENS:
            return rows * workload.length
        case Knob.MAX_MODEL_LEN:
            return longest + 1
        case Knob.RESPONSE_LENGTH:
            return max(1, workload.max_model_len - workload.prompt_length) + 1
        case Knob.MAX_NUM_SEQS:
            return workload.rollout.max_num_batched_tokens + 1
        case _:
            return MOST
