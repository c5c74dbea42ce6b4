"""The plan: what launches would cost and what they could show, told before any time of a GPU is spent.

Noise and seconds are those of recorded launches of the same recipe where there are some; else they are assumed, and the
plan says so, with what the assumption rests on.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench import power
from bench.recipes import Kind, Recipe
from bench.sample import order
from bench.stats import least_p, ways
from bench.variant import Pairing
from bench.verdicts import FAMILY, MARGIN, Paired
from matrix.errors import UsageError
from matrix.observe import Observation
from matrix.tier import Outcome, Tier

ASSUMED_NOISE: Mapping[Kind, float] = {Kind.PPO: 0.015, Kind.UPDATE: 0.01, Kind.ROLLOUT: 0.01}
"""Of launches (`ppo`) and of repeats within one, where none is recorded."""
NOISE_RESTS_ON = (
    "assumed: four steps of the one recorded launch on an H200 scatter by 2.4 %, medians of five by some 60 % of it"
)
CPU_NOISE = 0.1
CPU_RESTS_ON = "assumed: a CPU that others use scatters by 10 % and more"
ASSUMED_SECONDS: Mapping[str, float] = {
    "ppo-short": 165, "ppo-long": 355, "ppo-1b": 220, "ppo-tiny": 150, "update-tiny": 90, "rollout-tiny": 120,
    "update-short": 260, "update-long": 540, "rollout-short": 270, "rollout-long": 560,
}  # fmt: skip
"""Of one launch by its recipe, on its hardware, where none is recorded."""
SECONDS_REST_ON = "assumed: 95 s to the first step on an H200 (docs/gpu_ppo.md), and steps sized by tokens"
CPU_SECONDS_REST_ON = "assumed: launches on two cores took so long (docs/launches.md)"
_UNKNOWN_SECONDS = 300.0
MOST_LAUNCHES = power.MOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What recorded launches tell of those to come: noise by recipe and metric, seconds of a launch by recipe."""

    noise: Mapping[tuple[str, str], power.Noise] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one main metric of a pairing would cost and could show.

    Attributes:
        n: figures a side: launches, or the repeats of one launch.
        launches: of the pairing in all, both sides.
        minutes: of all of them, one after the other; `gpu_minutes` by the GPUs that each holds.
        noise, noise_from: taken for the plan, and what it rests on.
        seconds_from: what the minutes rest on.
        why: why nothing would be run, "" for a live pairing.
    """

    pairing: str
    recipe: str
    metric: str
    n: int
    launches: int
    gpus: int
    minutes: float
    gpu_minutes: float
    noise: float = 0.0
    noise_from: str = ""
    seconds_from: str = ""
    could: power.Plan | None = None
    standing: str = "live"
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """The rows of a plan, its totals, and what to know before it is run; `family` is what Holm divides by at first."""

    rows: tuple[Row, ...]
    family: int
    margin: float
    notes: tuple[str, ...] = ()

    @property
    def minutes(self) -> float:
        """Return the minutes of all launches, one after the other."""
        return sum({(row.pairing, row.recipe): row.minutes for row in self.rows}.values())

    @property
    def gpu_minutes(self) -> float:
        """Return the same in minutes of a GPU: of launches that hold two, twice."""
        return sum({(row.pairing, row.recipe): row.gpu_minutes for row in self.rows}.values())


def past(observations: Iterable[Observation], paired: Sequence[Paired]) -> Past:
    """Return what is recorded of launches: how long those without a fault took, how figures of one side scatter."""
    seconds: dict[str, list[float]] = {}
    for item in observations:
        parts = item.question.probe.split("/")
        whole = item.outcome is Outcome.OK and item.seconds > 0
        if item.question.tier is Tier.BENCH and parts[0] == "launch" and len(parts) > 2 and whole:
            seconds.setdefault(parts[1], []).append(item.seconds)
    noise: dict[tuple[str, str], power.Noise] = {}
    for one in paired:
        for judgement in one.main:
            found = power.noise_of(judgement.gathered.sample)
            known = noise.get((one.recipe, judgement.name))
            # What rests on most differences; of noise 0 (equal figures) nothing can be planned.
            if found is not None and found.value > 0 and (known is None or found.degrees > known.degrees):
                noise[one.recipe, judgement.name] = found
    return Past(noise=noise, seconds={name: statistics.median(values) for name, values in seconds.items()})


def planned(
    pairings: Sequence[Pairing],
    launches: int,
    *,
    repeats: int | None = None,
    known: Past | None = None,
    margin: float = MARGIN,
    noise: float | None = None,
) -> BenchPlan:
    """Return what so many launches a side of each live pairing would cost and could show.

    Args:
        pairings: what would be compared; those that are inert or refused have a row with the reason and no launch.
        launches: a side, of `ppo`; the other benches hold both sides in one launch.
        repeats: a side within one launch of `update` and `rollout`; by default what the recipe says.
        known: what is recorded of such launches.
        margin: the equivalence margin.
        noise: taken for all, in place of what is recorded or assumed.

    Raises:
        UsageError: no sensible number of launches, or a noise or margin that is none.
    """
    if not 1 <= launches <= MOST_LAUNCHES or (repeats is not None and not 1 <= repeats <= MOST_LAUNCHES):
        asked = f"{launches}" if repeats is None else f"{launches} and {repeats}"
        raise UsageError(f"Launches and repeats a side are 1 to {MOST_LAUNCHES}, not {asked}.")
    if not 0 < margin < 1 or (noise is not None and not 0 < noise < 1):
        raise UsageError("The margin and the noise lie between 0 and 1: 0.02 is 2 %.")
    had = known or Past()
    live = [pairing for pairing in pairings if pairing.is_live]
    family = sum(len(FAMILY[pairing.recipe.kind]) for pairing in live)
    rows = []
    for pairing in pairings:
        if not pairing.is_live and pairing.standing is not None:
            rows.append(_idle(pairing, pairing.standing.standing.value, pairing.standing.why))
            continue
        rows += [
            _row(pairing, name, launches, repeats, had, margin, noise, family) for name in FAMILY[pairing.recipe.kind]
        ]
    return BenchPlan(rows=tuple(rows), family=family, margin=margin, notes=tuple(_notes(rows, family, launches)))


def _idle(pairing: Pairing, standing: str, why: str) -> Row:
    return Row(
        pairing=pairing.name, recipe=pairing.recipe.name, metric="", n=0, launches=0, gpus=pairing.gpus, minutes=0.0,
        gpu_minutes=0.0, standing=standing, why=why,
    )  # fmt: skip


def _row(
    pairing: Pairing,
    metric: str,
    launches: int,
    repeats: int | None,
    had: Past,
    margin: float,
    noise: float | None,
    family: int,
) -> Row:
    recipe = pairing.recipe
    whole = recipe.kind is Kind.PPO
    n = launches if whole else repeats or max(1, recipe.steps - 1)
    count = 2 * launches if whole else 1
    seconds, seconds_from = _seconds(recipe, had)
    taken, noise_from = _noise(recipe, metric, had, noise)
    minutes = count * seconds / 60
    return Row(
        pairing=pairing.name,
        recipe=recipe.name,
        metric=metric,
        n=n,
        launches=count,
        gpus=pairing.gpus,
        minutes=minutes,
        gpu_minutes=minutes * pairing.gpus,
        noise=taken,
        noise_from=noise_from,
        seconds_from=seconds_from,
        could=power.plan(n, taken, margin, family=max(1, family)),
    )


def _seconds(recipe: Recipe, had: Past) -> tuple[float, str]:
    if recipe.name in had.seconds:
        return had.seconds[recipe.name], "recorded launches"
    rests_on = CPU_SECONDS_REST_ON if recipe.device == "cpu" else SECONDS_REST_ON
    return ASSUMED_SECONDS.get(recipe.name, _UNKNOWN_SECONDS), rests_on


def _noise(recipe: Recipe, metric: str, had: Past, given: float | None) -> tuple[float, str]:
    """Return the noise of a plan: of recorded launches the bound that is kept in four of five cases."""
    if given is not None:
        return given, "as given"
    if (found := had.noise.get((recipe.name, metric))) is not None:
        return (
            found.high,
            f"recorded: {found.value:.2%}, below {found.high:.2%} in 4 of 5 cases ({found.degrees} differences)",
        )
    return (CPU_NOISE, CPU_RESTS_ON) if recipe.device == "cpu" else (ASSUMED_NOISE[recipe.kind], NOISE_RESTS_ON)


def least_launches(family: int, alpha: float = 0.05) -> int:
    """Return the fewest launches a side that can show anything in a family of that size, whatever is measured."""
    for n in range(1, MOST_LAUNCHES + 1):
        # The ways depend on the order alone, so any figures will do.
        if least_p(_ways(n)) <= alpha / max(1, family):
            return n
    return MOST_LAUNCHES


def _ways(n: int) -> int:
    from bench.sample import Better, Launch, Metric, Sample

    launches = tuple(Launch(place=at, side=side, value=1.0) for at, side in enumerate(order(n)))
    return ways(Sample(metric=Metric(name="", unit="", better=Better.HIGHER), launches=launches).blocks)


def _notes(rows: Sequence[Row], family: int, launches: int) -> list[str]:
    """Return what to know before such a plan is run."""
    notes = []
    if not any(row.could for row in rows):
        return ["nothing would be run: no pairing does anything here"]
    least = least_launches(family)
    if any(row.could is not None and row.launches > 1 for row in rows) and launches < least:
        notes.append(
            f"{launches} launches a side can show no difference among {family} comparisons, however large it is:"
            f" take {least} or more, or fewer pairings in a series"
        )
    notes += [
        f"noise is {assumed}; what is detectable is wrong in proportion where that is wrong"
        for assumed in (NOISE_RESTS_ON, CPU_RESTS_ON)
        if any(row.noise_from == assumed for row in rows)
    ]
    notes += [
        f"minutes are {assumed}"
        for assumed in (SECONDS_REST_ON, CPU_SECONDS_REST_ON)
        if any(row.seconds_from == assumed for row in rows)
    ]
    if any(row.could is not None and row.launches == 1 for row in rows):
        notes.append("n of `update` and `rollout` are repeats within one launch: how launches differ is not in them")
    return notes
