"""The figures of one launch, from verl's file logger and the launch's own result: typed, by phase, by worker.

What a name means depends on the release, and `meaning` says it: what `timing_s/step` and `timing_s/gen` contain, over
which seconds MFU is, under which name a worker's memory and the gap between rollout and trainer stand. Nothing here is
read from what a run prints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import InvalidVersion, Version

from bench.flops import Counted, Lengths, Phase, Summary, model_flops
from bench.logged import Logged, Trouble, read_lines
from bench.peaks import Ceiling, Mfu, peak_of, utilisation
from bench.verl_flops import Span, formula_of
from matrix.errors import DataError, UsageError
from matrix.memory.shape import Shape, shape_named

WARM_UP = 1
"""Steps left out: in every release the first holds compilation, captured graphs and the start of worker processes."""
_LOGGED_FROM = Version("0.6.0")
_TOLERANCE = 0.001
NUMERICS: Mapping[str, tuple[str, ...]] = {
    # From the rollout's probability of each token to the trainer's: mean of log p_rollout - log p_trainer, and its k3.
    "gap_kl": ("rollout_corr/kl", "mismatch/mismatch_kl"),
    "gap_k3": ("rollout_corr/k3_kl", "mismatch/mismatch_k3_kl"),
    "gap_probability_mean": ("training/rollout_probs_diff_mean",),
    "gap_probability_max": ("training/rollout_probs_diff_max",),
    "gap_correlation": ("training/rollout_actor_probs_pearson_corr",),
    "ppo_kl": ("actor/ppo_kl",),
    "reward_kl": ("actor/reward_kl_penalty",),
    "kl_loss": ("actor/kl_loss",),
    "policy_loss": ("actor/pg_loss",),
    "value_loss": ("critic/vf_loss",),
    "actor_grad_norm": ("actor/grad_norm",),
    "critic_grad_norm": ("critic/grad_norm",),
    "entropy": ("actor/entropy",),
    "score": ("critic/score/mean",),
}
"""Numerics by our name and by verl's, the first that a log has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What the names of a release's log mean.

    Attributes:
        syncs_in: the phase that holds the sending of weights to the rollout: `gen`, or `update_weights` by itself.
        saves_inside: whether `timing_s/step` holds `save_checkpoint`.
        validates_inside: whether it holds `testing`.
        memory: under which prefix each worker's peak stands: "" where one figure stands for the actor's process, which
            on shared GPUs is the critic's too.
        mfu_span: over which seconds `perf/mfu/*` is.
    """

    syncs_in: str
    saves_inside: bool
    validates_inside: bool
    memory: Mapping[str, str]
    mfu_span: Span


def meaning(release: Version) -> Meaning:
    """Return what the names in a release's log mean; raises UsageError before 0.6.0, which has no file logger.

    verl/trainer/ppo/ray_trainer.py of 0.6.1 (lines 1036 to 1253), 0.7.1 (1316 to 1547), 0.8.0 (1465 to 1689);
    verl/trainer/ppo/v1/trainer_base.py of 0.9.1 (473 to 500).
    """
    if release < _LOGGED_FROM:
        raise UsageError(
            f"verl {release} has no file logger, so there is nothing to measure by.",
            then=f"Take verl {_LOGGED_FROM} or newer.",
        )
    later = release >= Version("0.7.1")
    split = release >= Version("0.8.0")
    return Meaning(
        syncs_in="update_weights" if later else "gen",
        saves_inside=later,
        validates_inside=False,
        memory={"actor": "actor/", "critic": "critic/"} if split else {"actor": ""},
        mfu_span=formula_of(release).span,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peaks of a worker's process since it started, in GiB: what torch gave out, and what it held from the driver.

    They only grow, and hold everything that lives in the process: on shared GPUs actor and critic are one.
    """

    allocated: float
    reserved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigure:
    """One phase of one step: seconds, tokens a second and GPU (responses' alone for generation), utilisation.

    `mfu` is ours; `verl_mfu` is what verl logged, None where it logs none for the phase. `flops` is None where the
    model's shape or the lengths are not known.
    """

    seconds: float
    throughput: float
    flops: Counted | None = None
    mfu: Mfu | None = None
    verl_mfu: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step as measured.

    `throughput` is verl's: each token once, by the seconds of the whole step and the GPUs. `seconds` holds every part
    that verl times, with `step`; `unaccounted` is what none of them holds. `not_finite` names what is NaN or infinite.
    """

    number: int
    line: int
    tokens: float
    throughput: float
    seconds: Mapping[str, float]
    unaccounted: float
    phases: Mapping[Phase, PhaseFigure]
    memory: Mapping[str, Memory]
    numerics: Mapping[str, float]
    not_finite: tuple[str, ...] = ()

    @property
    def rollout_seconds(self) -> float:
        """Return generation and sending of weights together, which compares across 0.7.0 and 0.7.1; `gen` does not."""
        return self.seconds.get("gen", 0.0) + self.seconds.get("update_weights", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the launch says of itself (`result.json`): exit code, seconds, GPUs, when each phase was reached.

    `reached` counts seconds from `began`, a moment of the clock on the wall (0.0 where it is not told).
    """

    code: int
    seconds: float
    device: str
    release: Version
    gpus: tuple[str, ...]
    plan: Mapping[str, object]
    reached: Mapping[str, float] = field(default_factory=dict)
    gpu_peak: int | None = None
    gpu_left: int | None = None
    left_behind: tuple[str, ...] = ()
    began: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch: the replicate of a comparison. `steady` are its steps without the `warm` ones, which are named."""

    outcome: Outcome
    meaning: Meaning
    steps: tuple[Step, ...]
    troubles: tuple[Trouble, ...]
    warm_up: int = WARM_UP

    @property
    def warm(self) -> tuple[int, ...]:
        """Return the numbers of the steps that are left out."""
        return tuple(step.number for step in self.steps[: self.warm_up])

    @property
    def steady(self) -> tuple[Step, ...]:
        """Return the steps that count."""
        return self.steps[self.warm_up :]

    @property
    def faults(self) -> tuple[str, ...]:
        """Return why the launch must not be compared, () where it may: it failed, stopped early, or was not finite."""
        asked = self.outcome.plan.get("steps")
        found = [f"it ended with {self.outcome.code}"] if self.outcome.code else []
        if isinstance(asked, int) and len(self.steps) < asked:
            found.append(f"{len(self.steps)} of {asked} steps were logged")
        if not self.steady:
            found.append("no step is left without warm-up")
        found += [
            f"step {step.number} is not finite: {', '.join(step.not_finite[:5])}"
            for step in self.steps
            if step.not_finite
        ]
        return tuple(found)


def read_outcome(path: Path) -> Outcome:
    """Return what a launch's `result.json` says; raises DataError where it is not one, or names no release."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        gpu = told.get("gpu") or {}
        return Outcome(
            code=int(told["code"]),
            seconds=float(told["seconds"]),
            device=str(told.get("device", "cpu")),
            # Earlier launches told both of a GPU alone.
            release=Version(told.get("release") or gpu["release"]),
            gpus=tuple(str(name) for name in gpu.get("devices", ())),
            plan=dict(told.get("plan") or gpu.get("plan", {})),
            reached={str(name): float(value) for name, value in told.get("reached", {}).items()},
            gpu_peak=gpu.get("peak"),
            gpu_left=gpu.get("left"),
            left_behind=tuple(told.get("left_behind", ())),
            began=float(told.get("began", 0.0)),
        )
    except OSError as error:
        raise DataError(path, "", f"cannot be read: {error}", then="The launch may have been killed.") from error
    except KeyError as error:
        raise DataError(path, str(error.args[0]), "is missing", then="Is it the result of a launch?") from error
    except (ValueError, TypeError, AttributeError, InvalidVersion) as error:
        raise DataError(path, "", f"is not the result of a launch: {error}") from error


def read_launch(
    metrics: Path,
    result: Path,
    *,
    shape: Shape | None = None,
    ceiling: Ceiling | None = None,
    warm_up: int = WARM_UP,
) -> Launch:
    """Return the figures of a launch; `shape` is looked up by the plan's where it is None.

    Raises:
        DataError: a file cannot be read or the log holds no line at all.
        UsageError: the release has no file logger, or the plan's shape is not known.
    """
    outcome = read_outcome(result)
    means = meaning(outcome.release)
    lines, troubles = read_lines(metrics)
    wrong = list(troubles)
    if shape is None and isinstance(name := outcome.plan.get("shape"), str):
        shape = shape_named(name)
    seen: dict[int, Step] = {}
    for logged in lines:
        if "timing_s/step" not in logged.values:
            wrong.append(Trouble(line=logged.line, what=f"step {logged.step} has no timing: not a step of training"))
        elif logged.step in seen:
            wrong.append(Trouble(line=logged.line, what=f"step {logged.step} is there again; the first one counts"))
        else:
            seen[logged.step] = _step(logged, outcome, means, shape, ceiling, wrong)
    steps = tuple(seen[number] for number in sorted(seen))
    missing = sorted(set(range(1, max(seen, default=0) + 1)) - set(seen))
    if missing:
        wrong.append(Trouble(line=0, what=f"steps are missing: {', '.join(map(str, missing))}"))
    return Launch(outcome=outcome, meaning=means, steps=steps, troubles=tuple(wrong), warm_up=warm_up)


def _step(
    logged: Logged,
    outcome: Outcome,
    means: Meaning,
    shape: Shape | None,
    ceiling: Ceiling | None,
    wrong: list[Trouble],
) -> Step:
    values = logged.values
    seconds = {name.removeprefix("timing_s/"): value for name, value in values.items() if name.startswith("timing_s/")}
    # `agent_loop/…` are statistics of parts of `gen`.
    inside = {name: value for name, value in seconds.items() if name not in _outside(means) and "/" not in name}
    gpus = max(1, len(outcome.gpus))
    tokens = values.get("perf/total_num_tokens", math.nan)
    throughput = values.get("perf/throughput", math.nan)
    ours = tokens / seconds["step"] / gpus if seconds["step"] > 0 else math.nan
    if abs(ours - throughput) > _TOLERANCE * abs(throughput):
        wrong.append(
            Trouble(line=logged.line, what=f"verl's throughput is {throughput:.6g}, tokens by time and GPUs {ours:.6g}")
        )
    lengths = _lengths(logged, tokens, wrong)
    return Step(
        number=logged.step,
        line=logged.line,
        tokens=tokens,
        throughput=throughput,
        seconds=seconds,
        unaccounted=seconds["step"] - sum(inside.values()),
        phases={
            phase: _figure(phase, seconds[phase.value], values, lengths, outcome, shape, ceiling)
            for phase in Phase
            if seconds.get(phase.value, 0.0) > 0
        },
        memory=_memory(values, means),
        numerics={
            name: next(values[known] for known in names if known in values)
            for name, names in NUMERICS.items()
            if any(known in values for known in names)
        },
        not_finite=tuple(sorted(name for name, value in values.items() if not math.isfinite(value))),
    )


def _outside(means: Meaning) -> frozenset[str]:
    """Return the parts that are not of a step's seconds: the step itself, and what runs around it."""
    outside = {"step", "start_profile", "stop_profile", "testing"}
    return frozenset(outside if means.saves_inside else outside | {"save_checkpoint"})


def _lengths(logged: Logged, tokens: float, wrong: list[Trouble]) -> Lengths | None:
    """Return the lengths of a step's sequences by their summaries, None where the log does not hold them."""
    try:
        prompt, response = (
            Summary(
                mean=logged.values[f"{part}_length/mean"],
                low=logged.values[f"{part}_length/min"],
                high=logged.values[f"{part}_length/max"],
            )
            for part in ("prompt", "response")
        )
    except (KeyError, ValueError) as error:
        wrong.append(Trouble(line=logged.line, what=f"the lengths of its sequences are not told: {error}"))
        return None
    count = tokens / (prompt.mean + response.mean) if prompt.mean + response.mean > 0 else math.nan
    if not math.isfinite(count) or abs(count - round(count)) > _TOLERANCE * count or round(count) < 1:
        wrong.append(Trouble(line=logged.line, what="its tokens are no whole number of sequences of its mean length"))
        return None
    return Lengths.summarised(round(count), prompt, response)


def _figure(
    phase: Phase,
    seconds: float,
    values: Mapping[str, float],
    lengths: Lengths | None,
    outcome: Outcome,
    shape: Shape | None,
    ceiling: Ceiling | None,
) -> PhaseFigure:
    gpus = max(1, len(outcome.gpus))
    counted = mfu = None
    throughput = math.nan
    if lengths is not None:
        tokens = lengths.response if phase is Phase.GENERATION else lengths.tokens
        throughput = tokens / seconds / gpus
        if shape is not None:
            counted = model_flops(shape, phase, lengths, epochs=_epochs(phase, outcome.plan))
            peak = peak_of(outcome.gpus[0]) if outcome.gpus else None
            mfu = utilisation(counted.total, seconds, gpus, peak=peak, ceiling=ceiling)
    name = {Phase.UPDATE_ACTOR: "actor", Phase.UPDATE_CRITIC: "critic", Phase.OLD_LOG_PROB: "actor_infer"}.get(phase)
    logged = values.get(f"perf/mfu/{name}")
    # 0 is what verl logs where it does not know the GPU or the model, or counts nothing in this phase.
    return PhaseFigure(seconds=seconds, throughput=throughput, flops=counted, mfu=mfu, verl_mfu=logged or None)


def _epochs(phase: Phase, plan: Mapping[str, object]) -> int:
    """Return how often an update goes through the batch: 1 but where the plan's further settings say otherwise."""
    more = plan.get("more")
    # The small workload of a CPU says it in a field of its own.
    whole = plan.get("epochs")
    told = {"critic": 0, "actor": whole if isinstance(whole, int) else 1}
    for word in more if isinstance(more, list | tuple) else ():
        key, _, value = str(word).lstrip("+").partition("=")
        worker = {"actor_rollout_ref.actor.ppo_epochs": "actor", "critic.ppo_epochs": "critic"}.get(key)
        if worker is not None and value.isdigit():
            told[worker] = int(value)
    # The critic's is the actor's where it is not set (verl/trainer/config/critic/critic.yaml).
    return (told["critic"] or told["actor"]) if phase.is_critic else told["actor"]


def _memory(values: Mapping[str, float], means: Meaning) -> dict[str, Memory]:
    found = {}
    for worker, prefix in means.memory.items():
        allocated = values.get(f"{prefix}perf/max_memory_allocated_gb")
        reserved = values.get(f"{prefix}perf/max_memory_reserved_gb")
        if allocated is not None and reserved is not None:
            found[worker] = Memory(allocated=allocated, reserved=reserved)
    return found
