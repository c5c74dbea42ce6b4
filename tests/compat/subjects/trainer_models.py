"""Sections about models with something of their own: a critic, a vision model's fused head, linear attention."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import trainer_engine as engines
import trainer_world as world
from kit.sections import section

LENGTHS = (40, 17, 29, 33)


def critic(path: Path, device: str) -> None:
    """Make verl's critic and ask it for values."""
    with section("critic") as out:
        if _has_value_models():
            made = engines.make(path, value=True)
            with made.eval_mode():
                values = made.infer_batch(engines.batch(LENGTHS))["model_output"]["values"].values()
            kind, asked = type(made.module).__name__, made.module.config._attn_implementation
        else:
            model = _value_head(path).to(device)
            kind, asked = type(model).__name__, model.config._attn_implementation
            with torch.no_grad():
                values = model(input_ids=world.ids(device), use_cache=False).logits
        out["kind"], out["attention"] = kind, asked
        out["values"], out["finite"] = values.numel(), bool(torch.isfinite(values).all())


def _has_value_models() -> bool:
    """Return whether this release's engine makes critics; before 0.8 its old worker does, with the same function."""
    from verl.workers.config import HFModelConfig

    return "model_type" in HFModelConfig.__dataclass_fields__


def _value_head(path: Path) -> Any:
    """Return a critic as verl's worker loads it, from a configuration that asks for sdpa."""
    from transformers import AutoConfig
    from verl.utils.model import load_valuehead_model

    config = AutoConfig.from_pretrained(path, attn_implementation="sdpa")
    config.num_labels = 1
    return load_valuehead_model(str(path), torch.bfloat16, config, False)


def critic_without_flash(path: Path) -> None:
    """Load the critic where flash-attn cannot be imported; nothing after this may need it."""
    with section("critic-without-flash") as out:
        _hide("flash_attn")
        model = _value_head(path)
        out["attention"] = model.config._attn_implementation


def _hide(name: str) -> None:
    """Let Python answer for a package as for one that is not installed, and transformers look again."""
    import importlib.metadata

    from transformers.utils import import_utils

    for module in [one for one in sys.modules if one.partition(".")[0] == name]:
        del sys.modules[module]
    sys.modules[name] = None  # type: ignore[assignment]
    real = importlib.metadata.version

    def version(distribution_name: str) -> str:
        if distribution_name.replace("-", "_") == name:
            raise importlib.metadata.PackageNotFoundError(distribution_name)
        return real(distribution_name)

    importlib.metadata.version = version
    for known in vars(import_utils).values():
        if hasattr(known, "cache_clear"):
            known.cache_clear()


def _text(**kwargs: Any) -> dict[str, Any]:
    small = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    return {**small, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, **kwargs}  # fmt: skip


def _vision() -> dict[str, Any]:
    return {"depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 1, "out_hidden_size": 128,
            "patch_size": 16, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}  # fmt: skip


def _saved(kind: str, **kwargs: Any) -> Path:
    """Write a tiny model with a vision tower as a checkpoint; return its folder."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(**kwargs)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    torch.nn.init.normal_(model.lm_head.weight, std=0.3)
    path = Path(tempfile.mkdtemp(prefix="tiny-"))
    model.save_pretrained(path)
    return path


def qwen3_vl(device: str) -> None:
    """Give text to a Qwen3-VL under FSDP2, with verl's fused kernel and without."""
    text = _text(rope_scaling={"rope_type": "default", "mrope_section": [8, 12, 12], "mrope_interleaved": True})
    with section("qwen3-vl-saved") as out:
        path = _saved("Qwen3VL", text_config=text, vision_config=_vision(), tie_word_embeddings=False)
        out["folder"] = str(path)
    if "folder" not in out:
        return
    for name, fused in (("qwen3-vl", False), ("qwen3-vl-fused", True)):
        with section(name) as out, torch.no_grad(), torch.autocast(device.partition(":")[0], torch.bfloat16):
            asked = {"use_fused_kernels": fused, "fused_kernel_options": {"impl_backend": "torch"}}
            made = engines.make(path, model=asked)
            tokens = world.ids(device, 20)
            told = {"temperature": 1.0, "return_dict": True} if fused else {}
            positions = torch.arange(20, device=device).expand(4, 1, 20)
            with made.eval_mode():
                found = made.module(input_ids=tokens, attention_mask=None, position_ids=positions, use_cache=False,
                                    **told)  # fmt: skip
            out["finite"] = bool(torch.isfinite(found.log_probs if fused else found.logits).all())


def linear_attention() -> None:
    """Ask for the log-probabilities of rows of a Qwen3.5 one at a time, and all in one packed row."""
    text = _text(layer_types=["linear_attention", "full_attention"], linear_key_head_dim=32, linear_num_key_heads=2,
                 linear_value_head_dim=32, linear_num_value_heads=4,
                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                                  "mrope_section": [8, 4, 4], "mrope_interleaved": True})  # fmt: skip
    with section("qwen3.5-packing") as out:
        import transformers

        if not hasattr(transformers, "Qwen3_5Config"):
            raise RuntimeError(f"transformers {transformers.__version__} has no Qwen3.5")
        exactly = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
        path = _saved("Qwen3_5", text_config=text, vision_config=_vision(), tie_word_embeddings=False)
        made = engines.make(path, mixed_precision=exactly)
        alone, packed = (engines.log_probs(made, engines.batch(LENGTHS, each=each, planes=4))
                         for each in (1, len(LENGTHS)))  # fmt: skip
        # The last token of a row is scored against the first of the next: verl leaves it out, and so does this.
        apart = [float((a[:-1] - b[:-1]).abs().max()) for a, b in zip(alone, packed, strict=True)]
        out["first"], out["behind"] = apart[0], max(apart[1:])
        out["kernels"] = {name: _importable(name) for name in ("fla", "causal_conv1d")}


def _importable(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None
