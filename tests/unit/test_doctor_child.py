"""The doctor's child that imports a model as vLLM's own inspection does."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from matrix.doctor.child import inspect_model, model_module
from matrix.doctor.environment import Environment, Module
from matrix.errors import ToolError, UsageError
from tests.unit.doctor_case import AXES, CLASH, environment

REGISTRY = '_MODELS = {"Qwen2ForCausalLM": ("qwen2", "Qwen2"), "Far": ("else.where", "Far"), "Odd": (1, 2), **{}}\n'


@pytest.fixture
def stack(tmp_path: Path) -> Environment:
    models = tmp_path / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    for folder in (tmp_path / "vllm", tmp_path / "vllm" / "model_executor", models):
        (folder / "__init__.py").write_text("")
    (models / "registry.py").write_text(REGISTRY)
    (models / "good.py").write_text("")
    (models / "qwen2.py").write_text(
        "raise ValueError(\"'aimv2' is already used by a Transformers config, pick another name.\")\n"
    )
    held = environment(
        tmp_path,
        {"vllm": "0.9.2", "transformers": "4.57.6"},
        modules={"vllm": Module(name="vllm", origin=tmp_path / "vllm" / "__init__.py", found=())},
    )
    return dataclasses.replace(held, executable=Path(sys.executable))


def test_the_module_of_an_architecture(stack: Environment, tmp_path: Path) -> None:
    assert model_module(stack, "Qwen2ForCausalLM") == ("vllm.model_executor.models.qwen2", ("Qwen2",))
    assert model_module(stack, "Far") == ("else.where", ("Far",))
    assert model_module(stack, "vllm.model_executor.models.good") == ("vllm.model_executor.models.good", ())
    with pytest.raises(UsageError, match="Qwen2ForCausalLM"):
        model_module(stack, "Qwen2ForCausalML")
    with pytest.raises(UsageError, match="There is no vllm"):
        model_module(environment(tmp_path), "x")
    (tmp_path / "vllm" / "model_executor" / "models" / "registry.py").write_text("(")
    with pytest.raises(UsageError, match="has no model"):
        model_module(stack, "Qwen2ForCausalLM")


def test_the_child_s_own_error_is_shown(stack: Environment) -> None:
    found = inspect_model(stack, "Qwen2ForCausalLM", (CLASH,), AXES)
    assert not found.works
    assert found.diagnosis.root is not None
    assert found.diagnosis.root.failure is CLASH
    assert inspect_model(stack, "good", (CLASH,), AXES).works
    with pytest.raises(ToolError, match="cannot be run"):
        inspect_model(dataclasses.replace(stack, executable=Path("/none")), "good", (), AXES)


def test_a_child_that_hangs_is_stopped(stack: Environment, tmp_path: Path) -> None:
    (tmp_path / "vllm" / "model_executor" / "models" / "good.py").write_text("import time\ntime.sleep(60)\n")
    found = inspect_model(stack, "good", (CLASH,), AXES, timeout_s=1.0)
    assert (found.code, found.works) == (None, False)
