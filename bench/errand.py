"""The errand: what is started in a cell for one launch, in which environment, within which limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from bench.place import Place
from bench.recipes import Kind
from bench.variant import in_cell
from matrix.errors import UsageError
from matrix.probing.cellfile import digest
from matrix.provision.environment import Environment

FOLDERS = ("ppo", "workload", "benches")
"""Folders of in-cell scripts that a launch runs."""
PLAN = "plan.json"
WARM_STEPS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds: the whole launch, nothing new said meanwhile, and how long it may wait for another launch's end."""

    whole_s: float
    still_s: float
    wait_s: float = 3600.0


def limits_of(place: Place) -> Limits:
    """Return the limits of a launch: of a hang more than a minute or two is lost only where a step may be as long."""
    recipe = place.pairing.recipe
    if recipe.device == "cpu":
        return Limits(whole_s=1800.0, still_s=900.0)
    if place.kind is not Kind.PPO:
        return Limits(whole_s=600.0, still_s=240.0)
    longest = recipe.batch * (recipe.prompt + recipe.response) / 2_000
    return Limits(whole_s=300.0 + recipe.steps * max(20.0, longest), still_s=max(150.0, 2 * longest))


def release_of(environment: Environment) -> Version:
    """Return the release of verl in an environment; raises UsageError where there is none."""
    try:
        return Version(environment.installed["verl"])
    except (KeyError, InvalidVersion):
        raise UsageError(
            f"{environment.python} has no verl, so no bench can be launched there.",
            then="Name the interpreter of a cell: `env list` shows those that were built.",
        ) from None


def command(
    place: Place, environments: Mapping[str, Environment], probes: Path, out: Path, limits: Limits
) -> list[str]:
    """Return the command of a launch; what it needs of files is written below `out`."""
    first = environments[place.variants[0].cell]
    script = [str(first.python), str(in_cell(probes, place.kind)), "--out", str(out)]
    if place.side is not None:
        words = list(place.variants[0].words)
        if place.warms:
            words[words.index("--steps") + 1] = str(WARM_STEPS)
        return [*script, "--limit", f"{limits.whole_s:g}", *words]
    out.mkdir(parents=True, exist_ok=True)
    path = out.with_name(PLAN)
    path.write_text(json.dumps(both_sides(place, environments, limits), indent=1), encoding="utf-8")
    return [*script, "--plan", str(path), "--device", place.pairing.recipe.device]


def both_sides(place: Place, environments: Mapping[str, Environment], limits: Limits) -> dict[str, object]:
    """Return the plan of a launch that holds both sides, as `tests/compat/benches` reads it."""
    recipe, planned = place.pairing.recipe, place.pairing.a.planned
    a, b = (environments[variant.cell] for variant in place.variants)
    words = [list(recipe.words(release_of(side), place.pairing.a.plan)) for side in (a, b)]
    shared = words[0] if words[0] == words[1] else []
    own = [[] if shared else side for side in words]
    return {
        "schema": 1,
        "kind": place.kind.value,
        **{name: planned[name] for name in ("shape", "prompt", "response", "batch", "graphs")},
        "repeats": place.repeats or recipe.steps - 1,
        # The prompts of a short bench are those of `ppo`, so that the two may agree; a long one fills its lengths.
        "lengths": "full" if recipe.name.endswith("-long") else "data",
        "gpus": max(1, place.pairing.gpus),
        **({"warm_up": 1} if recipe.device == "cpu" else {}),
        "critic": planned["estimator"] == "gae",
        "common": shared,
        "off": [*own[0], *place.pairing.a.overrides],
        "on": [*own[1], *place.pairing.b.overrides],
        **({"python": {"off": str(a.python), "on": str(b.python)}} if a.python != b.python else {}),
        "seconds": round(limits.whole_s * 0.85),
        "limit": round(limits.whole_s),
    }


def variables(device: str, visible: str, caches: Path) -> dict[str, str]:
    """Return what is set in a launch's environment beside what probes have: which GPUs, and where caches lie."""
    return {
        "CUDA_VISIBLE_DEVICES": visible if device == "cuda" else "",
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "VLLM_CACHE_ROOT": str(caches / "vllm"),
        # Asking whether there is a GPU must not wake the driver in a process that forks later.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


def scripts_digest(probes: Path) -> str:
    """Return the digest of the in-cell scripts that launches run."""
    files = sorted(file for name in FOLDERS for file in (probes / name).glob("*.py"))
    return digest({str(file.relative_to(probes)): file.read_text(encoding="utf-8") for file in files})
