"""From words to what is compared: environments and the release of verl in them, recipes, toggles, cells, series."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from bench.cli.words import TOGGLES
from bench.composed import Composing
from bench.recipes import Kind, Recipe, recipe_named
from bench.series import Series
from bench.toggle import load_toggles, toggle_named
from bench.variant import Pairing, of_cells, of_toggle, recorded_release
from matrix.cell import Axis, parse_name
from matrix.errors import NothingRanError, UsageError
from matrix.home import Home
from matrix.provision.environment import Environment
from matrix.store import Store

LAUNCHES = 6
"""Of `ppo` a side where nothing is said: five can show nothing as soon as two or more are judged together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What launches run in: a cell, its release of verl, and its environment, None where none is needed (a plan)."""

    cell: str
    release: Version
    environment: Environment | None = None


def subjects(args: argparse.Namespace, *, need: bool) -> tuple[Subject, ...]:
    """Return what the words name; where environments are not needed, a cell's name alone will do.

    Raises:
        UsageError: nothing is named and something is needed, or words exclude each other.
        NothingRanError: a cell is named that has no environment here.
    """
    here = args.here or args.python or args.cell
    if here and args.cells:
        raise UsageError("--here stands in one environment; --cells names others.", then="Give one of the two.")
    if here:
        return (standing_here(args.python, args.cell or ""),)
    if args.cells:
        return tuple(kept(name, Home.find(args.home), need=need) for name in args.cells)
    if need:
        raise UsageError(
            "Nothing says where to run.",
            then="Give --here --python CELL/bin/python, or --cells NAME of cells that `env list` shows.",
        )
    return (Subject(cell=f"verl{args.verl}", release=_release(args.verl)),)


def standing_here(python: str | None, cell: str = "") -> Subject:
    """Return the environment of an interpreter; raises UsageError where it holds no verl, ToolError where it fails."""
    from bench.errand import release_of
    from matrix.provision import here

    environment = here(Path(python) if python else None, cell)
    return Subject(cell=environment.cell, release=release_of(environment), environment=environment)


def kept(name: str, home: Home, *, need: bool = True) -> Subject:
    """Return a cell whose environment is kept on the shelf; raises NothingRanError where it is needed and not there."""
    from matrix.provision.environment import read_manifest
    from matrix.provision.shelf import Shelf

    folder = Shelf(root=home.cache / "environments").folder(name)
    manifest = read_manifest(folder)
    if manifest is None and need:
        raise NothingRanError(f"There is no environment of {name}.", then=f"Make it with `env build {name}`.")
    found = [pin.version for pin in parse_name(name).pins if pin.axis is Axis.VERL]
    if not found:
        raise UsageError(f"{name} names no exact verl, so no bench can be run in it.")
    environment = manifest.environment(folder, reused=True) if manifest is not None else None
    return Subject(cell=name, release=found[0], environment=environment)


def _release(text: str) -> Version:
    from packaging.version import InvalidVersion

    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(f"`{text}` is no version of verl.") from None


def composing(release: Version, home: str | None) -> Composing:
    """Return a release's configuration: as it is recorded, which needs no network, else from the index."""
    from matrix.config.release import ConfigRelease
    from matrix.index.simple import SimpleIndex

    found = recorded_release(release)
    if found is not None:
        return found
    cache = Home.find(home).cache
    return ConfigRelease(SimpleIndex.from_environment(cache_dir=cache), cache, release)


def recipes(names: Sequence[str], device: str = "") -> tuple[Recipe, ...]:
    """Return the recipes of those names, each once, by default the short one; raises UsageError for an unknown one."""
    asked = dict.fromkeys(names or ["ppo-tiny" if device == "cpu" else "ppo-short"])
    return tuple(recipe_named(name) for name in asked)


def pairings(
    among: Sequence[Subject], chosen: Sequence[Recipe], toggles: Sequence[str], home: str | None
) -> tuple[Pairing, ...]:
    """Return what is compared: the first cell with each of the others, and the toggles on the first.

    Toggles that are named are taken as they are, each once: a pairing that stood twice in its series would be judged
    with itself. Without a name they are those that the project is named for, unless cells are compared.
    """
    first, *others = among
    release = composing(first.release, home)
    found = []
    for recipe in chosen:
        recipe.require(first.release)
        for subject in among:
            _require_engine(subject, recipe)
        found += [of_cells(between(first.cell, other.cell), recipe, first.cell, other.cell) for other in others]
        for name in dict.fromkeys(toggles or (() if others else TOGGLES)):
            toggle = toggle_named(name)
            if toggle.cells:
                then = "Compare them with --cells NAME NAME."
                raise UsageError(f"{name} is a toggle of cells: {toggle.what}.", then=then)
            found.append(of_toggle(toggle, recipe, release, first.cell))
    return tuple(found)


def _require_engine(subject: Subject, recipe: Recipe) -> None:
    """Raise UsageError where a recipe rolls out and the environment has no vLLM: verl would say so after 40 seconds."""
    if recipe.kind is Kind.UPDATE or subject.environment is None or "vllm" in subject.environment.installed:
        return
    raise UsageError(
        f"{subject.environment.python} has no distribution named vllm, and {recipe.name} rolls out with it.",
        then="`--recipe update-short` needs none.",
    )


def between(a: str, b: str) -> str:
    """Return a name for the pairing of two cells: that of a toggle of cells where it is one, else what differs."""
    versions = [{pin.package: pin.version for pin in parse_name(name).pins} for name in (a, b)]
    for toggle in load_toggles():
        sides = [[word.partition("==") for word in words] for words in toggle.cells.values()]
        if sides and all(
            str(have.get(package)) == version
            for have, side in zip(versions, sides, strict=True)
            for package, _, version in side
        ):
            return toggle.name
    mine, theirs = a.split("-"), b.split("-")
    left = "-".join(part for part in mine if part not in theirs)
    right = "-".join(part for part in theirs if part not in mine)
    return f"{left or a}..{right or b}"


def series(
    name: str | None, asked: Sequence[Pairing], launches: int, repeats: int | None, *, warm: bool = False
) -> tuple[Series, ...]:
    """Return the series to be run, of `ppo` and of the benches that hold both sides in one launch, under one name.

    Without a name it is that of its content, so that the same words go on where they were. With `warm` each pairing of
    `ppo` begins with a launch a side that fills caches and counts nowhere.
    """
    digest = hashlib.sha256(" ".join(sorted(pairing.digest for pairing in asked)).encode()).hexdigest()[:8]
    called = name or f"series-{digest}"
    whole = tuple(pairing for pairing in asked if pairing.recipe.kind is Kind.PPO)
    both = tuple(pairing for pairing in asked if pairing.recipe.kind is not Kind.PPO)
    found = []
    if whole:
        found.append(Series(name=called, pairings=whole, launches=launches, warm=warm))
    if both:
        found.append(Series(name=called, pairings=both, launches=1, repeats=repeats or 0))
    return tuple(found)


def environments(among: Iterable[Subject]) -> dict[str, Environment]:
    """Return the environments by their cells' names."""
    return {subject.cell: subject.environment for subject in among if subject.environment is not None}


def store_of(home: str | None) -> Store:
    """Return the store of the home."""
    return Store(Home.find(home).store)
