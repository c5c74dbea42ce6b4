"""A cluster of Ray with several machines on this one host, a copy of the tool with slow probes, and runs over both."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENT = {
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}
"""On two busy cores Ray's own limits are too short (docs/cpu_ppo.md), and its memory monitor sees other people's."""
GIB = 2**30
SLOW = """
import json, os, signal, subprocess, time
from pathlib import Path

import pytest

LOG = Path({log!r})


def say(kind, cell, n):
    variables = {{name: value for name, value in os.environ.items() if name.startswith(("RAY_", "CUDA_"))}}
    with LOG.open("a") as file:
        file.write(json.dumps({{"kind": kind, "cell": cell.name, "n": n, "variables": variables}}) + "\\n")


def ancestors():
    pid = os.getpid()
    while pid > 1:
        stat = Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()
        pid = int(stat[1])
        yield pid, Path(f"/proc/{{pid}}/cmdline").read_bytes()


@pytest.mark.parametrize("n", range({count}))
def test_slow(cell, n):
    say("begin", cell, n)
    if cell.name == {deadly!r} and n == 2:
        # What ended before is on its way by then.
        time.sleep(2)
        for pid, words in ancestors():
            if words.startswith(b"ray::"):
                os.kill(pid, signal.SIGKILL)
    time.sleep({seconds})
    say("end", cell, n)
"""
CELLS = """schema = 1

[[cell]]
tensordict = {versions}
no_deps = true
deviation = "Nothing but the wheel: it is installed within a second."
groups = ["ci"]
reason = "A cell that costs nothing."
source = "tests/live/test_executor_ray.py"
date = 2026-12-01
"""


def copy_tool(folder: Path, *, count: int = 5, seconds: float = 1.5, deadly: str = "") -> Path:
    """Return the log of the slow probes of a copy of this tool in `folder`; each takes `seconds`.

    In the cell `deadly` the third of them kills the worker of Ray that it runs under.
    """
    skipped = shutil.ignore_patterns("__pycache__", "out")
    for name in ("matrix", "reports", "bench"):
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    shutil.copytree(ROOT / "tests" / "compat", folder / "tests" / "compat", ignore=skipped)
    shutil.copy(ROOT / "pyproject.toml", folder)
    log = folder / "slow.jsonl"
    text = SLOW.format(log=str(log), count=count, seconds=seconds, deadly=deadly)
    (folder / "tests" / "compat" / "test_slow.py").write_text(text, encoding="utf-8")
    return log


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON lines of a file that are whole."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def until(holds: Callable[[], object], seconds: float, what: str) -> None:
    """Return once `holds` does; fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {seconds:.0f} s")
        time.sleep(0.2)


@dataclass(slots=True, kw_only=True)
class Nodes:
    """Machines of one cluster: a head without cores, and those that were added."""

    cluster: Any
    added: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Return the address of the cluster."""
        return str(self.cluster.address)

    def add(self, *, cpus: int = 1, gpus: int = 0, kind: str = "") -> None:
        """Add a machine with so many cores, and GPUs that are only said to be there."""
        resources = {f"accelerator_type:{kind}": 1.0} if kind else {}
        node = self.cluster.add_node(
            num_cpus=cpus, num_gpus=gpus, resources=resources, memory=4 * GIB, object_store_memory=150_000_000
        )
        self.added.append(node)

    def kill(self, node_id: str) -> None:
        """Kill the raylet of a machine with -9; what Ray started there dies of that."""
        (node,) = (node for node in self.added if node.node_id.startswith(node_id))
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)


def nodes(head_cpus: int = 0) -> Iterator[Nodes]:
    """Yield a cluster with its head, and end it with all its machines."""
    os.environ.update(PATIENT)
    from ray.cluster_utils import Cluster

    head = {"num_cpus": head_cpus, "num_gpus": 0, "object_store_memory": 150_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield Nodes(cluster=cluster)
    finally:
        cluster.shutdown()


@dataclass(slots=True, kw_only=True)
class Tool:
    """A copy of the tool, with a home and a file of cells of its own."""

    folder: Path
    log: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def close(self) -> None:
        """End the runs that still go on."""
        for run in self.started:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()

    def cells(self, *versions: str) -> Path:
        """Return a file of cells of these releases of tensordict."""
        path = self.folder / "cells.toml"
        path.write_text(CELLS.format(versions=json.dumps(list(versions))), encoding="utf-8")
        return path

    @property
    def stored(self) -> list[dict[str, Any]]:
        """Return the observations of slow probes in the store, in the order in which they came."""
        found = lines(self.folder / "home" / "store" / "observations.jsonl")
        return [item for item in found if "test_slow" in item["probe"]]

    @property
    def told(self) -> str:
        """Return what the last run told of its progress."""
        return (self.folder / "stderr.txt").read_text(encoding="utf-8", errors="replace")

    def start(self, *words: str, more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Return a run that was started, in a process group of its own."""
        command = [sys.executable, "-m", "matrix", "run", "--home", str(self.folder / "home"), *words]
        env = {**os.environ, **PATIENT, "PYTHONPATH": str(self.folder), **(more or {})}
        with (self.folder / "stderr.txt").open("wb") as err, (self.folder / "stdout.txt").open("wb") as out:
            run = subprocess.Popen(
                [*command, "--out", str(self.folder / "out")],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=env,
                cwd=self.folder,
                start_new_session=True,
            )
        self.started.append(run)
        return run

    def run(self, *words: str) -> int:
        """Return how a run ended."""
        return ended(self.start(*words), self)


def ended(run: subprocess.Popen[bytes], tool: Tool, seconds: float = 400.0) -> int:
    """Return how a run ended; its words are in the message where it does not."""
    try:
        return run.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        raise AssertionError(f"the run did not end in {seconds:.0f} s:\n{tool.told[-3000:]}") from None


def at_work(folder: Path) -> list[dict[str, str]]:
    """Return the variables of every process that visits a cell now with a parcel of this tool, by reading /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"matrix.executors.node" in (entry / "cmdline").read_bytes():
                words = (entry / "environ").read_bytes().decode("utf-8", "replace").split("\0")
                found.append(dict(word.split("=", 1) for word in words if "=" in word))
        except OSError:
            continue
    return [item for item in found if item.get("VERL_MATRIX_LIVE") == str(folder)]


def counted(items: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """Return how often there is an observation of each probe of each cell."""
    found: dict[tuple[str, str], int] = {}
    for item in items:
        key = (str(item["cell"]), str(item["probe"]))
        found[key] = found.get(key, 0) + 1
    return found
