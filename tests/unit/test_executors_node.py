"""The parcel, what carries it, and the program on the other machine, over real pipes."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from matrix.bundle.toolwheel import build_tool_wheel
from matrix.errors import ToolError
from matrix.executors import carrier, node
from matrix.executors import errand as wire
from matrix.executors.errand import Errand
from matrix.executors.manner import Manner
from matrix.executors.parcel import NEEDS, UV, make_parcel
from matrix.executors.recall import Recall
from matrix.probing import machine
from matrix.store import Store
from matrix.tier import Tier
from tests.unit.probing_stack import PLAIN as PROBES
from tests.unit.probing_stack import folder_of, prober
from tests.unit.run_fakes import cell

GOOD = cell(verl="0.9.1", vllm="0.24.0")


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("uv") / "uv"
    path.write_text("#!/bin/sh\necho uv\n", encoding="utf-8")
    return path


def test_a_parcel_holds_what_a_visit_imports_and_runs_from_there(tmp_path: Path, uv: Path) -> None:
    parcel = make_parcel(uv)
    assert make_parcel(uv).digest == parcel.digest, "the same files, the same bytes"
    assert parcel.size == len(parcel.body)
    names = set(zipfile.ZipFile(BytesIO(parcel.body)).namelist())
    assert {"matrix/executors/node.py", "matrix/compat/conftest.py", "pynvml.py", "packaging/version.py", UV} <= names
    assert not [name for name in names if name.startswith(("reports/", "bench/")) or "__pycache__" in name]
    folder = carrier.unpack(parcel.body, parcel.digest, tmp_path)
    assert os.access(folder / UV, os.X_OK)
    assert carrier.unpack(b"not looked at", parcel.digest, tmp_path) == folder
    # No site-packages at all: what is not in the parcel is not there.
    code = "import matrix.executors.node, matrix.probing.visit, matrix.provision, filelock, platformdirs, pynvml"
    env = carrier.surroundings({"PATH": "/usr/bin:/bin"}, folder, ["3"])
    command = [sys.executable, "-S", "-P", "-c", f"{code}; print(1)"]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "1\n", ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == [folder.name], "nothing half unpacked is left"


def test_a_parcel_without_a_part_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uv: Path) -> None:
    with pytest.raises(ToolError, match="cannot be read"):
        make_parcel(tmp_path / "none")
    monkeypatch.setattr("matrix.executors.parcel.NEEDS", (*NEEDS, "no-such-package"))
    with pytest.raises(ToolError, match="no-such-package is not installed"):
        make_parcel(uv)


def test_half_a_parcel_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(zipfile.BadZipFile):
        carrier.unpack(b"no zip", "0" * 64, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_parcels_that_nobody_uses_any_more_go(tmp_path: Path) -> None:
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as parcel:
        parcel.writestr("a.py", "")
    old, used = (carrier.unpack(made.getvalue(), digest * 64, tmp_path) for digest in "12")
    for folder in (old, used):
        os.utime(folder, (0, 0))
    carrier.unpack(b"not looked at", "2" * 64, tmp_path)
    new = carrier.unpack(made.getvalue(), "3" * 64, tmp_path)
    assert sorted(tmp_path.iterdir()) == [used, new]


def test_the_cache_of_the_user_is_where_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as parcel:
        parcel.writestr("a.py", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert carrier.unpack(made.getvalue(), "1" * 64) == tmp_path / "xdg" / "verl-matrix-parcels" / ("1" * 16)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert carrier.unpack(made.getvalue(), "1" * 64).parent == tmp_path / "home" / ".cache" / "verl-matrix-parcels"


def test_the_process_sees_its_grant_and_nothing_of_ray() -> None:
    given = {
        "PATH": "/bin", "HTTPS_PROXY": "p", "UV_CACHE_DIR": "/c", "LD_LIBRARY_PATH": "/cuda", "RAY_ADDRESS": "1:2",
        "RAY_JOB_ID": "1", "PYTHONPATH": "/ray", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0,1,2,3",
        "VIRTUAL_ENV": "/v", "VERL_MATRIX_HOME": "/h",
    }  # fmt: skip
    assert carrier.surroundings(given, Path("/parcel"), ["2", "3"]) == {
        "PATH": "/bin", "HTTPS_PROXY": "p", "UV_CACHE_DIR": "/c", "LD_LIBRARY_PATH": "/cuda", "VERL_MATRIX_HOME": "/h",
        "CUDA_VISIBLE_DEVICES": "2,3", "PYTHONPATH": "/parcel", "PYTHONNOUSERSITE": "1",
    }  # fmt: skip
    assert carrier.surroundings({}, Path("/parcel"), [])["CUDA_VISIBLE_DEVICES"] == ""


NODE = """
import json, os, sys
errand = sys.stdin.readline().strip()
print(json.dumps({"event": "note", "text": errand, "gpus": os.environ["CUDA_VISIBLE_DEVICES"], "path": sys.path[0]}))
"""


@pytest.mark.parametrize("machine", [platform.machine(), "another"])
def test_a_worker_says_where_it_is_runs_the_parcel_and_says_how_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    class Context:
        def get_accelerator_ids(self) -> dict[str, list[str]]:
            return {"GPU": ["2", "3"]}

        def get_node_id(self) -> str:
            return "abc"

    ray = ModuleType("ray")
    ray.get_runtime_context = Context  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # A package of that name where the worker stands is not what runs.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix").mkdir()
    (tmp_path / "matrix" / "__init__.py").write_text("raise SystemExit(9)", encoding="utf-8")
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as parcel:
        for name, text in (("matrix/__init__.py", ""), ("matrix/executors/__init__.py", "")):
            parcel.writestr(name, text)
        parcel.writestr("matrix/executors/node.py", NODE)
    lines = [json.loads(line) for line in carrier.carry(made.getvalue(), "5" * 64, machine, "the errand")]
    assert lines[0] == {"event": "begun", "node": "abc", "gpus": 2}
    if machine == "another":
        assert lines[1:] == [{"event": "ended", "code": None, "said": lines[1]["said"]}]
        assert "the tool was sent from another" in lines[1]["said"]
        return
    folder = str(tmp_path / "verl-matrix-parcels" / ("5" * 16))
    assert lines[1] == {"event": "note", "text": "the errand", "gpus": "2,3", "path": folder}
    assert lines[2]["code"] == 0


ECHO = "import sys; print(sys.stdin.readline(), end=''); sys.stderr.write('a complaint'); sys.exit(3)"
LISTENS = """
import os, sys
print(sys.stdin.readline(), end="", flush=True)
while os.read(0, 1): pass
open(sys.argv[1], "w").write("told")
"""
DEAF = "import time; print('deaf', flush=True); time.sleep(600)"


def test_lines_of_a_process_come_with_how_it_ended() -> None:
    lines = list(carrier.attended([sys.executable, "-c", ECHO], {}, "the errand"))
    assert lines[0] == "the errand"
    assert json.loads(lines[1]) == {"event": "ended", "code": 3, "said": "a complaint"}


def test_a_process_that_nobody_listens_to_is_told_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told"
    lines = carrier.attended([sys.executable, "-c", LISTENS, str(told)], {}, "x")
    assert next(lines) == "x"
    lines.close()  # type: ignore[attr-defined]
    assert told.read_text() == "told"
    monkeypatch.setattr(carrier, "PATIENCE_S", 0.2)
    lines, start = carrier.attended([sys.executable, "-c", DEAF], {}, "x"), time.monotonic()
    assert next(lines) == "deaf"
    lines.close()  # type: ignore[attr-defined]
    assert time.monotonic() - start < 30


def test_probes_in_a_parcel_have_the_digests_that_they_have_here(tmp_path: Path) -> None:
    """Else what one machine answered would count on none."""
    from matrix.probing.folder import file_digest, probes_folder, shared_digest, whole_digest

    here = tmp_path / "here" / "compat"
    shutil.copytree(probes_folder(), here, ignore=shutil.ignore_patterns("__pycache__"))
    for made in (".pytest_cache/v/x", "kit/__pycache__/cell.pyc", "subjects/.ruff_cache/0.1/x"):
        (here / made).parent.mkdir(parents=True, exist_ok=True)
        (here / made).write_text("made by a tool", encoding="utf-8")
    with zipfile.ZipFile(BytesIO(build_tool_wheel(probes=here))) as wheel:
        wheel.extractall(tmp_path / "there")
    there = tmp_path / "there" / "matrix" / "compat"
    assert (whole_digest(here), shared_digest(here)) == (whole_digest(there), shared_digest(there))
    assert file_digest(here, "test_ray.py") == file_digest(there, "test_ray.py")


def errand_of(**more: Any) -> Errand:
    manner = Manner(tiers=frozenset({Tier.IMPORT}), patterns=("test_package_imports",), here=Path(sys.executable))
    return Errand(cell="td0.9.0", manner=manner, **more)


def test_the_program_tells_what_keeps_it_from_a_visit(tmp_path: Path) -> None:
    """The real program, over a real pipe: an interpreter that is not there."""
    gone = replace(
        errand_of(home=tmp_path), manner=Manner(tiers=frozenset({Tier.IMPORT}), here=Path("/nowhere/python"))
    )
    env = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    lines = [
        json.loads(line)
        for line in carrier.attended([sys.executable, "-m", "matrix.executors.node"], env, gone.to_line())
    ]
    assert [line["event"] for line in lines] == ["refused", "ended"]
    assert "cannot be started: /nowhere/python" in lines[0]["what"]
    assert lines[1]["code"] == 0
    broken = [json.loads(line) for line in carrier.attended([sys.executable, "-m", "matrix.executors.node"], env, "{}")]
    assert broken[0]["code"] == 1
    assert "The errand cannot be read" in broken[0]["said"]


@pytest.fixture
def pipe() -> Any:
    read, write = os.pipe()
    yield read, write
    for descriptor in (read, write):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_a_visit_tells_what_is_planned_and_observed_and_keeps_what_is_known(
    tmp_path: Path, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = folder_of(tmp_path / "probes", test_plain=PROBES)

    def open_visitor(manner: Manner, *, store: Store, heed: Any, machine: Any, **more: Any) -> Any:
        from matrix.probing.visit import Stay
        from tests.unit.probing_stack import environment

        made = prober(tmp_path, probes, store=store, patterns=manner.patterns, heed=heed)
        return Stay(prober=made, environment=environment())

    monkeypatch.setattr(node, "open_visitor", open_visitor)
    said: list[str] = []
    errand = replace(errand_of(home=tmp_path), manner=Manner(tiers=frozenset({Tier.IMPORT}), patterns=("passes",)))
    node.visit(errand, tmp_path / "1", said.append, listening=pipe[0])
    events = [json.loads(line) for line in said]
    kinds = [event["event"] for event in events if event["event"] != "note"]
    assert kinds == ["observed", "planned", "observed", "done"]
    found = wire.read_done(events[-1])
    assert (found.asked, found.reused) == (1, 0)
    # What is planned is remembered where the run was asked for, and then no machine is asked about the cell at all.
    recall = Recall(store=Store(tmp_path / "driver"), cache=tmp_path / "cache-2", manner=errand.manner)
    (planned,) = [event for event in events if event["event"] == "planned"]
    recall.keep(planned["name"], planned["text"])
    recall.keep("../../evil.json", "x")
    assert [path.name for path in (tmp_path / "cache-2" / "probes").iterdir()] == [planned["name"]]
    # Sent with what is known, it asks nothing.
    said.clear()
    node.visit(replace(errand, known=found.observations), tmp_path / "2", said.append, listening=pipe[0])
    again = wire.read_done(json.loads(said[-1]))
    assert (again.asked, again.reused) == (0, 1)
    assert not [line for line in said if '"observed"' in line and "test_passes" in line and '"done"' not in line]


def test_a_visit_ends_once_nobody_listens(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, left = threading.Event(), threading.Event()

    class Visitor:
        def stop(self) -> None:
            stopped.set()

    monkeypatch.setattr(node, "LEAVE_S", 0.05)
    monkeypatch.setattr(os, "_exit", lambda code: left.set())
    over = threading.Event()
    thread = threading.Thread(target=node._end_with, args=(pipe[0], Visitor(), over))
    thread.start()
    assert not stopped.wait(0.1)
    os.close(pipe[1])
    assert stopped.wait(10)
    assert left.wait(10), "a visit that does not end itself is ended"
    thread.join(10)
    # One that is over is left alone.
    stopped.clear()
    left.clear()
    over.set()
    node._end_with(pipe[0], Visitor(), over)  # type: ignore[arg-type]
    assert [stopped.is_set(), left.is_set()] == [False, False]


def test_a_machine_is_what_was_granted_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "this_machine", lambda: machine.Machine(architecture="x86_64", gpus=("A", "A")))
    assert node.granted().kind == "x86_64, no GPU"


def test_an_errand_that_is_cut_short_is_told(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b'{"cell"')
    os.close(pipe[1])
    with pytest.raises(ToolError, match="cut short"):
        node._read(pipe[0])
