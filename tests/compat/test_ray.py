"""Known failures of Ray's start and of what verl makes of Ray, on one machine and without a GPU.

Every start has a sandbox of its own: a short temporary directory, and processes that end with it. What goes wrong is
made to go wrong for real: a private copy of a file of Ray is changed, a socket is taken, a token is left out.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kit import Ended, Trial
from kit.measure import READY, SUBJECTS
from kit.ray_sandbox import RaySandbox, overlay, ray_sandbox

START, HEAD = str(SUBJECTS / "ray_start.py"), str(SUBJECTS / "ray_head.py")
VARIABLE = json.dumps({"runtime_env": {"env_vars": {"VERL_MATRIX_SET": "1"}}})
"""Keywords of `ray.init` that give the agent something to prepare, as verl's do; older Rays do not miss it else."""
TOKEN, OTHER_TOKEN = "a" * 64, "b" * 64
pytestmark = [
    pytest.mark.tier("behave"),
    pytest.mark.needs("ray>=2.40"),
    pytest.mark.loopback,
    pytest.mark.limit(600),
]


@pytest.fixture
def sandbox() -> Iterator[RaySandbox]:
    """Give a place where Ray may start."""
    with ray_sandbox() as made:
        yield made


def _changed(sandbox: RaySandbox, relative: str, text: str | None = None) -> dict[str, str]:
    """Return an environment in which `ray/<relative>` says `text`, or, without one, may not be executed."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    copy = overlay(sandbox.folder / "o", Path(next(iter(spec.submodule_search_locations))), relative)
    if text is None:
        copy.chmod(0o644)
    else:
        copy.write_text(text, encoding="utf-8")
    return {"PYTHONPATH": str(sandbox.folder / "o")}


def _head(sandbox: RaySandbox, version: str = "-", env: Mapping[str, str] | None = None) -> tuple[str, Path]:
    """Return the address, as keywords of `ray.init`, and the raylet's socket of a head node that runs in the sandbox.

    It sets the scene and is not what is tried: where it does not come up (Ray waits 30 s and no longer) it is started
    again, once.
    """
    told = []
    for _ in range(2):
        port = _free_port()
        ended = sandbox.run(HEAD, version, f"--port={port}", timeout=120, env=env)
        path = sandbox.raylet_socket() if ended.code == 0 else None
        if path is not None:
            return json.dumps({"address": f"127.0.0.1:{port}"}), path
        told.append(ended.last_line or sandbox.logs()[-300:])
        sandbox.clear()
    pytest.fail(f"no head node could be started to try this with: {'; then '.join(told)}")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _numbers(ended: Ended) -> dict[str, Any]:
    if READY not in ended.stdout:
        pytest.skip(f"what this is about does not import here: {ended.last_line[:300]}")
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    assert lines, ended.last_line
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def test_ray_starts(sandbox: RaySandbox) -> None:
    """Ray starts, runs a task and ends: what every other probe here takes from it."""
    ended = sandbox.run(START, timeout=300)
    assert ended.fault is None, ended.last_line
    assert "task 1" in ended.stdout


@pytest.mark.failure("ray-af-unix-path-107")
def test_temporary_directory_with_a_long_path(trial: Trial, sandbox: RaySandbox) -> None:
    """A temporary directory of 100 characters leaves no room for the names of the sockets."""
    trial.judge(sandbox.run(START, timeout=200, env={"RAY_TMPDIR": str(sandbox.folder / ("x" * 90))}))


@pytest.mark.failure("ray-binary-not-executable")
@pytest.mark.parametrize("binary", ["raylet/raylet", "gcs/gcs_server"])
def test_binary_without_its_executable_bit(trial: Trial, sandbox: RaySandbox, binary: str) -> None:
    """A copy of Ray through a store that drops modes: its daemons cannot be executed."""
    trial.judge(sandbox.run(START, timeout=200, env=_changed(sandbox, f"core/src/ray/{binary}")))


@pytest.mark.failure("ray-agent-dies")
def test_runtime_env_agent_that_dies(trial: Trial, sandbox: RaySandbox) -> None:
    """The agent that prepares environments ends at once; the raylet follows it."""
    env = _changed(sandbox, "_private/runtime_env/agent/main.py", "raise SystemExit(1)\n")
    trial.judge(sandbox.run(START, VARIABLE, timeout=200, env=env, shows=trial.record.matches))


@pytest.mark.failure("ray-agent-slow")
def test_runtime_env_agent_that_is_slow(trial: Trial, sandbox: RaySandbox) -> None:
    """The agent needs longer than the raylet waits for it."""
    env = _changed(sandbox, "_private/runtime_env/agent/main.py", "import time\ntime.sleep(1000)\n")
    env |= {"RAY_agent_register_timeout_ms": "15000"}
    trial.judge(sandbox.run(START, VARIABLE, timeout=200, env=env, shows=trial.record.matches))


@pytest.mark.failure("ray-worker-never-registers")
def test_worker_that_never_registers(trial: Trial, sandbox: RaySandbox) -> None:
    """Worker processes start and never report back: the raylet says so, and the driver goes on waiting."""
    env = _changed(sandbox, "_private/workers/default_worker.py", "import time\ntime.sleep(1000)\n")
    env |= {"RAY_worker_register_timeout_seconds": "5"}
    ended = sandbox.run(START, timeout=200, env=env, shows=trial.record.matches, linger=10)
    assert ended.code is None, f"the driver ended: {ended.last_line}"
    trial.judge(ended)


@pytest.mark.failure("ray-stale-address")
def test_address_of_a_cluster_that_is_gone(trial: Trial, sandbox: RaySandbox) -> None:
    """RAY_ADDRESS, or a file that an ended cluster left, names a port where nobody answers."""
    env = {"RAY_ADDRESS": f"127.0.0.1:{_free_port()}", "RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
    trial.judge(sandbox.run(START, json.dumps({"address": "auto"}), timeout=200, env=env))


@pytest.mark.failure("ray-leftover-cluster")
def test_file_of_a_cluster_that_is_gone(trial: Trial, sandbox: RaySandbox) -> None:
    """`ray.init(num_cpus=…)` finds the file of another cluster, and joins it instead of starting one."""
    for folder in (sandbox.folder, sandbox.folder / "ray"):
        folder.mkdir(exist_ok=True)
        (folder / "ray_current_cluster").write_text("127.0.0.1:1")
    trial.judge(sandbox.run(START, timeout=200))


@pytest.mark.failure("ray-version-mismatch")
def test_cluster_of_another_version(trial: Trial, sandbox: RaySandbox) -> None:
    """The cluster says that another version of Ray started it."""
    address, _ = _head(sandbox, version="1.2.3")
    trial.judge(sandbox.run(START, address, timeout=200))


@pytest.mark.failure("ray-port-taken")
def test_port_that_is_taken(trial: Trial, sandbox: RaySandbox) -> None:
    """The head node is told to use a port on which something listens."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        argv = (HEAD, "-", f"--port={taken.getsockname()[1]}")
        trial.judge(sandbox.run(*argv, timeout=200))


@pytest.mark.failure("ray-raylet-socket-foreign")
def test_something_else_on_the_socket_of_the_raylet(trial: Trial, sandbox: RaySandbox) -> None:
    """Whoever answers on the raylet's socket hangs up: the text that guides quote."""
    address, path = _head(sandbox)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=_hang_up, args=(listener,), daemon=True).start()
        trial.judge(sandbox.run(START, address, timeout=200))


def _hang_up(listener: socket.socket) -> None:
    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            return
        caller.recv(65536)
        caller.close()


@pytest.mark.failure("ray-raylet-socket-gone")
def test_socket_of_the_raylet_that_is_gone(trial: Trial, sandbox: RaySandbox) -> None:
    """A cleaner of /tmp removed the raylet's socket from under a running cluster."""
    address, path = _head(sandbox)
    path.unlink()
    trial.judge(sandbox.run(START, address, timeout=200))


@pytest.mark.failure("ray-token-missing")
def test_cluster_that_wants_a_token(trial: Trial, sandbox: RaySandbox) -> None:
    """A driver that is told to use tokens and has none."""
    address, _ = _head(sandbox, env={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN})
    trial.judge(sandbox.run(START, address, timeout=200, env={"RAY_AUTH_MODE": "token"}))


@pytest.mark.failure("ray-token-wrong")
def test_cluster_that_wants_another_token(trial: Trial, sandbox: RaySandbox) -> None:
    """A driver with the token of another machine or another run."""
    address, _ = _head(sandbox, env={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN})
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": OTHER_TOKEN}
    trial.judge(sandbox.run(START, address, timeout=200, env=env))


@pytest.mark.failure("ray-256-zero-gpu-actors-see-gpus")
def test_actor_without_a_gpu(trial: Trial, sandbox: RaySandbox) -> None:
    """An actor that asked for no GPU sees the driver's."""
    ended = sandbox.run(str(SUBJECTS / "ray_visible.py"), timeout=300, env={"CUDA_VISIBLE_DEVICES": "0"})
    assert ended.code == 0, ended.last_line
    seen = json.loads(ended.stdout.strip().splitlines()[-1])["seen"]
    trial.observed(seen == "0", f"CUDA_VISIBLE_DEVICES is {seen!r} in an actor with num_gpus=0", seen=seen)


@pytest.mark.failure("ray-245-amd-visible-devices")
@pytest.mark.tier("import")
def test_rocr_visible_devices(trial: Trial, sandbox: RaySandbox) -> None:
    """Ray is asked which of AMD's GPUs are visible while the older variable is set."""
    manager = "ray._private.accelerators import AMDGPUAcceleratorManager"
    asked = f"from {manager} as m; m.get_current_process_visible_accelerator_ids()"
    trial.judge(sandbox.run("-c", asked, timeout=200, env={"ROCR_VISIBLE_DEVICES": "0"}))


@pytest.mark.failure("verl-waits-for-logical-cpus")
@pytest.mark.needs("verl>=0.4.0")
def test_too_few_logical_cpus(trial: Trial, sandbox: RaySandbox) -> None:
    """A pool for one GPU where Ray counts two CPUs: verl waits and says nothing."""
    # A GPU that Ray counts because it is told so; nothing runs on it.
    env = {"CUDA_VISIBLE_DEVICES": "0"}
    found = _numbers(sandbox.run(str(SUBJECTS / "ray_verl.py"), "logical_cpus", timeout=400, env=env))
    said = ", ".join(map(str, found.get("states", []))) or "nothing"
    trial.observed(not found["placed"], f"placed: {found['placed']}; Ray says of the placement group: {said}", **found)


@pytest.mark.failure("ray-duplicate-runtime-env-var")
@pytest.mark.needs("verl>=0.4.0")
def test_variable_of_the_job_and_of_verl(trial: Trial, sandbox: RaySandbox) -> None:
    """A submitted job sets a variable that verl's `ray.init` sets too."""
    ended = sandbox.run(str(SUBJECTS / "ray_verl.py"), "job_environment", timeout=300)
    if READY not in ended.stdout:
        pytest.skip(f"verl's trainer does not import here: {ended.last_line[:300]}")
    trial.judge(ended)


@pytest.mark.failure("ray-collective-needs-cupy")
@pytest.mark.needs("verl>=0.7.1")
@pytest.mark.tier("import")
def test_checkpoint_engine_without_cupy(trial: Trial, sandbox: RaySandbox) -> None:
    """The NCCL checkpoint engine is asked for where cupy is not installed."""
    if any(re.match(r"cupy", str(each.metadata["Name"])) for each in importlib.metadata.distributions()):
        pytest.skip("cupy is installed in this cell")
    ended = sandbox.run(str(SUBJECTS / "ray_verl.py"), "checkpoint_engine", timeout=300)
    if READY not in ended.stdout:
        pytest.skip(f"verl's checkpoint engines do not import here: {ended.last_line[:300]}")
    named = "cupy" in ended.text or ended.code == 0
    trial.observed(not named, f"the error is: {ended.text.strip().splitlines()[-1][:200]}")
