"""A whole PPO run under a cap: `python step.py --spec SPEC.json --out LINES.jsonl`, one errand on stdin, then the end.

The launch is that of `ppo/launch.py`: Ray, verl's trainer, vLLM, two steps. A holder takes what the card has more than
the cap, so that all of its processes together have what the small card would, and vLLM's utilization is scaled to it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

COMPAT = Path(__file__).resolve().parent.parent
if str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from trials import command  # noqa: E402
from trials.rollout import Holder, Nobody, numbers  # noqa: E402
from trials.telling import TEXT, Teller  # noqa: E402

STEPS = 2
LIMIT_S = 420
LOOK_S = 0.2
UTILIZATION = "actor_rollout_ref.rollout.gpu_memory_utilization"
BY_OPTION = {
    "data.max_prompt_length": "--prompt",
    "data.max_response_length": "--response",
    "data.train_batch_size": "--batch",
}
"""Settings that the launch has options for, because its data depend on them."""
NOT_SET = (*BY_OPTION, UTILIZATION, "trainer.n_gpus_per_node", "critic.enable", "actor_rollout_ref.actor.use_kl_loss")
PARTS = (
    ("actor update", r"in update_actor\b"),
    ("critic update", r"in train_mini_batch\b"),
    ("old log-prob", r"in compute_log_prob\b"),
    ("values", r"in infer_batch\b"),
    ("wake-up", r"in wake_up\b|in resume\b"),
    ("rollout init", r"in launch_server\b|Engine core initialization failed"),
    ("trainer init", r"in init_model\b|in reset\b"),
)
"""The part of a step that a traceback is from, by the functions in it; the innermost word first."""


class Device:
    """What is taken on the device, the ballast aside; the most of it since the last reset."""

    def __init__(self, ballast: Holder | Nobody) -> None:
        self._ballast = ballast
        self._most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def reset(self) -> None:
        """Start to look, every fifth of a second."""
        self._thread.start()

    def peaks(self) -> dict[str, int]:
        self._ended.set()
        self._thread.join(5.0)
        return {"allocated": self._most}

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            seen = self._ballast.order(look=True)
            self._most = max(self._most, seen["total"] - seen["free"] - seen["held"] - seen["context"])


def words(spec: dict[str, Any], errand: dict[str, Any], total: int, out: Path) -> list[str]:
    """Return the command of the launch: the spec's settings that are no defaults, and the errand's value."""
    settings = {key: value for key, value in spec["settings"].items() if key not in spec["defaults"]}
    if errand.get("knob"):
        settings[errand["knob"]] = errand["value"]
    share = float(settings.get(UTILIZATION, spec["settings"][UTILIZATION]))
    cap = spec.get("cap")
    share = share * min(cap, total) / total if cap else share
    argv = [sys.executable, str(COMPAT / "ppo" / "launch.py"), "--out", str(out), "--device", "cuda"]
    argv += ["--shape", spec["shape"], "--steps", str(STEPS), "--limit", str(LIMIT_S), "--utilization", f"{share:.6f}"]
    for key, option in BY_OPTION.items():
        argv += [option, str(spec["settings"][key])]
    if not spec["critic"]:
        argv += ["--estimator", "grpo"]
    for key, value in settings.items():
        if key not in NOT_SET:
            argv += ["--set", f"{key}={_word(value)}"]
    return argv


def _word(value: Any) -> str:
    """Return a value as hydra reads it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)


def part_of(log: str) -> str:
    """Return the part that a log's traceback is from, `step` where it does not say."""
    return next((part for part, pattern in PARTS if re.search(pattern, log)), "step")


def run(spec: dict[str, Any], errand: dict[str, Any], teller: Teller, out: Path) -> str:
    """Launch and wait; return the log where it did not end well, "" where it did."""
    ballast: Holder | Nobody = Holder() if spec["device"] == "cuda" else Nobody()
    try:
        cap = spec.get("cap")
        seen = ballast.order(**({"leave": int(cap)} if cap else {"look": True}))
        if seen["error"] or (cap and cap > 1.02 * seen["total"]):
            raise ValueError(f"the card cannot stand in for one of {cap} bytes: {seen}")
        with teller.part_of("step", Device(ballast)) as found:
            argv = words(spec, errand, seen["total"], out)
            found |= {"device_total": seen["total"], "command": argv[2:]}
            with (out.parent / "launch.txt").open("wb") as file:
                code = subprocess.run(argv, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
            found |= {"code": code, **told(out)}
        log = _read(out / "stamped.txt") + _read(out / "log.txt") + _read(out.parent / "launch.txt")
        return log[-200_000:] or f"exit code {code}" if code else ""
    finally:
        ballast.end()


def told(out: Path) -> dict[str, Any]:
    """Return what the launch measured of itself: verl's own metrics of memory by step, and its result."""
    found: dict[str, Any] = {}
    lines = _read(out / "metrics.jsonl").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    found["steps"] = len(rows)
    found["memory_gb"] = [
        {key: value for key, value in row["data"].items() if "max_memory" in key} for row in rows if "data" in row
    ]
    return found | {"engine": numbers(_read(out / "log.txt"))}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def serve(spec: dict[str, Any], teller: Teller, out: Path) -> int:
    """Run the one errand that comes on standard input; return 3, for another one takes another process."""
    teller.tell("ready")
    line = sys.stdin.readline()
    if not line.strip():
        return 0
    errand = json.loads(line)
    with teller.trial(errand) as verdict:
        start = time.monotonic()
        log = run(spec, errand, teller, out.parent / "launch")
        verdict.more["seconds_of_launch"] = round(time.monotonic() - start, 1)
        if log:
            verdict.read(RuntimeError(f"the launch did not end well\n{log[-TEXT:]}"), log)
            teller.part = part_of(log)
    return 3


if __name__ == "__main__":
    sys.exit(command.main(__doc__, "step", serve))
