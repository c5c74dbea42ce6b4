"""What the suites of pytest-benchmark ask: the launches of a pairing, had once for both of its sides, or why not.

A side is one bench in the saved JSON. The launches of both ran in turns, whichever side is asked for first; a session
that was stopped goes on, since every launch is kept as it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.cli import asked
from bench.cli.words import TOGGLES
from bench.gathered import Gathered, gathered
from bench.launcher import Launcher
from bench.plain import finite, number_, verdict
from bench.recipes import Kind, Recipe, recipe_named
from bench.sample import Side
from bench.saved import KEY, SCHEMA
from bench.series import Series
from bench.series import run as run_series
from bench.toggle import toggle_named
from bench.variant import SIDES, Pairing
from bench.verdicts import Judgement, Paired, judge
from matrix.errors import MatrixError, NothingRanError
from matrix.home import Home
from matrix.probing.folder import probes_folder
from matrix.store import Store

SECONDS: Mapping[Kind, tuple[str, ...]] = {
    Kind.PPO: ("seconds/step",),
    Kind.UPDATE: ("seconds/update_actor", "seconds/update_critic"),
    Kind.ROLLOUT: ("seconds/gen",),
}
"""What is timed, by bench: pytest-benchmark knows seconds only."""
DEFAULTS: Mapping[Kind, tuple[str, ...]] = {
    Kind.PPO: ("ppo-short", "ppo-tiny"),
    Kind.UPDATE: ("update-short", "update-tiny"),
    Kind.ROLLOUT: ("rollout-short", "rollout-tiny"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One bench of the suites: a side of a toggle in a recipe, and which of its seconds is timed."""

    recipe: str
    toggle: str
    side: Side
    metric: str

    @property
    def id(self) -> str:
        """Return the name that stands in a test's brackets; the same on every machine."""
        part = self.metric.partition("/")[2]
        return f"{self.recipe}-{self.toggle}-{SIDES[self.side]}" + ("" if part == "step" else f"-{part}")


def entries(kind: Kind, recipes: Sequence[str], toggles: Sequence[str]) -> list[Entry]:
    """Return the benches of a suite, both sides of a pairing side by side; raises UsageError for unknown names."""
    chosen = [recipe_named(name) for name in dict.fromkeys(recipes or DEFAULTS[kind])]
    names = [toggle_named(name).name for name in dict.fromkeys(toggles or TOGGLES)]
    return [
        Entry(recipe=recipe.name, toggle=name, side=side, metric=metric)
        for recipe in chosen
        if recipe.kind is kind
        for name in names
        for metric in SECONDS[kind]
        for side in Side
    ]


@dataclass(slots=True, kw_only=True)
class Front:
    """The launches of a session of the suites.

    Attributes:
        subject: returns what launches of a device run in; raises MatrixError where there is nothing.
        home: where everything is kept.
        series: the name of the series, "" for that of its content.
    """

    subject: Callable[[str], asked.Subject]
    home: Home
    series: str = ""
    launches: int = asked.LAUNCHES
    repeats: int = 0
    deadline: float = float("inf")
    tell: Callable[[str], None] = lambda _: None
    launching: Callable[..., Any] = Launcher
    _had: dict[tuple[str, str], Paired | str] = field(default_factory=dict)

    def figures(self, entry: Entry) -> tuple[tuple[float, ...], dict[str, Any]]:
        """Return the seconds of a side's launches in the order in which they ran, and all else that is to be saved.

        Raises:
            NothingRanError: there are none; it says why.
        """
        key = (entry.recipe, entry.toggle)
        if key not in self._had:
            try:
                self._had[key] = self._paired(entry)
            except MatrixError as error:
                self._had[key] = str(error).replace("\n", " ")
        found = self._had[key]
        if isinstance(found, str):
            raise NothingRanError(found)
        judgement = found.of(entry.metric)
        values = judgement.gathered.sample.values(entry.side) if judgement is not None else ()
        if judgement is None or not values:
            raise NothingRanError(f"no launch of {entry.id} gave a figure")
        return values, {KEY: _extra(entry, found, judgement)}

    def _paired(self, entry: Entry) -> Paired | str:
        """Return the judged pairing, its launches had; or why there is none."""
        recipe, toggle = recipe_named(entry.recipe), toggle_named(entry.toggle)
        if recipe.device == "cpu" and toggle.gpus > 1:
            return f"{toggle.name} needs {toggle.gpus} GPUs: a CPU has no ranks for it"
        if recipe.device == "cuda" and (why := _lacking(max(recipe.gpus, toggle.gpus))):
            return why
        subject = self.subject(recipe.device)
        (pairing,) = asked.pairings((subject,), (recipe,), (toggle.name,), None)
        if not pairing.is_live and pairing.standing is not None:
            return f"{pairing.standing.standing}: {pairing.standing.why}"
        return self._launched(recipe, pairing, subject)

    def _launched(self, recipe: Recipe, pairing: Pairing, subject: asked.Subject) -> Paired | str:
        self.home.prepare()
        store = Store(self.home.store)
        (series,) = asked.series(self.series or None, (pairing,), self.launches, self.repeats or None)
        with self.launching(
            environments=asked.environments((subject,)), store=store, cache=self.home.cache, probes=probes_folder()
        ) as launcher:
            ended = list(run_series(series, launcher, tell=self.tell, deadline=self.deadline))
        return _of(series, recipe, pairing, gathered(item.observation for item in ended))

    @staticmethod
    def until(minutes: float | None) -> float:
        """Return the moment of `time.monotonic` after so many minutes."""
        return time.monotonic() + minutes * 60 if minutes else float("inf")


def _of(series: Series, recipe: Recipe, pairing: Pairing, found: Sequence[Gathered]) -> Paired | str:
    for one in judge(found):
        if (one.series, one.recipe, one.pairing) == (series.name, recipe.name, pairing.name):
            return one
    return f"no launch of {pairing.name} on {recipe.name} has ended well"


def _lacking(wanted: int) -> str:
    """Return why this machine has not so many GPUs, "" where it has."""
    from matrix.gpus.inventory import take_inventory

    found = take_inventory()
    if len(found.gpus) >= wanted:
        return ""
    why = f": {found.why}" if found.why else ""
    count = len(found.gpus)
    return f"it needs {wanted} GPU{'s' if wanted > 1 else ''}, and there {'is' if count == 1 else 'are'} {count}{why}"


def _extra(entry: Entry, paired: Paired, judgement: Judgement) -> dict[str, Any]:
    """Return what is saved beside the samples, as plain JSON."""
    item = judgement.gathered
    launches = [launch for launch in item.sample.launches if launch.side is entry.side]
    used = {launch.place for launch in item.sample.used}
    return {
        "schema": SCHEMA,
        "series": paired.series,
        "recipe": paired.recipe,
        "pairing": paired.pairing,
        "side": entry.side.value,
        "metric": entry.metric,
        "replicate": item.replicate,
        "device": item.device,
        "machine": item.machine,
        "cell": item.cells.get(entry.side, ""),
        "says": item.says.get(entry.side, ""),
        "places": [launch.place for launch in launches if launch.place in used],
        # With a launch that failed its pair is left out; both are told, so that places stay what they were.
        "faults": {
            str(launch.place): launch.fault or "the other launch of its pair has no figure"
            for launch in launches
            if launch.place not in used
        },
        "raw": {str(place): [finite(value) for value in values] for place, values in item.raw.items() if place in used},
        "reasons": list(item.reasons),
        "verdicts": {one.name: verdict(one.comparison) for one in paired.judgements if one.main or one is judgement},
        "numbers": [number_(one) for one in paired.numbers],
    }


def subject_of(home: Home, python: str | None, cell: str | None, device: str) -> asked.Subject:
    """Return the environment that launches of a device run in: as given, else the first that is kept and fits.

    Raises:
        MatrixError: there is none; it says how to come by one.
    """
    if python or cell:
        return asked.standing_here(python, cell or "") if python else asked.kept(str(cell), home)
    for name in kept_cells(home):
        if ("vllmcpu" in name) == (device == "cpu"):
            return asked.kept(name, home)
    raise NothingRanError(
        f"No environment of a cell for a {'CPU' if device == 'cpu' else 'GPU'} is kept here.",
        then="Give --bench-python CELL/bin/python, or make one with `env build`.",
    )


def kept_cells(home: Home) -> list[str]:
    """Return the cells whose environments are kept, by name."""
    from matrix.provision.shelf import Shelf

    root = home.cache / "environments"
    entries = Shelf(root=root).entries() if root.is_dir() else []
    return sorted(entry.manifest.cell for entry in entries if entry.manifest is not None)


def machine_info() -> dict[str, str]:
    """Return the GPUs and their driver for a saved run; none where there are none."""
    from matrix.gpus.inventory import take_inventory
    from matrix.gpus.nvml import driver

    found = take_inventory()
    if not found.gpus:
        return {}
    return {"gpus": ", ".join(gpu.name for gpu in found.gpus), "driver": str(driver().versions().get("driver", ""))}
