"""The rollout alone: `python tests/compat/benches/rollout.py --plan PLAN.json --out DIR [--device cuda|cpu]`.

vLLM's engine as verl configures and starts it, generating whole batches of the planned lengths, both sides of a toggle
interleaved A B B A within one launch. Whatever differs takes another engine: each side has one in a process of its own,
and while one works the other sleeps. So each has the whole share of the card that its settings name, and the sides can
change from repeat to repeat; what sleep and wake-up take is told beside the repeats and in none of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

COMPAT = Path(__file__).resolve().parent.parent
if str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from benches import conduct, sketches  # noqa: E402
from benches.plan import OFF, ON, Turn  # noqa: E402
from benches.taking_turns import AGAIN, TakingTurns  # noqa: E402

PHASE = "gen"


class Rollouts(TakingTurns):
    """The rollout bench: an engine a side, one awake at a time, and what each batch of them took."""

    own = (
        # The weights of the model's folder, as after a sync; verl starts on dummy ones and sends them.
        "actor_rollout_ref.rollout.load_format=auto",
        # verl's own extension of the worker, with methods that only look.
        "++actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls=engine_extension.SeeingExtension",
    )

    alone = True

    def prepare(self) -> None:
        """Start the engines of both sides, the first one asleep while the second starts, and compare their answers."""
        if len(self.plan.variants) == 1:
            self.holder = {OFF: OFF}
            self.result |= {"interleaved": "none", "why": ""}
            self.start(OFF, (OFF,))
            self._ready(OFF)
            return
        # The first side judges, and is then built as one of the two.
        self.start(OFF, self.plan.variants)
        self.start(ON, (ON,))
        self.apart(self.judge(OFF))

    def repeat(self, turn: Turn) -> None:
        """Generate one batch with the engine of a side, awake alone where it can be."""
        name = self.alive(turn.variant)
        about = {"variant": turn.variant, "place": turn.place, "warm_up": turn.warm_up}
        for other in self.plan.variants:
            if other != turn.variant and self.holder[other] in self.launch.sides:
                self._told(other, "sleep", self.launch.ask(self.holder[other], "rest")[0], about)
        self._told(turn.variant, "wake_up", self.launch.ask(name, "rouse")[0], about)
        found = self.launch.ask(name, "repeat", seed=self.plan.seed + 2 + max(turn.place, 0) // 2)[0]
        self.launch.record.sample(**about, phase=PHASE, **found)

    def _told(self, variant: str, phase: str, found: dict[str, Any], about: dict[str, Any]) -> None:
        if found:
            self.launch.record.sample(**{**about, "variant": variant}, phase=phase, **found)

    def _ready(self, variant: str) -> None:
        found = self.build(variant, variant)
        if variant not in self.sketched:
            self._sketch(variant, variant)
        if variant == OFF and AGAIN not in self.sketched:
            self._sketch(variant, AGAIN)
        if len(self.plan.variants) == 2:
            self.launch.ask(variant, "rest")
            self.result["alive"] = "one awake, the other asleep" if found["can_sleep"] else "both awake"

    def _sketch(self, variant: str, called: str) -> None:
        self.sketched[called] = self.launch.ask(variant, "sketch", folder=self.folder(called))

    def _compare(self) -> None:
        """Put on record how far the engines' greedy answers lie apart, and one engine's from its own."""
        paths = {called: Path(found[0][PHASE]["path"]) for called, found in self.sketched.items()}
        told = agreement(paths[OFF], paths[ON])
        told["floor"] = agreement(paths[OFF], paths[AGAIN])
        self.result["numerics"] = {PHASE: told, "within": None, "why": "answers that part have nothing in common"}
        self.launch.record.reach("numerics")


def agreement(one: Path, other: Path) -> dict[str, Any]:
    """Return how far greedy answers agree: the share of tokens until they part, and how far these lie apart.

    After a tie that went the other way two answers have nothing in common, and nothing follows from it.
    """
    (head, first), (head2, second) = sketches.read(one), sketches.read(other)
    apart: list[float] = []
    same = parted = at = 0
    for mine, theirs in zip(head["tokens"], head2["tokens"], strict=True):
        for step, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            if a != b:
                parted += 1
                break
            same += 1
            apart.append(abs(first[at + step] - second[at + step]))
        at += len(mine)
    mean = sum(apart) / len(apart) if apart else None
    return {"agree": same / max(1, same + parted), "mean": mean, "most": max(apart, default=None), "tokens": same}


if __name__ == "__main__":
    sys.exit(conduct.main("rollout", COMPAT / "benches" / "generating.py", Rollouts))
