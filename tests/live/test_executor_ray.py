"""Cells spread over a real cluster of Ray, several machines on this host, some of which are killed on the way.

    python -m pytest tests/live/test_executor_ray.py -m ray_cluster

Not among the unit tests: it needs ray beside this tool (`pip install 'verl-matrix[ray]'`), an index, and some minutes.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from matrix.executors.demand import load_accelerators
from tests.live import ray_nodes
from tests.live.ray_nodes import Nodes, Tool, at_work, copy_tool, counted, ended, lines, until

ray = pytest.importorskip("ray", reason="ray is not installed beside this tool")
pytestmark = [pytest.mark.ray_cluster, pytest.mark.filterwarnings("default")]
VERSIONS = ("0.8.3", "0.9.0", "0.9.1", "0.10.0")
NAMES = [f"td{version}-nodeps" for version in VERSIONS]
Make = Callable[..., Tool]
SLOW = ["--tiers", "import", "-k", "test_slow"]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    # So that what runs for this test is told from what runs for another.
    monkeypatch.setenv("VERL_MATRIX_LIVE", str(tmp_path))
    yield from ray_nodes.nodes()


@pytest.fixture
def tool(tmp_path: Path) -> Iterator[Callable[..., Tool]]:
    made: list[Tool] = []

    def make(**more: Any) -> Tool:
        made.append(Tool(folder=tmp_path, log=copy_tool(tmp_path, **more)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def over(nodes: Nodes, made: Tool, *versions: str) -> list[str]:
    cells = made.cells(*(versions or VERSIONS))
    return ["--cells-file", str(cells), "--executor", "ray", "--address", nodes.address, *SLOW,
            "--node-home", str(made.folder / "node")]  # fmt: skip


def test_a_raylet_killed_on_the_way_costs_only_its_running_cell(tmp_path: Path, cluster: Nodes, tool: Make) -> None:
    made = tool()
    for _ in range(3):
        cluster.add()
    run = made.start(*over(cluster, made))
    until(lambda: len(made.stored) >= 4, 120, "the fourth observation")
    before = made.stored
    # Still at its first cell, with some of its probes ended.
    begun = dict(re.findall(r"(\S+): begins on machine (\w+)", made.told))
    victim = next(name for name in begun if 0 < sum(item["cell"] == name for item in before) < 4)
    cluster.kill(begun[victim])
    assert ended(run, made) == 0, made.told
    told = made.told
    assert re.findall(r"(\S+): lost \((\d) of 3\)", told) == [(victim, "1")], told
    where = re.findall(rf"{re.escape(victim)}: begins on machine (\w+)", told)
    assert len(where) == 2
    assert where[0] == begun[victim] != where[1]
    # Each probe of each cell is there, and what had ended before the kill was not done again.
    assert counted(made.stored) == {
        (name, f"compat/test_slow.py::test_slow[{n}]"): 1 for name in NAMES for n in range(5)
    }
    assert made.stored[: len(before)] == before
    assert all(item["outcome"] == "ok" for item in made.stored)
    again = [item for item in lines(made.log) if item["kind"] == "begin" and item["cell"] == victim]
    assert len(again) in (5, 6), "one probe at most was cut off, and began twice"
    others = [item for item in lines(made.log) if item["kind"] == "begin" and item["cell"] != victim]
    assert len(others) == 15
    # What probes see of Ray is what this tool sets for every cell, and no GPU.
    own = {"RAY_USAGE_STATS_ENABLED": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ""}
    assert all(item["variables"] == own for item in others)
    # With nothing new no cell is sent anywhere.
    stored = made.stored
    assert made.run(*over(cluster, made)) == 0
    assert "begins on machine" not in made.told
    assert made.stored == stored


def test_a_driver_killed_on_the_way_is_taken_up_again(tmp_path: Path, cluster: Nodes, tool: Make) -> None:
    made = tool()
    for _ in range(2):
        cluster.add()
    assert made.run(*over(cluster, made, *VERSIONS[:2])) == 0, made.told
    first = made.stored
    assert len(first) == 10
    # All of it again: what the killed run had answered by then counts, and nothing from before it.
    run = made.start(*over(cluster, made, *VERSIONS[:2]), "--again")
    until(lambda: len(made.stored) >= 13, 120, "the third observation of the second run")
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    until(lambda: not at_work(tmp_path), 60, "the end of what ran for the killed driver")
    second = made.stored[10:]
    assert 3 <= len(second) < 10
    assert made.run("--resume") == 0, made.told
    assert counted(made.stored[10:]) == counted(first)
    assert made.stored[: 10 + len(second)] == [*first, *second]
    # It came to its end, so there is nothing left to take up.
    assert made.run("--resume") == 10
    assert "There is no run to go on with" in made.told


def test_an_interrupt_ends_what_runs_and_keeps_what_was_finished(tmp_path: Path, cluster: Nodes, tool: Make) -> None:
    made = tool()
    for _ in range(2):
        cluster.add()
    run = made.start(*over(cluster, made, *VERSIONS[:2]))
    until(lambda: len(made.stored) >= 3, 120, "the third observation")
    os.killpg(run.pid, signal.SIGINT)
    assert ended(run, made, 90) == 130, made.told
    until(lambda: not at_work(tmp_path), 60, "the end of what ran for the interrupted driver")
    kept = made.stored
    assert 3 <= len(kept) < 10
    assert made.run("--resume") == 0, made.told
    assert made.stored[: len(kept)] == kept
    assert set(counted(made.stored).values()) == {1}
    assert len(made.stored) == 10


def test_a_cell_that_is_lost_wherever_it_goes_is_untested(tmp_path: Path, cluster: Nodes, tool: Make) -> None:
    made = tool(deadly=NAMES[0], seconds=0.2)
    for _ in range(2):
        cluster.add()
    assert made.run(*over(cluster, made, *VERSIONS[:2])) == 0, made.told
    assert len(re.findall(rf"{re.escape(NAMES[0])}: lost \(\d of 3\)", made.told)) == 3, made.told
    assert counted(made.stored) == {
        (name, f"compat/test_slow.py::test_slow[{n}]"): 1
        for name in NAMES[:2]
        for n in (range(2) if name == NAMES[0] else range(5))
    }
    report = (tmp_path / "out" / "report.json").read_text(encoding="utf-8")
    assert "lost 3 times with its machine: its worker was killed" in report
    first = next(cell for cell in json.loads(report)["cells"] if cell["cell"] == NAMES[0])
    assert first["status"] == "untested"
    # Standard output is the answer, and nothing that Ray has to say; no message names a machine.
    assert "raylet" not in (tmp_path / "stdout.txt").read_text(encoding="utf-8")


def test_a_cell_gets_the_gpus_that_ray_granted_on_a_machine_that_does(
    tmp_path: Path, cluster: Nodes, tool: Make
) -> None:
    made = tool(seconds=2.0)
    cluster.add(cpus=2, gpus=2, kind="T4")
    cluster.add(cpus=2, gpus=2, kind="H100")
    words = over(cluster, made, *VERSIONS[:2])
    words[words.index("import")] = "import,gpu"
    run = made.start(*words, "--gpus", "1", "--cpus", "1", "--memory", "1")
    until(lambda: len(at_work(tmp_path)) == 2, 120, "two cells at work")
    seen = at_work(tmp_path)
    assert ended(run, made) == 0, made.told
    assert sorted(item["CUDA_VISIBLE_DEVICES"] for item in seen) == ["0", "1"]
    assert not [name for item in seen for name in item if name.startswith("RAY_")]
    # Most probes on a GPU need more than a T4 has.
    h100 = cluster.added[1].node_id
    assert {word for _, word in re.findall(r"(\S+): begins on machine (\w+)", made.told)} == {h100[:8]}


def test_a_cell_has_a_ray_of_its_own(tmp_path: Path, cluster: Nodes, tool: Make) -> None:
    made = tool()
    cluster.add(cpus=2)
    cells = made.cells("0.9.1")
    text = cells.read_text(encoding="utf-8").replace('tensordict = ["0.9.1"]', 'ray = "2.55.0"').replace(
        'no_deps = true\ndeviation = "Nothing but the wheel: it is installed within a second."\n', ""
    )  # fmt: skip
    cells.write_text(text, encoding="utf-8")
    assert ray.__version__ != "2.55.0"
    words = ["--cells-file", str(cells), "--executor", "ray", "--address", cluster.address,
             "--tiers", "import,behave", "-k", "test_ray_starts", "--node-home", str(tmp_path / "node")]  # fmt: skip
    assert made.run(*words) == 0, made.told
    found = lines(tmp_path / "home" / "store" / "observations.jsonl")
    (seen,) = [item for item in found if "test_ray_starts" in item["probe"]]
    assert (seen["outcome"], seen["reason"]) == ("ok", "")


def test_the_kinds_of_gpu_are_those_that_ray_names() -> None:
    from ray.util import accelerators

    named = {value for name, value in vars(accelerators).items() if name.startswith("NVIDIA_")}
    assert named <= set(load_accelerators())
