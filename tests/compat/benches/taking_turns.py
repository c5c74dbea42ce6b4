"""Two sides that take turns: both alive where the memory holds them, else one after the other, in blocks.

The base of both benches. A side that waits does nothing on the device: it holds what it holds, as its kind says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benches import sketches
from benches.conduct import Launch, RefusedError, prompt_lengths
from benches.plan import OFF, ON, Turn
from benches.sides import SideEndedError
from benches.surroundings import words

SIDE = "side"
AGAIN = "again"
"""What the first side's second sketch is called, by which it is known how far a side differs from itself."""


class TakingTurns:
    """Which processes hold which variants, and how they come to be; `_ready` and `_sketch` are a bench's own."""

    own: tuple[str, ...] = ()
    """Further words of every side."""
    alone = False
    """Whether a side is one process, however many GPUs it has, and not one for each."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.plan = launch.plan
        self.result = launch.record.result
        self.result["sides"] = {}
        self.holder = dict.fromkeys(self.plan.variants, SIDE)
        self.prompts = prompt_lengths(self.plan, launch.model)
        self.sketched: dict[str, list[dict[str, Any]]] = {}

    def _ready(self, variant: str) -> None:
        """Build the side of a variant so that it can be asked for a repeat."""
        raise NotImplementedError

    def _tight(self) -> str:
        """Return why no second side fits beside the first, "" where that is to be tried."""
        return ""

    def _compare(self) -> None:
        """Put on record how far the sides lie apart."""

    def turns(self) -> list[Turn]:
        """Return the repeats in their order; one side after the other where only one can be alive."""
        given = list(self.plan.turns())
        return chunked(given, self.plan.warm_up) if self.result["interleaved"] == "chunk" else given

    def judge(self, name: str) -> str:
        """Return why the sides take a process each, "" where one process could be both.

        Raises:
            RefusedError: they differ in nothing that is run here.
        """
        judged = self.launch.ask(name, "judge")[0]
        self.result["changed"] = {key: judged[key] for key in ("changed", "idle", "blocking")}
        if len(self.plan.variants) == 1:
            return ""
        if self.plan.python or self.plan.env:
            return "the sides have an environment each"
        if not judged["changed"]:
            idle = ", ".join(judged["idle"]) or "in no key at all"
            raise RefusedError(f"the sides do not differ in anything that this bench runs ({idle})")
        blocking = ", ".join(judged["blocking"])
        return f"what is built cannot be switched: {blocking}" if blocking else ""

    def apart(self, why: str) -> None:
        """Make a side for each variant, both alive where the memory holds them."""
        self.holder = {variant: variant for variant in self.plan.variants}
        self.result |= {"interleaved": "process", "why": why}
        # Both at once: the second one imports while the first is built, and takes nothing of the device until it is.
        for variant in self.plan.variants:
            if variant not in self.launch.sides:
                self.start(variant, (variant,))
        self._ready(OFF)
        tight = self._tight()
        if not tight:
            try:
                self._ready(ON)
            except SideEndedError as error:
                if not error.fault.of_memory:
                    raise
                tight = f"beside the other one a side died of memory ({error.fault.kind})"
        if tight:
            self.launch.stop(ON)
            self.result |= {"interleaved": "chunk", "why": f"{why}; {tight}"}
        else:
            self._compare()

    def alive(self, variant: str) -> str:
        """Return the side of a variant, alive; where only one can be, the other one ends first."""
        name = self.holder[variant]
        if name not in self.launch.sides:
            for other in self.plan.variants:
                self.launch.stop(self.holder[other])
            self.start(name, (variant,))
            self._ready(name)
            if set(self.sketched) >= set(self.plan.variants):
                self._compare()
        return name

    def start(self, name: str, variants: tuple[str, ...]) -> None:
        """Start the processes of a side that is to hold these variants."""
        plan = {**self.plan.told(), "phases": list(self.plan.ran)}
        device, model = self.launch.device, self.launch.model
        given = {one: (*words(self.plan, device, one, model), *self.own) for one in variants}
        spec = {"device": device, "plan": plan, "words": given, "prompts": self.prompts}
        self.launch.start(
            name, variants[0], {**spec, "log": str(self.launch.log[name])}, 1 if self.alone else self.plan.gpus
        )

    def build(self, name: str, variant: str) -> dict[str, Any]:
        """Have a side built as a variant, and return what it said of itself."""
        found = self.launch.ask(name, "build", variant=variant)[0]
        self.result["sides"][name] = found
        self.launch.record.reach(f"built {name}")
        return found

    def folder(self, called: str) -> str:
        """Return where the sketches of that name lie."""
        return str(self.launch.out / "sketches" / called)


def compared(one: list[dict[str, Any]], other: list[dict[str, Any]], phase: str) -> dict[str, Any]:
    """Return how far two sides lie apart in a phase.

    Of gradients, of which each rank holds its pieces, by the worst of the ranks; what is computed of sequences is put
    together first, because ranks may share them on one side and divide them on the other.
    """
    mine, theirs = ([Path(rank[phase]["path"]) for rank in side] for side in (one, other))
    if not phase.startswith("update"):
        return sketches.apart(sketches.joined(mine), sketches.joined(theirs))
    found = [sketches.apart(sketches.read(a), sketches.read(b)) for a, b in zip(mine, theirs, strict=True)]
    return max(found, key=lambda told: (told.get("relative") is None, told.get("relative") or 0.0))


def chunked(turns: list[Turn], warm_up: int) -> list[Turn]:
    """Return repeats with the sides in blocks: half of A, all of B, half of A, each block after its own warm-up.

    The places stay those of the order A B B A, so that each repeat has its partner; they are no moments in time.
    """
    off = [turn for turn in turns if turn.variant == OFF and not turn.warm_up]
    on = [turn for turn in turns if turn.variant == ON and not turn.warm_up]
    half = (len(off) + 1) // 2
    found: list[Turn] = []
    for block in (off[:half], on, off[half:]):
        if block:
            found += [Turn(block[0].variant, at - warm_up) for at in range(warm_up)]
            found += block
    return found
