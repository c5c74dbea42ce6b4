"""The recipe: a workload with a name, and the card that a statement about it names (`recipes.toml`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matrix.datafile import Table, read
from matrix.errors import MatrixError, UsageError
from matrix.memory.gpu import Gpu, gpu_named
from matrix.memory.shape import shape_named
from matrix.memory.workload import Value, Workload

RECIPES = Path(__file__).with_name("recipes.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A statement about memory as a workload and a card."""

    name: str
    meaning: str
    workload: Workload
    gpu: Gpu
    source: str


def load_recipes(path: Path = RECIPES) -> dict[str, Recipe]:
    """Return the recipes of the data file by name; raises DataError where it is wrong."""
    data = read(path)
    found = {}
    for row in data.tables("recipe"):
        recipe = _of_row(row)
        if recipe.name in found:
            raise row.error("name", f"`{recipe.name}` is there twice")
        found[recipe.name] = recipe
    data.end()
    return found


def recipe_named(name: str) -> Recipe:
    """Return the recipe of that name; raises UsageError where there is none."""
    recipes = load_recipes()
    if name not in recipes:
        raise UsageError(f"There is no recipe `{name}`.", then=f"Recipes: {', '.join(recipes)}.")
    return recipes[name]


def _of_row(row: Table) -> Recipe:
    settings = row.table("settings")
    try:
        workload = Workload(shape=shape_named(row.text("model"))).with_settings(_plain(settings))
        gpu = gpu_named(row.text("gpu"))
    except MatrixError as error:
        raise row.error("", error.what) from error
    made = Recipe(name=row.text("name"), meaning=row.text("is"), workload=workload, gpu=gpu, source=row.text("source"))
    row.moment("checked")
    row.end()
    return made


def _plain(settings: Table) -> dict[str, Value]:
    """Return the settings of a recipe by key; raises DataError for one that is no plain value."""
    found: dict[str, Value] = {}
    for key, value in settings.values.items():
        if value is not None and not isinstance(value, bool | int | float | str):
            raise settings.error(key, "must be a plain value")
        found[key] = value
    return found
