"""Verdicts as plain JSON data: pairings with their samples, comparisons, numbers of training, agreement, promises.

What `--json` prints and what the report is made from. A number that JSON has not (NaN) is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bench.agreement import Agreement
from bench.claims import Answer
from bench.comparison import Comparison, Summary
from bench.numerics import Number
from bench.record import Idle
from bench.sample import Side
from bench.verdicts import SAFE, Judgement, Paired, advice


def pairing(paired: Paired) -> dict[str, Any]:
    """Return one pairing with all that was measured of it."""
    first = paired.judgements[0].gathered
    return {
        "series": paired.series,
        "pairing": paired.pairing,
        "recipe": paired.recipe,
        "kind": paired.kind.value,
        "cells": _sides(first.cells),
        "says": _sides(first.says),
        "machine": first.machine,
        "replicate": first.replicate,
        "planned": first.planned,
        "first": first.at[0].isoformat(),
        "last": first.at[1].isoformat(),
        "seconds": round(first.seconds, 1),
        "gpu_minutes": round(paired.gpu_seconds / 60, 1),
        "startup": None if first.startup is None else round(first.startup, 3),
        "numerics": SAFE[paired.safe],
        "advice": advice(paired),
        "judgements": [judged(one) for one in paired.judgements],
        "numbers": [number_(one) for one in paired.numbers],
    }


def _sides(values: Mapping[Side, str]) -> dict[str, str]:
    return {side.value: values.get(side, "") for side in Side}


def judged(judgement: Judgement) -> dict[str, Any]:
    """Return one metric of a pairing: its verdict, its launches with their raw steps."""
    item, found = judgement.gathered, judgement.comparison
    return {
        "metric": judgement.name,
        "unit": found.metric.unit,
        "better": found.metric.better.value,
        "main": judgement.main,
        **verdict(found),
        "launches": [
            {
                "place": launch.place,
                "side": launch.side.value,
                "value": launch.value,
                "fault": launch.fault,
                "raw": [finite(value) for value in item.raw.get(launch.place, ())],
            }
            for launch in item.sample.launches
        ],
        "dropped": item.dropped,
    }


def verdict(found: Comparison) -> dict[str, Any]:
    """Return a comparison: verdict, ratio, interval, n, p values, cautions and drops."""
    low, high = found.interval or (None, None)
    return {
        "verdict": found.verdict.value,
        "ratio": found.ratio,
        "low": low,
        "high": high,
        "gain": found.gain,
        "confidence": found.confidence,
        "n": list(found.n),
        "p_differs": found.p_differs,
        "p_equivalent": found.p_equivalent,
        "alpha": found.alpha,
        "family": found.family,
        "test": found.test,
        "a": _summary(found.a),
        "b": _summary(found.b),
        "reasons": list(found.reasons),
        "cautions": [{"about": one.about.value, "text": one.text} for one in found.cautions],
        "drops": [{"places": list(one.places), "reason": one.reason} for one in found.drops],
    }


def _summary(found: Summary | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"n": found.n, "median": found.median, "low": found.low, "high": found.high, "spread": found.spread}


def number_(number: Number) -> dict[str, Any]:
    """Return one number of training of both sides."""
    low, high = number.interval or (None, None)
    return {
        "name": number.name,
        "kept": number.kept.value,
        "a": finite(number.a),
        "b": finite(number.b),
        "ratio": number.ratio,
        "low": low,
        "high": high,
        "tolerance": number.tolerance.margin,
        "why": number.tolerance.why,
    }


def idle(one: Idle) -> dict[str, str]:
    """Return a toggle that was not run, with why."""
    return {
        "pairing": one.pairing,
        "recipe": one.recipe,
        "cell": one.cell,
        "standing": one.standing,
        "why": one.why,
    }


def agreement(one: Agreement) -> dict[str, Any]:
    """Return how a cheap bench stands to `ppo` in one phase."""
    low, high = one.interval or (None, None)
    return {
        "pairing": one.pairing,
        "cheap": one.cheap,
        "ppo": one.ppo,
        "metric": one.metric,
        "cheap_ratio": one.cheap_ratio,
        "ppo_ratio": one.ppo_ratio,
        "ratio": one.ratio,
        "low": low,
        "high": high,
        "agrees": one.agrees.value,
    }


def answer(one: Answer) -> dict[str, Any]:
    """Return a promise of a guide with what was measured."""
    low, high = one.interval or (None, None)
    return {
        "id": one.claim.id,
        "guide": one.claim.guide,
        "section": one.claim.section,
        "says": one.claim.says,
        "metric": one.claim.metric,
        "promised": one.promised,
        "promised_ratio": one.claim.ratio,
        "recipe": one.recipe,
        "machine": one.device,
        "ratio": one.ratio,
        "low": low,
        "high": high,
        "value": one.value,
        "n": list(one.n),
        "verdict": one.held.value,
        "why": one.why,
    }


def finite(value: float) -> float | None:
    """Return a number as JSON has it; None for NaN and the infinities."""
    return value if math.isfinite(value) else None
