"""Shard a tiny Qwen2 over gloo after it was built on the meta device: `device_meta.py fsdp1|fsdp2|plain HOW`.

HOW is `sound` (all is materialised, then a step runs), `buffers` (the rotary buffers stay on meta), `layers` (all but
the embedding stays there) or `module` (nothing is materialised). `plain` does not shard. One process, no GPU.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as distributed
from transformers import Qwen2Config, Qwen2ForCausalLM

wrap, how = sys.argv[1:]


def rotary(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that no checkpoint holds."""
    return {name: buffer for name, buffer in model.named_buffers() if "inv_freq" in name}


def materialise(model: torch.nn.Module) -> None:
    """Give what HOW says real memory and the values of a real model."""
    torch.manual_seed(0)
    real = Qwen2ForCausalLM(config)
    for module in model.modules():
        for name, held in module._parameters.items():
            if held is not None and (how != "layers" or isinstance(module, torch.nn.Embedding)):
                module._parameters[name] = torch.nn.Parameter(torch.empty_like(held, device="cpu"))
        for name, buffer in module._buffers.items():
            if buffer is not None and how != "buffers":
                module._buffers[name] = torch.empty_like(buffer, device="cpu")
    with torch.no_grad():
        for held, wanted in zip(model.parameters(), real.parameters(), strict=True):
            if not held.is_meta:
                held.copy_(wanted)
        if how != "buffers":
            found, values = rotary(model), rotary(real)
            assert found
            assert found.keys() == values.keys()
            for name, buffer in found.items():
                buffer.copy_(values[name])


def sharded(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model under FSDP1 or FSDP2 in a world of one process."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    distributed.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meeting", rank=0, world_size=1)
    if wrap == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        from torch.distributed._composable.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (1,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


config = Qwen2Config(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
    vocab_size=64, max_position_embeddings=64, tie_word_embeddings=False, attn_implementation="eager",
)  # fmt: skip
with torch.device("meta"):
    model = Qwen2ForCausalLM(config)
if how != "module":
    materialise(model)
if wrap != "plain":
    model = sharded(model)
    if wrap == "fsdp2":
        model.to("cpu")
ids = torch.arange(8).unsqueeze(0)
loss = model(input_ids=ids, labels=ids).loss
loss.backward()
assert torch.isfinite(loss)
print("loss:", loss.item())
