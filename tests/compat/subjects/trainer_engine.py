"""Verl's own training engine over a tiny model, made as verl's worker makes it: what the stages of the engine share."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
import trainer_world as world


def known(kind: Any, given: dict[str, Any]) -> Any:
    """Return a configuration of what this release has of the fields given."""
    names = {one.name for one in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in given.items() if name in names})


def make(path: Path, *, value: bool = False, model: dict[str, Any] | None = None, **engine: Any) -> Any:
    """Return an initialised FSDP engine of this release of verl; keywords are those of its engine configuration."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.fsdp import transformer_impl as impl

    asked: dict[str, Any] = {"path": str(path), "load_tokenizer": False, "enable_gradient_checkpointing": False}
    asked |= {"override_config": {"attn_implementation": "sdpa"}, "use_remove_padding": True}
    asked |= {"model_type": "value_model" if value else "language_model", **(model or {})}
    settings = {"strategy": "fsdp2", "use_torch_compile": False, **engine}
    optimizer = FSDPOptimizerConfig(lr=1e-3, total_training_steps=10)
    kind = impl.FSDPEngineWithValueHead if value else impl.FSDPEngineWithLMHead
    made = kind(known(HFModelConfig, asked), known(FSDPEngineConfig, settings), optimizer, CheckpointConfig())
    made.initialize()
    return made


def batch(lengths: tuple[int, ...], each: int = 2, planes: int = 0, rows: tuple[int, ...] = (), **told: Any) -> Any:
    """Return rows of these lengths as verl hands them to its engine: without padding, `each` rows a micro-batch.

    Vision models have `planes` rows of positions: that of the text, and one for each axis of an image. `rows` are
    those wanted of them (default: all).
    """
    from verl.utils import tensordict_utils as tu

    shown = (planes, -1) if planes else (-1,)
    wanted = [(n, lengths[n]) for n in rows or range(len(lengths))]
    nested = {
        "input_ids": [world.ids("cpu", length, seed=n)[0] for n, length in wanted],
        "position_ids": [torch.arange(length).expand(shown).contiguous() for _, length in wanted],
        "loss_mask": [torch.ones(length) for _, length in wanted],
    }
    tensors = {name: torch.nested.as_nested_tensor(held, layout=torch.jagged) for name, held in nested.items()}
    plain = {"temperature": 1.0, "use_dynamic_bsz": False, "micro_batch_size_per_gpu": each, "pad_token_id": 0}
    return tu.get_tensordict(tensors, {**plain, "use_remove_padding": True, **told})


def loss(model_output: Any, data: Any, dp_group: Any = None) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the negative mean log-probability; entropy, where it was computed, is only watched, as in verl's PPO."""
    return -model_output["log_probs"].values().mean(), {}


def log_probs(engine: Any, data: Any) -> list[torch.Tensor]:
    """Return the log-probabilities that the engine gives the tokens of each row, on the CPU in fp32."""
    with engine.eval_mode():
        found = engine.infer_batch(data)["model_output"]["log_probs"]
    return [row.float().cpu() for row in found.unbind()]


def train(engine: Any, data: Any) -> dict[str, float]:
    """Return the loss and the gradient norm of one update, and how far the weights moved."""
    before = _first(engine).clone()
    with engine.train_mode():
        found = engine.train_batch(data, loss)
        engine.lr_scheduler_step()
    norm = float(found["metrics"]["grad_norm"])
    moved = float((_first(engine).to(before.device) - before).abs().max())
    assert 0 < norm < float("inf"), f"the gradient norm is {norm}"
    return {"loss": sum(found["loss"]) / len(found["loss"]), "grad_norm": norm, "moved": moved}


def _first(engine: Any) -> torch.Tensor:
    """Return what this rank holds of the first parameter; offloading may put another object in its place."""
    held = next(iter(engine.module.parameters())).detach()
    return held.to_local() if hasattr(held, "to_local") else held


def reference(lengths: tuple[int, ...], **kwargs: Any) -> list[torch.Tensor]:
    """Return the log-probabilities of the same rows from the bare model in fp32, each row alone, on the CPU."""
    made = world.model(**kwargs).eval()
    found = []
    with torch.no_grad():
        for n, length in enumerate(lengths):
            row = world.ids("cpu", length, seed=n)
            logits = made(input_ids=row, use_cache=False).logits[0, :-1].float()
            found.append(logits.log_softmax(-1).gather(-1, row[0, 1:, None])[:, 0])
    return found
