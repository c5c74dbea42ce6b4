"""Checks of the policy's update: KL, loss, clipping, entropy, gradient, learning rate."""

from __future__ import annotations

import math
import statistics

from matrix.gravity import Gravity
from matrix.health.case import Case, Check, worst
from matrix.health.episode import Baseline, Episode, against_baseline, episodes
from matrix.health.history import Series
from matrix.health.names import Metric
from matrix.health.symptom import Kind, Symptom

TARGET_KL = 0.1
"""`algorithm.kl_ctrl.target_kl` of verl's own configuration, from 0.4.0 on."""
CLIP_RATIO = 0.2
"""`actor.clip_ratio` of verl's own configuration, every release."""
RUNAWAY_KL = 10 * TARGET_KL
"""A note only: KL grows with the steps of a healthy run, and that of verl's notebook passes the target (0.17 at 60)."""
SUDDEN = 5.0
"""So many times its own baseline is sudden; the verl notebook's healthy run stays below 3 but for single steps."""


def kl_to_reference(case: Case) -> list[Symptom]:
    """Return where the KL to the reference ran away: ten times verl's target, or five times its own recent level."""
    found = []
    for metric in (Metric.REFERENCE_KL, Metric.KL_LOSS):
        series = case.series(metric)

        def is_odd(value: float, base: Baseline) -> bool:
            usual = max(abs(base.median), TARGET_KL / 2)
            return value > SUDDEN * usual and value > base.median + 8 * base.scale

        odd, baselines = against_baseline(series.values, is_odd)
        for episode in episodes(odd):
            usual = baselines[episode.told]
            peak, level = worst(series, episode), usual.median if usual else 0.0
            message = f"KL to the reference rose from {level:.3g} to {peak:.3g}"
            limit = f"{SUDDEN:g} x the median of the 20 steps before, at least {SUDDEN * TARGET_KL / 2:g}"
            evidence = {"baseline": level, "peak": peak}
            found.append(
                case.symptom(Kind.KL_RUNAWAY, Gravity.ERROR, series, episode, message, limit=limit, evidence=evidence)
            )
        if found:
            continue
        for episode in episodes([value > RUNAWAY_KL for value in series.values]):
            peak = worst(series, episode)
            message = f"KL to the reference is {peak:.3g}, more than ten times verl's target"
            limit = f"{RUNAWAY_KL:g} = 10 x algorithm.kl_ctrl.target_kl ({TARGET_KL:g}) of verl's configuration"
            found.append(
                case.symptom(Kind.KL_HIGH, Gravity.NOTE, series, episode, message, limit=limit, evidence={"peak": peak})
            )
    return found


def update_size(case: Case) -> list[Symptom]:
    """Return where one update moved the policy further than its clip range, on average over tokens."""
    series = case.series(Metric.PPO_KL)
    limit = math.log(1 + CLIP_RATIO)
    found = []
    for episode in episodes([abs(value) > limit for value in series.values]):
        size = max(abs(value) for value in series.values[episode.start : episode.end])
        message = f"|ppo_kl| is {size:.3g}: the average token's probability left the clip range in one update"
        found.append(
            case.symptom(
                Kind.UPDATE_TOO_LARGE,
                Gravity.ERROR,
                series,
                episode,
                message,
                limit=f"ln(1 + {CLIP_RATIO:g}) = {limit:.3f}, with verl's default actor.clip_ratio",
                evidence={"peak": size},
            )
        )
    return found


def pg_loss(case: Case) -> list[Symptom]:
    """Return where the policy loss left its own range; its sign says nothing, since advantages are whitened."""
    series = case.series(Metric.PG_LOSS)

    def is_odd(value: float, base: Baseline) -> bool:
        return abs(value - base.median) > max(20 * base.scale, 10 * abs(base.median), 0.1)

    odd, baselines = against_baseline(series.values, is_odd)
    found = []
    for episode in episodes(odd):
        usual = baselines[episode.told]
        level, spread = (usual.median, usual.scale) if usual else (0.0, 0.0)
        peak = max(series.values[episode.start : episode.end], key=lambda value: abs(value - level))
        found.append(
            case.symptom(
                Kind.PG_LOSS_JUMP,
                Gravity.WARNING,
                series,
                episode,
                f"pg_loss went from {level:.3g} ± {spread:.2g} to {peak:.3g}",
                limit="20 standard deviations and 10 x the median of the 20 steps before, at least 0.1",
                evidence={"baseline": level, "scale": spread, "peak": peak},
            )
        )
    return found


def clipping(case: Case) -> list[Symptom]:
    """Return where most tokens are clipped, and so give no gradient; and a fraction that is none."""
    series = case.series(Metric.CLIP_FRACTION)
    found = _outside(case, series, 0.0, 1.0, "a fraction lies in [0, 1]")
    for episode in episodes([0.5 < value <= 1.0 for value in series.values]):
        peak = worst(series, episode)
        message = f"{peak:.0%} of the tokens are clipped"
        limit = "0.5: most tokens give no gradient (PPO's objective is flat beyond the clip range)"
        found.append(
            case.symptom(Kind.CLIPPED, Gravity.ERROR, series, episode, message, limit=limit, evidence={"peak": peak})
        )

    def is_odd(value: float, base: Baseline) -> bool:
        return value > max(0.1, 10 * base.median, base.median + 8 * base.scale)

    if not found:
        odd, baselines = against_baseline(series.values, is_odd)
        for episode in episodes(odd):
            usual = baselines[episode.told]
            peak, level = worst(series, episode), usual.median if usual else 0.0
            message = f"the clipped fraction rose from {level:.2g} to {peak:.2g}"
            limit = "10 x the median of the 20 steps before, at least 0.1"
            evidence = {"baseline": level, "peak": peak}
            found.append(
                case.symptom(Kind.CLIPPED, Gravity.WARNING, series, episode, message, limit=limit, evidence=evidence)
            )
    return found


def entropy(case: Case) -> list[Symptom]:
    """Return where the policy's entropy collapsed or rose against its beginning, or is no entropy."""
    series = case.series(Metric.ENTROPY)
    if len(series) < 5:
        return []
    most = math.log(case.vocabulary) if case.vocabulary > 1 else math.inf
    found = _outside(case, series, -1e-3, most + 1e-3, f"an entropy lies in [0, ln(vocabulary) = {most:.2f}]")
    first = statistics.median(series.values[:5])
    if first > 0.02:
        for episode in episodes([value < 0.1 * first for value in series.values]):
            least = worst(series, episode, low=True)
            message = f"entropy fell from {first:.3g} to {least:.3g}"
            limit = "a tenth of the median of the first 5 steps"
            evidence = {"baseline": first, "lowest": least}
            found.append(
                case.symptom(
                    Kind.ENTROPY_COLLAPSE, Gravity.WARNING, series, episode, message, limit=limit, evidence=evidence
                )
            )
    for episode in episodes([value > max(3 * first, first + 1) for value in series.values]):
        peak = worst(series, episode)
        message = f"entropy rose from {first:.3g} to {peak:.3g}: the policy becomes random"
        limit = "3 x and 1 nat above the median of the first 5 steps"
        evidence = {"baseline": first, "peak": peak}
        found.append(
            case.symptom(Kind.ENTROPY_RISE, Gravity.ERROR, series, episode, message, limit=limit, evidence=evidence)
        )
    if first > 0.9 * most:
        lasting = Episode(start=0, told=0, end=None)
        message = f"entropy begins at {first:.3g}, {first / most:.0%} of the most there is: nearly uniform"
        limit = f"0.9 x ln(vocabulary), {case.vocabulary} words by the log"
        evidence = {"baseline": first, "most": most}
        found.append(
            case.symptom(Kind.ENTROPY_RISE, Gravity.WARNING, series, lasting, message, limit=limit, evidence=evidence)
        )
    return found


def gradient(case: Case) -> list[Symptom]:
    """Return where a gradient exploded, spiked (a note) or is zero, for the actor and the critic."""
    found = []
    for metric in (Metric.ACTOR_GRADIENT, Metric.CRITIC_GRADIENT):
        series = case.series(metric)
        found += _explosions(case, series)
        for episode in episodes([value == 0 for value in series.values]):
            length = len(series.values[episode.start : episode.end])
            what = "0.000 (three decimals)" if case.run.rounded else "exactly 0"
            found.append(
                case.symptom(
                    Kind.NO_GRADIENT,
                    Gravity.WARNING if case.run.rounded else Gravity.ERROR,
                    series,
                    episode,
                    f"the gradient norm is {what} in {length} steps: nothing is learned",
                    limit="0: the optimizer's step is then the weight decay alone",
                    evidence={"steps": float(length)},
                )
            )
    return found


def _explosions(case: Case, series: Series) -> list[Symptom]:
    def is_odd(value: float, base: Baseline) -> bool:
        return value > SUDDEN * base.median and value > base.median + 8 * base.scale and base.median > 0

    odd, baselines = against_baseline(series.values, is_odd)
    found = []
    lasting = episodes(odd)
    for episode in lasting:
        usual = baselines[episode.told]
        peak, level = worst(series, episode), usual.median if usual else 0.0
        message = f"the gradient norm rose from {level:.3g} to {peak:.3g}"
        limit = f"{SUDDEN:g} x the median of the 20 steps before, on 4 of 6 steps"
        evidence = {"baseline": level, "peak": peak}
        found.append(
            case.symptom(
                Kind.GRADIENT_EXPLOSION, Gravity.ERROR, series, episode, message, limit=limit, evidence=evidence
            )
        )
    inside = {at for item in lasting for at in range(item.start, item.end or len(series))}
    spikes = [at for at, is_spike in enumerate(odd) if is_spike and at not in inside]
    if spikes:
        highest = max(spikes, key=lambda at: series.values[at])
        once = Episode(start=spikes[0], told=spikes[0], end=spikes[-1] + 1 if spikes[-1] + 1 < len(series) else None)
        steps = "step" if len(spikes) == 1 else "steps"
        message = f"{len(spikes)} single {steps} with up to {series.values[highest]:.3g}, at {series.steps[highest]}"
        evidence = {"spikes": float(len(spikes)), "peak": series.values[highest]}
        limit = f"{SUDDEN:g} x the median of the 20 steps before"
        found.append(
            case.symptom(Kind.GRADIENT_SPIKES, Gravity.NOTE, series, once, message, limit=limit, evidence=evidence)
        )
    return found


def learning_rate(case: Case) -> list[Symptom]:
    """Return where the actor's learning rate is 0; logs with three decimals cannot tell."""
    series = case.series(Metric.ACTOR_RATE)
    if case.run.rounded:
        return []
    return [
        case.symptom(
            Kind.NO_RATE,
            Gravity.ERROR,
            series,
            episode,
            "the actor's learning rate is 0",
            limit="0: no update",
            evidence={"rate": 0.0},
        )
        for episode in episodes([value == 0 for value in series.values])
    ]


def _outside(case: Case, series: Series, low: float, high: float, rule: str) -> list[Symptom]:
    """Return a symptom where values lie outside what the quantity can be."""
    at = next((at for at, value in enumerate(series.values) if not low <= value <= high), None)
    if at is None:
        return []
    count = sum(not low <= value <= high for value in series.values)
    value = series.values[at]
    return [
        case.symptom(
            Kind.IMPOSSIBLE,
            Gravity.ERROR,
            series,
            Episode(start=at, told=at, end=None),
            f"{value:.4g} at step {series.steps[at]}, {count} such values",
            limit=rule,
            evidence={"value": value, "count": float(count)},
        )
    ]


CHECKS: tuple[Check, ...] = (kl_to_reference, update_size, pg_loss, clipping, entropy, gradient, learning_rate)
