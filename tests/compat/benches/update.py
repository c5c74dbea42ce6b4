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
from benches.conduct import Launch, RefusedError  # noqa: E402
from benches.plan import OFF, ON, Turn  # noqa: E402
from benches.sides import SideEndedError  # noqa: E402
from benches.surroundings import words  # noqa: E402

SIDE = "side"
SKETCHED = 16
"""Sequences by which the two sides are compared, at most."""
SPARE = 2 << 30
"""Bytes that must be free beside two sides, the second taken to need as much as the first and a seventh more."""


class Updates:
    """The update bench: which processes hold which variants, and what each repeat of them took."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.plan = launch.plan
        self.result = launch.record.result
        self.holder = dict.fromkeys(self.plan.variants, SIDE)
        self.prompts: list[int] | None = None
        self.sketched: dict[str, list[dict[str, Any]]] = {}
        self.seen: dict[str, dict[str, list[int]]] = {variant: {} for variant in self.plan.variants}
        self.numbers = ""

    def prepare(self) -> None:
        """Decide how the sides take turns, build what can stand by, and compare what they compute."""
        self.prompts = conduct.prompt_lengths(self.plan, self.launch.model)
        self.result["sides"] = {}
        self._start(SIDE, self.plan.variants)
        judged = self.launch.ask(SIDE, "judge")[0]
        self.result["changed"] = {key: judged[key] for key in ("changed", "idle", "blocking")}
        why = self._why_apart(judged) or self._together()
        if why:
            self.launch.stop(SIDE)
            self._apart(why)

    def turns(self) -> list[Turn]:
        """Return the repeats in their order; one side after the other where only one can be alive."""
        given = list(self.plan.turns())
        if self.result["interleaved"] != "chunk":
            return given
        return chunked(given, self.plan.warm_up)

    def repeat(self, turn: Turn) -> None:
        """Run the phases of one repeat, in the order of a step."""
        self._alive(turn.variant)
        seed = self.plan.seed + max(turn.place, 0) // 2
        name = self.holder[turn.variant]
        for phase in self.plan.ran:
            found = merged(self.launch.ask(name, "phase", variant=turn.variant, phase=phase, seed=seed))
            about = {"variant": turn.variant, "place": turn.place, "warm_up": turn.warm_up, "phase": phase}
            self.launch.record.sample(**about, **found)
            self.seen[turn.variant][phase] = [found["more"]["micro_batches"], found["more"]["layer_calls"]]
        if turn.place in (0, 1) and len(self.plan.variants) == 2:
            self.result["switch"] = proof(self.seen)

    def _why_apart(self, judged: dict[str, Any]) -> str:
        """Return why the sides take a process each, "" where one can be both."""
        if len(self.plan.variants) == 1:
            return ""
        if self.plan.python or self.plan.env:
            return "the sides have an environment each"
        if not judged["changed"]:
            idle = ", ".join(judged["idle"])
            raise RefusedError(f"the sides differ in nothing that an update reads ({idle or 'in no key at all'})")
        blocking = ", ".join(judged["blocking"])
        return f"a built trainer cannot be switched: {blocking}" if blocking else ""

    def _together(self) -> str:
        """Build one side that is switched between the variants; return "", or why the switch does not hold."""
        both = len(self.plan.variants) == 2
        self._build(SIDE, OFF)
        for variant in self.plan.variants:
            self._sketch(SIDE, variant, variant)
            odd = [phase for found in self.sketched[variant] for phase in found if not found[phase]["as_asked"]]
            if odd:
                return f"the switch was not seen in {', '.join(odd)} of {variant}"
        self._sketch(SIDE, OFF, "again")
        self.result |= {"interleaved": "repeat" if both else "none", "why": "the trainer is switched" if both else ""}
        self._compare()
        return ""

    def _apart(self, why: str) -> None:
        """Build a side for each variant, both alive where the memory holds them."""
        self.holder = {variant: variant for variant in self.plan.variants}
        self.result |= {"interleaved": "process", "why": why}
        self._start(OFF, (OFF,))
        self.launch.ask(OFF, "judge")
        before = self._free(OFF)
        self._ready(OFF)
        self._sketch(OFF, OFF, "again")
        free = self._free(OFF)
        used = max(0, before - free)
        if free <= 1.15 * used + SPARE:
            self._chunk(f"{why}; one side takes {used >> 20} MiB, and {free >> 20} are left beside it")
            return
        try:
            self._start(ON, (ON,))
            self.launch.ask(ON, "judge")
            self._ready(ON)
        except SideEndedError as error:
            if not error.fault.of_memory:
                raise
            self.launch.stop(ON)
            self._chunk(f"{why}; beside each other one died of memory ({error.fault.kind})")
            return
        self._compare()

    def _chunk(self, why: str) -> None:
        self.result |= {"interleaved": "chunk", "why": why}

    def _alive(self, variant: str) -> None:
        """See to it that the side of a variant is there; where only one can be, the other one ends first."""
        name = self.holder[variant]
        if name in self.launch.sides:
            return
        for other in self.plan.variants:
            self.launch.stop(self.holder[other])
        self._start(name, (variant,))
        self.launch.ask(name, "judge")
        self._ready(name)
        if set(self.sketched) >= set(self.plan.variants):
            self._compare()

    def _ready(self, variant: str) -> None:
        """Build the side of a variant, take its sketches, and run what needs the most memory once."""
        self._build(variant, variant)
        if variant not in self.sketched:
            self._sketch(variant, variant, variant)
        for phase in self.plan.ran[-2:]:
            self.launch.ask(variant, "phase", variant=variant, phase=phase, seed=self.plan.seed)

    def _start(self, name: str, variants: tuple[str, ...]) -> None:
        plan = {**self.plan.told(), "phases": list(self.plan.ran)}
        given = {one: words(self.plan, self.launch.device, one, self.launch.model) for one in variants}
        spec = {"device": self.launch.device, "plan": plan, "words": given, "switched": len(variants) == 2}
        self.launch.start(name, variants[0], {**spec, "prompts": self.prompts}, self.plan.gpus)

    def _build(self, name: str, variant: str) -> None:
        found = self.launch.ask(name, "build", variant=variant)
        self.numbers = found[0]["numbers"]
        self.result["sides"][name] = found[0]
        self.launch.record.reach(f"built {name}")

    def _free(self, name: str) -> int:
        return min(int(found["free"]) for found in self.launch.ask(name, "room"))

    def _sketch(self, name: str, variant: str, called: str) -> None:
        rows = self.plan.gpus * max(1, min(SKETCHED, self.plan.batch) // self.plan.gpus)
        folder = str(self.launch.out / "sketches" / called)
        self.sketched[called] = self.launch.ask(name, "sketch", variant=variant, folder=folder, rows=rows)

    def _compare(self) -> None:
        """Put on record how far the sides lie apart on the same weights and data, and one side from itself."""
        if len(self.plan.variants) == 1:
            return
        found: dict[str, Any] = {"numbers": self.numbers, "tolerance": sketches.BY_NUMBERS.get(self.numbers)}
        kept = []
        for phase in self.plan.ran:
            told = compared(self.sketched[OFF], self.sketched[ON], phase)
            told["floor"] = compared(self.sketched[OFF], self.sketched["again"], phase).get("relative")
            if phase.startswith("update"):
                told["within"] = sketches.within(told, self.numbers)
                kept.append(told["within"])
            found[phase] = told
        known = [one for one in kept if one is not None]
        found["within"] = all(known) if known else None
        self.result["numerics"] = found
        self.launch.record.reach("numerics")


def compared(one: list[dict[str, Any]], other: list[dict[str, Any]], phase: str) -> dict[str, Any]:
    """Return how far two sides lie apart in a phase: the ranks' sketches together, by the worst of them."""
    found = [
        sketches.apart(Path(a[phase]["path"]), Path(b[phase]["path"])) for a, b in zip(one, other, strict=True)
    ]  # fmt: skip
    return max(found, key=lambda told: (told.get("relative") is None, told.get("relative") or 0.0))


def merged(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the ranks of a side found of one phase as one: the slowest's seconds, the largest memory."""
    first = found[0]
    memory = {name: max(one["memory"][name] for one in found) for name in first["memory"]}
    seconds = [one["seconds"] for one in found]
    more = dict(first["more"])
    if len(found) > 1:
        more["by_rank"] = seconds
    told = next((one["numerics"] for one in found if one["numerics"]), {})
    return {**first, "seconds": max(seconds), "memory": memory, "numerics": told, "more": more}


def proof(seen: dict[str, dict[str, list[int]]]) -> dict[str, Any]:
    """Return whether the sides were seen to run otherwise: by how often the model and its first layer were called."""
    differ = [phase for phase, calls in seen[OFF].items() if phase in seen[ON] and seen[ON][phase] != calls]
    return {"proved": bool(differ), "by": "calls of the model and of its first layer", "differ": differ, **seen}


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


if __name__ == "__main__":
    sys.exit(conduct.main("update", COMPAT / "benches" / "updating.py", Updates))
