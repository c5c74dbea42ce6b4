"""The outcome of a launch: its figures out of the files that it left, or the fault that it ended with.

Figures are read from verl's file logger and from the lines that the in-cell benches write, never from what was printed;
what was printed only tells faults apart.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.figures import GIB, Figure, of_launch
from bench.flops import Lengths, Phase, model_flops
from bench.launched import Fault, Measured, Repeat, Trouble
from bench.metrics import read_launch
from bench.peaks import Ceiling, peak_of, utilisation
from bench.sample import Side
from matrix.errors import MatrixError
from matrix.memory.shape import shape_named

TAIL = 20_000
LIMIT_CODE, REFUSED_CODE = 124, 2
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_SIGNS = tuple(
    (trouble, re.compile("|".join(patterns)))
    for trouble, patterns in (
        # The first that is found decides: a lost GPU makes many other errors.
        (
            Trouble.GPU_LOST,
            ("GPU is lost", "fallen off the bus", "uncorrectable ECC", "NVML_ERROR_GPU_IS_LOST"),
        ),
        (
            Trouble.MEMORY,
            (
                "OutOfMemoryError", "CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
                "No available memory for the cache blocks", "larger than the available KV cache memory",
                "less than desired GPU memory utilization", "Cannot allocate memory", r"\bMemoryError",
                "CUDA Error: out of memory", "cudaErrorMemoryAllocation", "can't allocate memory",
            ),
        ),
        (Trouble.KILLED, ("SIGKILL", "killed by signal 9", "Worker unexpectedly exits with a connection error code 2")),
    )
)  # fmt: skip
_ERROR = re.compile(r"^(?:\([^)]*\)\s*)?([\w.]*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)
SIDES = {"off": Side.A, "on": Side.B}
"""The sides as the in-cell benches name them."""
_NUMBERS = {
    ("update_actor", "grad_norm"): "actor_grad_norm",
    ("update_critic", "grad_norm"): "critic_grad_norm",
    ("update_actor", "entropy"): "entropy",
    ("update_actor", "loss"): "policy_loss",
    ("update_critic", "loss"): "value_loss",
}


def fault_of(code: int, text: str, *, over: str = "") -> Fault | None:
    """Return the fault of a launch by its exit code and the end of what it printed, None where it ended well.

    `over` says why it was ended from outside ("" where it was not).
    """
    if over:
        return Fault(trouble=Trouble.HUNG, text=over)
    if code == 0:
        return None
    clean = _COLOR.sub("", text)
    for trouble, pattern in _SIGNS:
        found = list(pattern.finditer(clean))
        if found:
            return Fault(trouble=trouble, text=_line_at(clean, found[-1].start()))
    if code == LIMIT_CODE:
        return Fault(trouble=Trouble.HUNG, text="its limit was reached")
    if code > 128:
        return Fault(trouble=Trouble.KILLED, text=f"by signal {code - 128}")
    errors = _ERROR.findall(clean)
    last = errors[-1] if errors else clean.strip().rpartition("\n")[2]
    return Fault(
        trouble=Trouble.REFUSED if code == REFUSED_CODE else Trouble.FAILED,
        text=f"exit code {code}: {last.strip()[:300]}",
    )


def fault_told(result: Mapping[str, Any], code: int, text: str, *, over: str = "") -> Fault | None:
    """Return the fault of a launch that tells of it itself (`result.json`), else that of its exit code and its text."""
    told = result.get("fault")
    if over or not code or not isinstance(told, Mapping):
        return fault_of(code, text, over=over)
    found = fault_of(code, f"{told.get('kind')}\n{told.get('text')}")
    assert found is not None
    where = " of ".join(str(told[name]) for name in ("where", "variant") if told.get(name))
    return Fault(trouble=found.trouble, text=f"{where}: {found.text}" if where else found.text)


def _line_at(text: str, at: int) -> str:
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    return text[start : end if end >= 0 else len(text)].strip()[:300]


def tail(path: Path, size: int = TAIL) -> str:
    """Return the end of a file of text, "" where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def read_result(out: Path) -> dict[str, Any]:
    """Return what a launch says of itself, {} where it came to no word or to half of one."""
    try:
        found = json.loads((out / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file of JSON lines; half a line at the end is none."""
    found = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


def of_ppo(out: Path, side: Side, fault: Fault | None, *, start: float, ceiling: Ceiling | None = None) -> Measured:
    """Return what a launch of `ppo` measured; `start` is when it began, by the clock on the wall.

    The figures of a launch that ended badly are read as far as it came, and the fault stays.
    """
    try:
        launch = read_launch(out / "metrics.jsonl", out / "result.json", ceiling=ceiling)
    except MatrixError as error:
        return Measured(fault=fault or Fault(trouble=Trouble.SHORT, text=error.what))
    figures, numerics = of_launch(launch)
    odd = [step for step in launch.steps if step.not_finite]
    if odd:
        text = f"step {odd[0].number}: {', '.join(odd[0].not_finite[:3])}"
        fault = fault or Fault(trouble=Trouble.NOT_FINITE, text=text)
    elif launch.faults:
        fault = fault or Fault(trouble=Trouble.SHORT, text="; ".join(launch.faults))
    reached, steady = launch.outcome.reached, [step.number for step in launch.steady]
    first, last = reached.get(f"step {launch.warm_up}"), reached.get(f"step {steady[-1]}") if steady else None
    window = None
    if first is not None and last is not None and launch.outcome.began:
        offset = launch.outcome.began - start
        window = (round(offset + first, 2), round(offset + last, 2))
    return Measured(
        figures=figures, numerics={side: numerics}, dropped=launch.warm_up, fault=fault, window=window
    )  # fmt: skip


def of_repeats(out: Path, result: Mapping[str, Any], fault: Fault | None, *, start: float) -> Measured:
    """Return what a launch of `update` or `rollout` measured of both its sides."""
    rows = [row for row in read_rows(out / "samples.jsonl") if not row.get("warm_up") and row.get("variant") in SIDES]
    repeats: dict[str, list[Repeat]] = {}
    numerics: dict[Side, dict[str, list[float]]] = {side: {} for side in Side}
    gpus = max(1, len(result.get("devices") or ()))
    for row in rows:
        side, place = SIDES[str(row["variant"])], int(row["place"])
        for name, value in _of_row(row, gpus, result).items():
            good = 0 < value < math.inf
            repeats.setdefault(name, []).append(
                Repeat(place=place, side=side, value=value if good else None, fault="" if good else f"it is {value}")
            )
        for name, value in (row.get("numerics") or {}).items():
            known = _NUMBERS.get((str(row.get("phase")), name))
            if known is not None:
                numerics[side].setdefault(known, []).append(math.nan if value is None else float(value))
    told = result.get("fault") or {}
    if fault is not None and str(told.get("variant")) in SIDES and isinstance(told.get("place"), int):
        # The repeat that failed has its place in every metric, and takes the one that it is paired with along.
        for items in repeats.values():
            if all(item.place != told["place"] for item in items):
                items.append(Repeat(place=told["place"], side=SIDES[str(told["variant"])], fault=str(fault)))
    moments = [float(row["at"]) - start for row in rows if "at" in row]
    within = (result.get("numerics") or {}).get("within")
    return Measured(
        repeats={name: tuple(sorted(items, key=lambda item: item.place)) for name, items in repeats.items()},
        numerics={
            side: {name: tuple(values) for name, values in numbers.items()} for side, numbers in numerics.items()
        },
        within=within if isinstance(within, bool) else None,
        fault=fault if fault is not None or repeats else Fault(trouble=Trouble.SHORT, text="no repeat was told of"),
        window=(round(min(moments) - float(rows[0]["seconds"]), 2), round(max(moments), 2)) if moments else None,
    )


def _of_row(row: Mapping[str, Any], gpus: int, result: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of one phase of one repeat."""
    phase, seconds, tokens = str(row["phase"]), float(row["seconds"]), float(row.get("tokens") or 0)
    found = {f"seconds/{phase}": seconds}
    if tokens and seconds > 0:
        found[f"throughput/{phase}"] = tokens / seconds / gpus
    memory, more = row.get("memory") or {}, row.get("more") or {}
    if memory.get("allocated"):
        found[f"memory/{phase}"] = float(memory["allocated"]) / GIB
    if more.get("kv_tokens"):
        found[f"kv_cache/{phase}"] = float(more["kv_tokens"])
    if more.get("mfu"):
        found[f"mfu_verl/{phase}"] = float(more["mfu"])
    share = _mfu(phase, seconds, row, gpus, result)
    if share is not None:
        found[f"mfu/{phase}"] = share
    return found


def _mfu(phase: str, seconds: float, row: Mapping[str, Any], gpus: int, result: Mapping[str, Any]) -> float | None:
    """Return our MFU of a phase; None where the lengths, the model or the peak are not known."""
    plan, devices, more = result.get("plan") or {}, result.get("devices") or (), row.get("more") or {}
    peak = peak_of(str(devices[0])) if devices else None
    if peak is None or plan.get("model"):
        return None
    try:
        rows = int(row["rows"])
        lengths = Lengths(
            sequences=rows,
            prompt=float(more["prompt_tokens"]),
            response=float(rows * plan["response"]),
            squares=float(more["squares"]),
        )
        flops = model_flops(shape_named(str(plan["shape"])), Phase(phase), lengths, epochs=1)
        return utilisation(flops.total, seconds, gpus, peak=peak).peak
    except (KeyError, ValueError, MatrixError):
        return None


def with_power(measured: Measured, summary: Mapping[str, object], tokens: float | None) -> Measured:
    """Return the same with mean power in the window, and energy a token where the tokens of the window are known."""
    power = summary.get("power_mean_w")
    if not isinstance(power, int | float) or not measured.figures or measured.window is None:
        return measured
    gpus = summary.get("gpus")
    count = len(gpus) if isinstance(gpus, list) else 1
    figures = {**measured.figures, "power": Figure.once("power", power / count)}
    if tokens:
        figures["energy"] = Figure.once("energy", power * (measured.window[1] - measured.window[0]) / tokens)
    return Measured(
        figures=figures,
        numerics=measured.numerics,
        dropped=measured.dropped,
        fault=measured.fault,
        window=measured.window,
    )


def tokens_of(out: Path, warm_up: int) -> list[float]:
    """Return the tokens of each step of a launch of `ppo` after its warm-up."""
    rows: Sequence[Mapping[str, Any]] = [row.get("data") or {} for row in read_rows(out / "metrics.jsonl")]
    return [float(row["perf/total_num_tokens"]) for row in rows if "perf/total_num_tokens" in row][warm_up:]
