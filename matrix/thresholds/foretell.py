"""What the memory model foretells of a question, in the search's own values; None where it foretells nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial

from matrix.errors import UsageError
from matrix.memory.phase import Holding, Part, Phase
from matrix.memory.prediction import Prediction, predict
from matrix.memory.workload import Workload
from matrix.thresholds.knobs import Script, Steps
from matrix.thresholds.question import Asked


def foretold(asked: Asked, predicting: Callable[[Workload, int], Prediction] = predict) -> float | None:
    """Return the largest of the search's values that the memory model lets survive under the question's cap.

    A trial of the trainer runs without a rollout beside it, so what the model says of one is left out; what `beside`
    says takes its place. `predicting` is the model, this release's by default. None where there is no cap, the knob is
    none of the model's, or no value survives.
    """
    if asked.cap is None or asked.knob.script is Script.STEP:
        return None
    total, work = asked.cap.bytes, asked.settled
    survives = _trainer(asked, total) if asked.knob.script is Script.UPDATE else partial(_rollout, asked)

    def fits(value: float) -> bool:
        return survives(predicting(work.with_settings({asked.knob.key: value}), total))

    try:
        if asked.knob.steps is Steps.FRACTION:
            # vLLM's share fits between two bounds only.
            return max((value for value in asked.values if fits(value)), default=None)
        count = bisect_left(asked.values, True, key=lambda value: not fits(value))
    except UsageError:
        return None
    return asked.values[count - 1] if count else None


def _trainer(asked: Asked, total: int) -> Callable[[Prediction], bool]:
    """Return whether the process that trains stays below the cap in the phases that the knob weighs on."""

    def survives(prediction: Prediction) -> bool:
        wanted = [Phase(part) for part in asked.knob.parts]
        held = [trainers(prediction.phases[phase]) for phase in wanted if phase in prediction.phases]
        return all(bytes_ + asked.beside <= total for bytes_ in held)

    return survives


def trainers(holding: Holding) -> float:
    """Return what the process that trains holds of it, in bytes; the rest is the engine's."""
    return sum(size for part, size in holding.parts.items() if not _of_engine(part))


def _of_engine(part: Part) -> bool:
    return part is Part.KV_CACHE or part.value.startswith("engine")


def _rollout(asked: Asked, prediction: Prediction) -> bool:
    """Return whether every rule of the phases in which the engine is awake holds."""
    return all(rule.holds for rule in prediction.rules if rule.phase.value in asked.knob.parts)
