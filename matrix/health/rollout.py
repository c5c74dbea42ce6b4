"""Checks of the rollout: lengths, aborted responses, the gap to the trainer, and the speed of a step."""

from __future__ import annotations

import statistics

from matrix.gravity import Gravity
from matrix.health.case import Case, Check, worst
from matrix.health.episode import Baseline, Episode, against_baseline, episodes
from matrix.health.history import Series
from matrix.health.names import Metric
from matrix.health.symptom import Kind, Symptom

GAP_LIMIT = 0.01
GAP_SOURCE = "0.01, from which on verl's FAQ takes the rollout engine to be imprecise"
GAP_BROKEN = 0.1
CORRELATION_LIMIT = 0.9
"""MiniMax-M1 (arXiv 2506.13585, which verl's code cites for this metric) reports about 0.9 where training failed."""
SLOWER = 1.4


def length_collapse(case: Case) -> list[Symptom]:
    """Return where responses became a fifth of what they were without a better score, or hold next to nothing."""
    series = case.series(Metric.LENGTH)
    if len(series) < 10:
        return []
    first = statistics.median(series.values[:10])
    scores = case.aligned(Metric.SCORE, series.steps)
    early = [value for value in scores[:10] if value is not None]
    before = statistics.median(early) if early else None
    odd = []
    for value, score in zip(series.values, scores, strict=True):
        better = before is not None and score is not None and score > before
        odd.append(value < 3 or (value < 0.2 * first and not better))
    found = []
    for episode in episodes(odd):
        least = worst(series, episode, low=True)
        found.append(
            case.symptom(
                Kind.LENGTH_COLLAPSE,
                Gravity.ERROR,
                series,
                episode,
                f"responses shrank from {first:.4g} to {least:.3g} tokens, and the score is no better",
                limit="a fifth of the median of the first 10 steps without a better score, or 3 tokens",
                evidence={"baseline": first, "lowest": least},
            )
        )
    return found


def length_clipped(case: Case) -> list[Symptom]:
    """Return where most responses are cut off at the maximum, at the end of the log and not only at its beginning."""
    series = case.series(Metric.LENGTH_CLIP)
    found = []
    for episode in episodes([value > 0.5 for value in series.values]):
        lasts = episode.end is None and len(series) - episode.start >= 10
        rose = episode.start > 0 and statistics.median(series.values[: episode.start]) < 0.2
        if not (lasts or rose):
            continue
        level = statistics.median(series.values[episode.start : episode.end])
        found.append(
            case.symptom(
                Kind.LENGTH_CLIPPED,
                Gravity.ERROR if rose and level > 0.9 else Gravity.WARNING,
                series,
                episode,
                f"{level:.0%} of the responses are cut off at the maximal length",
                limit="half of the responses, for 10 steps or from below 20 % before",
                evidence={"level": level},
            )
        )
    return found


def aborted(case: Case) -> list[Symptom]:
    """Return where most responses are empty."""
    series = case.series(Metric.ABORTED)
    return [
        case.symptom(
            Kind.ABORTED,
            Gravity.ERROR,
            series,
            episode,
            f"{worst(series, episode):.0%} of the responses are empty",
            limit="half of the responses",
            evidence={"peak": worst(series, episode)},
        )
        for episode in episodes([value > 0.5 for value in series.values])
    ]


def gap(case: Case) -> list[Symptom]:
    """Return where the trainer gives the rollout's tokens other probabilities than the engine that sampled them."""
    series = case.series(Metric.GAP)
    found: list[Symptom] = []
    for limit, gravity, source in (
        (GAP_BROKEN, Gravity.ERROR, "0.1: a probability off by a tenth on average is no rounding"),
        (GAP_LIMIT, Gravity.WARNING, GAP_SOURCE),
    ):
        for episode in episodes([value > limit for value in series.values]) if not found else ():
            peak = worst(series, episode)
            message = f"rollout and trainer differ by {peak:.3g} in a token's probability"
            found.append(
                case.symptom(Kind.ROLLOUT_GAP, gravity, series, episode, message, limit=source, evidence={"peak": peak})
            )
    series = case.series(Metric.GAP_CORRELATION)
    for episode in episodes([value < CORRELATION_LIMIT for value in series.values]):
        least = worst(series, episode, low=True)
        message = f"the probabilities of rollout and trainer correlate by {least:.3g} only"
        source = f"{CORRELATION_LIMIT:g}, about where MiniMax-M1 (arXiv 2506.13585) reports that training failed"
        found.append(
            case.symptom(
                Kind.ROLLOUT_GAP, Gravity.ERROR, series, episode, message, limit=source, evidence={"lowest": least}
            )
        )
    return found + _gap_grows(case, bool(found)) + _effective(case)


def _gap_grows(case: Case, told: bool) -> list[Symptom]:
    series = case.series(Metric.GAP_K3)
    found = []
    low = next((at for at, value in enumerate(series.values) if value < -1e-4), None)
    if low is not None:
        value = series.values[low]
        found.append(
            case.symptom(
                Kind.IMPOSSIBLE,
                Gravity.ERROR,
                series,
                Episode(start=low, told=low, end=None),
                f"{value:.3g} at step {series.steps[low]}",
                limit="exp(x) - x - 1 is never negative (the k3 estimator)",
                evidence={"value": value},
            )
        )

    def is_odd(value: float, base: Baseline) -> bool:
        return value > max(5 * base.median, base.median + 8 * base.scale, 0.01)

    odd, baselines = against_baseline(series.values, is_odd)
    for episode in episodes(odd) if not told else ():
        usual = baselines[episode.told]
        peak, level = worst(series, episode), usual.median if usual else 0.0
        found.append(
            case.symptom(
                Kind.ROLLOUT_GAP,
                Gravity.WARNING,
                series,
                episode,
                f"the KL from rollout to trainer rose from {level:.3g} to {peak:.3g}",
                limit="5 x the median of the 20 steps before, at least 0.01",
                evidence={"baseline": level, "peak": peak},
            )
        )
    return found


def _effective(case: Case) -> list[Symptom]:
    series = case.series(Metric.EFFECTIVE_SAMPLES)
    return [
        case.symptom(
            Kind.EFFECTIVE_SAMPLES,
            Gravity.WARNING,
            series,
            episode,
            f"importance weights leave {worst(series, episode, low=True):.0%} of the samples in effect",
            limit="half: 1 / mean(w^2) of normalised weights, as verl's rollout correction defines it",
            evidence={"lowest": worst(series, episode, low=True)},
        )
        for episode in episodes([value < 0.5 for value in series.values])
    ]


def speed(case: Case) -> list[Symptom]:
    """Return where steps take longer without having more tokens, against the run's own pace."""
    series = case.series(Metric.STEP_SECONDS) or case.series(Metric.GENERATION_SECONDS)
    tokens = _tokens(case, series)
    if len(series) < 12:
        return []

    # The first steps compile and warm up; they are no pace.
    skip = 2
    seconds = series.values[skip:]
    work = tokens[skip:]
    odd_time, base_time = against_baseline(seconds, _is_slower)
    paces = [time / amount for time, amount in zip(seconds, work, strict=True)]
    odd_pace, _ = against_baseline(paces, _is_slower)
    odd = [False] * skip + [a and b for a, b in zip(odd_time, odd_pace, strict=True)]
    found = []
    for episode in episodes(odd):
        usual = base_time[episode.told - skip]
        now = statistics.median(series.values[episode.start : episode.end])
        level = usual.median if usual else now
        found.append(
            case.symptom(
                Kind.SLOWER,
                Gravity.WARNING,
                series,
                episode,
                f"a step takes {now:.4g} s instead of {level:.4g} s, for no more tokens",
                limit=f"{SLOWER:g} x the median of the 20 steps before, in seconds and in seconds per token",
                evidence={"baseline": level, "level": now},
            )
        )
    return found


def _is_slower(value: float, base: Baseline) -> bool:
    return value > SLOWER * base.median and value > base.median + 6 * base.scale


def _tokens(case: Case, series: Series) -> list[float]:
    """Return how much work each step was: tokens, else the lengths of prompt and response, else 1."""
    found = case.aligned(Metric.TOKENS, series.steps)
    lengths = case.aligned(Metric.LENGTH, series.steps)
    prompts = case.aligned(Metric.PROMPT_LENGTH, series.steps)
    work = []
    for tokens, length, prompt in zip(found, lengths, prompts, strict=True):
        amount = tokens if tokens is not None else (length or 0.0) + (prompt or 0.0)
        work.append(amount if amount > 0 else 1.0)
    return work


CHECKS: tuple[Check, ...] = (length_collapse, length_clipped, aborted, gap, speed)
