"""What is kept of a judged series: one observation a comparison, and one for each toggle that was not run, with why.

The launches are kept by the launcher; these are what other parts of the project read, which know nothing of statistics:
`pins` takes from them whether an upgrade costs speed, memory or numbers of training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from bench.comparison import Comparison
from bench.numerics import Kept, Number
from bench.sample import Better, Side
from bench.variant import Pairing
from bench.verdicts import Judgement, Paired, note
from matrix.observe import COMPARE, STANDING, Observation, Question
from matrix.tier import Outcome, Tier

TOOL = "bench verdicts 1"
"""The version of the way in which launches become verdicts; raised when that changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """A toggle that was asked for and not run: `inert` or `refused`, with the reason."""

    pairing: str
    recipe: str
    cell: str
    standing: str
    why: str


def comparisons(paired: Sequence[Paired], at: datetime) -> tuple[Observation, ...]:
    """Return an observation for each metric of each pairing, and for each of its numbers of training."""
    found = []
    for item in paired:
        found += [_comparison(item, judgement, at) for judgement in item.judgements]
        found += [_number(item, number, at) for number in item.numbers]
    return tuple(found)


def _comparison(paired: Paired, judgement: Judgement, at: datetime) -> Observation:
    found = judgement.comparison
    low, high = found.interval or (None, None)
    kind = "memory" if found.metric.name.startswith("memory") else "speed"
    data = {
        **_named(paired, judgement),
        "metric": found.metric.name,
        "ratio": found.ratio,
        "low": low,
        "high": high,
        "n": list(found.n),
        "verdict": found.verdict.value,
        "better": found.metric.better.value,
        "kind": _kind(paired, kind),
        "main": judgement.main,
        "beyond_tolerance": False,
        "reason": note(found),
    }
    return _observed(paired, judgement, found.metric.name, data, at, why(found))


def _number(paired: Paired, number: Number, at: datetime) -> Observation:
    judgement = paired.judgements[0]
    low, high = number.interval or (None, None)
    found = judgement.comparison
    data = {
        **_named(paired, judgement),
        "metric": number.name,
        "ratio": number.ratio,
        "low": low,
        "high": high,
        "n": list(found.n),
        "verdict": number.kept.value,
        "better": Better.LOWER.value,
        "kind": _kind(paired, "numerics"),
        "main": False,
        "beyond_tolerance": number.kept is Kept.MOVED,
        "reason": f"tolerance {number.tolerance.margin:.0%}: {number.tolerance.why}",
    }
    return _observed(paired, judgement, number.name, data, at, number.kept.value)


def _kind(paired: Paired, kind: str) -> str:
    """Return what a comparison is of; on a CPU it is an exercise, from which nobody may take what an upgrade costs."""
    return "exercise" if paired.device == "cpu" else kind


def _named(paired: Paired, judgement: Judgement) -> dict[str, object]:
    """Return what a comparison is of."""
    cells = judgement.gathered.cells
    return {
        "series": paired.series,
        "pairing": paired.pairing,
        "recipe": paired.recipe,
        "device": paired.device,
        "a": cells.get(Side.A, ""),
        "b": cells.get(Side.B, ""),
        "says": {side.value: text for side, text in judgement.gathered.says.items()},
    }


def _observed(
    paired: Paired, judgement: Judgement, metric: str, data: dict[str, object], at: datetime, reason: str
) -> Observation:
    item = judgement.gathered
    question = Question(
        cell=item.cells.get(Side.B, ""),
        probe=f"{COMPARE}{paired.recipe}/{paired.pairing}/{metric}",
        tier=Tier.BENCH,
        tool=TOOL,
        # What it was judged by: with another launch it is another question.
        reads={
            "series": paired.series,
            "launches": f"{len(item.sample.launches)}, the last of {item.at[1]:%Y-%m-%dT%H:%M:%S}",
        },
    )
    return Observation(
        question=question,
        outcome=Outcome.OK,
        reason=reason,
        detail={"comparison": data},
        machine=item.machine,
        at=at,
    )


def why(found: Comparison) -> str:
    """Return a comparison in one line: verdict, ratio, interval, n."""
    if found.ratio is None:
        return f"{found.metric.name}: {found.verdict}, {note(found) or 'nothing is left to compare'}"
    interval = f" [{found.interval[0]:.4g}, {found.interval[1]:.4g}]" if found.interval else ""
    return f"{found.metric.name}: {found.verdict}, ratio {found.ratio:.4g}{interval}, n = {found.n[0]}+{found.n[1]}"


def standings(pairings: Iterable[Pairing], machine: str, at: datetime) -> tuple[Observation, ...]:
    """Return an observation for each pairing that is inert or refused, by which a report says why it has no figure."""
    found = []
    for pairing in pairings:
        if pairing.is_live or pairing.standing is None:
            continue
        judged = pairing.standing
        question = Question(
            cell=pairing.b.cell,
            probe=f"{STANDING}{pairing.recipe.name}/{pairing.name}",
            tier=Tier.BENCH,
            tool=TOOL,
            reads={"pairing": pairing.digest},
        )
        found.append(
            Observation(
                question=question,
                outcome=Outcome.UNTESTED,
                reason=f"{judged.standing}: {judged.why}",
                detail={"standing": judged.standing.value, "why": judged.why},
                machine=machine,
                at=at,
            )
        )
    return tuple(found)


def idle(observations: Iterable[Observation]) -> tuple[Idle, ...]:
    """Return the toggles that were asked for and not run, each once, as it was told last."""
    found: dict[tuple[str, str, str], Idle] = {}
    for item in sorted(observations, key=lambda item: item.at):
        probe = item.question.probe
        if item.question.tier is not Tier.BENCH or not probe.startswith(STANDING) or probe.count("/") != 2:
            continue
        _, recipe, pairing = probe.split("/")
        one = Idle(
            pairing=pairing,
            recipe=recipe,
            cell=item.question.cell,
            standing=str(item.detail.get("standing", "")),
            why=str(item.detail.get("why", item.reason)),
        )
        found[recipe, pairing, one.cell] = one
    return tuple(found.values())
