"""`memory`: what one GPU holds in each phase of a PPO step, from the configuration alone; 0 it fits, 1 it does not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.errors import DataError, UsageError

if TYPE_CHECKING:
    from matrix.cli.front import Front
    from matrix.memory.gpu import Gpu
    from matrix.memory.knob import Knob
    from matrix.memory.prediction import Prediction
    from matrix.memory.threshold import Threshold
    from matrix.memory.workload import Value, Workload

MORE = """ No GPU is needed.

  verl-matrix memory --model Qwen/Qwen2.5-0.5B --gpu A100-80GB
  verl-matrix memory --model Qwen/Qwen2.5-7B --gpu H100-80GB --n-gpus 8 \\
      --set actor_rollout_ref.rollout.gpu_memory_utilization=0.4
  verl-matrix memory --recipe guide-0.5b

The exit code is 0 where the workload fits and 1 where it does not. docs/memory.md says how it is reckoned, and how far
predictions were from measurements."""


def words(parser: argparse.ArgumentParser) -> None:
    """Add the words of the command."""
    parser.add_argument("--model", metavar="NAME", help="a model whose shape is known, e.g. Qwen/Qwen2.5-0.5B")
    parser.add_argument("--config", metavar="FILE", help="the config.json of another dense decoder (or its folder)")
    parser.add_argument("--workload", metavar="FILE", help="a workload as JSON, as trials of thresholds write it")
    parser.add_argument("--recipe", metavar="NAME", help="a workload with a name, e.g. guide-0.5b")
    parser.add_argument("--gpu", metavar="CARD", help="e.g. A100-80GB, H200, L4, or what CUDA reports: 44.4GiB")
    parser.add_argument("--n-gpus", type=int, metavar="N", help="GPUs that share actor and critic (default: 1)")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="a setting of verl 0.9.1"
    )
    parser.add_argument("--vllm", default="0.24.0", metavar="VERSION", help="release of vLLM (default: %(default)s)")
    parser.add_argument("--knob", action="append", default=[], metavar="KEY", help=_KNOB)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


_KNOB = "predict the largest value that fits of this key only; may be repeated (default: of all that are in force)"


def run(args: argparse.Namespace, front: Front) -> int:
    """Print what each phase holds, the rule that binds and the largest value of each knob; 0 it fits, 1 it does not."""
    from matrix.memory.prediction import predict
    from matrix.memory.threshold import threshold

    workload, gpu = _asked(args)
    release = _release(args.vllm)

    def ask(load: Workload) -> Prediction:
        return predict(load, gpu.total, vllm=release)

    found = ask(workload)
    limits = [threshold(workload, knob, ask) for knob in _knobs(args.knob, workload)]
    if args.json:
        sys.stdout.write(json.dumps(_data(found, gpu, limits), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("\n".join(_text(found, gpu, limits)) + "\n")
    return 0 if found.fits else 1


def _asked(args: argparse.Namespace) -> tuple[Workload, Gpu]:
    """Return the workload and the card that the words name; raises UsageError where they do not go together."""
    from matrix.memory.gpu import gpu_named
    from matrix.memory.recipe import recipe_named
    from matrix.memory.shape import Shape, shape_named
    from matrix.memory.workload import Workload

    given = [word for word in (args.model, args.config, args.workload, args.recipe) if word]
    if len(given) != 1:
        raise UsageError("memory takes one of --model, --config, --workload and --recipe.", then=_HOW)
    recipe = recipe_named(args.recipe) if args.recipe else None
    if recipe is not None:
        workload = recipe.workload
    elif args.workload:
        workload = _workload(Path(args.workload))
    else:
        shape = shape_named(args.model) if args.model else Shape.from_config(Path(args.config))
        workload = Workload(shape=shape).with_settings(_SMALL)
    if not args.gpu and recipe is None:
        raise UsageError("No card is named.", then=_HOW)
    gpu = gpu_named(args.gpu) if args.gpu else recipe.gpu  # type: ignore[union-attr]
    settings = dict(_setting(text) for text in args.settings)
    if args.n_gpus is not None:
        settings["trainer.n_gpus_per_node"] = args.n_gpus
    return workload.with_overrides(settings).launchable(), gpu


_HOW = "Write it like `verl-matrix memory --model Qwen/Qwen2.5-0.5B --gpu A100-80GB`."
_SMALL = {
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
}
"""verl has no default for the two and refuses to start without them."""


def _workload(path: Path) -> Workload:
    """Return the workload in a file; raises DataError where it holds none."""
    from matrix.datafile import read_object
    from matrix.memory.workload import Workload

    data = read_object(path, _WORKLOAD)
    try:
        return Workload.from_json(data)
    except UsageError as error:
        raise DataError(path, "", error.what, then=error.then or _WORKLOAD) from error


_WORKLOAD = "Give a workload as JSON, as trials of thresholds write it."


def _setting(text: str) -> tuple[str, Value]:
    """Return a KEY=VALUE as its key (without hydra's `+`) and its value, read as hydra reads plain ones."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise UsageError(f"`{text}` is no KEY=VALUE.", then=_HOW)
    return key.strip().lstrip("+"), _value(value.strip())


def _value(text: str) -> Value:
    plain = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in plain:
        return plain[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")


def _release(text: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(text))
    except InvalidVersion:
        raise UsageError(f"`{text}` is no version of vLLM.") from None


def _knobs(asked: list[str], workload: Workload) -> tuple[Knob, ...]:
    """Return the knobs that are asked for, else those that the settings put in force; raises UsageError."""
    from matrix.memory.knob import Knob
    from matrix.memory.passes import in_force

    if not asked:
        return in_force(workload)
    found = []
    for word in asked:
        fitting = [knob for knob in Knob if word in (knob.value, knob.short) or knob.value.endswith(f".{word}")]
        if len(fitting) != 1:
            why = f"It may be {' or '.join(knob.short for knob in fitting)}." if fitting else ""
            raise UsageError(f"`{word}` names no one knob.", why=why, then=f"Knobs: {', '.join(Knob)}.")
        found += fitting
    return tuple(found)


def _text(found: Prediction, gpu: Gpu, limits: list[Threshold]) -> Iterator[str]:
    from matrix.memory.phase import GIB

    shape = found.workload.shape
    yield (
        f"{shape.name} ({shape.parameters / 1e9:.2f} B parameters) on {found.workload.n_gpus} x {gpu.name}"
        f" ({gpu.total / GIB:.2f} GiB), GiB on one GPU:"
    )
    yield from _table(found)
    engine = found.engine
    yield (
        f"vLLM asks for {engine.requested / GIB:.2f} GiB; its KV cache holds {engine.kv_tokens:,} tokens,"
        f" {engine.sequences:.0f} sequences of {found.workload.length} at a time"
    )
    yield (
        f"peak: {found.peak.value}, {found.phases[found.peak].total / GIB:.2f} GiB;"
        f" headroom {found.headroom / GIB:.2f} GiB"
    )
    yield f"{'fits' if found.fits else 'does not fit'}; what binds: {found.binding.text}"
    if not gpu.has_bf16:
        yield f"{gpu.name} has no bfloat16 and no flash-attention 2: verl's defaults do not run on it, whatever fits"
    if limits:
        yield "largest value that fits, the other settings as they are:"
        width = max(len(limit.knob.short) for limit in limits)
        for limit in limits:
            yield f"  {limit.knob.short:{width}}  {_limit(limit)}"


def _table(found: Prediction) -> Iterator[str]:
    from matrix.memory.phase import GIB, Part

    phases = list(found.phases)
    parts = [part for part in Part if any(found.phases[phase].parts.get(part, 0) for phase in phases)]
    first = max(len(part.value) for part in parts)
    widths = [max(len(phase.value), 6) for phase in phases]
    yield " " * first + "".join(f"  {phase.value:>{width}}" for phase, width in zip(phases, widths, strict=True))
    for part in parts:
        sizes = [found.phases[phase].parts.get(part, 0) / GIB for phase in phases]
        cells = [f"{size:.2f}" if size else "-" for size in sizes]
        yield f"{part.value:{first}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    totals = [f"{found.phases[phase].total / GIB:.2f}" for phase in phases]
    yield f"{'total':{first}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(totals, widths, strict=True))


def _limit(limit: Threshold) -> str:
    if limit.value is None:
        return f"none fits ({limit.binds.text})" if limit.binds else "none fits"
    value = f"{limit.value:.2f}" if limit.least is not None else f"{limit.value:,.0f}"
    if limit.least is not None:
        value = f"{value} (at least {limit.least:.2f})"
    if limit.binds is None:
        return f"{value}; more changes nothing"
    return f"{value}; then {limit.binds.text}"


def _data(found: Prediction, gpu: Gpu, limits: list[Threshold]) -> dict[str, object]:
    from matrix.memory.constants import constants

    return {
        "workload": found.workload.to_json(),
        "gpu": {"name": gpu.name, "total": gpu.total},
        "fits": found.fits,
        "peak": found.peak.value,
        "headroom": round(found.headroom),
        "phases": {
            phase.value: {
                "total": round(holding.total),
                "parts": {part.value: round(size) for part, size in holding.parts.items() if size},
            }
            for phase, holding in found.phases.items()
        },
        "rules": [
            {
                "name": rule.name,
                "phase": rule.phase.value,
                "need": round(rule.need),
                "have": round(rule.have),
                "unit": rule.unit,
                "holds": rule.holds,
            }
            for rule in found.rules
        ],
        "binds": found.binding.text,
        "engine": {
            "requested": found.engine.requested,
            "available_kv_cache": round(found.engine.available),
            "kv_tokens": found.engine.kv_tokens,
            "sequences": round(found.engine.sequences, 1),
        },
        "thresholds": [
            {
                "knob": limit.knob.value,
                "unit": limit.knob.unit.value,
                "value": limit.value,
                "least": limit.least,
                "binds": limit.binds.text if limit.binds else None,
                "saturates": limit.saturates,
            }
            for limit in limits
        ],
        "constants": {
            name: {"value": constants().values[name], "status": origin.status.value, "source": origin.source}
            for name, origin in constants().origins.items()
        },
    }
