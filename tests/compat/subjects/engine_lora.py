"""The scene of an adapter: verl's rollout with LoRA, the adapter sent as a training step sends it."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from engine_gap import Trainer
from engine_main import Scene, agree
from engine_server import Rollout
from kit.sections import section

RANK = 8
PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SPREAD = 0.1
"""The spread of the second factor: their product moves a weight by about half its own spread."""


def peft_config() -> dict[str, Any]:
    """Return what peft says of such an adapter, as verl passes it on."""
    return {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "bias": "none",
            "target_modules": list(PARTS), "use_rslora": False, "use_dora": False}  # fmt: skip


def adapter(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return the two factors of every linear weight of the layers, by peft's names."""
    draw = torch.Generator(trainer.device).manual_seed(3)
    found = {}
    for name, weight in trainer.weights().items():
        stem = name.removesuffix(".weight")
        if stem.rpartition(".")[2] in PARTS and name.endswith(".weight"):
            for factor, size in (("A", (RANK, weight.shape[1])), ("B", (weight.shape[0], RANK))):
                spread = SPREAD if factor == "B" else size[1] ** -0.5
                drawn = torch.randn(size, generator=draw, device=trainer.device) * spread
                found[f"base_model.model.{stem}.lora_{factor}.weight"] = drawn.to(weight.dtype)
    return found


@torch.no_grad()  # type: ignore[untyped-decorator]
def merge(trainer: Trainer, factors: dict[str, torch.Tensor]) -> None:
    """Add the product of the factors to the trainer's weights."""
    own = dict(trainer.model.named_parameters())
    for name, first in factors.items():
        if ".lora_A." in name:
            second = factors[name.replace(".lora_A.", ".lora_B.")]
            weight = own[name.removeprefix("base_model.model.").replace(".lora_A", "")]
            weight += (second.float() @ first.float()).to(weight.dtype)


def run(name: str, asked: argparse.Namespace) -> None:
    """Run the scene."""
    del name
    scene = Scene(asked)
    try:
        with section("lora") as out:
            scene.rollout = Rollout(scene.folder, model={"lora_rank": RANK, "lora_alpha": RANK},
                                    **scene.settings(load_format="safetensors"))  # fmt: skip
            out["seconds"] = scene.rollout.start()
            cuda = scene.cuda
            scene.trainer = Trainer(scene.folder, "cuda" if cuda else "cpu", "bfloat16" if cuda else "float32",
                                    scene.rollout.vocabulary)  # fmt: skip
            before = scene.greedy()
            out["gap_before"] = scene.gap(before)
            factors = adapter(scene.trainer)
            out["sync_seconds"] = scene.rollout.sync(factors.items(), peft_config=peft_config(), base_sync_done=True)
            found = scene.greedy()
            out["agree_with_before"] = agree(before, found)
            out["gap_without_adapter"] = scene.gap(found)
            merge(scene.trainer, factors)
            out["gap"] = scene.gap(found)
    finally:
        if scene.rollout is not None:
            scene.rollout.close()
