"""The updates alone: `python tests/compat/benches/update.py --plan PLAN.json --out DIR [--device cuda|cpu]`.

verl's own engine of actor and critic, each phase that computes in a step, both sides of a toggle interleaved A B B A
within one launch. What a built trainer can be switched to is switched in one process; what it cannot takes a process a
side, asked in turns while the other one waits, or, where the memory does not hold two, one after the other.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

COMPAT = Path(__file__).resolve().parent.parent
if str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from benches import conduct, sketches  # noqa: E402
from benches.conduct import Launch  # noqa: E402
from benches.plan import OFF, ON, Turn  # noqa: E402
from benches.taking_turns import AGAIN, SIDE, TakingTurns, compared  # noqa: E402

SKETCHED = 16
"""Sequences by which the two sides are compared, at most."""
MARGIN = 1.15
SPARE = 2 << 30
"""A second side is taken to need as much as the first, so much more, and so many bytes besides."""


class Updates(TakingTurns):
    """The update bench: a trainer that is switched, or one a side, and what each repeat of them took."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch)
        self.seen: dict[str, dict[str, list[int]]] = {variant: {} for variant in self.plan.variants}
        self.numbers = ""

    def prepare(self) -> None:
        """Decide how the sides take turns, build what can stand by, and compare what they compute."""
        self.start(SIDE, self.plan.variants)
        why = self.judge(SIDE) or self._together()
        if why:
            self.launch.stop(SIDE)
            self.apart(why)

    def repeat(self, turn: Turn) -> None:
        """Run the phases of one repeat, in the order of a step."""
        name = self.alive(turn.variant)
        seed = self.plan.seed + max(turn.place, 0) // 2
        for phase in self.plan.ran:
            found = merged(self.launch.ask(name, "phase", variant=turn.variant, phase=phase, seed=seed))
            about = {"variant": turn.variant, "place": turn.place, "warm_up": turn.warm_up, "phase": phase}
            self.launch.record.sample(**about, **found)
            self.seen[turn.variant][phase] = [found["more"]["micro_batches"], found["more"]["layer_calls"]]
        switched = self.result["interleaved"] == "repeat" and "switch" not in self.result
        if switched and all(self.seen.values()):
            self.result["switch"] = proof(self.seen)
            self.launch.record.save()

    def _together(self) -> str:
        """Build one side that is switched between the variants; return "", or why the switch does not hold."""
        self._built(SIDE, OFF)
        for variant in self.plan.variants:
            self._sketch(SIDE, variant, variant)
            odd = sorted({phase for one in self.sketched[variant] for phase in one if not one[phase]["as_asked"]})
            if odd:
                return f"the switch was not seen in {', '.join(odd)} of {variant}"
        both = len(self.plan.variants) == 2
        self.result |= {"interleaved": "repeat" if both else "none", "why": "the trainer is switched" if both else ""}
        if both:
            self._sketch(SIDE, OFF, AGAIN)
            self._compare()
        return ""

    def _ready(self, variant: str) -> None:
        """Build the side of a variant, take its sketches before any weight moves, and run each phase once."""
        self._built(variant, variant)
        if variant not in self.sketched:
            self._sketch(variant, variant, variant)
        if variant == OFF and AGAIN not in self.sketched:
            self._sketch(variant, OFF, AGAIN)
        # Here and not at the first repeat: what it takes at most decides whether another side fits beside it.
        for phase in self.plan.ran:
            self.launch.ask(variant, "phase", variant=variant, phase=phase, seed=self.plan.seed)

    def _built(self, name: str, variant: str) -> None:
        self.numbers = str(self.build(name, variant)["numbers"])

    def _tight(self) -> str:
        rooms = self.launch.ask(OFF, "room")
        free = min(int(room["free"]) for room in rooms)
        used = max(int(room["before"]) - int(room["free"]) for room in rooms)
        if free > MARGIN * used + SPARE:
            return ""
        return f"one side takes {used >> 20} MiB, and {free >> 20} are left beside it"

    def _sketch(self, name: str, variant: str, called: str) -> None:
        rows = self.plan.gpus * max(1, min(SKETCHED, self.plan.batch) // self.plan.gpus)
        self.sketched[called] = self.launch.ask(
            name, "sketch", variant=variant, folder=self.folder(called), rows=rows
        )  # fmt: skip

    def _compare(self) -> None:
        """Put on record how far the sides lie apart on the same weights and data, and one side from itself."""
        found: dict[str, Any] = {"numbers": self.numbers, "tolerance": sketches.BY_NUMBERS.get(self.numbers)}
        kept = []
        for phase in self.plan.ran:
            told: dict[str, Any] = compared(self.sketched[OFF], self.sketched[ON], phase)
            told["floor"] = compared(self.sketched[OFF], self.sketched[AGAIN], phase).get("relative")
            if phase.startswith("update"):
                told["within"] = sketches.within(told, self.numbers)
                kept.append(told["within"])
            found[phase] = told
        known = [one for one in kept if one is not None]
        found["within"] = all(known) if known else None
        self.result["numerics"] = found
        self.launch.record.reach("numerics")


def merged(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the ranks of a side found of one phase as one: the slowest's seconds, the largest memory."""
    first = found[0]
    memory = {name: max(one["memory"][name] for one in found) for name in first["memory"]}
    seconds = [one["seconds"] for one in found]
    more = dict(first["more"])
    if len(found) > 1:
        more["by_rank"] = seconds
    told: dict[str, Any] = next((one["numerics"] for one in found if one["numerics"]), {})
    return {**first, "seconds": max(seconds), "memory": memory, "numerics": told, "more": more}


def proof(seen: dict[str, dict[str, list[int]]]) -> dict[str, Any]:
    """Return whether the sides were seen to run otherwise: by how often the model and its first layer were called."""
    differ = [phase for phase, calls in seen[OFF].items() if seen[ON].get(phase) != calls]
    return {"proved": bool(differ), "by": "calls of the model and of its first layer", "differ": differ, **seen}


if __name__ == "__main__":
    sys.exit(conduct.main("update", COMPAT / "benches" / "updating.py", Updates))
