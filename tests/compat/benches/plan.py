"""The plan of a cheap bench: what both sides run, what each runs besides, how often and in which order.

Read from a JSON file, checked here, and told in the result as it was read. Lengths are tokens, a batch is sequences,
times are seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

OFF, ON = "off", "on"
SCHEMA = 1
PHASES = ("old_log_prob", "values", "update_critic", "update_actor")
"""The phases of a step in which verl's trainer computes, by verl's words, in their order."""
CRITICS = ("values", "update_critic")
_KINDS = ("update", "rollout")
_LENGTHS = ("full", "data")
_GRAPHS = ("few", "eager", "default")
_COUNTS = ("prompt", "response", "batch", "repeats", "gpus")


class PlanError(ValueError):
    """A plan that cannot be meant, with what is wrong in it."""


@dataclass(frozen=True)
class Turn:
    """One repeat of one side: its place in the order (below 0 where it only warms up)."""

    variant: str
    place: int

    @property
    def warm_up(self) -> bool:
        """Return whether the repeat is left out of every comparison."""
        return self.place < 0


@dataclass(frozen=True)
class Plan:
    """What one launch runs.

    `common` are overrides of verl's configuration that both sides have, `off` and `on` those of a side on top; without
    `on` there is one side. `python` names another interpreter for a side, `env` more variables. No block of four
    repeats begins that would end after `seconds`; after `limit` everything is ended.
    """

    kind: str
    shape: str = "qwen2.5-0.5b"
    model: str | None = None
    seed: int = 17
    prompt: int = 512
    response: int = 256
    batch: int = 128
    lengths: str = "full"
    repeats: int = 20
    warm_up: int = 2
    gpus: int = 1
    critic: bool = True
    phases: tuple[str, ...] = PHASES
    graphs: str = "few"
    common: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    on: tuple[str, ...] | None = None
    python: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    seconds: float = 480.0
    limit: float = 560.0

    @property
    def variants(self) -> tuple[str, ...]:
        """Return the sides that there are."""
        return (OFF,) if self.on is None else (OFF, ON)

    @property
    def ran(self) -> tuple[str, ...]:
        """Return the phases of an update that run: those of the critic only where there is one."""
        return tuple(phase for phase in PHASES if phase in self.phases and (self.critic or phase not in CRITICS))

    def words(self, variant: str) -> tuple[str, ...]:
        """Return the overrides of a side alone."""
        return self.off if variant == OFF else self.on or ()

    def turns(self) -> Iterator[Turn]:
        """Yield all repeats in their order: A B B A B A A B, those that warm up first, at the places below 0."""
        for count, first in ((self.warm_up, -self.warm_up * len(self.variants)), (self.repeats, 0)):
            for at, variant in enumerate(order(count, self.variants)):
                yield Turn(variant, first + at)

    def told(self) -> dict[str, Any]:
        """Return the plan as JSON has it."""
        return {"schema": SCHEMA, **asdict(self)}


def order(repeats: int, variants: tuple[str, ...]) -> tuple[str, ...]:
    """Return so many repeats of each side in the order in which they run: A B B A B A A B, and again.

    The Thue-Morse sequence: a drift that is straight over four repeats, or bent like a parabola over eight, adds the
    same to both sides (Prouhet, 1851).
    """
    if len(variants) == 1:
        return variants * repeats
    bits = ((place % 8).bit_count() % 2 for place in range(2 * repeats))
    return tuple(variants[bit] for bit in bits)


def read(path: Path, kind: str) -> Plan:
    """Return the plan of a file; raises PlanError where it is wrong, OSError where it is not there."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PlanError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise PlanError(f"{path} holds no table")
    return made(found, kind)


def made(found: Mapping[str, Any], kind: str) -> Plan:
    """Return the plan that a table of a JSON file means; raises PlanError where it is wrong."""
    given = dict(found)
    if given.pop("schema", SCHEMA) != SCHEMA:
        raise PlanError(f"plans of schema {found['schema']} are not known, only {SCHEMA}")
    known = {one.name for one in fields(Plan)}
    if unknown := sorted(set(given) - known):
        raise PlanError(f"a plan has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    if given.setdefault("kind", kind) != kind:
        raise PlanError(f"this is a plan of {given['kind']}, not of {kind}")
    if given.get("phases", ()) is None:
        del given["phases"]
    for name in ("phases", "common", "off", "on"):
        if given.get(name) is not None:
            given[name] = _texts(name, given[name])
    try:
        plan = Plan(**given)
    except TypeError as error:
        raise PlanError(f"the plan is wrong: {error}") from error
    _check(plan)
    return plan


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        raise PlanError(f"{name} is a list of texts, not {value!r}")
    return tuple(value)


def _check(plan: Plan) -> None:
    """Raise PlanError for what no launch could run."""
    for name in _COUNTS:
        value = getattr(plan, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise PlanError(f"{name} is a number of 1 or more, not {value!r}")
    if plan.warm_up < 0:
        raise PlanError(f"warm_up is a number of 0 or more, not {plan.warm_up!r}")
    for name, words in (("kind", _KINDS), ("lengths", _LENGTHS), ("graphs", _GRAPHS)):
        if getattr(plan, name) not in words:
            raise PlanError(f"{name} is one of {', '.join(words)}, not {getattr(plan, name)!r}")
    if strange := [phase for phase in plan.phases if phase not in PHASES]:
        raise PlanError(f"there is no phase {', '.join(strange)}; there are {', '.join(PHASES)}")
    if plan.kind == "update" and not plan.ran:
        raise PlanError("none of the phases runs: those that are asked for are a critic's, and there is none")
    for name in ("python", "env"):
        if strange := [side for side in getattr(plan, name) if side not in plan.variants]:
            raise PlanError(f"{name} names the side {', '.join(strange)}, which there is not")
    if not 0 < plan.seconds <= plan.limit:
        raise PlanError(f"seconds is above 0 and not above the limit of {plan.limit:g}, not {plan.seconds:g}")


def keyed(words: tuple[str, ...]) -> dict[str, str]:
    """Return overrides by their key, the last of each, without the `+` of one that is added."""
    split = (word.partition("=") for word in words)
    return {key.lstrip("+~"): value for key, _, value in split}
