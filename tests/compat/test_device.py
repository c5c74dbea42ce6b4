"""The family `device`: what of a device mismatch can be had without a GPU, on CPU and meta devices.

The exact text of two GPUs, or of a GPU and the CPU, does not come from these devices; records of it stay unprobed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import Ended, Trial, run_python
from kit.blame import judge_own

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
