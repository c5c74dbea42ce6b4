"""The spec: a question as the in-cell scripts read it, with verl's own keys and nothing of this package."""

from __future__ import annotations

from pathlib import Path

from matrix.errors import UsageError
from matrix.memory.phase import Phase
from matrix.memory.prediction import predict
from matrix.memory.workload import Value, Workload
from matrix.thresholds.foretell import trainers
from matrix.thresholds.knobs import Script
from matrix.thresholds.question import Asked

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
ON_CPU: dict[str, Value] = {
    "trainer.device": "cpu",
    f"{_ACTOR}.strategy": "fsdp2",
    "critic.strategy": "fsdp2",
    f"{_ACTOR}.use_torch_compile": False,
    f"{_ACTOR}.fsdp_config.use_torch_compile": False,
    f"{_MODEL}.use_remove_padding": False,
    "critic.model.use_remove_padding": False,
    f"{_MODEL}.override_config.attn_implementation": "eager",
    "critic.model.override_config.attn_implementation": "eager",
    f"{_ROLLOUT}.enforce_eager": True,
}
"""What the trainer needs to run on a processor (docs/cpu_ppo.md)."""


def spec_of(asked: Asked, *, device: str, models: Path) -> dict[str, object]:
    """Return the spec as plain JSON; `models` is the folder below which a model of random weights is kept."""
    work = asked.settled
    settings = dict(work.settings)
    plain = Workload(shape=work.shape).settings
    told = asked.knob.implied
    defaults = sorted(key for key, value in settings.items() if plain.get(key) == value and key not in told)
    if device == "cpu":
        settings |= ON_CPU
    return {
        "device": device,
        "settings": settings,
        "defaults": defaults,
        "shape": work.shape.name,
        "folder": str(models / work.shape.name),
        "critic": work.critic is not None,
        "prompt": work.prompt_length,
        "response": work.response_length,
        "cap": asked.cap.bytes if asked.cap else None,
        "beside": asked.beside,
        "held": held(asked) if asked.knob.script is Script.ROLLOUT else {},
    }


def held(asked: Asked) -> dict[str, int]:
    """Return what the process that trains holds beside the engine in each of its phases, in bytes: the model's word.

    Raises:
        UsageError: no card is named, without which the memory model foretells nothing.
    """
    if asked.cap is None:
        raise UsageError("A knob of the rollout is searched for a card.", then="Name it with --cap.")
    phases = predict(asked.settled, asked.cap.bytes).phases
    wanted = (Phase.ROLLOUT_INIT, Phase.WAKE_UP, Phase.GENERATION)
    return {phase.value: round(trainers(phases[phase])) for phase in wanted}


def by_what(script: Script) -> str:
    """Return by what the memory is limited in the trials of a script."""
    match script:
        case Script.UPDATE:
            return "the fraction that torch's allocator may take, less what lies outside of it"
        case Script.ROLLOUT | Script.STEP:
            return "a process that holds the rest, and vLLM's utilization scaled to the cap"
