"""The paths to flash attention in transformers and verl, walked on a CPU with the kernel itself left out.

usage: attention_paths.py SUBJECT [FOLDER]; writes a line `MEASURED {...}`, or ends as the real thing does.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

from transformers_tiny import qwen2, say, source, tokenizer, version


def _kernel(query: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Stand where the GPU kernel is called: what comes before it is what is looked at."""
    return query


def sinks() -> None:
    """Call the flash-attention path as a model without attention sinks does."""
    import torch
    from transformers.integrations import flash_attention

    flash_attention._flash_attention_forward = _kernel
    module = torch.nn.Module()
    module.is_causal, module.config = True, qwen2(attn_implementation="flash_attention_2")
    state = torch.zeros(1, 2, 3, 16, dtype=torch.bfloat16)
    flash_attention.flash_attention_forward(module, state, state, state, None)
    say(passed=True)


def vision_causal() -> None:
    """Call the flash-attention path as the vision tower of Qwen2.5-VL does."""
    import torch
    from transformers.integrations import flash_attention
    from transformers.models.qwen2_5_vl import configuration_qwen2_5_vl as configuration
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as modeling

    config = configuration.Qwen2_5_VLVisionConfig(depth=1, hidden_size=32, intermediate_size=32, num_heads=2)
    config._attn_implementation = "flash_attention_2"
    flash_attention._flash_attention_forward = _kernel
    module = modeling.Qwen2_5_VLVisionAttention(config)
    state = torch.zeros(1, 2, 3, 16, dtype=torch.bfloat16)
    flash_attention.flash_attention_forward(module, state, state, state, None, is_causal=False)
    say(passed=True)


def top_left() -> None:
    """Read off a Qwen2.5-VL attention layer what verl's own forward function reads off it (`self.…mask`)."""
    from transformers.models.qwen2_5_vl import configuration_qwen2_5_vl as configuration
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as modeling

    small: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    small |= {"num_attention_heads": 2}
    small |= {"num_key_value_heads": 2, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    whole = configuration.Qwen2_5_VLConfig(**small)
    layer_class = getattr(modeling, "Qwen2_5_VLFlashAttention2", modeling.Qwen2_5_VLAttention)
    layer = layer_class(getattr(whole, "text_config", whole), layer_idx=0)
    path = source("verl/models/transformers/qwen2_vl.py")
    wanted = "_flash_attn_uses_top_left_mask"
    reads = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute) and n.attr == wanted]
    for node in reads:
        eval(compile(ast.Expression(node), str(path), "eval"), {"self": layer})
    say(reads=len(reads))


def unpad() -> None:
    """Unpack what flash-attn's `unpad_input` returns into as many names as verl's code has for it."""
    import torch

    try:
        from flash_attn.bert_padding import unpad_input
    except ImportError as error:
        raise SystemExit(f"UNTESTED flash_attn does not load here: {error}") from None

    found = unpad_input(torch.zeros(1, 3, 1), torch.ones(1, 3, dtype=torch.int32))
    root = source("verl/__init__.py").parent
    tried = 0
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "unpad_input(" in text else ():
            if not isinstance(node, ast.Assign) or "unpad_input(" not in ast.unparse(node.value).split("[")[0]:
                continue
            if isinstance(node.targets[0], ast.Tuple) and ast.unparse(node.value).startswith("unpad_input("):
                names = ast.Assign(node.targets, ast.Name("found", ast.Load()))
                tried += 1
                module = ast.fix_missing_locations(ast.Module([names], []))
                exec(compile(module, str(path), "exec"), {"found": found})
    say(tried=tried, returned=len(found))


def padding() -> None:
    """Take the padding out of a batch as verl's actor does on a machine with a CUDA device."""
    import torch
    import verl.utils.device as device

    device.is_cuda_available = True
    try:
        from verl.utils.attention_utils import unpad_input
    except ModuleNotFoundError as error:
        if error.name != "verl.utils.attention_utils":
            raise
        path = source("verl/workers/actor/dp_actor.py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "flash_attn.bert_padding":
                exec(compile(ast.Module([node], []), str(path), "exec"), {})
        say(passed=True)
        return
    rows = unpad_input(torch.zeros(1, 3, 1), torch.tensor([[1, 1, 0]], dtype=torch.int32))
    say(rows=rows[0].shape[0])


def critic() -> None:
    """Load a critic from a tiny Qwen2 whose configuration asks for eager attention, as verl's worker does."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from verl.utils.model import load_valuehead_model

    folder = Path(sys.argv[2])
    AutoModelForCausalLM.from_config(qwen2()).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    config = AutoConfig.from_pretrained(folder, attn_implementation="eager")
    config.num_labels = 1
    model = load_valuehead_model(str(folder), torch.bfloat16, config, False)
    say(attention=model.config._attn_implementation, kind=type(model).__name__)


def flash_asked() -> None:
    """Make a tiny Qwen2 with verl's default attention."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(qwen2(), attn_implementation="flash_attention_2")
    say(got=model.config._attn_implementation, transformers=version("transformers"))


SUBJECTS = {
    "sinks": sinks,
    "vision-causal": vision_causal,
    "top-left": top_left,
    "unpad": unpad,
    "padding": padding,
    "critic": critic,
    "flash-asked": flash_asked,
}

if __name__ == "__main__":
    SUBJECTS[sys.argv[1]]()
