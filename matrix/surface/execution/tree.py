"""The answers that executions of one subject got so far, as a tree: a world that answers as an earlier one is done.

From the root on, each inner node is the question that an execution asks next, and each edge an answer. An execution is
a function of its answers, so what stands at a leaf holds for every world that leads there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar

from matrix.surface.answer import Answer
from matrix.surface.execution.questions import Question, Questions

T = TypeVar("T")


@dataclass(slots=True)
class _Node(Generic[T]):
    """A question, and what follows each answer."""

    question: Question
    after: dict[object, _Node[T] | T] = field(default_factory=dict)


class AnswerTree(Generic[T]):
    """What came of each sequence of answers."""

    def __init__(self) -> None:
        """Start without any."""
        self._root: _Node[T] | T | None = None

    def recall(self, questions: Questions) -> T | None:
        """Return what came of the answers that `questions` gives, None when they were not given before."""
        node = self._root
        while isinstance(node, _Node):
            node = node.after.get(_token(questions.ask(node.question)))
        return node

    def keep(self, log: Sequence[tuple[Question, object]], result: T) -> None:
        """Remember what came of the answers in `log`, which holds them in the order in which they were asked for."""
        if not log:
            self._root = result
            return
        if not isinstance(self._root, _Node):
            self._root = _Node(log[0][0])
        node = self._root
        for (question, answer), (following, _) in pairwise(log):
            if node.question != question:
                break
            step = node.after.get(_token(answer))
            if not isinstance(step, _Node):
                step = node.after[_token(answer)] = _Node(following)
            node = step
        # Else it was not a function of the answers after all: better not remembered than wrong.
        if node.question == log[-1][0]:
            node.after[_token(log[-1][1])] = result


def _token(answer: object) -> object:
    """Return a key for an answer; `1` and `True` are different constants."""
    return (answer, type(answer.constant)) if isinstance(answer, Answer) else answer
