"""The launch of PPO from its beginning to its end, with a stand-in for the interpreter that would run verl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

COMPAT = Path(__file__).resolve().parents[1] / "compat"
STAND_IN = """#!{python}
import json, os, subprocess, sys, time
if "-c" in sys.argv:
    time.sleep(60)  # what warms ends with the launch
said = json.loads({said!r})
assert "PYTHONDONTWRITEBYTECODE" not in os.environ
subprocess.Popen(["sleep", "61.5"], start_new_session=True)
for line in said["lines"]:
    print(line, flush=True)
    time.sleep(0.15)
with open(os.environ["VERL_FILE_LOGGER_PATH"], "a") as file:
    for step in range(1, said["steps"] + 1):
        file.write(json.dumps({{"step": step, "data": {{}}}}) + "\\n")
logs = os.path.join(os.environ["RAY_TMPDIR"], "ray", "session_1", "logs")
os.makedirs(logs)
open(os.path.join(logs, "raylet.out"), "w").write("it died")
time.sleep(said["sleeps"])
sys.exit(said["code"])
"""
DRIVER = """
import contextlib, importlib.metadata, sys
sys.path.insert(0, {compat!r})
importlib.metadata.version = lambda name: "0.9.1"
from ppo import gpu_run, launch, workload
from ppo.gpu import Device, GpuMeter
class Driver:
    def used(self, index):
        return 7 << 30
devices = [Device(1, "GPU-b", "NVIDIA H200")]
launch._alone = contextlib.nullcontext  # a real launch on this machine has nothing to do with these
# What writes the model of a CPU is no part of this environment.
workload.write = lambda planned, out: workload.Written(actor=out, critic=out, train=out, test=out)
gpu_run._meter = lambda count: (GpuMeter(Driver(), devices), devices)
sys.executable = {stand_in!r}
sys.argv = ["launch.py", *{words!r}]
sys.exit(launch.main())
"""


def launched(tmp_path: Path, *words: str, code: int = 0, sleeps: float = 0.0, steps: int = 2) -> tuple[int, Any, Path]:
    """Return the exit code of a launch, its result and its folder."""
    said = {
        "lines": ["ray init kwargs: {}", "Started a local Ray instance", "all initialize finished, ready to fit"],
        "steps": steps,
        "code": code,
        "sleeps": sleeps,
    }
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN.format(python=sys.executable, said=json.dumps(said)), encoding="utf-8")
    stand_in.chmod(0o755)
    out = tmp_path / "out"
    driver = DRIVER.format(compat=str(COMPAT), stand_in=str(stand_in), words=["--out", str(out), *words])
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", driver], env=env, capture_output=True, text=True, timeout=90, check=False
    )
    result = out / "result.json"
    assert result.exists(), ended.stderr
    return ended.returncode, json.loads(result.read_text(encoding="utf-8")), out


GPU = ("--device", "cuda", "--shape", "tiny", "--batch", "8", "--steps", "2", "--estimator", "gae")


def test_a_launch_on_a_gpu_tells_of_itself(tmp_path: Path) -> None:
    code, result, out = launched(tmp_path, *GPU, "--set", "trainer.balance_batch=False")
    assert (code, result["code"], result["device"]) == (0, 0, "cuda")
    assert list(result["reached"]) == ["configured", "ray", "fit", "step 1", "step 2"]
    assert result["left_behind"] == []
    assert result["patches"] == []
    gpu = result["gpu"]
    assert (gpu["before"], gpu["peak"], gpu["left"], gpu["devices"]) == (7 << 30, 7 << 30, 0, ["NVIDIA H200"])
    assert gpu["plan"]["estimator"] == "gae"
    assert result["plan"] == gpu["plan"]
    assert result["more"] == ["trainer.balance_batch=False"]
    assert result["release"] == "0.9.1"
    assert set(result["versions"].values()) == {"0.9.1"}
    assert result["began"] > 1e9
    command = json.loads((out / "command.json").read_text(encoding="utf-8"))
    assert command[1:3] == ["-m", "verl.trainer.main_ppo"]
    assert command[-1] == "trainer.balance_batch=False"
    assert (out / "model" / "model.safetensors").exists()
    assert (out / "data" / "train.parquet").exists()
    assert "Started a local Ray instance" in (out / "stamped.txt").read_text(encoding="utf-8")
    assert not (out / "ray_logs").exists()
    assert not _running("sleep 61.5")


CPU = ("--device", "cpu", "--steps", "3", "--set", "trainer.save_freq=-1")


def test_a_launch_on_a_cpu_takes_settings_and_tells_of_itself(tmp_path: Path) -> None:
    code, result, out = launched(tmp_path, *CPU, steps=3)
    assert (code, result["code"], result["device"]) == (0, 0, "cpu")
    assert (result["release"], result["plan"]["steps"], result["more"]) == ("0.9.1", 3, ["trainer.save_freq=-1"])
    command = json.loads((out / "command.json").read_text(encoding="utf-8"))
    assert "trainer.total_training_steps=3" in command
    assert command[-1] == "trainer.save_freq=-1"


def test_a_bare_launch_is_the_command_itself(tmp_path: Path) -> None:
    stand_in = tmp_path / "python"
    tell = tmp_path / "tell"
    stand_in.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"told = [sys.argv[1:], os.getpid(), os.getcwd(), dict(os.environ)]\n"
        f"open({str(tell)!r}, 'w').write(json.dumps(told))\nsys.exit(5)\n",
        encoding="utf-8",
    )
    stand_in.chmod(0o755)
    out = tmp_path / "out"
    words = ["--out", str(out), "--bare", *CPU]
    driver = DRIVER.format(compat=str(COMPAT), stand_in=str(stand_in), words=words)
    started = subprocess.Popen([sys.executable, "-c", driver], env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    assert started.wait(60) == 5
    argv, pid, folder, env = json.loads(tell.read_text(encoding="utf-8"))
    assert [argv[:2], pid, folder] == [["-m", "verl.trainer.main_ppo"], started.pid, str(out)]
    assert argv == json.loads((out / "command.json").read_text(encoding="utf-8"))[1:]
    temporary = json.loads((out / "bare.json").read_text(encoding="utf-8"))["temporary"]
    assert (env["RAY_TMPDIR"], env["VERL_FILE_LOGGER_PATH"]) == (temporary, str(out / "metrics.jsonl"))
    Path(temporary).rmdir()
    assert not (out / "result.json").exists()


def test_a_launch_that_fails_keeps_what_ray_wrote(tmp_path: Path) -> None:
    code, result, out = launched(tmp_path, *GPU, code=3, steps=0)
    assert (code, result["code"]) == (3, 3)
    assert "step 1" not in result["reached"]
    assert (out / "ray_logs" / "raylet.out").read_text(encoding="utf-8") == "it died"


def test_a_launch_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    start = time.monotonic()
    code, result, _ = launched(tmp_path, *GPU, "--limit", "2", sleeps=60)
    assert (code, result["code"]) == (124, 124)
    assert time.monotonic() - start < 40
    assert result["left_behind"] == []
    assert not _running("sleep 61.5")


def test_what_an_earlier_launch_left_is_not_read(tmp_path: Path) -> None:
    launched(tmp_path, *GPU)
    _, result, out = launched(tmp_path, *GPU, steps=1)
    assert [name for name in result["reached"] if name.startswith("step")] == ["step 1"]
    assert len((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.parametrize("words", [("--device", "tpu"), ("--graphs", "many"), ()])
def test_words_that_make_no_sense(tmp_path: Path, words: tuple[str, ...]) -> None:
    argv = [sys.executable, str(COMPAT / "ppo" / "launch.py"), *words]
    assert subprocess.run(argv, capture_output=True, timeout=30, check=False).returncode == 2


def _running(words: str) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip() == words:
                    return True
            except OSError:
                continue
    return False
