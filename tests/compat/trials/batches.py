"""The batches: what a rollout would have handed to the trainer, every sequence as long as it may be.

The figures in them are drawn from a seed and mean nothing; shapes, types and nesting are those of the release's own
agent loop (verl 0.9: no padding; verl 0.8: padded, then stripped by verl's own function).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def batch(
    rows: int,
    prompt: int,
    response: int,
    vocabulary: int,
    *,
    padded: bool = False,
    seed: int = 0,
    prompts: Sequence[int] | None = None,
    log_prob: float | None = None,
    part: slice | None = None,
) -> Any:
    """Return a TensorDict of `rows` sequences of `prompt` and `response` tokens, with all that either update reads.

    `padded` goes the way of the releases before 0.9, through verl's own `left_right_2_no_padding`. `prompts` are the
    lengths of prompts that are shorter. With `log_prob` the rollout's log-probabilities lie around it, so that
    updates neither clip all tokens nor none. `part` are the rows that are wanted, drawn as among all of them.
    """
    from verl.utils import tensordict_utils as tu

    chance = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocabulary, (rows, prompt + response), generator=chance)
    drawn = {
        "old_log_probs": -10 * torch.rand((rows, response), generator=chance),
        "advantages": torch.randn((rows, response), generator=chance),
        "values": torch.randn((rows, response), generator=chance),
        "returns": torch.randn((rows, response), generator=chance),
    }
    if log_prob is not None:
        drawn["old_log_probs"] = log_prob + 0.1 * drawn["values"]
    mask = torch.ones((rows, response), dtype=torch.int64)
    lengths = torch.tensor([prompt] * rows if prompts is None else list(prompts))
    there = torch.arange(prompt + response) >= prompt - lengths[:, None]
    whole = {
        "prompts": tokens[:, :prompt],
        "responses": tokens[:, prompt:],
        "input_ids": tokens,
        # A prompt stands at the right end of its place; where there is none, positions mean nothing.
        "position_ids": (there.cumsum(dim=1) - 1).clamp(min=0),
        "response_mask": mask,
        "loss_mask": mask,
        **drawn,
    }
    whole = {name: value[part] if part is not None else value for name, value in whole.items()}
    there = there[part] if part is not None else there
    if padded:
        from verl.workers.utils.padding import left_right_2_no_padding

        del whole["loss_mask"]
        whole["attention_mask"] = there.to(torch.int64)
        found = tu.get_tensordict(tensor_dict=whole, non_tensor_dict={"temperature": 1.0})
        return left_right_2_no_padding(found)
    shown = {"prompts": there[:, :prompt], "input_ids": there, "position_ids": there}
    nested = {name: _nested(value, shown.get(name)) for name, value in whole.items()}
    return tu.get_tensordict(tensor_dict=nested, non_tensor_dict={"temperature": 1.0})


def _nested(rows: torch.Tensor, shown: torch.Tensor | None) -> torch.Tensor:
    parts = [row.clone() if shown is None else row[shown[at]] for at, row in enumerate(rows)]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)
