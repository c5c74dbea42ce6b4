"""The batches: what a rollout would have handed to the trainer, every sequence as long as it may be.

The figures in them are drawn from a seed and mean nothing; shapes, types and nesting are those of the release's own
agent loop (verl 0.9: no padding; verl 0.8: padded, then stripped by verl's own function).
"""

from __future__ import annotations

from typing import Any

import torch


def batch(rows: int, prompt: int, response: int, vocabulary: int, *, padded: bool = False, seed: int = 0) -> Any:
    """Return a TensorDict of `rows` sequences of `prompt` and `response` tokens, with all that either update reads.

    `padded` goes the way of the releases before 0.9, through verl's own `left_right_2_no_padding`.
    """
    from verl.utils import tensordict_utils as tu

    chance = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocabulary, (rows, prompt + response), generator=chance)
    places = torch.arange(prompt + response).expand(rows, -1)
    drawn = {
        "old_log_probs": -10 * torch.rand((rows, response), generator=chance),
        "advantages": torch.randn((rows, response), generator=chance),
        "values": torch.randn((rows, response), generator=chance),
        "returns": torch.randn((rows, response), generator=chance),
    }
    mask = torch.ones((rows, response), dtype=torch.int64)
    whole = {
        "prompts": tokens[:, :prompt],
        "responses": tokens[:, prompt:],
        "input_ids": tokens,
        "position_ids": places,
        "response_mask": mask,
        "loss_mask": mask,
        **drawn,
    }
    if padded:
        from verl.workers.utils.padding import left_right_2_no_padding

        del whole["loss_mask"]
        whole["attention_mask"] = torch.ones_like(tokens)
        found = tu.get_tensordict(tensor_dict=whole, non_tensor_dict={"temperature": 1.0})
        return left_right_2_no_padding(found)
    nested = {name: _nested(value) for name, value in whole.items()}
    return tu.get_tensordict(tensor_dict=nested, non_tensor_dict={"temperature": 1.0})


def _nested(rows: torch.Tensor) -> torch.Tensor:
    return torch.nested.as_nested_tensor([row.clone() for row in rows], layout=torch.jagged)
