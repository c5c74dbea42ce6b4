"""The doctor on an environment: what is asked of it, what is installed in it, and how checks are told."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.doctor import inside
from matrix.doctor.checkup import Check, Grade, checks_json, checks_text, ok, sick, unknown
from matrix.doctor.environment import Installed, Module, ask, environment_of
from matrix.doctor.packages import check_installation, check_records, check_requirements
from matrix.errors import ToolError, UsageError
from matrix.failure import Reach, Severity
from tests.unit.doctor_case import AXES, CLASH, environment, failure, grades, only


def test_this_environment_answers_without_importing_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").write_text("raise SystemExit('imported')")
    variables = {"PATH": os.environ["PATH"], "NCCL_DEBUG": "INFO", "HF_HUB_TOKEN": "secret"}
    found = ask(sys.executable, folder=tmp_path, variables=variables)
    assert found.python.release == sys.version_info[:3]
    assert found.versions["pytest"] is not None
    assert found.dist("no-such") is None
    assert found.modules["verl"].origin == tmp_path / "verl" / "__init__.py"
    assert found.modules["verl"].found == (tmp_path / "verl",)
    assert found.variables == {"NCCL_DEBUG": "INFO"}
    shadowed = [check for check in check_installation(found) if "verl is imported from" in check.what]
    assert only(shadowed).grade is Grade.BAD


def test_what_runs_inside_says_the_same_when_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "verl.py").write_text("")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "bad-1.dist-info").mkdir()
    (tmp_path / "bad-1.dist-info" / "direct_url.json").write_text("{")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(Path.cwd())
    monkeypatch.setattr(sys, "argv", ["-", str(tmp_path)])
    inside.main()
    found = environment_of(json.loads(capsys.readouterr().out))
    assert found.folder == tmp_path
    assert found.modules["verl"].origin == tmp_path / "verl.py"
    assert found.modules["vllm"].namespace
    assert found.modules["vllm"].origin == tmp_path / "vllm"
    assert found.versions["pytest"] is not None


def test_a_folder_stands_for_its_interpreter(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert ask(str(tmp_path)).python.release == sys.version_info[:3]


def test_what_is_no_interpreter_or_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no interpreter"):
        ask(str(tmp_path / "python"))
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(ToolError, match="broken") as caught:
        ask(str(fake))
    assert "code 3" in caught.value.why
    fake.write_text("not a program")
    with pytest.raises(ToolError, match="cannot be run"):
        ask(str(fake))


def test_a_distribution_without_metadata_is_seen(tmp_path: Path) -> None:
    (tmp_path / "half-1.0.dist-info").mkdir()
    (tmp_path / "whole-1.0.dist-info").mkdir()
    (tmp_path / "whole-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: whole\nVersion: 1.0\n")
    (tmp_path / "whole-1.0.dist-info" / "direct_url.json").write_text(
        '{"url": "file:///srv/whole", "dir_info": {"editable": true}}'
    )
    found = ask(sys.executable, variables={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)})
    half, whole = found.dist("half"), found.dist("whole")
    assert half is not None
    assert half.version is None
    assert whole is not None
    assert whole.editable == "file:///srv/whole"
    told = [check.what for check in check_installation(found)]
    assert any("half-1.0.dist-info has no readable metadata" in text for text in told)
    assert any("whole 1.0 is editable: its code is /srv/whole, which is gone" in text for text in told)


def test_records_that_apply(tmp_path: Path) -> None:
    held = environment(tmp_path, {"vllm": "0.9.2", "transformers": "4.57.6"})
    certain = dataclasses.replace(CLASH, default_path=True, feature="")
    found = list(check_records(held, (certain, failure("other", "x" * 20, needs="a moon")), AXES))
    assert [(check.grade, check.what.split(":")[0]) for check in found] == [
        (Grade.BAD, "config-clash"),
        (Grade.WARN, "other"),
    ]
    assert "transformers==4.53.3" in found[0].then
    assert "Only if: a moon." in found[1].why
    metadata = failure("resolver", "x" * 20, testable=Reach.METADATA)
    assert only(check_records(held, (metadata,), AXES)).grade is Grade.OK


def test_a_record_about_a_missing_module_is_disproved_by_the_module(tmp_path: Path) -> None:
    queue = failure("queue", "No module named 'transfer_queue'", exception="ModuleNotFoundError")
    there = Module(name="transfer_queue", origin=tmp_path / "a.py", found=())
    packages = {"vllm": "0.9.2"}
    held = environment(tmp_path, packages, modules={"transfer_queue": there})
    assert only(check_records(held, (queue,), AXES)).grade is Grade.OK
    assert only(check_records(environment(tmp_path, packages), (queue,), AXES)).grade is Grade.WARN


def test_requirements_of_the_installed_set(tmp_path: Path) -> None:
    requires = {
        "vllm": ("torch==2.8.0", "numpy; extra == 'x'", "absent>=1", "ray>=2 ; python_version < '3.8'", "!!"),
        "zlib-ng": tuple(f"absent{at}" for at in range(20)),
    }
    held = environment(tmp_path, {"vllm": "0.9.2", "torch": "2.7.0+cu128", "zlib-ng": "1"}, requires=requires)
    found = [check.what for check in check_requirements(held)]
    assert found[:2] == [
        "vllm 0.9.2 requires torch==2.8.0; 2.7.0+cu128 is installed",
        "vllm 0.9.2 requires absent>=1; absent is not installed",
    ]
    assert found[-1] == "10 more are not met"
    fine = environment(tmp_path, {"vllm": "0.9.2", "torch": "2.8.0+cu128"}, requires={"vllm": ("torch==2.8.0",)})
    assert only(check_requirements(fine)).what == "the requirements of 2 packages are met"


def test_copies_and_leftovers(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    second = Installed(name="vllm", version=Version("0.8.5"), where=site / "vllm-0.8.5.dist-info")
    held = environment(tmp_path, {"vllm": "0.9.2"}, extra=(second, second))
    (site / "~llm").mkdir()
    found = grades(check_installation(held))
    assert found[0][0] is Grade.BAD
    assert found[0][1].startswith("vllm is installed 3 times: 0.9.2 in")
    assert (Grade.WARN, "~llm is left over from an interrupted uninstallation") in found
    gone = dataclasses.replace(held, purelib=tmp_path / "none", distributions=())
    assert only(check_installation(gone)).grade is Grade.OK


def test_where_a_module_comes_from(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.12" / "site-packages"

    def check(origin: Path | None, packages: dict[str, str], *, namespace: bool = False) -> list[tuple[Grade, str]]:
        module = Module(name="verl", origin=origin, found=(), namespace=namespace)
        return grades(check_installation(environment(tmp_path, packages, modules={"verl": module})))

    assert check(site / "verl" / "__init__.py", {"verl": "0.9.1"})[0][0] is Grade.OK
    assert "cannot be found by an import" in check(None, {"verl": "0.9.1"})[0][1]
    assert "a namespace without __init__.py" in check(tmp_path / "verl", {"verl": "0.9.1"}, namespace=True)[0][1]
    assert "no such package is installed" in check(tmp_path / "verl" / "__init__.py", {})[0][1]
    assert check(None, {})[0][0] is Grade.OK
    assert check(Path("/opt/other/verl.py"), {})[0][0] is Grade.OK
    source = tmp_path / "source"
    source.mkdir()
    editable = Installed(
        name="verl", version=Version("0.9.1"), where=site / "verl.dist-info", editable=f"file://{source}"
    )
    held = environment(tmp_path, extra=(editable,), modules={"verl": Module(name="verl", origin=source, found=())})
    assert grades(check_installation(held)) == [
        (Grade.WARN, f"verl 0.9.1 is editable: its code is {source}"),
    ]


def test_checks_are_told() -> None:
    checks = [
        ok("a", "fine"),
        Check(topic="b", grade=Grade.BAD, what="broken", why="because", then="mend"),
        unknown("a", "?"),
    ]
    text = checks_text("Head", checks)
    assert text.splitlines()[0] == "Head"
    assert "  ✕ broken\n      because\n      mend" in text
    assert text.endswith("3 checks: 1 ok, 0 warn, 1 bad, 1 unknown.")
    assert sick(checks)
    assert not sick(checks[:1])
    data = checks_json({"python": "x"}, checks)
    assert data["counts"] == {"ok": 1, "warn": 0, "bad": 1, "unknown": 1}
    assert data["python"] == "x"


def test_of_many_conditional_records_the_lesser_ones_are_counted() -> None:
    checks = [
        Check(topic="a", grade=Grade.WARN, what="high"),
        *(Check(topic="a", grade=Grade.WARN, what=f"low {at}", minor=True) for at in range(3)),
    ]
    short, whole = checks_text("Head", checks, every=False), checks_text("Head", checks)
    assert "low" not in short
    assert "  … and 3 more of lesser weight, each under a condition: --all\n" in short
    assert short.endswith("4 checks: 0 ok, 4 warn, 0 bad, 0 unknown.")
    assert "low 2" in whole
    assert "--all" not in whole


@pytest.mark.parametrize(("severity", "needs", "minor"), [("high", "a moon", False), ("low", "a moon", True)])
def test_a_record_under_a_condition_is_minor_unless_severe(
    tmp_path: Path, severity: str, needs: str, minor: bool
) -> None:
    held = environment(tmp_path, {"vllm": "0.9.2"})
    found = only(check_records(held, (failure("one", "x" * 20, needs=needs, severity=Severity(severity)),), AXES))
    assert (found.grade, found.minor) == (Grade.WARN, minor)
