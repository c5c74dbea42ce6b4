"""The section of the report on benches, as plain JSON: samples, intervals, verdicts, agreement, promises of guides.

Pairings stand under the kind of device that they ran on, GPUs first; nothing of a CPU stands beside a figure of a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.agreement import Agreement, agreements
from bench.claims import Answer, answers
from bench.comparison import Comparison, Summary
from bench.gathered import gathered
from bench.numerics import Number
from bench.record import Idle, idle
from bench.sample import Side
from bench.verdicts import MARGIN, SAFE, Judgement, Paired, advice, judge
from matrix.job import RunResult
from matrix.observe import Observation

DEVICES: Mapping[str, str] = {
    "cuda": "On GPUs",
    "cpu": "On a CPU: every part is exercised; no figure here says anything of a GPU",
}


def section(result: RunResult) -> dict[str, object] | None:
    """Return what is kept of benches, judged; None where nothing is."""
    return of_observations(result.benches)


def of_observations(observations: Iterable[Observation], margin: float = MARGIN) -> dict[str, object] | None:
    """Return the section of these observations; None where none is of a bench."""
    kept = tuple(observations)
    paired = judge(gathered(kept), margin=margin)
    unrun = idle(kept)
    if not paired and not unrun:
        return None
    why = {f"{one.pairing}": f"{one.standing}: {one.why}" for one in unrun}
    return {
        "margin": margin,
        "groups": [_group(device, [one for one in paired if one.device == device]) for device in DEVICES
                   if any(one.device == device for one in paired)],
        "idle": [_idle(one) for one in unrun],
        "agreement": [_agreement(one) for one in agreements([one for one in paired if one.device != "cpu"])],
        "claims": [_answer(one) for one in answers(paired, standings=why)],
        "gpu_minutes": round(sum(one.gpu_seconds for one in paired) / 60, 1),
    }  # fmt: skip


def _group(device: str, paired: Sequence[Paired]) -> dict[str, Any]:
    startups = [one.judgements[0].gathered.startup for one in paired]
    known = [share for share in startups if share is not None]
    return {
        "device": device,
        "title": DEVICES[device],
        "machines": sorted({one.judgements[0].gathered.machine for one in paired}),
        "gpu_minutes": round(sum(one.gpu_seconds for one in paired) / 60, 1),
        "startup": round(sum(known) / len(known), 3) if known else None,
        "pairings": [pairing(one) for one in paired],
    }


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
        "judgements": [_judgement(one) for one in paired.judgements],
        "numbers": [_number(one) for one in paired.numbers],
    }


def _sides(values: Mapping[Side, str]) -> dict[str, str]:
    return {side.value: values.get(side, "") for side in Side}


def _judgement(judgement: Judgement) -> dict[str, Any]:
    item, found = judgement.gathered, judgement.comparison
    return {
        "metric": judgement.name,
        "unit": found.metric.unit,
        "better": found.metric.better.value,
        "main": judgement.main,
        **_verdict(found),
        "launches": [
            {
                "place": launch.place,
                "side": launch.side.value,
                "value": launch.value,
                "fault": launch.fault,
                "raw": [_finite(value) for value in item.raw.get(launch.place, ())],
            }
            for launch in item.sample.launches
        ],
        "dropped": item.dropped,
    }


def _verdict(found: Comparison) -> dict[str, Any]:
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


def _number(number: Number) -> dict[str, Any]:
    low, high = number.interval or (None, None)
    return {
        "name": number.name,
        "kept": number.kept.value,
        "a": _finite(number.a),
        "b": _finite(number.b),
        "ratio": number.ratio,
        "low": low,
        "high": high,
        "tolerance": number.tolerance.margin,
        "why": number.tolerance.why,
    }


def _idle(one: Idle) -> dict[str, str]:
    return {
        "pairing": one.pairing,
        "recipe": one.recipe,
        "cell": one.cell,
        "standing": one.standing,
        "why": one.why,
    }


def _agreement(one: Agreement) -> dict[str, Any]:
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


def _answer(one: Answer) -> dict[str, Any]:
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


def _finite(value: float) -> float | None:
    """Return a number as JSON has it; None for NaN and the infinities."""
    return value if math.isfinite(value) else None


def markdown(data: Mapping[str, Any]) -> str:
    """Return the section as Markdown: a table of verdicts a kind of device, the promises, what was not run."""
    lines = [f"## Benches\n\n{data['gpu_minutes']:g} minutes of GPU time; sameness is within {data['margin']:.0%}."]
    for group in data["groups"]:
        lines.append(f"\n### {group['title']}\n")
        lines += _md_table(
            ("pairing", "recipe", "metric", "ratio B/A", "95 % interval", "n", "verdict", "numerics"),
            [
                (
                    one["pairing"], one["recipe"], item["metric"], _figure(item["ratio"]), interval(item),
                    "+".join(map(str, item["n"])), item["verdict"], one["numerics"],
                )
                for one in group["pairings"]
                for item in one["judgements"]
                if item["main"]
            ],
        )  # fmt: skip
    if data["idle"]:
        lines += ["\n### Not run\n"]
        rows = [(one["pairing"], one["recipe"], one["standing"], one["why"]) for one in data["idle"]]
        lines += _md_table(("toggle", "recipe", "standing", "why"), rows)
    lines += ["\n### What guides promise\n"]
    claims = [
        (
            one["says"], f"{one['metric']} {one['promised']}", _figure(one["ratio"]), interval(one),
            "+".join(map(str, one["n"])), one["verdict"], one["why"],
        )
        for one in data["claims"]
    ]  # fmt: skip
    return "\n".join(
        [*lines, *_md_table(("claim", "promised", "measured", "95 % interval", "n", "verdict", "why"), claims), ""]
    )


def _md_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in cells) + " |"

    return [line(heads), "|" + " --- |" * len(heads), *(line(row) for row in rows)]


def interval(item: Mapping[str, Any]) -> str:
    """Return an interval for people; "none" where there is none."""
    return "none" if item["low"] is None else f"{item['low']:.3f} to {item['high']:.3f}"


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
