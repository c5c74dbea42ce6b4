"""The recipes: what a bench runs, as functions that return a frozen recipe, each with the hardware it is meant for.

One workload definition for all three benches: `ppo` is verl's `main_ppo` whole, `update` its engine's updates alone,
`rollout` the vLLM engine alone as verl configures it. What verl is told comes from the settings that a launch uses
(tests/compat/ppo/gpu_settings.py), which names the keys as each release does.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.errors import UsageError
from matrix.nearness import near_names
from matrix.probing.folder import probes_folder

LOGGED = SpecifierSet(">=0.6.0")
"""Releases of verl with a file logger; without one there is nothing to measure by."""


class Kind(StrEnum):
    """Which bench a recipe is for."""

    PPO = "ppo"
    UPDATE = "update"
    ROLLOUT = "rollout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What one launch runs; lengths in tokens, batches in prompts.

    Attributes:
        name: the name it is chosen by.
        kind: the bench.
        hardware: what it is meant for and was sized on.
        shape: of the model, random weights, for actor and critic alike.
        steps: with the one that is warm-up; of `update` and `rollout` the repeats of a side in one launch.
        packages: what a cell must hold beside verl and vLLM.
        tokens: of a micro-batch of the trainer.
        graphs: how vLLM decodes (`few`, `default`, `eager`).
        device: `cuda`, or `cpu` for the tiny run that only exercises the parts.
    """

    name: str
    kind: Kind
    hardware: str
    shape: str
    prompt: int
    response: int
    batch: int
    steps: int
    gpus: int = 1
    estimator: str = "gae"
    tokens: int = 8_192
    utilization: float = 0.4
    graphs: str = "few"
    packages: tuple[str, ...] = ("flash-attn",)
    releases: SpecifierSet = LOGGED
    device: str = "cuda"

    @property
    def plan(self) -> dict[str, object]:
        """Return the fields of the launch's plan (`ppo.gpu_settings.Plan`)."""
        return {
            "shape": self.shape, "steps": self.steps, "batch": self.batch, "prompt": self.prompt,
            "response": self.response, "estimator": self.estimator, "graphs": self.graphs,
            "utilization": self.utilization, "tokens": self.tokens, "devices": self.gpus,
        }  # fmt: skip

    def require(self, release: Version) -> None:
        """Raise UsageError where the recipe cannot be measured with a release of verl."""
        if not self.releases.contains(release, prereleases=True):
            raise UsageError(
                f"{self.name} needs verl {self.releases}, not {release}.",
                why="Before 0.6.0 verl has no file logger, and nothing is read from what it prints.",
            )

    def words(self, release: Version, plan: Mapping[str, object] | None = None) -> tuple[str, ...]:
        """Return the overrides of a launch with a release, without a toggle; `plan` replaces fields of the plan.

        Raises:
            UsageError: the release has no file logger.
        """
        self.require(release)
        settings = _settings()
        here = Path("/bench")
        place = settings.Place(
            model=here / "model", train=here / "train.parquet", test=here / "test.parquet", out=here / "out",
            reward=here / "reward.py",
        )  # fmt: skip
        made = settings.Plan(**{**self.plan, **(plan or {})})
        return tuple(settings.overrides(made, place, str(release), "flash-attn" in self.packages))

    def environment(self, plan: Mapping[str, object] | None = None) -> dict[str, str]:
        """Return the variables that a launch sets, which may switch off what a key switches on."""
        settings = _settings()
        made = settings.Plan(**{**self.plan, **(plan or {})})
        found: dict[str, str] = settings.environment(made, Path("/bench"), Path("/bench/metrics.jsonl"))
        return found


def ppo_short() -> Recipe:
    """Return the workload of the guides' claims: 0.5B, 512 + 256 tokens, GAE with a critic."""
    return Recipe(
        name="ppo-short", kind=Kind.PPO, hardware="one NVIDIA H200", shape="qwen2.5-0.5b", prompt=512, response=256,
        batch=128, steps=6,
    )  # fmt: skip


def ppo_long() -> Recipe:
    """Return the long-context workload: 0.5B, 4,096 + 4,096 tokens, where parallel sequences and chunks should tell."""
    return Recipe(
        name="ppo-long", kind=Kind.PPO, hardware="one NVIDIA H200", shape="qwen2.5-0.5b", prompt=4096, response=4096,
        batch=32, steps=4, tokens=16_384,
    )  # fmt: skip


def ppo_1b() -> Recipe:
    """Return the short workload with the 1.5B shape."""
    return Recipe(
        name="ppo-1b", kind=Kind.PPO, hardware="one NVIDIA H200", shape="qwen2.5-1.5b", prompt=512, response=256,
        batch=128, steps=6,
    )  # fmt: skip


def ppo_tiny() -> Recipe:
    """Return the run of the tiny shape on a CPU, that exercises every part; its numbers stand beside no GPU's."""
    return Recipe(
        name="ppo-tiny", kind=Kind.PPO, hardware="a CPU with two cores", shape="tiny", prompt=96, response=16, batch=8,
        steps=3, packages=(), device="cpu", releases=SpecifierSet(">=0.9.0"),
    )  # fmt: skip


def update_tiny() -> Recipe:
    """Return the updates alone of the tiny shape on a CPU, four repeats a side."""
    return Recipe(
        name="update-tiny", kind=Kind.UPDATE, hardware="a CPU with two cores", shape="tiny", prompt=32, response=16,
        batch=16, steps=5, packages=(), device="cpu", releases=SpecifierSet(">=0.9.0"),
    )  # fmt: skip


def rollout_tiny() -> Recipe:
    """Return the rollout alone of the tiny shape on a CPU, four repeats a side."""
    return Recipe(
        name="rollout-tiny", kind=Kind.ROLLOUT, hardware="a CPU with two cores", shape="tiny", prompt=32, response=16,
        batch=16, steps=5, packages=(), device="cpu", releases=SpecifierSet(">=0.9.0"),
    )  # fmt: skip


def update_short() -> Recipe:
    """Return the updates alone of `ppo_short`, twenty repeats a side."""
    return Recipe(
        name="update-short", kind=Kind.UPDATE, hardware="one NVIDIA H200", shape="qwen2.5-0.5b", prompt=512,
        response=256, batch=128, steps=21,
    )  # fmt: skip


def update_long() -> Recipe:
    """Return the updates alone of `ppo_long`, twenty repeats a side."""
    return Recipe(
        name="update-long", kind=Kind.UPDATE, hardware="one NVIDIA H200", shape="qwen2.5-0.5b", prompt=4096,
        response=4096, batch=32, steps=21, tokens=16_384,
    )  # fmt: skip


def rollout_short() -> Recipe:
    """Return the rollout alone of `ppo_short`, twenty repeats a side."""
    return Recipe(
        name="rollout-short", kind=Kind.ROLLOUT, hardware="one NVIDIA H200", shape="qwen2.5-0.5b", prompt=512,
        response=256, batch=128, steps=21,
    )  # fmt: skip


def rollout_long() -> Recipe:
    """Return the rollout alone of `ppo_long`, twenty repeats a side."""
    return Recipe(
        name="rollout-long", kind=Kind.ROLLOUT, hardware="one NVIDIA H200", shape="qwen2.5-0.5b", prompt=4096,
        response=4096, batch=32, steps=21,
    )  # fmt: skip


RECIPES: tuple[Callable[[], Recipe], ...] = (
    ppo_short, ppo_long, ppo_1b, ppo_tiny, update_short, update_long, update_tiny, rollout_short, rollout_long,
    rollout_tiny,
)  # fmt: skip


def recipe_named(name: str) -> Recipe:
    """Return the recipe of that name; raises UsageError that names those there are."""
    known = {recipe.name: recipe for recipe in (make() for make in RECIPES)}
    if name in known:
        return known[name]
    near = near_names(name, known)
    raise UsageError(f"There is no recipe `{name}`.", then=f"Recipes: {', '.join(near or known)}.")


@functools.cache
def _settings() -> ModuleType:
    """Return the module of the settings of a launch, which runs inside cells and is no part of a package here."""
    path = probes_folder() / "ppo" / "gpu_settings.py"
    spec = importlib.util.spec_from_file_location("bench_gpu_settings", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up by name while it is made.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
