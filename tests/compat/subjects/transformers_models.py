"""Small models of transformers and what verl reads off them, one subject a word.

usage: transformers_models.py SUBJECT [FOLDER]; writes a line `MEASURED {...}`, or ends as the real thing does.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

from transformers_tiny import TEMPLATE, qwen2, say, source, tokenizer


def vision_names() -> None:
    """Measure which weights of a tiny Qwen2.5-VL would reach vLLM under names that its checkpoint does not have."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    text |= {"num_key_value_heads": 2, "vocab_size": 32, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**text, vision_config=vision))
    try:
        from verl.utils.model import convert_weight_keys
    except ImportError:
        names = list(model.state_dict())
    else:
        names = list(convert_weight_keys(model.state_dict(), model))
    say(strange=[name for name in names if "language_model" in name or name.startswith("model.visual")][:2])


def scatter() -> None:
    """Send a token through the router of a tiny Qwen3-VL-MoE with a router in fp32, as mixed precision has it."""
    import torch
    from transformers.models.qwen3_vl_moe import modeling_qwen3_vl_moe as modeling
    from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeTextConfig

    try:
        from verl.models.transformers import monkey_patch
    except ImportError:
        monkey_patch = None
    patch = getattr(monkey_patch, "patch_qwen3_vl_moe", None)
    small = {"hidden_size": 32, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
    block = modeling.Qwen3VLMoeTextSparseMoeBlock(Qwen3VLMoeTextConfig(**small)).to(torch.bfloat16)
    block.gate.float()
    forward = type(block).forward
    state = torch.zeros(1, 3, 32, dtype=torch.bfloat16)
    for weight in block.parameters():
        torch.nn.init.zeros_(weight)
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        block.gate.register_forward_pre_hook(lambda _module, inputs: (inputs[0].float(),))
        block(state)
    say(patched=patch is not None, forward=forward.__qualname__)


def ulysses() -> None:
    """Ask verl to make a tiny Qwen2 ready for Ulysses."""
    from verl.models.transformers.monkey_patch import apply_monkey_patch

    apply_monkey_patch(qwen2())
    say(patched=True)


def rope_theta() -> None:
    """Read the base of the rotary embedding off a Qwen2 the way verl's Megatron converter does."""
    config, converter = qwen2(), source("verl/models/mcore/config_converter.py")
    nodes = [node for node in ast.walk(ast.parse(converter.read_text(encoding="utf-8"))) if isinstance(node, _HOLDERS)]
    found = [value for node in nodes for name, value in _named(node) if name == "rotary_base"]
    if not found:
        raise SystemExit("UNTESTED this release of verl passes no rotary_base to Megatron")
    value, scope = found[0], {"hf_config": config}
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        _define(source("verl/utils/megatron_utils.py"), value.func.id, scope)
    say(theta=eval(compile(ast.Expression(value), str(converter), "eval"), scope))


_HOLDERS = (ast.Dict, ast.Call)


def _named(node: ast.Dict | ast.Call) -> list[tuple[str, ast.expr]]:
    if isinstance(node, ast.Dict):
        return [
            (str(key.value), value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        ]
    return [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg]


def _define(path: Path, name: str, scope: dict[str, Any]) -> None:
    """Define a function and those it calls of a module that cannot be imported here: it imports Megatron at its top."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    known: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            known[node.name] = node
        elif isinstance(node, ast.Assign):
            known |= {name.id: node for name in node.targets if isinstance(name, ast.Name)}
    wanted, seen = [name], dict[str, ast.stmt]()
    while wanted:
        asked = wanted.pop()
        if asked in known and asked not in seen:
            seen[asked] = known[asked]
            wanted += [inner.id for inner in ast.walk(known[asked]) if isinstance(inner, ast.Name)]
    body = sorted(seen.values(), key=lambda node: node.lineno)
    late = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*late, *body], []), str(path), "exec"), scope)


def mapping() -> None:
    """Look a configuration up in an auto class as one does in a dict."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    say(found=AutoModelForCausalLM._model_mapping.get(Qwen2Config).__name__)


def default_attention() -> None:
    """Measure which attention a tiny gpt-oss gets when none is asked for, and whether anybody was told."""
    import logging

    from transformers import AutoModelForCausalLM, GptOssConfig
    from transformers.utils import logging as said

    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    said.get_logger("transformers").addHandler(handler)
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"num_key_value_heads": 2, "vocab_size": 32, "head_dim": 16, "num_local_experts": 2}
    got = AutoModelForCausalLM.from_config(GptOssConfig(**small, **more)).config._attn_implementation
    usual = AutoModelForCausalLM.from_config(qwen2()).config._attn_implementation
    say(got=got, usual=usual, told=[line for line in heard if "attention" in line.lower() or "eager" in line.lower()])


def asked_attention() -> None:
    """Measure which attention a model gets whose configuration was loaded with attn_implementation="eager"."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(sys.argv[2])
    AutoModelForCausalLM.from_config(qwen2()).save_pretrained(folder)
    config = AutoConfig.from_pretrained(folder, attn_implementation="eager")
    loaded = AutoModelForCausalLM.from_pretrained(folder, config=config)
    set_late = AutoConfig.from_pretrained(folder)
    set_late.update({"attn_implementation": "eager"})
    late = AutoModelForCausalLM.from_pretrained(folder, config=set_late)
    say(asked="eager", got=loaded.config._attn_implementation, after_update=late.config._attn_implementation)


def processor_template() -> None:
    """Write a prompt as verl does where the processor has no chat template and its tokenizer has one."""
    from transformers import CLIPImageProcessor, LlavaProcessor, MllamaImageProcessor, MllamaProcessor

    made = tokenizer(extra_special_tokens={"image_token": "go"})
    processor = LlavaProcessor(CLIPImageProcessor(), made, patch_size=14, vision_feature_select_strategy="default")
    processor.chat_template = None
    try:
        from verl.workers.config import HFModelConfig
    except ImportError:
        processor.apply_chat_template([{"role": "user", "content": "w1"}], tokenize=False)
    else:
        # From 0.7.1 verl takes the processors that it knows by name and no others: of those this one needs no weights.
        named = MllamaProcessor(MllamaImageProcessor(), made)
        for number, held in enumerate((processor, named)):
            loaded = HFModelConfig(path=_without_template(held, Path(sys.argv[2], str(number))))
            if loaded.processor is not None:
                break
        else:
            raise SystemExit("UNTESTED verl takes this folder for one without a processor")
        loaded.processor.apply_chat_template([{"role": "user", "content": "w1"}], tokenize=False)
    say(written=True)


def _without_template(processor: Any, folder: Path) -> str:
    """Write a folder with a configuration and a processor, whose tokenizer alone has a chat template."""
    qwen2(architectures=["Qwen2ForCausalLM"]).save_pretrained(folder)
    processor.chat_template = None
    processor.save_pretrained(folder)
    for file in folder.glob("chat_template*"):
        file.unlink()
    stored = json.loads((folder / "tokenizer_config.json").read_text())
    stored["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(stored))
    return str(folder)


SUBJECTS = {
    "vision-names": vision_names,
    "scatter": scatter,
    "ulysses": ulysses,
    "rope-theta": rope_theta,
    "mapping": mapping,
    "default-attention": default_attention,
    "asked-attention": asked_attention,
    "processor-template": processor_template,
}

if __name__ == "__main__":
    SUBJECTS[sys.argv[1]]()
