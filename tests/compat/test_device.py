"""The family `device`: what lies on another device than the step, on CPU and meta devices, and on a GPU.

The text of a mismatch between a GPU and the CPU comes from a GPU only: those probes read the stages of the tier `gpu`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import Cell, Ended, Trial, run_python
from kit.blame import judge_own
from kit.measure import data, engine, on_both, raw_gpu, reached

SUBJECT = str(Path(__file__).parent / "subjects" / "device_meta.py")
NEEDS = ("torch>=2.4", "transformers>=4.45")


def tried(wrap: str, how: str) -> Ended:
    """Return how the tiny Qwen2 fared."""
    return run_python(SUBJECT, wrap, how, timeout=200)


@pytest.mark.tier("behave")
@pytest.mark.needs(*NEEDS)
@pytest.mark.limit(220)
@pytest.mark.parametrize("wrap", ["plain", "fsdp1", "fsdp2"])
def test_materialised_model_runs(wrap: str) -> None:
    """Built on meta and materialised whole, the model takes a step under FSDP1, FSDP2 and alone, with a finite loss."""
    ended = tried(wrap, "sound")
    assert ended.code == 0, ended.last_line
    assert "loss: " in ended.stdout


@pytest.mark.failure("device-buffers-left-on-meta")
@pytest.mark.tier("behave")
@pytest.mark.needs(*NEEDS)
@pytest.mark.limit(220)
def test_buffers_left_on_meta(trial: Trial) -> None:
    """FSDP2 cannot move a model whose rotary buffers are on meta."""
    judge_own(trial, tried("fsdp2", "buffers"))


@pytest.mark.failure("device-fsdp1-meta-without-init")
@pytest.mark.tier("behave")
@pytest.mark.needs(*NEEDS)
@pytest.mark.limit(220)
def test_fsdp1_cannot_initialise_from_meta(trial: Trial) -> None:
    """FSDP1 asks a norm that is on meta for `reset_parameters`, which it does not have."""
    judge_own(trial, tried("fsdp1", "module"))


@pytest.mark.failure("device-layers-left-on-meta")
@pytest.mark.tier("behave")
@pytest.mark.needs(*NEEDS)
@pytest.mark.limit(220)
def test_layers_left_on_meta(trial: Trial) -> None:
    """Real activations meet layers on meta."""
    judge_own(trial, tried("plain", "layers"))


MISPLACED = {
    "plain-left-on-cpu": "device-model-left-on-cpu",
    "fsdp1-left-on-cpu": "fsdp1-parameters-left-on-cpu",
    "fsdp1-sync-on-cpu": "fsdp1-sync-module-states-on-cpu",
    "fsdp2-left-on-meta": "fsdp2-parameters-left-on-meta",
    "fsdp1-late-buffer": "fsdp-buffer-registered-late",
    "fsdp2-late-buffer": "fsdp-buffer-registered-late",
    "fsdp2-offload-moved": "fsdp2-offload-policy-moved",
    "fsdp2-offload-state-dict": "fsdp2-offload-policy-moved-state-dict",
    "fsdp2-cpu-mesh": "fsdp2-mesh-on-cpu",
    "fsdp2-mesh-of-another-device": "fsdp2-mesh-of-another-device",
    "nccl-all-reduce-cpu-tensor": "nccl-tensor-on-cpu",
}
"""Section of the stage by the record of what it plants."""


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.failure(MISPLACED[one])) for one in MISPLACED])
@pytest.mark.gpus(1)
@pytest.mark.needs("torch>=2.6", "transformers>=4.48")
@pytest.mark.limit(330)
def test_misplaced(trial: Trial, name: str) -> None:
    """A model, a part of it or a tensor is not on the GPU on which the step is."""
    trial.judge(reached(raw_gpu(trial.cell), name).fault)


SOUND = (
    "sound-plain",
    "sound-fsdp1",
    "sound-fsdp2",
    "sound-fsdp2-offload",
    "sound-fsdp2-meta",
    "sound-fsdp1-late-buffer",
    "sound-fsdp2-late-buffer",
)


@pytest.mark.gpus(1)
@pytest.mark.needs("torch>=2.6", "transformers>=4.48")
@pytest.mark.limit(330)
@pytest.mark.hurts("training under FSDP")
def test_placed_well(cell: Cell) -> None:
    """Each of the same models takes its step where everything is in its place, and all come to the same loss."""
    losses = {name: data(raw_gpu(cell), name)["loss"] for name in SOUND}
    assert max(losses.values()) - min(losses.values()) < 1e-2, losses


@pytest.mark.gpus(1)
@pytest.mark.needs("torch>=2.6", "transformers>=4.48")
@pytest.mark.limit(330)
@pytest.mark.hurts("training under FSDP")
def test_what_is_moved_without_being_asked(cell: Cell) -> None:
    """FSDP2 moves parameters to its mesh, FSDP1 buffers at its first step, transformers its rotary frequencies."""
    stage = raw_gpu(cell)
    assert data(stage, "sound-fsdp2")["devices"] == ["cuda:0"]
    assert data(stage, "sound-fsdp2-offload")["devices"] == ["cpu"]
    for name in ("fsdp1-buffer-before-the-first-step", "rotary-left-on-cpu"):
        assert data(stage, name)["loss"] > 0, name


@pytest.mark.gpus(1)
@pytest.mark.needs("torch>=2.6", "transformers>=4.48")
@pytest.mark.limit(330)
@pytest.mark.hurts("collectives over gloo")
def test_gloo_and_tensors_on_a_gpu(cell: Cell) -> None:
    """Gloo is no cause of `Expected all tensors to be on the same device`: it reduces a tensor on the GPU."""
    assert data(raw_gpu(cell), "gloo-all-reduce-gpu-tensor")["values"] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["fsdp", "fsdp2", "fsdp-offload", "fsdp2-offload", "fsdp2-policy"])
@pytest.mark.gpus(1)
@pytest.mark.needs("verl>=0.7.0", "transformers>=4.48")
@pytest.mark.limit(450)
@pytest.mark.hurts("training with verl's FSDP engine", default_path=True)
def test_engine_steps(cell: Cell, name: str) -> None:
    """Verl's engine gives rows the log-probabilities that the bare model gives each alone, and then learns."""
    found = data(engine(cell, "cuda"), f"step-{name}")
    assert found["gap"] < 0.5, found
    assert found["moved"] > 1e-5, found


@pytest.mark.failure("fsdp-offloaded-module-called")
@pytest.mark.parametrize("name", ["fsdp-fp32", "fsdp2-backward"])
@pytest.mark.gpus(1)
@pytest.mark.needs("verl>=0.7.0", "transformers>=4.48")
@pytest.mark.limit(450)
def test_offloaded_module_called(trial: Trial, name: str) -> None:
    """A module whose parameters verl has moved to the CPU is called past verl's engine."""
    trial.judge(reached(engine(trial.cell, "cuda"), f"offloaded-{name}").fault)


@pytest.mark.parametrize("name", ["fsdp-backward", "fsdp2"])
@pytest.mark.gpus(1)
@pytest.mark.needs("verl>=0.7.0", "transformers>=4.48")
@pytest.mark.limit(450)
@pytest.mark.hurts("own code around verl's engine")
def test_offloaded_module_that_runs_nevertheless(cell: Cell, name: str) -> None:
    """In bf16 FSDP1 makes a copy on the GPU, for backward too, and FSDP2 one for forward: nobody is told."""
    found = data(engine(cell, "cuda"), f"offloaded-{name}")
    assert found.get("devices", ["cpu"]) == ["cpu"], found


@pytest.mark.parametrize(
    ("record", "name"),
    [
        pytest.param(record, name, marks=pytest.mark.failure(record))
        for record, name in (
            ("fsdp2-offload-policy-state-dict-storage", "policy-sync"),
            ("fsdp2-offload-policy-checkpoint", "policy-checkpoint"),
        )
    ],
)
@pytest.mark.gpus(1)
@pytest.mark.needs("verl>=0.7.0", "transformers>=4.48")
@pytest.mark.limit(450)
def test_offload_policy(trial: Trial, record: str, name: str) -> None:
    """Weights are sent and saved where FSDP2's own policy keeps the parameters on the CPU; without it both work."""
    stage = engine(trial.cell, "cuda")
    assert data(stage, name.replace("policy", "home")), record
    trial.judge(reached(stage, name).fault)


@pytest.mark.failure("grpo-groupwise-device-mismatch")
@pytest.mark.gpus(1)
@pytest.mark.needs("verl>=0.7.0")
@pytest.mark.limit(450)
def test_grpo_where_a_gpu_is_visible(trial: Trial) -> None:
    """Verl's vectorised GRPO takes scores on the CPU in a process that sees a GPU."""
    trial.judge(reached(engine(trial.cell, "cuda"), "grpo-vectorized").fault)


FUSED = {"qwen3vl-fused-loss-dtensor-lm-head": "qwen3-vl-fused", "fused-kernels-sharded-lm-head": "fused-fsdp2"}


@pytest.mark.parametrize("record", [pytest.param(one, marks=pytest.mark.failure(one)) for one in FUSED])
@pytest.mark.parametrize("device", on_both())
@pytest.mark.needs("verl>=0.7.0", "transformers>=4.57")
@pytest.mark.limit(450)
def test_fused_kernel_under_fsdp2(trial: Trial, record: str, device: str) -> None:
    """Verl's fused kernel is given a head that FSDP2 has sharded; with tied embeddings, or unfused, it works."""
    stage = engine(trial.cell, device)
    assert data(stage, "qwen3-vl" if FUSED[record] == "qwen3-vl-fused" else "fused-fsdp2-tied")
    trial.judge(reached(stage, FUSED[record]).fault)
