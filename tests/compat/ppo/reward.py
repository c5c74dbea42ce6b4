"""The reward: one that a random model earns, and earns differently from answer to answer."""

from __future__ import annotations

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """Return the share of the response's characters that are printable ASCII, 0 to 1.

    A random byte-level model draws about a third to a half of them so: rewards vary, advantages and gradients are not
    zero, and there is something to learn. GSM8K's own answer would be worth 0 to every response of such a model.
    """
    if not solution_str:
        return 0.0
    return sum(" " <= character <= "~" for character in solution_str) / len(solution_str)
