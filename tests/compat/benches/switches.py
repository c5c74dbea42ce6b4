"""Switches: what of a built trainer can be changed between two repeats, and the proof that it was.

The engine's budgets are fields that it reads at every batch; the trainer's mini-batches are arguments of each call.
Gradient checkpointing is a flag that each layer of transformers reads whenever it is called, set and cleared by
`gradient_checkpointing_enable` and `_disable`, under FSDP1 and FSDP2 alike, since both leave the layers as they are.
Whatever else differs takes another process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
CHECKPOINTING = {
    "actor": f"{_MODEL}.enable_gradient_checkpointing",
    "critic": "critic.model.enable_gradient_checkpointing",
}
SWITCHED = frozenset(
    {
        *CHECKPOINTING.values(),
        f"{_ACTOR}.use_dynamic_bsz",
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
        f"{_ACTOR}.ppo_max_token_len_per_gpu",
        f"{_ACTOR}.ppo_mini_batch_size",
        f"{_ACTOR}.ppo_epochs",
        f"{_ACTOR}.shuffle",
        f"{_ROLLOUT}.log_prob_use_dynamic_bsz",
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
        "critic.ppo_max_token_len_per_gpu",
        "critic.ppo_infer_max_token_len_per_gpu",
        "critic.ppo_mini_batch_size",
        "critic.ppo_epochs",
        "critic.shuffle",
    }
)
"""Keys that a built trainer follows at once."""
IDLE = ("critic.ppo_micro_batch_size_per_gpu", "critic.ppo_micro_batch_size", "critic.use_dynamic_bsz")
"""Keys of the updates that the releases which train through these engines hand to none of them."""
_PASSED_BY = ("data.", "trainer.", "reward.", "ray_kwargs.", "transfer_queue.", "actor_rollout_ref.ref.")
_ACTORS = {
    "use_dynamic_bsz": f"{_ACTOR}.use_dynamic_bsz",
    "max_token_len_per_gpu": f"{_ACTOR}.ppo_max_token_len_per_gpu",
    "micro_batch_size_per_gpu": f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    "infer_max_token_len_per_gpu": f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
    "infer_micro_batch_size_per_gpu": f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
}
"""Fields of the settings of the actor's engine, and the key that verl's own build fills each from."""


def flat(config: Any) -> dict[str, Any]:
    """Return a configuration by its dotted keys, interpolations as they are written."""
    from omegaconf import OmegaConf

    found: dict[str, Any] = {}

    def walk(node: Any, above: str) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                walk(value, f"{above}.{key}" if above else str(key))
        else:
            found[above] = node

    walk(OmegaConf.to_container(config, resolve=False), "")
    return found


def differing(configs: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the keys in which configurations differ, with the value of each (None where it lacks the key)."""
    keyed = [flat(config) for config in configs]
    names = sorted({name for one in keyed for name in one})
    values = {name: [one.get(name) for one in keyed] for name in names}
    return {name: held for name, held in values.items() if any(value != held[0] for value in held)}


def judged(changed: Mapping[str, Sequence[Any]], release: str) -> dict[str, Any]:
    """Return the keys that count (`changed`), those that no update reads (`idle`), and what takes another process."""
    idle = {key: list(value) for key, value in changed.items() if _is_idle(key, release)}
    live = {key: list(value) for key, value in changed.items() if key not in idle}
    return {"changed": live, "idle": idle, "blocking": sorted(key for key in live if key not in SWITCHED)}


def _is_idle(key: str, release: str) -> bool:
    if key in IDLE or key.startswith(_PASSED_BY):
        return True
    if key == "critic.ppo_max_token_len_per_gpu":
        return not release.startswith("0.8.")
    return key.startswith(f"{_ROLLOUT}.") and key not in SWITCHED and key != f"{_ROLLOUT}.n"


def fields(config: Any, who: str, padded: bool) -> dict[str, Any]:
    """Return the fields of an engine's settings as verl's build fills them; `padded` releases are those of 0.8."""
    from omegaconf import OmegaConf

    if who == "actor":
        return {name: OmegaConf.select(config, key) for name, key in _ACTORS.items()}
    from verl.utils.config import omega_conf_to_dataclass

    # Of the settings, not of the configuration: a budget that no file lists has its default there.
    settings = omega_conf_to_dataclass(config.critic)
    infer = settings.ppo_infer_max_token_len_per_gpu
    update = settings.ppo_max_token_len_per_gpu if padded else infer
    return {"max_token_len_per_gpu": update, "infer_max_token_len_per_gpu": infer}


def set_fields(engine_config: Any, values: Mapping[str, Any]) -> None:
    """Set fields of an engine's settings, which may be frozen where verl freezes its configurations."""
    for name, value in values.items():
        object.__setattr__(engine_config, name, value)


def checkpoints(config: Any, who: str) -> bool:
    """Return whether a role recomputes activations in its backward pass."""
    from omegaconf import OmegaConf

    return bool(OmegaConf.select(config, CHECKPOINTING[who]))


def model_of(module: Any) -> Any:
    """Return the model of transformers in what FSDP made of it: the first module that knows gradient checkpointing."""
    for one in module.modules():
        if hasattr(one, "gradient_checkpointing_enable") and not hasattr(one, "_fsdp_wrapped_module"):
            return one
    raise TypeError(f"no model of transformers in {type(module).__name__}")


def attention(module: Any) -> str:
    """Return the attention that a model took."""
    return str(getattr(model_of(module).config, "_attn_implementation", ""))


def checkpoint(module: Any, enable: bool) -> None:
    """Switch gradient checkpointing as verl's build does, and raise RuntimeError where the model says it is not so."""
    model = model_of(module)
    if enable:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        model.gradient_checkpointing_disable()
    if bool(model.is_gradient_checkpointing) is not enable:
        raise RuntimeError(f"gradient checkpointing was not switched {'on' if enable else 'off'}")


class Calls:
    """Counts the forward calls of a model and of its first layer: twice as many of the layer where it is recomputed."""

    def __init__(self, module: Any) -> None:
        self.model = self.layer = 0
        model = model_of(module)
        layer = first_layer(model)
        model.register_forward_pre_hook(self._of_model)
        # Inside of the layer: its own call is what is saved and run again.
        next(iter(layer.children())).register_forward_pre_hook(self._of_layer)

    def reset(self) -> None:
        """Count from 0."""
        self.model = self.layer = 0

    def _of_model(self, *_: Any) -> None:
        self.model += 1

    def _of_layer(self, *_: Any) -> None:
        self.layer += 1


def first_layer(model: Any) -> Any:
    """Return the first decoder layer of a model of transformers."""
    for one in model.modules():
        if type(one).__name__.removeprefix("FSDP").endswith("DecoderLayer"):
            return one
    raise TypeError(f"{type(model).__name__} has no decoder layers")
