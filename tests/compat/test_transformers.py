"""Family `transformers`: names, defaults and layouts that moved between releases, with the verl that relies on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit import Ended, Trial, run_python
from kit.blame import judge_own, skip_hidden
from kit.measure import started
from packaging.version import Version


def _measured(ended: Ended) -> dict[str, Any]:
    """Return what a subject measured; one that did not get so far is red with its own last line."""
    lines = [line for line in ended.stdout.splitlines() if line.startswith("MEASURED ")]
    assert lines, ended.last_line or ended.fault
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("MEASURED "))
    return found


@pytest.mark.failure("tf5-automodelforvision2seq-removed")
@pytest.mark.needs("verl>=0.3.0", "transformers")
@pytest.mark.limit(300)
def test_vision_auto_class(trial: Trial) -> None:
    """Verl's own import of the vision auto class: the worker makes it up to 0.5, its model module from 0.6 on."""
    old = Version(str(trial.cell.version("verl"))) < Version("0.6")
    file = "verl/workers/fsdp_workers.py" if old else "verl/utils/model.py"
    trial.judge(started("transformers_statement", file, "AutoModelForVision2Seq"))


@pytest.mark.failure("tf5-chat-template-returns-dict")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.4.0", "transformers", "datasets", "torch")
@pytest.mark.limit(300)
def test_prompt_filter(trial: Trial, tmp_path: Path) -> None:
    """A prompt of 41 tokens must not pass a filter of 10."""
    found = _measured(skip_hidden(trial, started("transformers_prompts", str(tmp_path))))
    trial.observed(found["rows"] != 1, f"{found['rows']} of 2 prompts pass; one is too long", **found)


@pytest.mark.failure("tf523-vl-output-classes-removed")
@pytest.mark.needs("verl>=0.5.0", "transformers>=4.50")
@pytest.mark.limit(300)
def test_vision_output_classes(trial: Trial) -> None:
    """Verl's import of the output class of Qwen2-VL, which `multiturn_sft_dataset` needs from 0.7 on."""
    name = "Qwen2VLCausalLMOutputWithPast"
    trial.judge(started("transformers_statement", "verl/models/transformers/qwen2_vl.py", name))


@pytest.mark.failure("tf5-packed-moe-experts")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.4.0", "transformers>=4.51", "torch")
@pytest.mark.limit(300)
def test_packed_experts(trial: Trial) -> None:
    """The names of a Qwen3-MoE's experts after verl's conversion, which the rollout engine is given."""
    found = _measured(skip_hidden(trial, started("transformers_experts")))
    trial.observed(bool(found["packed"]), f"{found['experts']} tensors for 4 experts, first {found['first']}", **found)


@pytest.mark.failure("tf5-tied-weights-both-keys")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.4.1", "transformers", "torch", "safetensors")
@pytest.mark.limit(300)
def test_tied_weights(trial: Trial, tmp_path: Path) -> None:
    """A tied model that verl's merger saved is still tied when it is loaded again."""
    ended = skip_hidden(trial, started("transformers_tied", str(tmp_path)))
    found = _measured(ended)
    trial.observed(not found["tied"], f"both keys stored: {found['both_stored']}, tied again: {found['tied']}", **found)


@pytest.mark.failure("tf52-no-split-modules-missing-class")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.4.0", "transformers>=5.2", "torch")
@pytest.mark.limit(300)
def test_wrap_policy(trial: Trial) -> None:
    """Verl's FSDP wrap policy for a tiny text-only Qwen3.5."""
    trial.judge(skip_hidden(trial, started("transformers_wrap", "policy")))


@pytest.mark.failure("tf-lazyautomapping-get-default")
@pytest.mark.needs("transformers", "torch")
@pytest.mark.limit(300)
def test_auto_mapping(trial: Trial) -> None:
    """The mapping of an auto class, asked as a dict is."""
    trial.judge(started("transformers_models", "mapping"))


@pytest.mark.failure("tf454-fsdp2-abc-layout")
@pytest.mark.tier("behave")
@pytest.mark.needs("transformers>=4.51", "torch>=2.6")
@pytest.mark.limit(300)
def test_fully_shard_critic(trial: Trial) -> None:
    """FSDP2 over one gloo process takes a token-classification critic."""
    judge_own(trial, started("transformers_wrap", "fully-shard"))


@pytest.mark.failure("tf452-qwen2vl-key-rename")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.3.0,<0.9", "transformers>=4.50,<5", "torch")
@pytest.mark.limit(300)
def test_vision_weight_names(trial: Trial) -> None:
    """The names under which verl hands a Qwen2.5-VL's weights to vLLM are those of its checkpoint."""
    found = _measured(started("transformers_models", "vision-names"))
    trial.observed(bool(found["strange"]), f"names that no checkpoint has: {found['strange']}", **found)


@pytest.mark.failure("tf457-qwen3vlmoe-scatter-dtype")
@pytest.mark.tier("behave")
@pytest.mark.needs("transformers>=4.57,<5", "torch")
@pytest.mark.limit(300)
def test_router_scatter(trial: Trial) -> None:
    """The router of a Qwen3-VL-MoE takes its weights in bf16 with logits in fp32."""
    trial.judge(started("transformers_models", "scatter"))


@pytest.mark.failure("verl-ulysses-transformers-assert")
@pytest.mark.needs("verl>=0.2,<0.3", "transformers", "torch")
@pytest.mark.limit(300)
def test_ulysses_versions(trial: Trial) -> None:
    """Verl 0.2's patch for Ulysses takes the installed transformers."""
    ended = started("transformers_models", "ulysses")
    other = trial.cell.records["tensordict-lt-062-forkingpickler"]
    if other.applies == "yes" and ended.code != 0 and other.matches(ended.text):
        pytest.skip(f"verl does not import here: {other.id}")
    trial.judge(ended)


@pytest.mark.failure("processor-without-chat-template")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.4.0", "transformers>=4.51", "torch", "pillow")
@pytest.mark.limit(300)
def test_processor_template(trial: Trial, tmp_path: Path) -> None:
    """A processor without a chat template, whose tokenizer has one, still writes a prompt."""
    trial.judge(skip_hidden(trial, started("transformers_models", "processor-template", str(tmp_path))))


@pytest.mark.failure("tf-hub-kernels-015-revision")
@pytest.mark.needs("transformers>=5", "kernels", "torch")
@pytest.mark.limit(300)
def test_kernels_table(trial: Trial) -> None:
    """The table of hub kernels of transformers is made with the installed `kernels`."""
    trial.judge(run_python("-c", "import transformers.integrations.hub_kernels", timeout=250))


@pytest.mark.failure("tf454-losskwargs-removed")
@pytest.mark.needs("transformers", "torch")
@pytest.mark.limit(300)
def test_loss_kwargs(trial: Trial) -> None:
    """The name that modelling files of checkpoints of spring 2025 import."""
    trial.judge(run_python("-c", "from transformers.utils import LossKwargs", timeout=250))


@pytest.mark.failure("tf5-cache-classes-removed")
@pytest.mark.needs("transformers>=4.47", "torch")
@pytest.mark.limit(300)
@pytest.mark.tier("import")
def test_cache_classes(trial: Trial) -> None:
    """The cache classes that modelling files of checkpoints import."""
    code = "from transformers.cache_utils import HybridCache, SlidingWindowCache"
    trial.judge(run_python("-c", code, timeout=250))


@pytest.mark.failure("hf-cli-removed")
@pytest.mark.tier("behave")
@pytest.mark.needs("huggingface-hub")
def test_huggingface_cli(trial: Trial) -> None:
    """The command that verl's examples of up to 0.7 call does something."""
    code = (
        "import importlib.metadata as m, sys\n"
        "points = m.distribution('huggingface-hub').entry_points\n"
        "(point,) = [p for p in points if p.name == 'huggingface-cli'] or [None]\n"
        "if point is None: sys.exit('huggingface-cli: command not found')\n"
        "sys.argv = ['huggingface-cli', 'download', '--help']\n"
        "sys.exit(point.load()())"
    )
    ended = run_python("-c", code)
    refused = "no longer" in ended.text or "not found" in ended.text
    trial.judge(ended.text if refused else ended)


@pytest.mark.failure("tf5-rope-theta-moved")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.4.0", "transformers", "torch")
@pytest.mark.limit(300)
def test_rope_theta(trial: Trial) -> None:
    """The expression by which verl's Megatron converter reads the rotary base, on a Qwen2 of this transformers."""
    trial.judge(started("transformers_models", "rope-theta"))


@pytest.mark.failure("tf-default-attention-eager")
@pytest.mark.tier("behave")
@pytest.mark.needs("transformers>=4.55", "torch")
@pytest.mark.limit(300)
def test_default_attention(trial: Trial) -> None:
    """A model without sdpa gets eager attention where no implementation is asked for, and nobody is told."""
    found = _measured(skip_hidden(trial, started("transformers_models", "default-attention")))
    silent = found["got"] == "eager" and found["usual"] != "eager" and not found["told"]
    trial.observed(silent, f"gpt-oss gets {found['got']}, Qwen2 {found['usual']}; said: {found['told']}", **found)


@pytest.mark.failure("tf-attn-implementation-as-attribute")
@pytest.mark.tier("behave")
@pytest.mark.needs("transformers>=4.48", "torch")
@pytest.mark.limit(300)
def test_attention_as_attribute(trial: Trial, tmp_path: Path) -> None:
    """`attn_implementation` put into a loaded configuration, as verl's override_config does it, is obeyed."""
    found = _measured(skip_hidden(trial, started("transformers_models", "asked-attention", str(tmp_path))))
    assert found["got"] == "eager", found
    trial.observed(found["after_update"] != "eager", f"asked for eager, got {found['after_update']}", **found)


@pytest.mark.failure("tf4-huggingface-hub-1")
@pytest.mark.needs("transformers", "huggingface-hub")
@pytest.mark.limit(300)
def test_hub_version(trial: Trial) -> None:
    """Transformers takes the installed huggingface-hub."""
    trial.judge(run_python("-c", "import transformers.dependency_versions_check", timeout=250))
