"""The choices of a search for settings: which defaults of a release may be otherwise, in words of hydra.

The defaults are verl's own, composed from the release's files, not the recipe's: what a user gets who sets nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bench.composed import Composing
from bench.recipes import Kind, Recipe
from bench.toggle import Side, Standing, Toggle, judge, resolved, toggle_named
from bench.tuning import Flip
from matrix.config.release import DEFAULT

TUNED = (
    "chunked-prefill", "batched-tokens", "checkpointing-actor", "checkpointing-critic", "remove-padding",
    "dynamic-batch", "torch-compile", "free-cache",
)  # fmt: skip
"""Toggles that a search flips where none is named: each alone makes sense on top of the defaults, no two set one key.

Not those whose other side only saves memory (offload, eager decoding, a smaller share of the card).
"""
GUIDES = {
    "critic.model.enable_gradient_checkpointing": "False",
    "actor_rollout_ref.rollout.enable_chunked_prefill": "True",
    "actor_rollout_ref.rollout.max_num_batched_tokens": "8192",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "0.4",
    "actor_rollout_ref.rollout.max_num_seqs": "512",
}
"""What of the recipe of the guide `tuning` (`claims.toml`; its sections 3.2 and 6.1) a release takes on one card.

Left out are Ulysses on one card, which is refused, and `chunked_prefill_size`, which no release has.
"""
PLAN: Mapping[str, object] = {"graphs": "default"}
"""vLLM decodes as verl has it, compiled and captured: the recipes' quick start is no default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One default and its other value, as hydra words by key; `both` are needed whatever is chosen."""

    name: str
    default: Mapping[str, str]
    other: Mapping[str, str]
    both: tuple[str, ...] = ()

    @property
    def flip(self) -> Flip:
        """Return it as a flip of a search."""
        return Flip(name=self.name, keys=frozenset(self.default))


def choices(
    release: Composing, recipe: Recipe, names: Sequence[str] = TUNED
) -> tuple[tuple[Choice, ...], dict[str, str]]:
    """Return the choices that do something in a recipe, and why each of the others is none.

    Raises:
        UsageError: there is no toggle of a name, or the recipe cannot run with the release.
    """
    defaults = resolved(release.compose(DEFAULT, ()).keys)
    found, out = [], {}
    for name in names:
        toggle = toggle_named(name)
        if toggle.gpus > recipe.gpus or toggle.cells:
            out[name] = f"it needs {toggle.gpus} GPUs" if not toggle.cells else "it compares cells"
            continue
        judged = judge(toggle, recipe, release)
        choice = _choice(toggle, release, defaults) if judged.standing is Standing.LIVE else None
        if choice is None:
            out[name] = judged.why or "its default is not known"
        else:
            found.append(choice)
    return tuple(found), out


def _choice(toggle: Toggle, release: Composing, defaults: Mapping[str, object]) -> Choice | None:
    """Return the default and the side of the toggle that is not it; None where a key has no default."""
    here = [one for one in toggle.settings if one.releases.contains(release.version, prereleases=True)]
    if any(one.key not in defaults for one in here):
        return None
    default = {one.key: str(defaults[one.key]) for one in here}
    for side in (Side.ON, Side.OFF):
        other = {one.key: one.values[side] for one in here}
        if any(other[key].lower() != value.lower() for key, value in default.items()):
            return Choice(name=toggle.name, default=default, other=other, both=toggle.both)
    return None


def words(among: Sequence[Choice], flips: Collection[str] = ()) -> tuple[str, ...]:
    """Return the hydra words of the defaults with some of them flipped; each key once."""
    both = dict.fromkeys(word for choice in among for word in choice.both)
    set_: dict[str, str] = {}
    for choice in among:
        set_ |= choice.other if choice.name in flips else choice.default
    return (*both, *(f"{key}={value}" for key, value in set_.items()))


def guides_words(among: Sequence[Choice]) -> tuple[str, ...]:
    """Return the words of the guides' recipe: the defaults of the same choices, with what the guides set."""
    base = dict(word.split("=", 1) for word in words(among))
    return tuple(f"{key}={value}" for key, value in {**base, **GUIDES}.items())


def changed(among: Sequence[Choice], flips: Collection[str]) -> tuple[str, ...]:
    """Return the words that somebody sets on top of verl's defaults to have the flips."""
    return tuple(f"{key}={value}" for choice in among if choice.name in flips for key, value in choice.other.items())


def benches_of(length: str) -> tuple[str, ...]:
    """Return the names of the cheap benches and of `ppo` for a workload: `short` or `long`."""
    return (*(f"{kind}-{length}" for kind in (Kind.UPDATE, Kind.ROLLOUT)), f"{Kind.PPO}-{length}")
