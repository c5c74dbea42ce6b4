"""Whether the shortcuts say what uv says: a random sample of the cells that they decided, asked again of uv."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from matrix.cell import Cell
from matrix.observe import Observation
from matrix.resolve.outcome import DecidedBy
from matrix.resolve.resolver import Resolver


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How many cells shortcuts decided, how many of those uv was asked about, and where it said otherwise.

    `disagreements` are lines for people; there must be none. No disagreement among n says only that, with 95 %
    confidence, fewer than about 3 in n shortcut answers are wrong.
    """

    decided: int
    asked: int
    disagreements: tuple[str, ...]


def sample_agreement(resolver: Resolver, cells: Sequence[Cell], n: int, seed: int) -> Agreement:
    """Return how uv's own answers compare with the shortcuts' on `n` of the cells that shortcuts decide.

    Outcomes must be equal and, where both are `ok`, the locks too, byte for byte. Raises what the resolver raises.
    """
    by_name = {cell.name: cell for cell in cells}
    answers = [answer for answer in resolver.resolve_many(cells) if _by_shortcut(answer)]
    answers.sort(key=lambda answer: answer.question.cell)
    chosen = random.Random(seed).sample(answers, min(n, len(answers)))  # noqa: S311 - a sample, not a secret
    lines = []
    for answer in chosen:
        asked = resolver.resolve(by_name[answer.question.cell], shortcuts=False)
        if asked.outcome is not answer.outcome:
            lines.append(
                f"{answer.question.cell}: {answer.outcome} by {answer.detail['decided_by']}, uv: {asked.outcome}"
            )
        elif asked.detail.get("lock") != answer.detail.get("lock"):
            lines.append(f"{answer.question.cell}: the lock differs from uv's")
    return Agreement(decided=len(answers), asked=len(chosen), disagreements=tuple(lines))


def _by_shortcut(answer: Observation) -> bool:
    return DecidedBy(str(answer.detail["decided_by"])).is_shortcut
