"""Checks of what is learned: score, rewards, advantages, and the critic that values them."""

from __future__ import annotations

import statistics

from matrix.gravity import Gravity
from matrix.health.case import Case, Check, worst
from matrix.health.episode import Baseline, Episode, against_baseline, episodes, noise, rolling_median
from matrix.health.names import Metric
from matrix.health.symptom import Kind, Symptom

LONG = 60
"""Fewer steps say nothing about a flat score: the healthy run of verl's notebook is flat for its first 15 of 61."""
VERY_LONG = 200
WARM_UP = 20
LEAST_HELD = 10


def equal_rewards(case: Case) -> list[Symptom]:
    """Return where all rewards of a batch are the same, so that there is nothing to learn from."""
    series = case.series(Metric.SCORE_MAX)
    lows = case.aligned(Metric.SCORE_MIN, series.steps)
    odd = [low is not None and high == low for high, low in zip(series.values, lows, strict=True)]
    found = []
    for episode in episodes(odd, need=5, window=6):
        places = range(episode.start, episode.end or len(series))
        count = sum(odd[at] for at in places)
        level = statistics.median(series.values[at] for at in places if odd[at])
        found.append(
            case.symptom(
                Kind.REWARDS_EQUAL,
                Gravity.ERROR if count > len(series) / 2 else Gravity.WARNING,
                series,
                episode,
                f"every response scores {level:.3g} in {count} steps: nothing tells better from worse",
                limit="highest = lowest on 5 of 6 steps",
                evidence={"score": level, "steps": float(count), "of": float(len(series))},
            )
        )
    return found


def no_advantage(case: Case) -> list[Symptom]:
    """Return where all advantages are zero although rewards differ."""
    series = case.series(Metric.ADVANTAGE_MAX)
    lows = case.aligned(Metric.ADVANTAGE_MIN, series.steps)
    best = case.aligned(Metric.SCORE_MAX, series.steps)
    least = case.aligned(Metric.SCORE_MIN, series.steps)
    odd = [
        high == 0 and low == 0 and top != bottom
        for high, low, top, bottom in zip(series.values, lows, best, least, strict=True)
    ]
    return [
        case.symptom(
            Kind.NO_ADVANTAGE,
            Gravity.ERROR,
            series,
            episode,
            "all advantages are 0 although scores differ: no gradient but that of KL and entropy",
            limit="highest = lowest = 0 on 4 of 6 steps",
            evidence={"steps": float(sum(odd[episode.start : episode.end]))},
        )
        for episode in episodes(odd)
    ]


def score_fall(case: Case) -> list[Symptom]:
    """Return where the score lost more than 40 % of the best that it had held, and more than noise explains."""
    series = case.series(Metric.SCORE)
    if len(series) < WARM_UP:
        return []
    floor = min(case.series(Metric.SCORE_MIN).values or series.values)
    spread = noise(series.values)
    best, held = [], float("-inf")
    for value in rolling_median(series.values, 7):
        held = max(held, value)
        best.append(held)
    odd = [
        at >= LEAST_HELD and value < top - max(0.4 * (top - floor), 6 * spread)
        for at, (value, top) in enumerate(zip(series.values, best, strict=True))
    ]
    found = []
    for episode in episodes(odd):
        low, top = worst(series, episode, low=True), best[episode.start]
        found.append(
            case.symptom(
                Kind.SCORE_FALL,
                Gravity.ERROR,
                series,
                episode,
                f"the score fell from {top:.3g} to {low:.3g}",
                limit=f"40 % of the best median of 7 steps (above {floor:.3g}), and 6 x the step-to-step noise",
                evidence={"best": top, "lowest": low, "noise": spread},
            )
        )
    return found


def score_flat(case: Case) -> list[Symptom]:
    """Return a score that never moved, or stopped rising for half of the training."""
    series = case.series(Metric.SCORE)
    tops = case.series(Metric.SCORE_MAX).values
    if len(series) < LONG or not tops:
        return []
    third = len(series) // 3
    first, middle, last = (
        statistics.median(part) for part in (series.values[:10], series.values[third:-third], series.values[-third:])
    )
    spread = noise(series.values)
    floor = min(case.series(Metric.SCORE_MIN).values or series.values)
    full = last - floor > 0.9 * (max(tops) - floor)
    if full or last - middle > spread:
        return []
    never = last - first <= 2 * spread
    if not never and middle - first <= 2 * spread:
        return []
    start = 0 if never else third
    gravity = Gravity.WARNING if never and len(series) >= VERY_LONG else Gravity.NOTE
    what = "has not risen since the first step" if never else "no longer rises"
    return [
        case.symptom(
            Kind.SCORE_FLAT,
            gravity,
            series,
            Episode(start=start, told=len(series) - 1, end=None),
            f"the score {what}: {first:.3g} at first, {middle:.3g} in the middle third, {last:.3g} in the last",
            limit=f"less than the step-to-step noise ({spread:.2g}) from the middle third to the last",
            evidence={"first": first, "middle": middle, "last": last, "noise": spread},
        )
    ]


def value_loss(case: Case) -> list[Symptom]:
    """Return where the value loss rose against its own level and against what the returns allow."""
    series = case.series(Metric.VALUE_LOSS)
    tops = case.aligned(Metric.RETURN_MAX, series.steps)
    lows = case.aligned(Metric.RETURN_MIN, series.steps)

    def is_odd(value: float, base: Baseline) -> bool:
        return value > 10 * base.median and value > base.median + 8 * base.scale and value > 1e-6

    odd, baselines = against_baseline(series.values, is_odd)
    found = []
    for episode in episodes(odd):
        usual = baselines[episode.told]
        peak, level = worst(series, episode), usual.median if usual else 0.0
        found.append(
            case.symptom(
                Kind.VALUE_LOSS_RISE,
                Gravity.ERROR,
                series,
                episode,
                f"the value loss rose from {level:.3g} to {peak:.3g}",
                limit="10 x the median of the 20 steps before",
                evidence={"baseline": level, "peak": peak},
            )
        )
    beyond = [
        at >= WARM_UP and top is not None and low is not None and top > low and value > 0.5 * (top - low) ** 2
        for at, (value, top, low) in enumerate(zip(series.values, tops, lows, strict=True))
    ]
    for episode in episodes(beyond) if not found else ():
        peak = worst(series, episode)
        found.append(
            case.symptom(
                Kind.VALUE_LOSS_RISE,
                Gravity.WARNING,
                series,
                episode,
                f"the value loss is {peak:.3g}: on average off by more than the whole range of the returns",
                limit="0.5 (highest - lowest return)^2, verl's loss being half the squared error; after 20 steps",
                evidence={"peak": peak},
            )
        )
    return found


def explained_variance(case: Case) -> list[Symptom]:
    """Return a critic that, long after its warm-up, predicts no better than the mean of the returns."""
    series = case.series(Metric.EXPLAINED)
    if len(series) < 2 * WARM_UP:
        return []
    last = series.values[-WARM_UP:]
    if sum(value <= 0 for value in last) < 0.8 * WARM_UP:
        return []
    start = len(series) - 1
    while start and series.values[start - 1] <= 0:
        start -= 1
    level = statistics.median(last)
    return [
        case.symptom(
            Kind.VALUE_USELESS,
            Gravity.NOTE,
            series,
            Episode(start=start, told=len(series) - 1, end=None),
            f"the critic explains none of the returns' variance ({level:.3g} over the last {WARM_UP} steps)",
            limit="0: no better than their mean",
            evidence={"level": level},
        )
    ]


CHECKS: tuple[Check, ...] = (
    equal_rewards, no_advantage, score_fall, score_flat, value_loss, explained_variance,
)  # fmt: skip
