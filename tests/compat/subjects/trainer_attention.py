"""Sections about attention and precision: kernels against fp32, packed sequences, log-probabilities, a convolution."""

from __future__ import annotations

import time
from typing import Any

import torch
import trainer_world as world
from kit.sections import section

LENGTHS = (700, 324)
"""Tokens of the two sequences that are packed into one row."""


def _relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of the difference over the norm of what is wanted."""
    return float((got.float() - wanted.float()).norm() / wanted.float().norm())


def _reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return causal attention of (batch, length, heads, head) tensors, in their own precision, by plain products."""
    groups = q.shape[2] // k.shape[2]
    q, k, v = (one.transpose(1, 2) for one in (q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    below = torch.ones(q.shape[-2], k.shape[-2], device=q.device, dtype=torch.bool).tril()
    return (scores.masked_fill(~below, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def _errors(kernel: Any, device: str, head: int) -> dict[str, float]:
    """Return the relative errors of a causal bf16 kernel, forward and backward, against plain fp32 products."""
    torch.manual_seed(head)
    shapes = ((2, 512, 8, head), (2, 512, 4, head), (2, 512, 4, head))
    given = [torch.randn(shape, device=device).bfloat16() for shape in shapes]
    exact = [one.float().requires_grad_() for one in given]
    rough = [one.clone().requires_grad_() for one in given]
    wanted, got = _reference(*exact), kernel(*rough)
    towards = torch.randn_like(wanted)
    wanted.backward(towards)
    got.backward(towards.bfloat16())
    backward = [_relative(a.grad, b.grad) for a, b in zip(rough, exact, strict=True)]
    return {"forward": _relative(got, wanted), "backward": max(backward)}


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def kernels(device: str) -> None:
    """Compare the kernels of flash-attn and of torch with plain products in fp32."""
    with section("sdpa-kernel") as out:
        out |= {str(head): _errors(_sdpa, device, head) for head in (64, 128)}
    with section("flash-kernel") as out:
        import flash_attn
        from flash_attn import flash_attn_func

        out["version"] = flash_attn.__version__
        out |= {str(head): _errors(lambda q, k, v: flash_attn_func(q, k, v, causal=True), device, head)
                for head in (64, 128)}  # fmt: skip
    with section("flash-varlen") as out:
        from flash_attn import flash_attn_varlen_func

        torch.manual_seed(0)
        q, k, v = (torch.randn(sum(LENGTHS), heads, 64, device=device).bfloat16() for heads in (8, 4, 4))
        ends = torch.tensor([0, LENGTHS[0], sum(LENGTHS)], device=device, dtype=torch.int32)
        packed = flash_attn_varlen_func(q, k, v, ends, ends, max(LENGTHS), max(LENGTHS), causal=True)
        second = [one[LENGTHS[0] :].float()[None] for one in (q, k, v)]
        out["error"] = _relative(packed[LENGTHS[0] :], _reference(*second)[0])
        whole = _reference(*(one.float()[None] for one in (q, k, v)))[0]
        out["crossing"] = _relative(whole[LENGTHS[0] :], _reference(*second)[0])


def packed(device: str) -> None:
    """Compare a sequence alone with the same sequence packed behind another, in bf16, as verl's trainer packs it."""
    first, second = world.ids(device, LENGTHS[0], seed=1), world.ids(device, LENGTHS[1], seed=2)
    row = torch.cat([first, second], dim=1)
    positions = torch.cat([torch.arange(length) for length in LENGTHS]).unsqueeze(0).to(device)
    for kind in ("sdpa", "flash_attention_2"):
        with section(f"packed-{kind}") as out, torch.no_grad():
            made = world.model(attn_implementation=kind, dtype=torch.bfloat16).to(device).eval()
            alone = made(input_ids=second, use_cache=False).logits
            for name, mask in (("none", None), ("ones", torch.ones_like(row))):
                told = {"attention_mask": mask, "position_ids": positions, "use_cache": False}
                behind = made(input_ids=row, **told).logits[:, LENGTHS[0] :]
                out[name] = _relative(behind, alone)


def _log_probs(made: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each token after the first, computed in fp32 from the model's logits."""
    found = []
    for row in tokens:
        logits = made(input_ids=row[None], use_cache=False).logits[0, :-1].float()
        found.append(logits.log_softmax(-1).gather(-1, row[1:, None])[:, 0])
    return torch.stack(found)


def _shape(device: str) -> dict[str, Any]:
    """Return the shape of Qwen2.5-0.5B; on a CPU a small one, for a try of the code."""
    if device == "cpu":
        return {"tie_word_embeddings": True}
    return {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
            "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True}  # fmt: skip


def log_probs(device: str) -> None:
    """Compare the log-probabilities of one set of weights under each attention in bf16 with those in fp32."""
    from transformers import Qwen2ForCausalLM

    tokens = world.ids(device, 1024, rows=2, seed=3)

    def made(kind: str, dtype: torch.dtype) -> torch.nn.Module:
        torch.manual_seed(0)
        with torch.device(device):
            one: torch.nn.Module = Qwen2ForCausalLM(world.config(**_shape(device), attn_implementation=kind))
        # Random weights give almost the same probability to all tokens; a spread like a trained model's shows more.
        torch.nn.init.constant_(one.model.norm.weight, 5.0)
        return one.bfloat16().to(dtype).eval()

    exact = None
    with section("log-probs-fp32") as out, torch.no_grad():
        exact = _log_probs(made("eager", torch.float32), tokens)
        out["mean"], out["tokens"] = float(exact.mean()), exact.numel()
    if exact is None:
        return
    for kind in ("eager", "sdpa", "flash_attention_2"):
        with section(f"log-probs-{kind}") as out, torch.no_grad():
            apart = _log_probs(made(kind, torch.bfloat16), tokens) - exact
            out["mean_abs"], out["max_abs"] = float(apart.abs().mean()), float(apart.abs().max())
            out["k3_kl"] = float((apart.exp() - 1 - apart).mean())


def _timed(run: Any, device: str) -> float:
    """Return the seconds of the fastest of three runs."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        run()
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def convolution(device: str) -> None:
    """Run the patch embedding of a vision tower in bf16 and fp32, and say which kernels torch took."""
    with section("conv3d") as out, torch.no_grad():
        patches = 4096 if device != "cpu" else 16
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            layer = torch.nn.Conv3d(3, 1152, (2, 14, 14), stride=(2, 14, 14), bias=False).to(device, dtype)
            given = torch.randn(patches, 3, 2, 14, 14, device=device, dtype=dtype)
            layer(given)
            name = str(dtype).removeprefix("torch.")
            out[f"{name}_s"] = _timed(lambda layer=layer, given=given: layer(given), device)
            with torch.profiler.profile() as seen:
                layer(given)
            used = sorted({event.key for event in seen.key_averages() if "conv" in event.key})
            out[f"{name}_ops"] = used
            flat = layer.weight.flatten(1)
            out[f"{name}_linear_s"] = _timed(lambda flat=flat, given=given: given.flatten(1) @ flat.T, device)
            out[f"{name}_error"] = _relative(layer(given).flatten(1), given.flatten(1).float() @ flat.T.float())
        out["cudnn"] = torch.backends.cudnn.version()


def run(device: str) -> None:
    """Run every section about attention and precision."""
    kernels(device)
    packed(device)
    convolution(device)
    log_probs(device)
