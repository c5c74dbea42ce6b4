"""Wrap models with FSDP as verl does, on one process without a GPU.

usage: transformers_wrap.py policy MODEL-CLASS | fully-shard
"""

from __future__ import annotations

import sys
import tempfile

from transformers_tiny import qwen2, say


def policy() -> None:
    """Ask verl for the wrap policy of a tiny Qwen3.5."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
    from verl.utils.fsdp_utils import get_fsdp_wrap_policy

    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
    linear = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    config = Qwen3_5TextConfig(**small, **linear, num_key_value_heads=2, vocab_size=32, head_dim=16)
    model = Qwen3_5ForCausalLM(config)
    named, present = set(model._no_split_modules or ()), {type(module).__name__ for module in model.modules()}
    print("lists", sorted(named), "has", sorted(named & present))
    get_fsdp_wrap_policy(model)
    say(missing=sorted(named - present))


def fully_shard() -> None:
    """Shard a tiny critic with FSDP2 over one process; verl before 0.6 has nothing to put in its way."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard as shard
    from transformers import Qwen2ForTokenClassification

    try:
        from verl.utils import fsdp_utils  # verl 0.6 and later put the base class right when this is imported
    except ImportError:
        fsdp_utils = None
    with tempfile.NamedTemporaryFile() as store:
        torch.distributed.init_process_group("gloo", init_method=f"file://{store.name}.d", rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))
        model = Qwen2ForTokenClassification(qwen2(num_labels=1))
        patch = getattr(fsdp_utils, "maybe_patch_fsdp_module", None)
        if patch is None:
            shard(model, mesh=mesh)
        else:
            with patch(model):
                shard(model, mesh=mesh)
        torch.distributed.destroy_process_group()
    say(became=type(model).__name__, bases=[base.__name__ for base in type(model).__mro__])


{"policy": policy, "fully-shard": fully_shard}[sys.argv[1]]()
