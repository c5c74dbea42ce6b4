"""Simulated training logs: healthy ones of many shapes, and the same with one fault from a known step on.

The shapes come from real logs: noise, trends and single spikes of the run in `verl_getting_started.tsv`, and step lines
that users posted in verl's issues (GRPO on 8 GPUs: score 0.56, length 289 of 1024, gap 0.003, entropy 0.32). Whatever
differs between trainings is drawn: algorithm, length of the run, batch size and so the noise of the score, how fast and
how far it learns, response lengths that fall or grow, entropy that falls, KL that grows, the format of the release.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Steps = list[dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is drawn once for a training."""

    steps: int
    critic: bool
    reference: bool
    batch: int
    score: tuple[float, float, float, float]
    length: tuple[float, float, float]
    entropy: tuple[float, float]
    kl: float
    gradient: float
    gap: float
    seconds: float
    spikes: float


def shape(rng: random.Random, steps: int | None = None) -> Shape:
    """Return a training drawn at random."""
    start = rng.choice([0.01, 0.1, 0.3, 0.5])
    limit = rng.choice([256.0, 1024.0, 4096.0])
    return Shape(
        steps=steps or rng.choice([30, 61, 100, 200, 400]),
        critic=rng.random() < 0.4,
        reference=rng.random() < 0.7,
        batch=rng.choice([128, 256, 512, 1024, 4096]),
        score=(start, min(0.95, start + rng.uniform(0.15, 0.5)), rng.uniform(0.1, 0.6), rng.uniform(0.03, 0.15)),
        length=(limit * rng.uniform(0.2, 0.8), limit * rng.uniform(0.15, 0.8), limit),
        entropy=(rng.uniform(0.2, 1.0), rng.uniform(0.15, 0.9)),
        kl=10 ** rng.uniform(-4, -2.3),
        gradient=10 ** rng.uniform(-2, 0.6),
        gap=10 ** rng.uniform(-3.3, -2.2),
        seconds=10 ** rng.uniform(1, 2.5),
        spikes=rng.choice([0.0, 0.01, 0.03]),
    )


def healthy(rng: random.Random, drawn: Shape) -> Steps:
    """Return the metrics of a healthy training, one mapping a step."""
    low, high, middle, width = drawn.score
    begin, end, limit = drawn.length
    drift, rows = 0.0, []
    for at in range(drawn.steps):
        way = at / max(drawn.steps - 1, 1)
        learned = 1 / (1 + math.exp(-(way - middle) / width))
        drift = 0.9 * drift + rng.gauss(0, 0.1)
        score = low + (high - low) * learned
        score = min(1.0, max(0.0, rng.gauss(score, math.sqrt(max(score * (1 - score), 1e-4) / drawn.batch))))
        length = (begin + (end - begin) * learned) * math.exp(rng.gauss(0, 0.02) + 0.02 * drift)
        entropy = drawn.entropy[0] * (1 - (1 - drawn.entropy[1]) * way) * math.exp(rng.gauss(0, 0.05))
        spike = rng.random() < drawn.spikes
        row = _row(rng, drawn, at, score, min(length, limit), entropy, spike)
        rows.append(row)
    return rows


def _row(
    rng: random.Random, drawn: Shape, at: int, score: float, length: float, entropy: float, spike: bool
) -> dict[str, float]:
    tokens = (length + 104) * drawn.batch
    seconds = drawn.seconds * (0.6 + 0.4 * length / drawn.length[0]) * math.exp(rng.gauss(0, 0.03))
    seconds *= 1.6 if at == 0 else 1.0
    kl = drawn.kl * at * math.exp(rng.gauss(0, 0.15))
    row = {
        "actor/entropy": entropy,
        "training/rollout_probs_diff_mean": drawn.gap * math.exp(rng.gauss(0, 0.1)),
        "training/rollout_actor_probs_pearson_corr": 1 - abs(rng.gauss(0, 0.003)),
        "actor/pg_loss": rng.gauss(-0.008, 0.012) * (3 if spike else 1),
        "actor/pg_clipfrac": abs(rng.gauss(0.002, 0.001)),
        "actor/ppo_kl": rng.gauss(0, 0.0005),
        "actor/grad_norm": drawn.gradient * math.exp(rng.gauss(0, 0.15)) * (rng.uniform(5, 20) if spike else 1),
        "actor/lr": 1e-6,
        "critic/score/mean": score,
        "critic/score/max": 1.0 if score > 0 else 0.0,
        "critic/score/min": 0.0 if score < 1 else 1.0,
        "critic/advantages/max": abs(rng.gauss(3, 0.5)),
        "critic/advantages/min": -abs(rng.gauss(2, 0.5)),
        "response_length/mean": length,
        "response_length/max": drawn.length[2],
        "response_length/clip_ratio": max(0.0, min(0.45, 1.6 * (length / drawn.length[2] - 0.6))),
        "prompt_length/mean": 104 + rng.gauss(0, 1.5),
        "perf/total_num_tokens": tokens,
        "perf/time_per_step": seconds,
        "perf/throughput": tokens / seconds / 8,
    }
    if drawn.reference:
        row["actor/kl_loss"] = kl
        row["actor/kl_coef"] = 0.001
    if drawn.critic:
        value = 0.5 * score * (1 - score) + 0.02 + 10 * math.exp(-at / 1.5)
        row |= {
            "critic/vf_loss": value * math.exp(rng.gauss(0, 0.3)),
            "critic/grad_norm": (30 + 350 * math.exp(-at / 3)) * math.exp(rng.gauss(0, 0.5)),
            "critic/returns/max": 1.0,
            "critic/returns/min": -0.03,
            "critic/vf_explained_var": min(0.9, rng.gauss(0.3, 0.1) - 3 * math.exp(-at / 3)),
        }
    return row


Fault = Callable[[random.Random, Steps, int], None]


def _from(name: str, change: Callable[[float, int], float]) -> Fault:
    """Return the fault that changes one metric by its value and the steps since it began."""

    def apply(rng: random.Random, rows: Steps, start: int) -> None:
        for since, row in enumerate(rows[start:]):
            if name in row:
                row[name] = change(row[name], since)

    return apply


def _together(*faults: Fault) -> Fault:
    def apply(rng: random.Random, rows: Steps, start: int) -> None:
        for fault in faults:
            fault(rng, rows, start)

    return apply


FAULTS: Mapping[str, tuple[Fault, str]] = {
    "kl grows by a third each step": (
        _from("actor/kl_loss", lambda value, since: max(value, 0.01) * 1.33**since),
        "kl-runaway",
    ),
    "kl jumps to 2": (_from("actor/kl_loss", lambda value, since: 2.0 + value), "kl-runaway"),
    "updates leave the clip range": (_from("actor/ppo_kl", lambda value, since: 0.3 + value), "update-too-large"),
    "pg_loss of 5": (_from("actor/pg_loss", lambda value, since: 5 + value), "pg-loss-jump"),
    "60 % clipped": (_from("actor/pg_clipfrac", lambda value, since: 0.6 + value), "clipped"),
    "entropy halves each 3 steps": (
        _from("actor/entropy", lambda value, since: value * 0.5 ** (since / 3)),
        "entropy-collapse",
    ),
    "entropy goes to 8": (_from("actor/entropy", lambda value, since: min(8.0, value + since)), "entropy-rise"),
    "gradients 20 times": (_from("actor/grad_norm", lambda value, since: 20 * value), "gradient-explosion"),
    "gradients 0": (_from("actor/grad_norm", lambda value, since: 0.0), "no-gradient"),
    "loss is NaN": (_from("actor/pg_loss", lambda value, since: math.nan), "not-finite"),
    "value loss 50 times": (_from("critic/vf_loss", lambda value, since: 50 * value), "value-loss-rise"),
    "all rewards 0": (
        _together(
            _from("critic/score/mean", lambda value, since: 0.0),
            _from("critic/score/max", lambda value, since: 0.0),
        ),
        "rewards-all-equal",
    ),
    "advantages 0": (
        _together(
            _from("critic/advantages/max", lambda value, since: 0.0),
            _from("critic/advantages/min", lambda value, since: 0.0),
        ),
        "advantages-all-zero",
    ),
    "score loses 15 % each step": (_from("critic/score/mean", lambda value, since: value * 0.85**since), "score-fall"),
    "responses of 5 tokens, score 0.01": (
        _together(
            _from("response_length/mean", lambda value, since: 5.0),
            _from("critic/score/mean", lambda value, since: 0.005),
        ),
        "length-collapse",
    ),
    "95 % cut off": (_from("response_length/clip_ratio", lambda value, since: 0.95), "length-clipped"),
    "gap of 0.25": (_from("training/rollout_probs_diff_mean", lambda value, since: 0.25), "rollout-gap"),
    "steps take twice as long": (_from("perf/time_per_step", lambda value, since: 2 * value), "slower"),
}


def written(rows: Steps, form: str, first: int = 1) -> str:
    """Return the log text: `rounded` (up to 0.4.1), `plain` (0.5.0 on), `numpy` (numpy 2), `json` (the file logger)."""
    if form == "json":
        lines = [
            json.dumps({"step": first + at, "data": {k: None if math.isnan(v) else v for k, v in row.items()}})
            for at, row in enumerate(rows)
        ]
        return "\n".join(lines) + "\n"
    word: Callable[[float], str] = {
        "rounded": lambda value: f"{value:.3f}",
        "plain": repr,
        "numpy": lambda value: f"np.float64({value!r})",
    }[form]
    lines = [
        f"\x1b[36m(TaskRunner pid=7)\x1b[0m step:{first + at} - "
        + " - ".join(f"{name}:{word(value)}" for name, value in row.items())
        for at, row in enumerate(rows)
    ]
    return "\n".join(lines) + "\n"


FORMS = ("rounded", "plain", "numpy", "json")
