"""What guides promise of speed and memory (`claims.toml`), beside what was measured: ratio, interval, n, verdict.

A promise is a ratio after / before of one metric. It is judged by the interval of what was measured, never by the
estimate alone, and one that was not measured has its reason and no number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.comparison import Comparison, Verdict
from bench.sample import Better
from bench.verdicts import Judgement, Paired
from matrix.datafile import Table, read

if TYPE_CHECKING:
    from pandas import DataFrame

CLAIMS = Path(__file__).with_name("claims.toml")
COLUMNS = ("claim", "guide", "promised", "measured", "low", "high", "n", "verdict", "why", "where")


class Way(StrEnum):
    """Which way a metric is promised to go, where no number is."""

    MORE = "more"
    LESS = "less"


class Held(StrEnum):
    """What was shown of a promise, by the 95 % interval of what was measured.

    `exceeded`: more than promised is shown. `met`: a gain is shown, and the promised one lies in the interval. `less`:
    a gain is shown, smaller than promised. `refuted`: the promised one is refuted, and no gain is shown.
    """

    EXCEEDED = "exceeded"
    MET = "met"
    LESS = "less"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive"
    INCOMPARABLE = "incomparable"
    UNTESTED = "untested"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One promise; `ratio` after / before of the metric, or only its `way`, or `least` of an absolute figure.

    Attributes:
        guide: the title of the guide.
        section: where it stands in the guide.
        says: the promise in our words.
        pairing: the toggle or pairing that tests it, "" for none.
        swapped: the promise is of the toggle's off side.
        recipes: where it is measured, first the one that decides.
        untested: why no bench can test it, "" where one can.
        hardware: a pattern of the GPUs' name that `least` is of.
    """

    id: str
    guide: str
    section: str
    says: str
    metric: str
    pairing: str = ""
    swapped: bool = False
    recipes: tuple[str, ...] = ()
    ratio: float | None = None
    way: Way | None = None
    least: float | None = None
    hardware: str = ""
    untested: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was measured of a promise in one recipe; ratio and interval are after / before, as it is promised."""

    claim: Claim
    held: Held
    recipe: str = ""
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    n: tuple[int, int] = (0, 0)
    value: float | None = None
    device: str = ""
    why: str = ""

    @property
    def promised(self) -> str:
        """Return what is promised, in a word."""
        claim = self.claim
        if claim.ratio is not None:
            return f"{claim.ratio:g} times"
        return claim.way.value if claim.way is not None else f"≥ {claim.least:g}"


def load_claims(path: Path = CLAIMS) -> tuple[Claim, ...]:
    """Return the promises of the data file; raises DataError where it is wrong."""
    whole = read(path)
    whole.moment("checked")
    guides = whole.table("guides")
    titles = {name: guides.text(name) for name in guides.values}
    found: dict[str, Claim] = {}
    for row in whole.tables("claim"):
        claim = _claim(row, titles)
        if claim.id in found:
            raise row.error("id", f"`{claim.id}` is there twice")
        found[claim.id] = claim
    whole.end()
    return tuple(found.values())


def _claim(row: Table, titles: dict[str, str]) -> Claim:
    guide = row.text("guide")
    if guide not in titles:
        raise row.error("guide", f"`{guide}` is none of {', '.join(titles)}")
    way = row.text("way", "")
    if way not in ("", *Way):
        raise row.error("way", f"`{way}` is none of {', '.join(Way)}")
    claim = Claim(
        id=row.text("id"),
        guide=titles[guide],
        section=row.text("section"),
        says=row.text("says"),
        metric=row.text("metric"),
        pairing=row.text("pairing", ""),
        swapped=row.flag("swapped", False),
        recipes=row.texts("recipes", ()),
        ratio=_number(row, "ratio"),
        way=Way(way) if way else None,
        least=_number(row, "least"),
        hardware=row.text("hardware", ""),
        untested=row.text("untested", ""),
        note=row.text("note", ""),
    )
    if [claim.ratio is not None, claim.way is not None, claim.least is not None].count(True) != 1:
        raise row.error("ratio", "has a ratio, a way or a least figure, one of the three")
    if bool(claim.untested) == bool(claim.recipes):
        raise row.error("recipes", "names recipes, or says in `untested` why there is none")
    if claim.recipes and bool(claim.pairing) == (claim.least is not None):
        raise row.error("pairing", "a ratio or a way is of a pairing, a least figure of none")
    if bool(claim.hardware) != (claim.least is not None):
        raise row.error("hardware", "goes with a least figure")
    row.end()
    return claim


def _number(row: Table, name: str) -> float | None:
    if not row.has(name):
        return None
    value = row.values[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise row.error(name, "must be a number above 0")
    return float(value)


def answers(
    paired: Sequence[Paired], claims: Sequence[Claim] | None = None, standings: dict[str, str] | None = None
) -> tuple[Answer, ...]:
    """Return what was measured of each promise, a row a recipe that measured it, untested ones too.

    Numbers of a CPU answer no promise: these are of GPUs. `standings` are the reasons of pairings that were refused or
    inert when they were asked for, by name.
    """
    found: list[Answer] = []
    for claim in load_claims() if claims is None else claims:
        rows = [] if claim.untested else _measured(claim, [item for item in paired if item.device != "cpu"])
        why = claim.untested or (standings or {}).get(claim.pairing, "") or _not_run(claim)
        found += rows or [Answer(claim=claim, held=Held.UNTESTED, why=why)]
    return tuple(found)


def _not_run(claim: Claim) -> str:
    what = f" of `{claim.pairing}`" if claim.pairing else ""
    return f"not run: no launch{what} on {' or '.join(claim.recipes)} is recorded"


def _measured(claim: Claim, paired: Sequence[Paired]) -> list[Answer]:
    found = []
    for recipe in claim.recipes:
        for item in paired:
            if item.recipe != recipe or (claim.pairing and item.pairing != claim.pairing):
                continue
            judgement = item.of(claim.metric)
            if judgement is None:
                continue
            found.append(_absolute(claim, item, judgement) if claim.least else answer(claim, item, judgement))
            if claim.least is not None:
                break
    return found


def answer(claim: Claim, paired: Paired, judgement: Judgement) -> Answer:
    """Return what the comparison says of a promised ratio."""
    found = judgement.comparison
    ratio, interval = found.ratio, found.interval
    if claim.swapped:
        ratio = None if ratio is None else 1 / ratio
        interval = None if interval is None else (1 / interval[1], 1 / interval[0])
    return Answer(
        claim=claim,
        held=held(claim, found, interval),
        recipe=paired.recipe,
        ratio=ratio,
        interval=interval,
        n=found.n[::-1] if claim.swapped else found.n,
        device=judgement.gathered.machine,
        why="; ".join([*found.reasons, *([claim.note] if claim.note else [])]),
    )


def held(claim: Claim, found: Comparison, interval: tuple[float, float] | None) -> Held:
    """Return what an interval, after / before, shows of a promise; a promise is a gain or a loss of the metric."""
    if found.verdict is Verdict.INCOMPARABLE:
        return Held.INCOMPARABLE
    if interval is None:
        return Held.INCONCLUSIVE
    low, high = interval
    down = claim.way is Way.LESS or (claim.ratio is not None and claim.ratio < 1)
    if down:
        low, high = 1 / high, 1 / low
    if claim.ratio is None:
        if low > 1:
            return Held.MET
        # Shown to be the same within the margin is as good a refutation of "more" as being less.
        return Held.REFUTED if high <= 1 or found.verdict is Verdict.EQUIVALENT else Held.INCONCLUSIVE
    promised = 1 / claim.ratio if down else claim.ratio
    if low > promised:
        return Held.EXCEEDED
    if high < promised:
        return Held.LESS if low > 1 else Held.REFUTED
    return Held.MET if low > 1 else Held.INCONCLUSIVE


def _absolute(claim: Claim, paired: Paired, judgement: Judgement) -> Answer:
    """Return an absolute figure beside the promised one; judged only on the hardware that it is of."""
    side = judgement.comparison.a
    value = side.median if side else None
    machine = judgement.gathered.machine
    gpus = judgement.gathered.gpus
    ours = bool(gpus) and all(re.fullmatch(claim.hardware, name) for name in gpus)
    kept = Held.UNTESTED
    if ours and side is not None and claim.least is not None:
        good = side.low >= claim.least if judgement.comparison.metric.better is Better.HIGHER else False
        kept = Held.MET if good else Held.REFUTED if side.high < claim.least else Held.INCONCLUSIVE
    why = "" if ours else f"it is of {claim.hardware.removesuffix('.*')}; measured was {machine}"
    return Answer(
        claim=claim, held=kept, recipe=paired.recipe, value=value, n=judgement.comparison.n, device=machine, why=why
    )


def table(found: Sequence[Answer]) -> DataFrame:
    """Return the answers as a table, a row each, the untested ones with their reasons."""
    import pandas

    rows: list[dict[str, Any]] = [
        {
            "claim": one.claim.says,
            "guide": f"{one.claim.guide}, {one.claim.section}",
            "promised": f"{one.claim.metric} {one.promised}",
            "measured": one.value if one.ratio is None else one.ratio,
            "low": one.interval[0] if one.interval else None,
            "high": one.interval[1] if one.interval else None,
            "n": f"{one.n[0]}+{one.n[1]}" if any(one.n) else "",
            "verdict": one.held.value,
            "why": one.why,
            "where": " on ".join(filter(None, (one.recipe, one.device))),
        }
        for one in found
    ]
    return pandas.DataFrame(rows, columns=list(COLUMNS))
