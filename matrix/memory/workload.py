"""The workload: a model's shape and the settings of a PPO run that decide its memory, named by verl 0.9.1's keys.

`Workload.settings` and `Workload.with_settings` speak hydra's keys (`data.max_response_length`), the attributes speak
Python; `_KEYS` is the one place that maps them. The JSON form holds the shape's fields and the settings by key, so
that what runs inside a cell needs nothing of this package to read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isfinite
from typing import TypeAlias

from matrix.errors import UsageError
from matrix.memory.knob import Knob
from matrix.memory.shape import Shape
from matrix.nearness import near_names

SCHEMA = 1

Value: TypeAlias = "bool | int | float | str | None"


class Attention(StrEnum):
    """How transformers computes attention (`attn_implementation`)."""

    FLASH_2 = "flash_attention_2"
    SDPA = "sdpa"
    EAGER = "eager"


class Strategy(StrEnum):
    """How verl shards the trained models."""

    FSDP = "fsdp"
    FSDP2 = "fsdp2"


class Dtype(StrEnum):
    """A type of numbers, as verl spells it."""

    FP32 = "fp32"
    BF16 = "bf16"

    @property
    def size(self) -> int:
        """Return the bytes of one number."""
        return 4 if self is Dtype.FP32 else 2


class Optimizer(StrEnum):
    """An optimizer; AdamW keeps two numbers a parameter."""

    ADAMW = "AdamW"
    SGD = "SGD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """vLLM's side; the defaults are verl 0.9.1's (rollout.yaml), but for one GPU a replica instead of two.

    `max_model_len` None is the model's own longest (verl/workers/rollout/vllm_rollout/vllm_async_server.py).
    """

    gpu_memory_utilization: float = 0.5
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    enforce_eager: bool = False
    free_cache_engine: bool = True
    tensor_model_parallel_size: int = 1
    update_weights_bucket_megabytes: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """How a pass that is not trained on is cut: by sequences, or by a budget of tokens with `use_dynamic_bsz`."""

    micro_batch_size_per_gpu: int | None = None
    use_dynamic_bsz: bool = False
    max_token_len_per_gpu: int = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One trained model, actor or critic; the defaults are verl 0.9.1's (actor.yaml, fsdp.yaml, hf_model.yaml).

    `ppo_infer_max_token_len_per_gpu` is the critic's alone; the actor's is `Workload.log_prob`.
    """

    strategy: Strategy = Strategy.FSDP
    ppo_mini_batch_size: int = 256
    ppo_micro_batch_size_per_gpu: int | None = None
    use_dynamic_bsz: bool = False
    ppo_max_token_len_per_gpu: int = 16384
    ppo_infer_max_token_len_per_gpu: int = 32768
    param_offload: bool = False
    optimizer_offload: bool = False
    reshard_after_forward: bool = True
    use_orig_params: bool = False
    model_dtype: Dtype = Dtype.FP32
    optimizer: Optimizer = Optimizer.ADAMW
    ulysses_sequence_parallel_size: int = 1
    enable_gradient_checkpointing: bool = True
    use_remove_padding: bool = True
    use_fused_kernels: bool = False
    use_torch_compile: bool = True
    attention: Attention = Attention.FLASH_2
    entropy_coeff: float = 0.0
    calculate_entropy: bool = False
    entropy_from_logits_with_chunking: bool = False
    entropy_from_logits_chunk_size: int = 2048
    entropy_checkpointing: bool = False

    @property
    def needs_entropy(self) -> bool:
        """Return whether the update computes the entropy of every token (verl/workers/utils/losses.py)."""
        return self.calculate_entropy or self.entropy_coeff != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model and the settings of its run; two equal workloads hold equal memory.

    Attributes:
        shape: the model, of actor, reference and critic alike.
        train_batch_size: prompts a step; with `n` responses each.
        critic: None where there is none (an estimator that needs no values).
        reference: whether a reference policy gives its log-probabilities (a KL loss or a KL in the reward).
        n_gpus: GPUs of all nodes.
        use_v1: whether verl's default trainer runs, not the older one; they read different keys of the critic.
    """

    shape: Shape
    prompt_length: int = 512
    response_length: int = 512
    train_batch_size: int = 1024
    n: int = 1
    n_gpus: int = 1
    use_v1: bool = True
    rollout: Rollout = field(default_factory=Rollout)
    actor: Training = field(default_factory=Training)
    critic: Training | None = field(default_factory=lambda: Training(ppo_max_token_len_per_gpu=32768))
    log_prob: Forward = field(default_factory=Forward)
    reference: Forward | None = None

    def __post_init__(self) -> None:
        """Refuse what verl's own validator or vLLM would: sizes that are not positive, a fraction beyond 0 to 1."""
        for key, value in self.settings.items():
            if isinstance(value, bool) or not isinstance(value, int):
                continue
            if value <= 0:
                raise ValueError(f"{key} must be above 0, not {value}")
        if not 0 < self.rollout.gpu_memory_utilization <= 1:
            raise ValueError(f"{Knob.GPU_MEMORY_UTILIZATION} is above 0 and at most 1")

    @property
    def length(self) -> int:
        """Return the longest sequence, prompt and response, in tokens."""
        return self.prompt_length + self.response_length

    @property
    def max_model_len(self) -> int:
        """Return the longest sequence that vLLM makes room for."""
        return self.rollout.max_model_len or self.shape.max_position_embeddings

    @property
    def settings(self) -> dict[str, Value]:
        """Return every setting by verl's key; the keys of a part that is not there are left out."""
        found: dict[str, Value] = {}
        for key, (part, name) in _KEYS.items():
            owner = getattr(self, part) if part else self
            if owner is not None:
                value = getattr(owner, name)
                found[key] = value.value if isinstance(value, StrEnum) else value
        return {**found, _CRITIC: self.critic is not None, _KL: self.reference is not None}

    def with_settings(self, settings: Mapping[str, Value]) -> Workload:
        """Return the workload with these settings changed, by key; one that names a part brings the part in.

        Raises:
            UsageError: a key is not known here, or its value is of another kind.
        """
        changes: dict[str, dict[str, object]] = {}
        switches = {key: settings[key] for key in (_CRITIC, _KL) if key in settings}
        for named, value in settings.items():
            key = _ALIASES.get(named, named)
            if key in switches:
                if not isinstance(value, bool):
                    raise UsageError(f"{key} is true or false, not {value}.")
                continue
            if key not in _KEYS:
                raise _unknown(key)
            part, name = _KEYS[key]
            changes.setdefault(part, {})[name] = _parsed(key, value)
        try:
            return self._changed(changes, switches)
        except ValueError as error:
            raise UsageError(f"{error}.") from error

    def with_overrides(self, settings: Mapping[str, Value]) -> Workload:
        """Return the workload as verl's command line would have it: a key that follows another by default still does.

        Raises as `with_settings` does.
        """
        named = {_ALIASES.get(key, key): value for key, value in settings.items()}
        there = self.with_settings(named).settings
        followed = {key: named[leader] for key, leader in _FOLLOWS.items() if leader in named and key in there}
        return self.with_settings({**followed, **named})

    def launchable(self) -> Workload:
        """Return the workload itself; raises UsageError where it splits what it has over more GPUs than there are."""
        for key, parts in self.settings.items():
            if key.rpartition(".")[2] in _SPLITS and isinstance(parts, int) and self.n_gpus % parts:
                raise UsageError(
                    f"{key}={parts} does not go with trainer.n_gpus_per_node={self.n_gpus}.",
                    why=f"It splits over {parts} GPUs, and verl stops where their number is no multiple of it.",
                    then="Name as many with --n-gpus, or leave the setting at 1.",
                )
        return self

    def _changed(self, changes: dict[str, dict[str, object]], switches: Mapping[str, Value]) -> Workload:
        values: dict[str, object] = dict(changes.pop("", {}))
        for part, there in (("critic", switches.get(_CRITIC)), ("reference", switches.get(_KL))):
            if there is False:
                changes.pop(part, None)
                values[part] = None
            elif there is True:
                changes.setdefault(part, {})
        for part, change in changes.items():
            owner = getattr(self, part) or _ABSENT[part]
            values[part] = replace(owner, **change)
        return replace(self, **values)  # type: ignore[arg-type]

    def knob(self, knob: Knob) -> float | None:
        """Return the value of a knob here; None where its part is not there or leaves it open."""
        value = self.settings.get(knob.value)
        return None if isinstance(value, bool | str) else value

    def with_knob(self, knob: Knob, value: float) -> Workload:
        """Return the workload with this knob at `value`."""
        return self.with_settings({knob.value: value})

    def to_json(self) -> dict[str, object]:
        """Return plain JSON: `schema`, the `shape`'s fields, the `settings` by verl's keys; `from_json` reads it."""
        return {"schema": SCHEMA, "shape": self.shape.to_json(), "settings": self.settings}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Workload:
        """Return the workload of `to_json`; raises UsageError where the data is none."""
        shape, settings = data.get("shape"), data.get("settings")
        if data.get("schema") != SCHEMA or not isinstance(shape, Mapping) or not isinstance(settings, Mapping):
            raise UsageError("This is no workload.", then=f"A workload has schema {SCHEMA}, a shape and settings.")
        try:
            made = Shape.from_json(shape)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"The shape of this workload is wrong: {error}.") from error
        return cls(shape=made).with_settings(settings)


_SPLITS = ("ulysses_sequence_parallel_size", "tensor_model_parallel_size")
"""The settings that spread one sequence or one engine over GPUs: verl stops where there are not so many."""
_CRITIC = "critic.enable"
_KL = "actor_rollout_ref.actor.use_kl_loss"
"""The two keys that bring a part in: a critic of its own, and a reference policy."""
_ABSENT: Mapping[str, Training | Forward] = {
    "critic": Training(ppo_max_token_len_per_gpu=32768),
    "reference": Forward(),
}

_ROLLOUT = "actor_rollout_ref.rollout"
_BUCKET = "update_weights_bucket_megabytes"
_ACTOR = "actor_rollout_ref.actor"


def _training(part: str, own: str, engine: str, model: str) -> dict[str, tuple[str, str]]:
    """Return the keys of one trained model: under its own key, its engine's and its model's."""
    names = {
        **{f"{own}.{name}": name for name in _OWN},
        **{f"{engine}.{name}": name for name in _ENGINE},
        **{f"{model}.{name}": name for name in _MODEL},
        f"{own}.optim.optimizer": "optimizer",
        f"{model}.override_config.attn_implementation": "attention",
    }
    return {key: (part, name) for key, name in names.items()}


_OWN = (
    "strategy",
    "ppo_mini_batch_size",
    "ppo_micro_batch_size_per_gpu",
    "use_dynamic_bsz",
    "ppo_max_token_len_per_gpu",
)
_ENGINE = (
    "param_offload", "optimizer_offload", "reshard_after_forward", "use_orig_params", "model_dtype",
    "ulysses_sequence_parallel_size", "use_torch_compile",
)  # fmt: skip
_MODEL = ("enable_gradient_checkpointing", "use_remove_padding", "use_fused_kernels")
_ENTROPY = (
    "entropy_coeff", "calculate_entropy", "entropy_from_logits_with_chunking", "entropy_from_logits_chunk_size",
    "entropy_checkpointing",
)  # fmt: skip

_KEYS: Mapping[str, tuple[str, str]] = {
    "data.max_prompt_length": ("", "prompt_length"),
    "data.max_response_length": ("", "response_length"),
    "data.train_batch_size": ("", "train_batch_size"),
    "trainer.n_gpus_per_node": ("", "n_gpus"),
    "trainer.use_v1": ("", "use_v1"),
    f"{_ROLLOUT}.n": ("", "n"),
    **{
        f"{_ROLLOUT}.{name}": ("rollout", name)
        for name in Rollout.__slots__
        if name != "update_weights_bucket_megabytes"
    },
    f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": ("rollout", "update_weights_bucket_megabytes"),
    **{f"{_ROLLOUT}.log_prob_{name}": ("log_prob", name) for name in Forward.__slots__},
    **{f"actor_rollout_ref.ref.log_prob_{name}": ("reference", name) for name in Forward.__slots__},
    **_training("actor", _ACTOR, f"{_ACTOR}.fsdp_config", "actor_rollout_ref.model"),
    **{f"{_ACTOR}.{name}": ("actor", name) for name in _ENTROPY},
    **_training("critic", "critic", "critic.fsdp", "critic.model"),
    "critic.ppo_infer_max_token_len_per_gpu": ("critic", "ppo_infer_max_token_len_per_gpu"),
}

_ALIASES = {
    f"{_ACTOR}.ulysses_sequence_parallel_size": f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
    f"{_ROLLOUT}.prompt_length": "data.max_prompt_length",
    f"{_ROLLOUT}.response_length": "data.max_response_length",
}
"""Keys that verl copies into others (verl 0.9.1: workers/config/actor.py, rollout.yaml)."""

_FOLLOWS = {
    f"{_ROLLOUT}.log_prob_use_dynamic_bsz": f"{_ACTOR}.use_dynamic_bsz",
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": f"{_ACTOR}.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": f"{_ACTOR}.use_dynamic_bsz",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": f"{_ACTOR}.ppo_max_token_len_per_gpu",
    "critic.ppo_mini_batch_size": f"{_ACTOR}.ppo_mini_batch_size",
    "critic.use_dynamic_bsz": f"{_ACTOR}.use_dynamic_bsz",
}
"""Keys that take another's value where they are not set (interpolations of verl 0.9.1's YAML)."""

_KINDS: Mapping[str, type[StrEnum]] = {
    "strategy": Strategy,
    "model_dtype": Dtype,
    "optimizer": Optimizer,
    "attention": Attention,
}
_OPEN = ("ppo_micro_batch_size_per_gpu", "micro_batch_size_per_gpu", "max_model_len")
"""The settings that may be left open (null)."""
_FRACTIONS = ("gpu_memory_utilization", "entropy_coeff")


def _parsed(key: str, value: Value) -> object:
    """Return the value as its field has it; raises UsageError for another kind."""
    part, name = _KEYS[key]
    if name in _KINDS:
        kind = _KINDS[name]
        if value not in {item.value for item in kind}:
            raise UsageError(f"{key} is one of {', '.join(kind)}, not {value}.")
        return kind(str(value))
    if value is None and name in _OPEN:
        return None
    if isinstance(value, bool) or isinstance(_default(part, name), bool):
        if isinstance(value, bool) and isinstance(_default(part, name), bool):
            return value
        raise UsageError(f"{key} is {_word(part, name)}, not {value}.")
    if isinstance(value, int | float) and isfinite(value) and (name in _FRACTIONS or value == int(value)):
        return float(value) if name in _FRACTIONS else int(value)
    raise UsageError(f"{key} is {_word(part, name)}, not {value}.")


def _default(part: str, name: str) -> object:
    if name == "use_v1":
        return True
    owners: Mapping[str, object] = {"rollout": _ROLLOUT_DEFAULT, "actor": _ABSENT["critic"], **_ABSENT}
    return getattr(owners.get(part, _ABSENT["reference"]), name, 1)


_ROLLOUT_DEFAULT = Rollout()


def _word(part: str, name: str) -> str:
    if isinstance(_default(part, name), bool):
        return "true or false"
    return "a number" if name in _FRACTIONS else "a whole number"


def _unknown(key: str) -> UsageError:
    near = near_names(key, [*_KEYS, _CRITIC, _KL])
    return UsageError(
        f"The memory model does not know the key {key}.",
        why=f"Closest: {', '.join(near)}." if near else "",
        then=f"It reads: {', '.join([*_KEYS, _CRITIC, _KL])}.",
    )
