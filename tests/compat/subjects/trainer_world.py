"""What the stages of the trainer share: a world of one process, a tiny Qwen2, one training step of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

HEAD = 64
"""Size of an attention head: one that flash-attn has kernels for."""


def start(device: str) -> str:
    """Make this process the only rank of a world, as verl's workers do, and return the device of its tensors."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    # Without a network a host's own name may not resolve, and gloo and NCCL look for an interface by it.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if device == "cuda":
        torch.cuda.set_device(0)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tempfile.mkdtemp()}/meeting", rank=0, world_size=1)
    return "cuda:0" if device == "cuda" else "cpu"


def config(**kwargs: Any) -> Any:
    """Return the configuration of a Qwen2 of about a million weights."""
    from transformers import Qwen2Config

    small: dict[str, Any] = {"hidden_size": 4 * HEAD, "intermediate_size": 512, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "pad_token_id": 0}
    small |= {"bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "attn_implementation": "sdpa"}
    return Qwen2Config(**{**small, **kwargs})


def model(**kwargs: Any) -> torch.nn.Module:
    """Return a tiny Qwen2 with seeded weights on the CPU, in the precision `dtype` (fp32 unless given)."""
    from transformers import Qwen2ForCausalLM

    dtype = kwargs.pop("dtype", torch.float32)
    torch.manual_seed(0)
    made: torch.nn.Module = Qwen2ForCausalLM(config(**kwargs)).to(dtype)
    # The usual spread gives logits so flat that a wrong one is hard to tell from rounding.
    torch.nn.init.normal_(made.get_output_embeddings().weight, std=0.3)
    return made


def ids(device: str, length: int = 48, rows: int = 1, seed: int = 0) -> torch.Tensor:
    """Return seeded token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 512, (rows, length), generator=generator).to(device)


def step(trained: torch.nn.Module, device: str) -> float:
    """Return the loss of one forward and backward on `device`; it is a number, and every gradient with it."""
    tokens = ids(device)
    loss = trained(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    value = float(loss.detach())
    grads = [one.grad for one in trained.parameters() if one.grad is not None]
    assert grads, "no parameter has a gradient"
    assert abs(value) < 1e6, f"the loss is {value}"
    return value


def folder(**kwargs: Any) -> Path:
    """Write the tiny Qwen2 as a checkpoint without a tokenizer; return its folder."""
    path = Path(tempfile.mkdtemp(prefix="tiny-"))
    model(**kwargs).save_pretrained(path)
    return path
