"""The variant: one side of a comparison with everything that a launch of it needs, and the pairing of two of them.

A pairing comes from a toggle on one cell, from one recipe on two cells, or from two lists of settings. Which of the two
is A and which B is said here once: A is what is compared against (a toggle's `off`), B what is compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import Version

from bench import toggle as toggles
from bench.composed import RECORD, Composing, Recorded, load
from bench.recipes import Kind, Recipe
from bench.sample import Side
from bench.toggle import Judged, Standing, Toggle, judge
from matrix.errors import UsageError

SIDES: Mapping[Side, toggles.Side] = {Side.A: toggles.Side.OFF, Side.B: toggles.Side.ON}
"""Which side of a toggle is which side of a comparison."""
SCRIPTS: Mapping[Kind, str] = {
    Kind.PPO: "ppo/launch.py",
    Kind.UPDATE: "benches/update.py",
    Kind.ROLLOUT: "benches/rollout.py",
}
"""What runs in the cell for a bench, below the folder of the probes."""
_FLAGS = (
    "shape", "steps", "batch", "prompt", "response", "estimator", "graphs", "utilization", "tokens", "devices",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One side of a comparison.

    Attributes:
        name: of the side, like `checkpointing-actor=on`.
        recipe: what is run.
        cell: the cell it is run in.
        side: which side of the comparison it is.
        overrides: hydra words on top of the recipe's.
        plan: fields of the launch's plan (`ppo.gpu_settings.Plan`) that are otherwise than the recipe has them.
    """

    name: str
    recipe: Recipe
    cell: str
    side: Side
    overrides: tuple[str, ...] = ()
    plan: Mapping[str, object] = field(default_factory=dict)

    @property
    def planned(self) -> dict[str, object]:
        """Return the whole plan of a launch of it."""
        return {**self.recipe.plan, **self.plan}

    @property
    def gpus(self) -> int:
        """Return how many GPUs a launch of it needs; 0 on a CPU."""
        return int(str(self.planned["devices"])) if self.recipe.device == "cuda" else 0

    @property
    def digest(self) -> str:
        """Return `sha256:` and 16 hex digits of what is run: recipe, plan and overrides, the cell apart."""
        body = {"recipe": self.recipe.name, "kind": self.recipe.kind.value, "device": self.recipe.device,
                "plan": self.planned, "overrides": list(self.overrides)}  # fmt: skip
        return "sha256:" + hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()[:16]

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words of `tests/compat/ppo/launch.py` for it, without where it writes and its limit."""
        more = [word for override in self.overrides for word in ("--set", override)]
        if self.recipe.device == "cpu":
            # The small workload is what it is (tests/compat/ppo/workload.py); nothing of it is saved.
            return ("--device", "cpu", "--steps", str(self.planned["steps"]), "--set", "trainer.save_freq=-1", *more)
        planned = self.planned
        flags = [word for name in _FLAGS for word in (f"--{name}", str(planned[name]))]
        return ("--device", "cuda", *flags, *more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Two variants that are compared; `standing` says what a toggle does there, None where none was judged."""

    name: str
    recipe: Recipe
    a: Variant
    b: Variant
    standing: Judged | None = None

    @property
    def gpus(self) -> int:
        """Return how many GPUs a launch of it needs; 0 on a CPU."""
        return max(self.a.gpus, self.b.gpus)

    @property
    def is_live(self) -> bool:
        """Return whether there is something to measure: not so for a toggle that is inert or refused."""
        return self.standing is None or self.standing.standing is Standing.LIVE

    def of(self, side: Side) -> Variant:
        """Return the variant of a side."""
        return self.a if side is Side.A else self.b

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the cells that it needs, each once."""
        return tuple(dict.fromkeys((self.a.cell, self.b.cell)))

    @property
    def digest(self) -> str:
        """Return `sha256:` and 16 hex digits of both sides, with their cells."""
        body = [self.name, *((side.cell, side.digest) for side in (self.a, self.b))]
        return "sha256:" + hashlib.sha256(json.dumps(body).encode()).hexdigest()[:16]


def of_toggle(toggle: Toggle, recipe: Recipe, release: Composing, cell: str) -> Pairing:
    """Return the pairing of a toggle's sides on one cell; one that is inert or refused there says so and has no words.

    Raises:
        UsageError: the toggle is one of cells, or the recipe cannot run with the release.
    """
    if toggle.cells:
        raise UsageError(
            f"{toggle.name} compares two cells, not settings of one.",
            then="Give the environments of both cells.",
        )
    judged = judge(toggle, recipe, release)
    words = {side: () if judged.standing is Standing.REFUSED else toggle.words(name, release.version)
             for side, name in SIDES.items()}  # fmt: skip
    plan = toggle.plan_for(recipe)
    made = of_settings(toggle.name, recipe, cell, words[Side.A], words[Side.B], plan=plan)
    named = {side: replace(made.of(side), name=f"{toggle.name}={SIDES[side]}") for side in Side}
    return replace(made, a=named[Side.A], b=named[Side.B], standing=judged)


def of_cells(name: str, recipe: Recipe, a: str, b: str) -> Pairing:
    """Return the pairing of one recipe on two cells, everything else the same."""
    made = of_settings(name, recipe, a, (), ())
    return replace(
        made,
        a=replace(made.a, name=a),
        b=replace(made.b, name=b, cell=b),
    )


def of_settings(
    name: str,
    recipe: Recipe,
    cell: str,
    a: Sequence[str],
    b: Sequence[str],
    *,
    plan: Mapping[str, object] | None = None,
) -> Pairing:
    """Return the pairing of two lists of hydra words on one cell; `plan` is what both sides' plans have otherwise."""
    if "/" in name:
        raise UsageError(f"`{name}` cannot name a pairing: it holds a slash.")
    sides = {
        side: Variant(
            name=f"{name}: {' '.join(words) or recipe.name}",
            recipe=recipe,
            cell=cell,
            side=side,
            overrides=tuple(words),
            plan=dict(plan or {}),
        )
        for side, words in ((Side.A, a), (Side.B, b))
    }
    return Pairing(name=name, recipe=recipe, a=sides[Side.A], b=sides[Side.B])


def recorded_release(version: Version, record: Path = RECORD) -> Composing | None:
    """Return a release's configuration as it was recorded, which needs no network; None where it was not."""
    entries = load(record) if record.is_file() else {}
    entry = entries.get(str(version))
    return None if entry is None else Recorded(version, entry)


def in_cell(probes: Path, kind: Kind) -> Path:
    """Return the script that runs a bench inside a cell."""
    return probes / SCRIPTS[kind]
