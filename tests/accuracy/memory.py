"""Compares what the memory model predicts with what GPUs showed: `python tests/accuracy/memory.py [--store DIR]`.

Three kinds of figures are compared: the allocator's peak of each pass of the trainer (probes `memory/…`, and the
trials of `threshold/…`), the largest value of a knob that survived, and what vLLM said of itself. Relative errors are
printed by kind and phase: how many, the median of their sizes, the worst, how many lie within 10 %.

With `--fit` the constants that a measurement shows are proposed from the runs whose split is `fit`, and everything is
scored again with them, apart for the runs that they were not taken from. Nothing is written: constants.toml is edited
by hand, with the evidence as its source.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from matrix.evidence import SHIPPED, shipped  # noqa: E402
from matrix.memory.constants import Constants, constants  # noqa: E402
from matrix.memory.knob import Knob  # noqa: E402
from matrix.memory.phase import GIB, Phase  # noqa: E402
from matrix.memory.prediction import Prediction, predict  # noqa: E402
from matrix.memory.shape import shape_named  # noqa: E402
from matrix.memory.workload import Workload  # noqa: E402
from matrix.observe import Observation  # noqa: E402
from matrix.thresholds.question import parse_setting  # noqa: E402

GOAL = 0.10
CARD = 150_109_880_320
"""What CUDA calls the total memory of the H200 that launches ran on."""
WHOLE = 1 << 40
"""A card without end: what a pass holds does not depend on the card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: what it is of, what was measured and what is predicted, both in bytes or in the knob's unit."""

    kind: str
    phase: str
    name: str
    measured: float
    predicted: float
    split: str

    @property
    def error(self) -> float:
        """Return the relative error, above 0 where too much was predicted."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """One measured pass of the trainer."""

    name: str
    split: str
    workload: Workload
    flash: bool | None
    part: Mapping[str, Any]

    @property
    def phase(self) -> Phase:
        """Return the phase that the part is."""
        return Phase(self.part["part"])

    @property
    def peaks(self) -> Mapping[str, int]:
        """Return the peaks in bytes."""
        return dict(self.part["peaks"])

    def predicted(self, given: Constants) -> Prediction:
        """Return the prediction for the workload as the trial ran it, with a batch of as many rows."""
        rows = int(self.part["rows"])
        per_update = {
            "actor_rollout_ref.actor.ppo_mini_batch_size": rows,
            "critic.ppo_mini_batch_size": rows,
            "data.train_batch_size": rows,
        }
        settings = {key: value for key, value in per_update.items() if key in self.workload.settings}
        return predict(self.workload.with_settings(settings), WHOLE, given=given, flash_loss=self.flash)


def passes(stored: Iterable[Observation]) -> Iterator[Passed]:
    """Yield every pass that an observation tells with its tokens and peaks."""
    for item in stored:
        detail: Mapping[str, Any] = dict(item.detail)
        if item.question.probe.startswith("memory/"):
            trial, workload = detail["trial"], Workload.from_json(detail["workload"])
            if trial["ending"] != "pass":
                continue
            flash = False if detail.get("env", {}).get("VERL_DISABLE_FLASH_ATTN_CE") == "1" else None
            knob, parts, split = Knob(detail["knob"]), trial["parts"], detail["split"]
        elif item.question.probe.startswith("threshold/") and detail.get("pass"):
            knob, parts, split, flash = Knob(detail["knob"]), detail["pass"]["parts"], "check", None
            workload = Workload.from_json(detail["workload"]).with_knob(knob, detail["pass"]["value"])
        else:
            continue
        for part in parts:
            words = {phase.value for phase in Phase}
            if part["part"] in words and part.get("rows") and part["peaks"].get("reserved") and part["ended"]:
                name = f"{item.question.probe} {part['part']}"
                yield Passed(name=name, split=split, workload=workload, flash=flash, part=part)


def peak_rows(found: Sequence[Passed], given: Constants) -> Iterator[Row]:
    """Yield the allocator's peaks."""
    for one in found:
        holding = one.predicted(given).phases[one.phase]
        yield Row(
            kind="allocated", phase=one.phase.value, name=one.name, split=one.split,
            measured=one.peaks["allocated"], predicted=holding.allocated,
        )  # fmt: skip


def threshold_rows(stored: Iterable[Observation], given: Constants) -> Iterator[Row]:
    """Yield the largest values that survived, against those predicted anew with these constants."""
    from matrix.thresholds.foretell import foretold
    from matrix.thresholds.question import asked

    for item in stored:
        detail: Mapping[str, Any] = dict(item.detail)
        if not item.question.probe.startswith("threshold/") or not detail.get("largest_pass"):
            continue
        if detail.get("smallest_fail") is None or not detail.get("cap"):
            continue
        workload = Workload.from_json(detail["workload"])
        question = asked(
            workload.shape.name, detail["knob"], detail["cap"]["name"], workload.settings,
            beside=int(detail.get("beside") or 0),
        )  # fmt: skip
        predicted = foretold(question, partial(predict, given=given))
        if predicted is not None:
            yield Row(
                kind="threshold", phase=Knob(detail["knob"]).short, name=item.question.probe, split="check",
                measured=float(detail["largest_pass"]), predicted=predicted,
            )  # fmt: skip


def engine_rows(stored: Iterable[Observation], given: Constants) -> Iterator[Row]:
    """Yield what vLLM said: what it left for its KV cache, its weights, its CUDA graphs."""
    for item in stored:
        detail: Mapping[str, Any] = dict(item.detail)
        side = detail.get("pass") if item.question.probe.startswith("threshold/") else None
        if not side or not any("kv_cache_bytes" in part for part in side["parts"]):
            continue
        knob = Knob(detail["knob"])
        workload = Workload.from_json(detail["workload"]).with_knob(knob, side["value"])
        total = int(detail["cap"]["bytes"] if detail.get("cap") else detail["device_total"])
        engine = predict(workload, total, given=given).engine
        told = {name: value for part in side["parts"] for name, value in part.items()}
        for name, predicted in (
            ("kv_cache_bytes", engine.available),
            ("model_bytes", engine.weights),
            ("graph_bytes", engine.graph_bytes),
        ):
            if told.get(name):
                yield Row(
                    kind="engine", phase=name, name=item.question.probe, split="check",
                    measured=float(told[name]), predicted=predicted,
                )  # fmt: skip


def launch_rows(folder: Path, given: Constants) -> Iterator[Row]:
    """Yield the peaks of a whole PPO launch: the allocator's by verl's own metric, and the card's by NVML.

    `folder` holds what a launch of tests/compat/ppo leaves (command.json, metrics.jsonl, result.json), or is how the
    names of the three begin in the evidence (`raw/ppo-A`: ppo-A.command.json, ppo-A.metrics.jsonl, ppo-A.json).
    """
    where = {name: folder / name for name in ("command.json", "metrics.jsonl", "result.json")}
    if not folder.is_dir():
        where = {name: folder.with_name(f"{folder.name}.{name}") for name in where}
        where["result.json"] = folder.with_name(f"{folder.name}.json")
    texts = {name: path.read_text(encoding="utf-8") for name, path in where.items()}
    words = json.loads(texts["command.json"])
    steps = [json.loads(line)["data"] for line in texts["metrics.jsonl"].splitlines()]
    seen = json.loads(texts["result.json"])["gpu"]
    shape = shape_named(seen["plan"]["shape"])
    plain = Workload(shape=shape)
    asked = dict(parse_setting(word) for word in words if "=" in word)
    known = {key: value for key, value in asked.items() if key in plain.settings and key != "critic.enable"}
    load = plain.with_overrides(known)
    # Prompts are shorter than the most they may be: the sequences were as long as verl says that they were.
    sequences = load.train_batch_size * load.n
    length = max(step["global_seqlen/mean"] * load.n_gpus / sequences for step in steps)
    load = load.with_settings({"data.max_prompt_length": max(1, round(length) - load.response_length)})
    found = predict(load, CARD, given=given)
    allocated = max(step["actor/perf/max_memory_allocated_gb"] for step in steps) * GIB
    yield Row(
        kind="launch", phase="allocated", name=folder.name, split="check",
        measured=allocated, predicted=max(holding.allocated for holding in found.phases.values()),
    )  # fmt: skip
    yield Row(
        kind="launch", phase="on the card", name=folder.name, split="check",
        measured=float(seen["peak"] - seen["before"]), predicted=max(h.total for h in found.phases.values()),
    )  # fmt: skip


def fitted(found: Sequence[Passed], given: Constants) -> dict[str, float]:
    """Return the constants that the passes of the split `fit` show, by name."""
    fit = [one for one in found if one.split == "fit"]
    if not fit:
        return {}
    over = [one.peaks["reserved"] / one.peaks["allocated"] - 1 for one in fit]
    bare = given.changed({"trainer_workspace_bytes": 0.0})
    plain = [one for one in fit if not one.workload.actor.needs_entropy or one.phase is not Phase.ACTOR_UPDATE]
    rest = [one.peaks["allocated"] - one.predicted(bare).phases[one.phase].allocated for one in plain]
    small = sorted(rest, key=abs)[: max(1, len(rest) // 2)]
    values = {
        "allocator_overhead": max(0.0, median(over)),
        "trainer_workspace_bytes": max(0.0, median(small)),
    }
    old = [one for one in fit if one.phase is Phase.OLD_LOG_PROB]
    if len(old) > 1:
        values["compiled_entropy_copies"] = _entropy(old, given.changed(values))
    return values


def _entropy(old: Sequence[Passed], given: Constants) -> float:
    """Return how many float32 copies of the logits explain what the largest old log-prob took beyond the smallest."""
    bare = given.changed({"compiled_entropy_copies": 0.0})
    ordered = sorted(old, key=lambda one: int(one.part["tokens"]))
    small, large = ordered[0], ordered[-1]

    def beyond(one: Passed) -> float:
        return one.peaks["allocated"] - one.predicted(bare).phases[one.phase].allocated

    tokens = int(large.part["tokens"]) - int(small.part["tokens"])
    return max(0.0, (beyond(large) - beyond(small)) / (4.0 * tokens * large.workload.shape.vocab_size))


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the errors by kind and phase, and all together."""
    groups = sorted({(row.kind, row.phase) for row in rows})
    for kind, phase in groups:
        yield f"  {kind:10} {phase:36} {_errors([row for row in rows if (row.kind, row.phase) == (kind, phase)])}"
    if rows:
        yield f"  {'all':10} {'':36} {_errors(rows)}"


def _errors(rows: Sequence[Row]) -> str:
    sizes = [abs(row.error) for row in rows]
    worst = max(rows, key=lambda row: abs(row.error))
    within = sum(size <= GOAL for size in sizes)
    return (
        f"{len(rows):3} figures, median {100 * median(sizes):5.1f} %, worst {100 * worst.error:+6.1f} %, "
        f"{within} of {len(rows)} within {100 * GOAL:.0f} %"
    )


def _raw(store: str | None) -> list[Path]:
    """Return the metrics of launches that lie in the raw part of the evidence."""
    root = Path(store) if store else SHIPPED
    return sorted(root.glob("**/raw/*.metrics.jsonl"))


def gather(stored: Sequence[Observation], given: Constants) -> list[Row]:
    """Return every figure with its prediction."""
    found = list(passes(stored))
    return [*peak_rows(found, given), *threshold_rows(stored, given), *engine_rows(stored, given)]


_LAUNCH = "what a launch of tests/compat/ppo left behind: compare its peaks too; may be repeated"


def main() -> int:
    """Return 0 where the median error of each kind is within the goal, 1 where one is not or nothing was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--store", metavar="DIR", help="a store, or a folder of them (default: this project's evidence)"
    )
    parser.add_argument("--launch", action="append", default=[], type=Path, metavar="DIR", help=_LAUNCH)
    parser.add_argument("--fit", action="store_true", help="propose constants and score them")
    parser.add_argument("--all", action="store_true", help="print every figure")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    latest = {(item.question.cell, item.question.probe): item for item in shipped(args.store)}
    stored = [item for (_, probe), item in latest.items() if probe.startswith(("memory/", "threshold/"))]
    given = constants()
    recorded = [path.with_name(path.name.removesuffix(".metrics.jsonl")) for path in _raw(args.store)]
    args.launch += recorded
    launches = [row for folder in args.launch for row in launch_rows(folder, given)]
    rows = gather(stored, given) + launches
    if args.json:
        figures = [{**{name: getattr(row, name) for name in Row.__slots__}, "error": row.error} for row in rows]
        sys.stdout.write(json.dumps(figures, indent=1) + "\n")
        return 0
    if not rows:
        sys.stdout.write("nothing was measured\n")
        return 1
    sys.stdout.write("\n".join(["predicted against measured:", *summary(rows)]) + "\n")
    if args.all:
        for row in sorted(rows, key=lambda row: (row.kind, row.phase, row.name)):
            sizes = (
                f"{row.measured / GIB:8.2f} {row.predicted / GIB:8.2f}"
                if row.kind != "threshold"
                else (f"{row.measured:8g} {row.predicted:8g}")
            )
            sys.stdout.write(f"  {row.kind:10} {sizes} {100 * row.error:+6.1f} %  {row.name}\n")
    if args.fit:
        proposed = fitted(list(passes(stored)), given)
        sys.stdout.write("proposed from the split `fit`:\n")
        for name, value in proposed.items():
            sys.stdout.write(f"  {name} = {value:.6g} (is {given.values[name]:.6g})\n")
        changed = given.changed(proposed)
        again = gather(stored, changed) + [row for folder in args.launch for row in launch_rows(folder, changed)]
        for split in ("fit", "check"):
            sys.stdout.write(
                "\n".join([f"with them, split {split}:", *summary([r for r in again if r.split == split])])
            )
            sys.stdout.write("\n")
        rows = again
    kinds = {row.kind for row in rows}
    good = all(median([abs(row.error) for row in rows if row.kind == kind]) <= GOAL for kind in kinds)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
