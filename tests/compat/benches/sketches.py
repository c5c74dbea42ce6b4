"""Sketches of what a side computes: a part of each gradient, taken before the optimizer moves a weight, as a file.

Two sides that start from the same weights are compared by them: in the same process or in two, without either holding
a second set of gradients.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIGURES = 400_000
"""So many numbers are kept of all gradients together, evenly, each parameter's from its first to its last."""
LEAST = 64
BY_NUMBERS = {"bfloat16": 2.0**-5, "float16": 2.0**-8, "float32": 1e-3}
"""How far gradients may lie apart, as a share: eight units of rounding of 16-bit numbers, a thousandth of exact ones.

What is called the same must also be no further apart than four times what one side differs from itself.
"""


@dataclass
class Held:
    """Gradients that were withheld from the optimizer: their norm over all ranks, and the figures of this rank's."""

    norm: float = math.nan
    names: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    figures: array[float] = field(default_factory=lambda: array("f"))


@contextmanager
def withheld(engine: Any) -> Iterator[Held]:
    """Yield what holds the gradients of the batches within, which no optimizer's step follows."""
    held = Held()
    given = engine.optimizer_step

    def step() -> float:
        take(engine.module, held)
        engine.optimizer_zero_grad()
        return held.norm

    engine.optimizer_step = step
    try:
        yield held
    finally:
        engine.optimizer_step = given


def take(module: Any, held: Held) -> None:
    """Note the norm of a module's gradients and a part of each; of several mini-batches the last one stays."""
    import torch

    graded = [(name, _local(one.grad)) for name, one in module.named_parameters() if one.grad is not None]
    each = max(LEAST, FIGURES // max(1, len(graded)))
    held.names, held.counts, held.figures = [], [], array("f")
    square = torch.zeros((), dtype=torch.float64, device=graded[0][1].device) if graded else torch.zeros(())
    for name, grad in graded:
        flat = grad.detach().reshape(-1)
        square += flat.float().norm().double() ** 2
        part = flat[:: max(1, flat.numel() // each)][:each].float().cpu()
        held.names.append(name)
        held.counts.append(part.numel())
        held.figures.extend(part.tolist())
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        torch.distributed.all_reduce(square)
    held.norm = math.sqrt(float(square))


def _local(grad: Any) -> Any:
    return grad.to_local() if hasattr(grad, "to_local") else grad


def write(path: Path, head: dict[str, Any], figures: array[float]) -> None:
    """Write a sketch: a line of JSON, then the figures as 32-bit floats of this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(json.dumps(head).encode() + b"\n")
        figures.tofile(file)


Sketch = tuple[dict[str, Any], "array[float]"]


def read(path: Path) -> Sketch:
    """Return the head and the figures of a sketch."""
    with path.open("rb") as file:
        head = json.loads(file.readline())
        figures = array("f")
        figures.frombytes(file.read())
    return head, figures


def joined(paths: Sequence[Path]) -> Sketch:
    """Return the sketches of ranks as one, in the order of the ranks; one that holds nothing adds nothing."""
    figures = array("f")
    for path in paths:
        figures.extend(read(path)[1])
    return {"counts": [len(figures)]}, figures


def apart(one: Sketch, other: Sketch) -> dict[str, Any]:
    """Return how far two sketches lie apart, or `why` they cannot be compared.

    `relative` is the length of the difference as a share of the first one's, `mean` and `most` the absolute
    difference of a figure; norms and losses are told as they are.
    """
    (head, first), (head2, second) = one, other
    if head["counts"] != head2["counts"]:
        return {"why": "the two sides hold their parameters in other pieces"}
    found: dict[str, Any] = {name: [head[key], head2[key]] for name, key in _TOLD.items() if head.get(key) is not None}
    if not all(map(math.isfinite, first)) or not all(map(math.isfinite, second)):
        return {**found, "why": "there are numbers that are not finite"}
    differences = [a - b for a, b in zip(first, second, strict=True)]
    length = math.sqrt(math.fsum(a * a for a in first))
    distance = math.sqrt(math.fsum(a * a for a in differences))
    return {
        **found,
        "relative": distance / length if length else (0.0 if not distance else math.inf),
        "mean": math.fsum(map(abs, differences)) / max(1, len(differences)),
        "most": max(map(abs, differences), default=0.0),
        "figures": len(first),
    }


_TOLD = {"grad_norm": "norm", "loss": "loss"}


def within(found: dict[str, Any], numbers: str) -> bool | None:
    """Return whether gradients are the same as far as their numbers go; None where that could not be compared."""
    if found.get("relative") is None:
        return None
    allowed = max(BY_NUMBERS.get(numbers, BY_NUMBERS["bfloat16"]), 4 * float(found.get("floor") or 0.0))
    return float(found["relative"]) <= allowed
