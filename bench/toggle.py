"""Toggles: one setting off and on, by the keys of each release of verl, and whether it does anything there.

A toggle is `live` where its two sides differ in something that the release acts on, `inert` where they are the same
configuration or differ in keys alone that nothing reads, and `refused` where the release has no such key. Both sides
are composed by hydra from the release's own files to tell, with the recipe that they would run in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from bench.composed import Composing, nested
from bench.recipes import Kind, Recipe
from matrix.config.release import DEFAULT
from matrix.config.wiring import Says, Wire, about, load_wiring
from matrix.datafile import Table, read
from matrix.errors import UsageError
from matrix.nearness import near_names

TOGGLES = Path(__file__).with_name("toggles.toml")
_NO_DYNAMO = "TORCHDYNAMO_DISABLE"
_REFERENCE = re.compile(r"[\w.]+")
_ROLLOUT = "actor_rollout_ref.rollout."


class Side(StrEnum):
    """The two sides of a toggle: without the thing it names, and with it."""

    OFF = "off"
    ON = "on"


class Standing(StrEnum):
    """Whether a toggle does anything in a release."""

    LIVE = "live"
    INERT = "inert"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key with its two values and the releases in which it is the one; `added` where it is in no file (`++`)."""

    key: str
    releases: SpecifierSet
    values: Mapping[Side, str]
    added: bool = False

    def word(self, side: Side) -> str:
        """Return the override; `++` adds or sets, so that one that is there already is no error."""
        return f"{'++' if self.added else ''}{self.key}={self.values[side]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toggle:
    """One thing, off and on.

    Attributes:
        settings: its keys; of a toggle of cells none.
        both: overrides that both sides have, so that only the thing itself differs.
        plan: fields of the launch's plan that both sides have.
        gpus: how many GPUs it needs at least.
        critic: whether a critic must be trained for it to be whole.
        cells: the requirements that the cells of the two sides differ in.
    """

    name: str
    what: str
    settings: tuple[Setting, ...] = ()
    both: tuple[str, ...] = ()
    plan: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 1
    critic: bool = False
    cells: Mapping[Side, tuple[str, ...]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the keys that the toggle sets, in whatever release."""
        return tuple(setting.key for setting in self.settings)

    def words(self, side: Side, release: Version) -> tuple[str, ...]:
        """Return the overrides of a side in a release, the common ones first.

        Raises:
            UsageError: the release has no key for it, which is named.
        """
        here = [setting for setting in self.settings if setting.releases.contains(release, prereleases=True)]
        if self.settings and not here:
            known = "; ".join(f"{setting.key} in {setting.releases}" for setting in self.settings)
            raise UsageError(f"{self.name}: verl {release} has no key for it.", why=f"There is {known}.")
        return (*self.both, *(setting.word(side) for setting in here))

    def plan_for(self, recipe: Recipe) -> dict[str, object]:
        """Return the fields of the launch's plan that the toggle needs otherwise than the recipe has them."""
        return {**self.plan, "devices": max(self.gpus, recipe.gpus)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a toggle does in a recipe and a release.

    `changed` are the keys that differ and count, with their values off and on; `idle` those that differ and do nothing,
    with the reason; `why` says why it is not live.
    """

    toggle: Toggle
    release: Version
    standing: Standing
    changed: Mapping[str, tuple[object, object]] = field(default_factory=dict)
    idle: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


def judge(toggle: Toggle, recipe: Recipe, release: Composing, wiring: Sequence[Wire] | None = None) -> Judged:
    """Return what a toggle does in a recipe with a release; never raises for what the release lacks.

    Raises:
        UsageError: the recipe itself cannot run with the release, or its settings do not compose there.
    """
    known = load_wiring() if wiring is None else wiring
    version, plan = release.version, toggle.plan_for(recipe)
    base = recipe.words(version, plan)
    if refusal := release.compose(DEFAULT, base).refusal:
        raise UsageError(f"{recipe.name} does not compose with verl {version}.", why=refusal)
    sides: dict[Side, Mapping[str, object]] = {}
    for side in Side:
        try:
            words = toggle.words(side, version)
        except UsageError as error:
            return Judged(toggle=toggle, release=version, standing=Standing.REFUSED, why=str(error))
        composed = release.compose(DEFAULT, (*base, *words))
        if composed.refusal:
            return Judged(toggle=toggle, release=version, standing=Standing.REFUSED, why=composed.refusal)
        sides[side] = resolved(composed.keys)
    off, on = sides[Side.OFF], sides[Side.ON]
    changed = {key: (off.get(key), on.get(key)) for key in sorted({*off, *on}) if off.get(key) != on.get(key)}
    silent = _NO_DYNAMO in recipe.environment(plan)
    idle = {key: why for key in changed if (why := _idle(key, recipe, release, known, silent))}
    live = {key: values for key, values in changed.items() if key not in idle}
    if toggle.cells:
        live["cell"] = (" ".join(toggle.cells[Side.OFF]), " ".join(toggle.cells[Side.ON]))
    if live:
        return Judged(toggle=toggle, release=version, standing=Standing.LIVE, changed=live, idle=idle)
    why = "; ".join(f"{key}: {reason}" for key, reason in idle.items()) or "both sides are the same configuration"
    return Judged(toggle=toggle, release=version, standing=Standing.INERT, idle=idle, why=why)


def _idle(key: str, recipe: Recipe, release: Composing, wiring: Sequence[Wire], silent: bool) -> str:
    """Return why a key that differs does nothing, "" where it does something as far as is known."""
    for wire in about(key, release.version, wiring):
        if wire.says in (Says.INERT, Says.MOVED):
            return f"{wire.why} ({wire.source})"
    # Roles that no recipe has: a reference policy, a model that rewards, a teacher.
    if key.startswith(("actor_rollout_ref.ref.", "reward", "distillation.")):
        return "the recipe has no such role"
    if key.startswith("critic.") and recipe.estimator != "gae":
        return "the recipe trains no critic"
    rollout = key.startswith(_ROLLOUT) and "log_prob" not in key
    if (recipe.kind is Kind.ROLLOUT and not rollout) or (recipe.kind is Kind.UPDATE and rollout):
        return f"the bench {recipe.kind} does not run it"
    if silent and key.endswith("use_torch_compile"):
        return f"the launch sets {_NO_DYNAMO}"
    return "" if key.rpartition(".")[2] in release.reads() else "no code reads a field of that name"


def resolved(keys: Mapping[str, object]) -> dict[str, object]:
    """Return keys with their interpolations put in; one that cannot be resolved stays as it is written."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    # Only what is asked for and what it may point at: making a node of every key takes longer than all else.
    texts = [value for value in keys.values() if isinstance(value, str) and "${" in value]
    named = {word.rpartition(".")[2] for text in texts for word in _REFERENCE.findall(text)}
    made = OmegaConf.create(
        nested(
            {
                key: value
                for key, value in keys.items()
                if named.intersection(key.split(".")) or (isinstance(value, str) and "${" in value)
            }
        )
    )
    found = dict(keys)
    for key, value in keys.items():
        if isinstance(value, str) and "${" in value:
            try:
                found[key] = OmegaConf.select(made, key)
            except OmegaConfBaseException:
                continue
    return found


def load_toggles(path: Path = TOGGLES) -> tuple[Toggle, ...]:
    """Return the toggles of the data file; raises DataError where it is wrong."""
    whole = read(path)
    toggles: dict[str, Toggle] = {}
    for row in whole.tables("toggle"):
        toggle = _toggle(row)
        if toggle.name in toggles:
            raise row.error("name", f"`{toggle.name}` is there twice")
        toggles[toggle.name] = toggle
    whole.end()
    return tuple(toggles.values())


def toggle_named(name: str) -> Toggle:
    """Return the toggle of that name; raises UsageError that names those there are."""
    known = {toggle.name: toggle for toggle in load_toggles()}
    if name in known:
        return known[name]
    near = near_names(name, known)
    raise UsageError(f"There is no toggle `{name}`.", then=f"Toggles: {', '.join(near or known)}.")


def _toggle(row: Table) -> Toggle:
    plan = {}
    for at, text in enumerate(row.texts("plan", ())):
        name, equals, value = text.partition("=")
        if not equals:
            raise row.error(f"plan[{at}]", f"`{text}` is not NAME=VALUE")
        plan[name] = value
    cells = {side: row.texts(side.value, ()) for side in Side}
    toggle = Toggle(
        name=row.text("name"),
        what=row.text("what"),
        settings=tuple(_setting(key) for key in row.tables("key")),
        both=row.texts("both", ()),
        plan=plan,
        gpus=row.integer("gpus", 1),
        critic=row.flag("critic", False),
        cells=cells if any(cells.values()) else {},
    )
    if bool(toggle.settings) == bool(toggle.cells):
        raise row.error("", "has keys or cells, one of both")
    row.end()
    return toggle


def _setting(row: Table) -> Setting:
    setting = Setting(
        key=row.text("key"),
        releases=_range(row),
        values={side: row.text(side.value) for side in Side},
        added=row.flag("added", False),
    )
    row.end()
    return setting


def _range(row: Table) -> SpecifierSet:
    text = row.text("releases")
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        raise row.error("releases", f"`{text}` is not a range like >=0.8,<0.9") from None
