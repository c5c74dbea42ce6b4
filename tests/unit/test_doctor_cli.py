"""`doctor` on the command line: what is printed, as text and JSON, and which exit code says what."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import matrix.doctor.devices
from matrix.cli.main import main
from matrix.doctor.checkup import Grade
from matrix.doctor.surfacing import surface_checks
from matrix.errors import IndexUnreachableError
from matrix.finding import Effect, Finding, Kind, Site
from matrix.job import RunResult
from matrix.observe import Observation, Question
from matrix.spec import parse_cell
from matrix.tier import Outcome, Tier
from matrix.verdict import judge
from reports.front import TerminalFront

CLASH = (
    "Initializing a V1 LLM engine (v0.9.2) with config: x\n"
    "Traceback (most recent call last):\n"
    '  File "/x/vllm/transformers_utils/configs/ovis.py", line 76, in <module>\n'
    "ValueError: 'aimv2' is already used by a Transformers config, pick another name.\n"
)


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["doctor", *words], TerminalFront)
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(CLASH)
    return path


def test_a_sick_log(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    code, out, _ = doctor(capsys, "--log", str(log))
    assert code == 1
    assert "Known as inspect-aimv2-config-clash" in out
    assert "likely" in out
    code, out, _ = doctor(capsys, "--log", str(log), "--with", "transformers==4.57.6", "--json")
    assert code == 1
    data = json.loads(out)
    assert data["errors"][0]["sureness"] == "confirmed"
    assert data["versions"]["transformers"] == {"version": "4.57.6", "from": "--with"}


def test_a_healthy_log(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    log.write_text("step:1 - loss:1\n")
    code, out, _ = doctor(capsys, "--log", str(log))
    assert code == 0
    assert "nothing wrong found in 1 line." in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--log", "/no/such"], 2, "There is no file /no/such."),
        (["--log", ""], 2, "The log has no name"),
        (["--log", "/dev"], 2, "/dev is a folder."),
        (["--log", "x\0y"], 2, "cannot be read"),
        (["--env", ""], 2, "an empty word"),
        (["--inspect", "", "--env", ""], 2, "an empty word"),
        (["--log", "/no/such", "--with", "vllm"], 2, "--with vllm is not PACKAGE==VERSION."),
        (["--with", "vllm==1"], 2, "--with belongs to --log."),
        (["--log", "x", "--inspect", "y"], 2, "two questions"),
        (["--env", "/no/such"], 2, "is no interpreter"),
        (["--env", "/no/such", "--inspect", "x"], 2, "is no interpreter"),
        (["--log", "/no/such", "--env", "/no/such"], 2, "is no interpreter"),
    ],
)
def test_words_that_make_no_sense(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    found, _, err = doctor(capsys, *words)
    assert found == code
    assert message in err


def test_an_empty_log(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    log.write_text("")
    code, _, err = doctor(capsys, "--log", str(log))
    assert code == 3
    assert "is empty" in err


def _stack(tmp_path: Path, **versions: str) -> Path:
    """Return an interpreter in whose path these distributions lie, with a vllm whose model qwen2 cannot be imported."""
    site = tmp_path / "site"
    for name, version in versions.items():
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("")
    models = site / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    for folder in (models.parent, models):
        (folder / "__init__.py").write_text("")
    (models / "good.py").write_text("")
    (models / "qwen2.py").write_text("raise ImportError('no qwen2 today')\n")
    (models / "quiet.py").write_text("import os\nos._exit(4)\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "python.real").write_text(str(site))
    return python


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix.doctor.devices, "ask_driver", lambda: "none here")


@pytest.mark.usefixtures("no_gpu")
def test_an_environment(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    python = _stack(tmp_path, vllm="0.9.2", transformers="4.57.6", verl="0.6.1")
    words = ["--env", str(python), "--offline", "--home", str(tmp_path / "home")]
    code, out, _ = doctor(capsys, *words, "--json")
    data = json.loads(out)
    assert data["versions"]["vllm"] == "0.9.2"
    assert code == (0 if data["healthy"] else 1)
    told = [check["what"] for check in data["checks"]]
    assert any(text.startswith("inspect-aimv2-config-clash") for text in told)
    assert any(text.startswith("untested: ") for text in told)
    code, out, _ = doctor(capsys, *words)
    assert "code against code" in out
    assert "checks:" in out


@pytest.mark.usefixtures("no_gpu")
def test_an_environment_without_the_stack(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = doctor(capsys, "--offline")
    assert "not tried: verl and another package of the stack must be installed" in out


def test_versions_of_an_environment_for_a_log(capsys: pytest.CaptureFixture[str], tmp_path: Path, log: Path) -> None:
    python = _stack(tmp_path, vllm="0.11.0", transformers="4.57.6")
    _, out, _ = doctor(capsys, "--log", str(log), "--env", str(python), "--json")
    data = json.loads(out)
    assert data["versions"]["transformers"] == {"version": "4.57.6", "from": "--env"}
    assert data["versions"]["vllm"] == {"version": "0.9.2", "from": "the log"}


def test_a_model_as_the_child_imports_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = _stack(tmp_path, vllm="0.9.2")
    monkeypatch.setenv("PYTHONPATH", (tmp_path / "python.real").read_text())
    code, out, _ = doctor(capsys, "--env", str(python), "--inspect", "good")
    assert (code, "vllm.model_executor.models.good can be imported" in out) == (0, True)
    code, out, _ = doctor(capsys, "--env", str(python), "--inspect", "qwen2")
    assert code == 1
    assert "The child ended with code 1" in out
    assert "ImportError: no qwen2 today" in out
    code, out, _ = doctor(capsys, "--env", str(python), "--inspect", "qwen2", "--json")
    assert (code, json.loads(out)["works"]) == (1, False)
    code, out, _ = doctor(capsys, "--env", str(python), "--inspect", "quiet")
    assert (code, "ended with code 4" in out) == (1, True)


# ---------------------------------------------------------------- the surface tier as checks

CELL = parse_cell(["verl==0.9.1", "vllm==0.24.0"])


def _finding(effect: Effect, *, default_path: bool = False, **more: object) -> Finding:
    return Finding(
        kind=Kind.NAME_MISSING,
        effect=effect,
        target="vllm",
        symbol="vllm.a.B",
        used_at=Site(path="verl/a.py", line=3),
        default_path=default_path,
        **more,  # type: ignore[arg-type]
    )


def _result(*findings: Finding, failed: bool = False) -> RunResult:
    observation = Observation(
        question=Question(cell=CELL.name, probe="surface", tier=Tier.SURFACE, tool="t", reads={}),
        outcome=Outcome.UNTESTED if failed else Outcome.BROKEN if findings else Outcome.OK,
        reason="for a reason",
        detail={"findings": [found.to_json() for found in findings]},
        at=datetime(2026, 11, 30, tzinfo=UTC),
    )
    failures = (IndexUnreachableError("The index is away."),) if failed else ()
    return RunResult(
        verdicts=(judge(CELL, [observation]),), tallies=(), at=datetime(2026, 11, 30, tzinfo=UTC), failures=failures
    )


@pytest.mark.parametrize(
    ("finding", "grade"),
    [
        (_finding(Effect.BREAKS_IMPORT), Grade.BAD),
        (_finding(Effect.BREAKS_FEATURE, feature="lora", moved_to=("vllm.c.B",)), Grade.WARN),
        (_finding(Effect.BREAKS_FEATURE, default_path=True), Grade.BAD),
        (_finding(Effect.DEGRADES, default_path=True, message="slower"), Grade.WARN),
    ],
)
def test_findings_become_checks(finding: Finding, grade: Grade) -> None:
    (check,) = surface_checks(_result(finding))
    assert check.grade is grade
    assert "verl/a.py:3" in check.why
    assert check.then == ("It may be vllm.c.B now." if finding.moved_to else "")


def test_no_finding_many_findings_and_no_answer() -> None:
    (fine,) = surface_checks(_result())
    assert fine.grade is Grade.OK
    many = surface_checks(_result(*[_finding(Effect.BREAKS_FEATURE, feature=str(at)) for at in range(20)]))
    assert many[-1].what == "12 more findings"
    (away,) = surface_checks(_result(failed=True))
    assert away.grade is Grade.UNKNOWN
    assert "The index is away." in away.why
