"""Family `attention`: flash-attn that does not load, is not there or is asked for whatever the configuration says."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import Cell, Trial, run_python
from kit.blame import judge_own
from kit.measure import data, engine, raw_gpu, reached, started


def _without(trial: Trial, distribution: str) -> None:
    """Skip where a distribution is installed whose absence the failure is about."""
    version = trial.cell.version(distribution)
    if version is not None:
        pytest.skip(f"{distribution} {version} is installed; the failure is about its absence")


@pytest.mark.failure("tf560-s-aux-none")
@pytest.mark.tier("behave")
@pytest.mark.needs("transformers>=4.53", "torch")
@pytest.mark.limit(300)
def test_attention_sinks(trial: Trial) -> None:
    """The flash-attention path of transformers takes a model without attention sinks."""
    trial.judge(started("attention_paths", "sinks"))


@pytest.mark.failure("tf540-missing-flash-210-helper")
@pytest.mark.needs("verl>=0.5.0", "transformers", "torch")
@pytest.mark.limit(300)
def test_flash_helper(trial: Trial) -> None:
    """Verl's import of the helper that says which flash-attn there is."""
    name = "is_flash_attn_greater_or_equal_2_10"
    trial.judge(started("transformers_statement", "verl/models/transformers/qwen2_vl.py", name))


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(record, marks=pytest.mark.failure(record))
        for record in (
            "flash-attn-c10-cuda-check-symbol",
            "flash-attn-of-torch210-on-older",
            "flash-attn-cxx11-abi-torch27",
        )
    ],
)
@pytest.mark.needs("flash-attn", "torch")
def test_flash_attn_symbols(trial: Trial, record: str) -> None:
    """What flash-attn's extension wants of torch is defined there; of the failures the one that shows is judged."""
    ended = started("attention_symbols", "flash_attn", "flash_attn_2_cuda*.so")
    if ended.code == 0 and trial.record.applies == "yes":
        pytest.skip("this flash-attn was built for this torch; the failure is about one built for another")
    if ended.code != 0 and not trial.record.matches(ended.text):
        pytest.skip(f"other symbols are missing: {ended.last_line}")
    trial.judge(ended)


@pytest.mark.failure("flash-attn-newer-glibc")
@pytest.mark.needs("flash-attn", "torch")
@pytest.mark.limit(300)
def test_flash_attn_glibc(trial: Trial) -> None:
    """The loader takes flash-attn's extension as far as this host's C library is concerned."""
    ended = run_python("-c", "import torch, flash_attn_2_cuda", timeout=250)
    if not trial.record.matches(ended.text):
        pytest.skip("its extension asks for no newer glibc than this host has; the failure is about one that does")
    trial.judge(ended)


VLLM_EXTENSIONS = (
    "vllm-extension-torch26-on-newer",
    "vllm-extension-torch27-on-older",
    "vllm-extension-torch27-on-newer",
    "vllm-extension-torch28-on-older",
)


@pytest.mark.parametrize("record", [pytest.param(name, marks=pytest.mark.failure(name)) for name in VLLM_EXTENSIONS])
@pytest.mark.parametrize("extension", ["_C.abi3.so", "vllm_flash_attn/_vllm_fa2_C.abi3.so"])
@pytest.mark.needs("vllm>=0.7.0,<0.11.1", "torch")
def test_vllm_extension(trial: Trial, record: str, extension: str) -> None:
    """What vLLM's own extensions want of torch is defined there."""
    ended = started("attention_symbols", "vllm", extension)
    others = [name for name in VLLM_EXTENSIONS if trial.cell.records[name].applies == "yes"]
    if ended.code != 0 and trial.record.applies == "no" and others:
        pytest.skip(f"{', '.join(others)} is met here: {ended.last_line[:200]}")
    trial.judge(ended)


@pytest.mark.failure("verl-flash-attn-undeclared")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.4.0", "torch", "tensordict")
@pytest.mark.limit(300)
def test_flash_attn_undeclared(trial: Trial) -> None:
    """Verl takes padding out of a batch without a package that its metadata do not ask for."""
    _without(trial, "flash-attn")
    asked = [line for line in importlib.metadata.requires("verl") or [] if line.startswith("flash-attn")]
    assert all("extra ==" in line for line in asked), asked
    trial.judge(started("attention_paths", "padding"))


@pytest.mark.failure("flash-attention-2-not-installed")
@pytest.mark.tier("behave")
@pytest.mark.needs("transformers>=4.48", "torch")
@pytest.mark.limit(300)
def test_flash_asked(trial: Trial) -> None:
    """A model is made with the attention that verl asks for by default."""
    _without(trial, "flash-attn")
    judge_own(trial, started("attention_paths", "flash-asked"))


@pytest.mark.failure("verl-critic-flash-attention-hidden")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.4.1", "transformers", "torch", "tensordict")
@pytest.mark.limit(300)
def test_critic(trial: Trial, tmp_path: Path) -> None:
    """Verl loads a critic whose configuration asks for eager attention."""
    _without(trial, "flash-attn")
    ended = started("attention_paths", "critic", str(tmp_path))
    other = trial.cell.records["tf5-automodelforvision2seq-removed"]
    if other.applies == "yes" and ended.code != 0 and other.matches(ended.text):
        pytest.skip(f"verl does not import here: {other.id}")
    trial.judge(ended)


@pytest.mark.failure("flash-attn-4-overwrites-flash-attn-2")
@pytest.mark.needs("flash-attn", "flash-attn-4")
def test_shared_files(trial: Trial) -> None:
    """No file belongs to both flash-attn and flash-attn-4."""
    owned = [
        {str(file) for file in importlib.metadata.files(name) or [] if file.suffix == ".py"}
        for name in ("flash-attn", "flash-attn-4")
    ]
    shared = sorted(owned[0] & owned[1])
    trial.observed(bool(shared), f"{len(shared)} files belong to both, {shared[:2]}", shared=len(shared))


@pytest.mark.failure("flash-attn27-unpad-five-values")
@pytest.mark.tier("behave")
@pytest.mark.needs("flash-attn", "verl", "torch")
@pytest.mark.limit(300)
def test_unpad_values(trial: Trial) -> None:
    """Verl has a name for each value that flash-attn's `unpad_input` returns."""
    trial.judge(started("attention_paths", "unpad"))


@pytest.mark.failure("tf453-is-causal-qwen25vl")
@pytest.mark.tier("behave")
@pytest.mark.needs("transformers>=4.53", "torch")
@pytest.mark.limit(300)
def test_vision_causal(trial: Trial) -> None:
    """The vision tower of Qwen2.5-VL has what the flash-attention path reads off it."""
    if trial.cell.version("transformers") == "5.6.0":
        pytest.skip("transformers 5.6.0 fails before that: tf560-s-aux-none")
    judge_own(trial, started("attention_paths", "vision-causal"))


@pytest.mark.failure("tf453-top-left-mask-attr")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.4.0", "transformers>=4.50", "torch")
@pytest.mark.limit(300)
def test_top_left_mask(trial: Trial) -> None:
    """What verl's forward function for Qwen2.5-VL reads off the layer is there."""
    trial.judge(started("attention_paths", "top-left"))


@pytest.mark.failure("verl-critic-flash-attention-hidden")
@pytest.mark.gpus(1)
@pytest.mark.needs("verl>=0.7.0", "transformers>=4.48")
@pytest.mark.limit(450)
def test_critic_on_a_gpu(trial: Trial) -> None:
    """Verl loads a critic that is to use sdpa, beside a GPU, in a process that cannot import flash-attn."""
    trial.judge(reached(engine(trial.cell, "cuda"), "critic-without-flash").fault)


@pytest.mark.gpus(1)
@pytest.mark.needs("verl>=0.7.0", "flash-attn", "transformers>=4.48")
@pytest.mark.limit(450)
@pytest.mark.hurts("critics", default_path=True)
def test_critic_with_flash_attn(cell: Cell) -> None:
    """With flash-attn the critic gives every token a finite value, and is on flash attention though sdpa was asked."""
    found = data(engine(cell, "cuda"), "critic")
    assert found["finite"], found
    assert found["attention"] == "flash_attention_2", found


@pytest.mark.parametrize("kernel", ["flash", "sdpa"])
@pytest.mark.gpus(1, capability="8.0")
@pytest.mark.needs("torch>=2.6", "transformers>=4.48")
@pytest.mark.limit(330)
@pytest.mark.hurts("attention in the trainer", default_path=True)
def test_kernel_against_fp32(cell: Cell, kernel: str, record_property: Callable[[str, object], None]) -> None:
    """A causal bf16 kernel, forward and backward, is as near to plain products in fp32 as bf16 allows."""
    if kernel == "flash" and cell.version("flash-attn") is None:
        pytest.skip("flash-attn is not installed in this cell")
    found = data(raw_gpu(cell), f"{kernel}-kernel")
    for head in ("64", "128"):
        record_property(f"head_{head}", found[head])
        assert found[head]["forward"] < 5e-3, found
        assert found[head]["backward"] < 2e-2, found


@pytest.mark.gpus(1, capability="8.0")
@pytest.mark.needs("torch>=2.6", "flash-attn", "transformers>=4.48")
@pytest.mark.limit(330)
@pytest.mark.hurts("packed sequences under flash attention", default_path=True)
def test_packed_under_flash_attn(cell: Cell, record_property: Callable[[str, object], None]) -> None:
    """Neither the kernel nor a model on it lets the second of two packed sequences read the first."""
    kernel = data(raw_gpu(cell), "flash-varlen")
    model = data(raw_gpu(cell), "packed-flash_attention_2")
    record_property("kernel", kernel)
    record_property("model", model)
    assert kernel["crossing"] > 0.1, f"a crossing would not be seen: {kernel}"
    assert kernel["error"] < 5e-3, kernel
    assert model["none"] < 0.05, model
