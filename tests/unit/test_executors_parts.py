"""The parts of the executors: errand, parcel and carrier, the program on the other machine, journal, demand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.bundle.toolwheel import build_tool_wheel
from matrix.errors import DataError, MatrixError, NewerSchemaError, NothingRanError, ProvisionError, ToolError
from matrix.executors import carrier, journal, node
from matrix.executors import errand as wire
from matrix.executors.demand import (
    GIB,
    Accelerator,
    Demand,
    Machine,
    kinds_that_do,
    load_accelerators,
    most_gpus,
    needs_of,
)
from matrix.executors.errand import Errand
from matrix.executors.local import Local
from matrix.executors.manner import Manner
from matrix.executors.parcel import NEEDS, UV, make_parcel
from matrix.executors.recall import Recall
from matrix.gpus.need import Need
from matrix.job import Probed
from matrix.probing import machine
from matrix.probing.cellfile import by_id
from matrix.probing.machine import machine_of
from matrix.records import load_failures
from matrix.store import Store, from_line, to_line
from matrix.tier import Outcome, Tier
from tests.unit.executor_fakes import H200, PLAIN, SMALL, T4
from tests.unit.probing_stack import PLAIN as PROBES
from tests.unit.probing_stack import folder_of, prober
from tests.unit.run_fakes import AT, cell, observation

GOOD = cell(verl="0.9.1", vllm="0.24.0")
RESOLVED = observation(GOOD.name, Tier.RESOLVE, detail={"lock": "sha256:1", "versions": {"thing": "2.0"}})
MANNER = Manner(
    tiers=frozenset({Tier.IMPORT, Tier.GPU}), patterns=("ray",), memory_gib=8, keep=True, offline=True,
    index_url="https://index.example/simple", here=Path("/env/bin/python"), cell=GOOD.name,
)  # fmt: skip


# ---- the errand


@pytest.mark.parametrize(
    "errand",
    [
        Errand(cell=GOOD.name, manner=Manner(tiers=frozenset({Tier.IMPORT}))),
        Errand(
            cell=GOOD.name, manner=MANNER, resolved=RESOLVED, lock="lock-version = '1.0'\n", home=Path("/scratch"),
            known=(observation(GOOD.name, Tier.IMPORT, Outcome.BROKEN, "é\n", detail={"a": ["x" * 99] * 60}),),
        ),
    ],
)  # fmt: skip
def test_an_errand_comes_through_a_line_unchanged(errand: Errand) -> None:
    line = errand.to_line()
    assert "\n" not in line
    assert Errand.from_line(line) == errand


def test_an_observation_comes_through_a_line_with_its_large_details(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(observation(GOOD.name, Tier.SURFACE, Outcome.BROKEN, detail={"large": "x" * 9000, "small": 1}))
    (stored,) = store
    assert from_line(to_line(stored)) == stored
    assert dict(from_line(to_line(stored)).detail) == {"large": "x" * 9000, "small": 1}


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"schema": 1}', '{"schema": 1, "reads": {}, "cell": "a"}'])
def test_a_line_that_is_no_observation_is_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of many kinds
        from_line(line)


def test_a_line_of_a_later_release_is_refused() -> None:
    with pytest.raises(NewerSchemaError):
        from_line(json.dumps({**json.loads(to_line(RESOLVED)), "schema": 99}))


def test_what_a_visit_gave_comes_through() -> None:
    probed = Probed(observations=(RESOLVED, observation(GOOD.name, Tier.IMPORT)), reused=1, asked=1)
    assert wire.read_done(json.loads(wire.done(probed))) == probed
    assert wire.read_observed(json.loads(wire.observed(RESOLVED))) == RESOLVED


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (wire.refused(ProvisionError("a", why="b", then="c")), ProvisionError),
        (wire.refused(DataError("f.toml", "x", "a", then="c")), DataError),
        (wire.refused(MatrixError("a", why="b", then="c")), MatrixError),
        (json.dumps({"error": "Path", "what": "a", "why": "b", "then": "c"}), MatrixError),
        (json.dumps({"error": "OfALaterRelease", "what": "a", "why": "b", "then": "c"}), MatrixError),
    ],
)
def test_an_error_comes_through_as_what_it_was(line: str, kind: type[MatrixError]) -> None:
    error = wire.read_refused(json.loads(line))
    assert (type(error), error.then) == (kind, "c")
    assert error.what.endswith("a")


# ---- the parcel and its carrier


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


# ---- the program there


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
    thread = threading.Thread(target=node._end_with, args=(pipe[0], Visitor()))
    thread.start()
    assert not stopped.wait(0.1)
    os.close(pipe[1])
    assert stopped.wait(10)
    assert left.wait(10), "a visit that does not end itself is ended"
    thread.join(10)


def test_a_machine_is_what_was_granted_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "this_machine", lambda: machine.Machine(architecture="x86_64", gpus=("A", "A")))
    assert node.granted().kind == "x86_64, no GPU"


def test_an_errand_that_is_cut_short_is_told(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b'{"cell"')
    os.close(pipe[1])
    with pytest.raises(ToolError, match="cut short"):
        node._read(pipe[0])


# ---- what is remembered


@pytest.mark.parametrize(
    ("suits", "known"), [(lambda machine: True, True), (lambda machine: len(machine.gpus) == 1, False)]
)
def test_a_cell_that_a_machine_has_answered_is_recalled(tmp_path: Path, suits: Any, known: bool) -> None:
    from matrix.probing.folder import probes_folder

    manner = Manner(tiers=frozenset({Tier.IMPORT}), patterns=("test_package_imports[ray]",))
    recall = Recall(store=Store(tmp_path / "store"), cache=tmp_path / "cache", manner=manner)
    asked = cell(ray="2.55.0")
    resolved = observation(asked.name, Tier.RESOLVE, detail={"lock": "sha256:1", "versions": {"ray": "2.55.0"}})
    assert recall.probed(asked, resolved, suits) is None
    made = prober(tmp_path, probes_folder(), store=recall.store, failures=by_id(load_failures()))
    subject = made.subject(asked, "sha256:1", {"ray": "2.55.0"})
    from matrix.probing.lines import PlannedProbe

    probe = PlannedProbe(test="test_install.py::test_package_imports[ray]", tier=Tier.IMPORT)
    heard: list[Path] = []
    made.heed = heard.append
    made._remember(subject, [probe], [])
    strange = observation(asked.name, Tier.IMPORT, probe="install", reads={"machine": "a strange one"})
    recall.store.add(strange, replace(RESOLVED, question=made.question(subject, probe), at=AT))
    assert heard[0].is_file()
    found = recall.probed(asked, resolved, suits)
    assert (found is not None) is known
    if found is not None:
        assert (found.reused, [item.question.probe for item in found.observations]) == (1, [probe.probe])


@given(
    st.lists(st.sampled_from(["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla T4"]), max_size=4),
    st.sampled_from(["x86_64", "aarch64"]),
)
def test_a_class_of_machines_is_read_back(gpus: list[str], architecture: str) -> None:
    made = machine.Machine(architecture=architecture, gpus=tuple(sorted(gpus)), cores=1)
    assert machine_of(made.kind) == made


@pytest.mark.parametrize("kind", ["", "x86_64", "x86_64, GPUs", "static"])
def test_what_is_no_class_of_machines_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="no class"):
        machine_of(kind)


# ---- the journal


def test_a_run_that_was_cut_short_is_found_again(tmp_path: Path) -> None:
    made = journal.begin(tmp_path, {"cells": ["a*"]}, clock=lambda: AT)
    made.lost("a", "its machine was lost")
    found = journal.unfinished(tmp_path)
    assert (found.words, found.begun, found.losses) == ({"cells": ["a*"]}, AT, {"a": ["its machine was lost"]})
    found.end()
    with pytest.raises(NothingRanError, match="no run to go on with"):
        journal.unfinished(tmp_path)
    journal.Journal(begun=AT).lost("a", "kept nowhere")
    assert journal.begin(tmp_path, {}).begun.tzinfo is UTC


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1, "losses": [], "words": {}}', '{"schema": "x"}'])
def test_a_file_that_is_no_journal_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / journal.NAME).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="no journal"):
        journal.unfinished(tmp_path)


def test_a_journal_of_a_later_release_is_refused_and_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(NothingRanError, match="Nothing was begun"):
        journal.unfinished(tmp_path)
    (tmp_path / journal.NAME).write_text('{"schema": 2}', encoding="utf-8")
    with pytest.raises(NewerSchemaError):
        journal.unfinished(tmp_path)


# ---- what is asked of machines


def test_the_needs_of_the_shipped_probes_are_read_from_their_marks(tmp_path: Path) -> None:
    needs = needs_of(Path(__file__).parents[1] / "compat")
    assert Need(gpus=2, capability=(8, 0), memory_gib=16) in needs
    assert max(need.gpus for need in needs) == 2
    text = "n = 3\n@pytest.mark.gpus(n)\ndef test_a(): ...\n@pytest.mark.gpus(1, capability='9.0')\ndef test_b(): ..."
    (tmp_path / "test_a.py").write_text(text, encoding="utf-8")
    assert needs_of(tmp_path) == (Need(gpus=1, capability=(9, 0)),)


@pytest.mark.parametrize(
    ("needs", "there", "expected"),
    [((), [], 1), ((1, 2), [H200], 2), ((1, 2), [T4, SMALL], 1), ((1, 4), [PLAIN], 2), ((2,), [SMALL], 1)],
)
def test_a_cell_gets_as_many_gpus_as_its_probes_ask_for(
    needs: tuple[int, ...], there: list[Machine], expected: int
) -> None:
    assert most_gpus([Need(gpus=count) for count in needs], there) == expected


@pytest.mark.parametrize(
    ("capability", "memory", "there", "expected"),
    [
        ((8, 0), 0, [T4, H200], ("H200",)),
        ((7, 0), 0, [T4, H200], ()),
        ((9, 0), 100, [replace(H200, kinds=frozenset({"H100"})), H200], ("H200",)),
        ((8, 0), 0, [replace(T4, kinds=frozenset({"Strange"})), H200], ("H200",)),
        ((8, 0), 0, [replace(T4, kinds=frozenset({"Strange"}))], ()),
        ((8, 0), 0, [PLAIN, SMALL], ()),
        ((8, 0), 0, [], ()),
    ],
)
def test_kinds_of_gpu_that_meet_the_most(
    capability: tuple[int, int], memory: float, there: list[Machine], expected: tuple[str, ...]
) -> None:
    assert kinds_that_do([Need(capability=capability, memory_gib=memory)], there) == expected


def test_the_kinds_have_what_cards_of_their_name_have() -> None:
    from matrix.memory.gpu import load_gpus

    kinds, cards = load_accelerators(), load_gpus()
    assert kinds["H200"] == Accelerator(name="H200", capability=(9, 0), memory_gib=140)
    of = {"A100": "A100-40GB", "A100-40G": "A100-40GB", "A100-80G": "A100-80GB", "H100": "H100-80GB",
          "H200": "H200-141GB", "GeForce-RTX-4090": "RTX-4090"}  # fmt: skip
    for kind in kinds.values():
        card = cards.get(of.get(kind.name, kind.name))
        if card is not None:
            assert (kind.capability, kind.memory_gib) == (card.capability, card.nvidia_smi_mib >> 10)


def test_a_file_of_kinds_that_is_wrong_is_told(tmp_path: Path) -> None:
    path = tmp_path / "accelerators.toml"
    row = '[[accelerator]]\nname = "X"\ncapability = "9.0"\nsource = "s"\nchecked = 2026-12-01\n'
    path.write_text(f"schema = 1\n{row}{row}", encoding="utf-8")
    with pytest.raises(DataError, match="`X` is there twice"):
        load_accelerators(path)


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        (Demand(), "1 core"),
        (Demand(gpus=2, cpus=2, memory=16 * GIB, kinds=("H100", "H200")), "2 GPUs of H100 or H200, 2 cores, 16 GiB"),
        (Demand(gpus=1), "1 GPU, 1 core"),
    ],
)
def test_what_is_asked_for_in_words(demand: Demand, words: str) -> None:
    assert demand.words == words


def test_without_gpus_cells_of_this_machine_come_one_after_the_other() -> None:
    class Visitor:
        width = 4

        def stop(self) -> None: ...

        def visit(self, cell: Any, resolved: Any, tell: Any) -> Probed:
            return Probed(asked=7)

    made = Local(visitor=Visitor(), tiers=frozenset({Tier.IMPORT, Tier.GPU}))
    assert made.width == 4
    assert replace(made, tiers=frozenset({Tier.IMPORT})).width == 1
    assert made.visit(GOOD, None, print).asked == 7
    made.stop()
    made.close()


def test_the_manner_keeps_to_itself_what_was_answered() -> None:
    told = replace(MANNER, again=True, since=datetime(2026, 1, 1, tzinfo=UTC))
    assert Manner.from_json(told.to_json()) == MANNER


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
