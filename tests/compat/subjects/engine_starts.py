"""Scenes of one start each: with expandable segments, on a card that is full, with too little of it, with graphs."""

from __future__ import annotations

import argparse
import os
from typing import Any

import engine_gpu
from engine_main import Scene
from engine_server import Rollout
from kit.sections import section


def begin(scene: Scene, out: dict[str, Any], **settings: Any) -> None:
    """Start an engine and note what it found."""
    scene.rollout = Rollout(scene.folder, **scene.settings(**settings))
    out["seconds"] = scene.rollout.start()
    out["kv_tokens"] = scene.rollout.kv_tokens()
    out["facts"] = scene.rollout.ask("stage_facts")
    out["memory"] = scene.memory()


def expandable(scene: Scene) -> None:
    """Sleep mode with the setting that is advised against running out of memory."""
    import torch

    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    # torch may have read its environment when it was imported; the engine's processes are forks of this one.
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    with section("expandable") as out:
        begin(scene, out)
        scene.sampled(scene.prompts(4, 64), 8)
        scene.rollout.sleep()
        out["asleep"] = scene.memory()


def crowded(scene: Scene) -> None:
    """Start beside another process that holds nine tenths of the card."""
    with section("crowded") as out:
        out["total"] = engine_gpu.total()
        with engine_gpu.ballast(int(out["total"] * 0.9)) as out["used"]:
            begin(scene, out)


def tight(scene: Scene) -> None:
    """Start with a share of the card that the weights alone need."""
    with section("tight") as out:
        share = round(1.0 * engine_gpu.GIB / engine_gpu.total(), 4)
        out["gpu_memory_utilization"] = share
        begin(scene, out, gpu_memory_utilization=share)


def graphs(scene: Scene) -> None:
    """Start as verl does by default, compiled and with CUDA graphs, for a few sizes."""
    with section("graphs") as out:
        sizes = {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]}
        begin(scene, out, enforce_eager=False, engine_kwargs={"compilation_config": sizes})
        found = scene.sampled(scene.prompts(scene.many, 64), 16)
        out["tokens"] = sum(len(one.tokens) for one in found)


SCENES = {"expandable": expandable, "crowded": crowded, "tight": tight, "graphs": graphs}


def run(name: str, asked: argparse.Namespace) -> None:
    """Run one of the scenes."""
    scene = Scene(asked)
    try:
        SCENES[name](scene)
    finally:
        if scene.rollout is not None:
            scene.rollout.close()
