"""The trainer's side of a rollout: transformers on the same weights in the same dtype, and the gap between the two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Answer:
    """What the engine said to a prompt: tokens and the log-probability that it gives each."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]


def attention() -> str:
    """Return the attention that verl's actor would take here: flash-attention 2, else sdpa."""
    if not torch.cuda.is_available():
        return "sdpa"
    try:
        import flash_attn  # noqa: F401
    except Exception:  # whatever its import raises, it cannot be used
        return "sdpa"
    return "flash_attention_2"


class Trainer:
    """The model as an actor holds it, on one device; tokens from `vocabulary` on are masked, as in verl's engine."""

    def __init__(self, folder: Path, device: str, dtype: str, vocabulary: int) -> None:
        from transformers import AutoModelForCausalLM

        self.attention = attention()
        wanted = getattr(torch, dtype)
        words: dict[str, Any] = {"attn_implementation": self.attention}
        try:
            model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=wanted, **words)
        except TypeError:
            # before transformers 4.56
            model = AutoModelForCausalLM.from_pretrained(str(folder), torch_dtype=wanted, **words)
        # Not `to(dtype)`: it would round the frequencies of the rotary embedding too, and late positions with them.
        self.model = model.to(device=device).eval()
        self.device = device
        self.vocabulary = vocabulary

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights by the names of a checkpoint, as verl's FSDP worker sends them."""
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def move(self, by: float, seed: int) -> None:
        """Change every matrix by so much of its own spread: another step of a training that learns fast."""
        draw = torch.Generator(self.device).manual_seed(seed)
        for weight in self.model.parameters():
            if weight.dim() > 1:
                noise = torch.randn(weight.shape, generator=draw, device=self.device, dtype=torch.float32)
                weight += (noise * (by * weight.float().std())).to(weight.dtype)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def logprobs(self, answer: Answer, temperature: float) -> torch.Tensor:
        """Return the log-probability of each token of an answer, in float32."""
        whole = torch.tensor([answer.prompt + answer.tokens], device=self.device)
        hidden = self.model.model(input_ids=whole, use_cache=False).last_hidden_state
        said = hidden[:, len(answer.prompt) - 1 : -1]
        logits = self.model.lm_head(said).float()
        logits[..., self.vocabulary :] = -math.inf
        spread = torch.log_softmax(logits / temperature, dim=-1)
        return spread.gather(-1, whole[:, len(answer.prompt) :, None])[0, :, 0]

    def gap(self, answers: list[Answer], temperature: float = 1.0) -> dict[str, float]:
        """Return how far engine and trainer are apart over all tokens.

        `mean` and `max` of the absolute difference of log-probabilities, `probs` the mean of that of probabilities
        (verl's rollout_probs_diff_mean), `kl` the k3 estimate of KL(rollout || trainer), over `tokens` tokens.
        """
        theirs = torch.cat([self.logprobs(answer, temperature).cpu() for answer in answers]).double()
        ours = torch.tensor([value for answer in answers for value in answer.logprobs], dtype=torch.float64)
        apart = (ours - theirs).abs()
        ratio = theirs - ours
        found = {
            "mean": float(apart.mean()),
            "max": float(apart.max()),
            "probs": float((ours.exp() - theirs.exp()).abs().mean()),
            "kl": float((ratio.exp() - 1 - ratio).mean()),
        }
        return {**{name: float(f"{value:.4g}") for name, value in found.items()}, "tokens": int(apart.numel())}


def sharpen(folder: Path, factor: float = 8.0) -> None:
    """Make a model that was drawn at random surer of itself: its last norm is scaled, so that one token stands out.

    Logits of a fresh model are nearly flat, and then any two ways to compute them disagree on the best token.
    """
    import json
    import struct

    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        about = json.loads(file.read(size))["model.norm.weight"]
        first, end = about["data_offsets"]
        one = struct.pack("<f", factor)[2 if about["dtype"] == "BF16" else 0 :]
        file.seek(8 + size + first)
        file.write(one * ((end - first) // len(one)))
