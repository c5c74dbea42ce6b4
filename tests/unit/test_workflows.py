"""The workflow files: pinned actions, least permissions, no word of a caller in a script, and scripts that work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from matrix import __version__
from matrix.cli.parser import build_parser

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w./-]+@[0-9a-f]{40}")


def whole(path: Path) -> dict[Any, Any]:
    data: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


def steps(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in whole(path)["jobs"].items():
        for step in job["steps"]:
            yield name, step


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_the_tag_is_named(path: Path) -> None:
    used = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert used
    for line in used:
        assert re.fullmatch(r"(- )?uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_jobs_may_read_and_no_more_and_end_in_time(path: Path) -> None:
    data = whole(path)
    assert data["permissions"] == {"contents": "read"}
    assert data["concurrency"]["group"]
    for name, job in data["jobs"].items():
        assert job["timeout-minutes"] <= 240, name
        assert job.get("permissions", {}) in ({}, {"issues": "write"}), name
    assert [n for n, job in data["jobs"].items() if "permissions" in job] in ([], ["issue"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_scripts_hold_no_expression_and_are_shell(path: Path) -> None:
    for name, step in steps(path):
        if "run" not in step:
            assert PINNED.fullmatch(step["uses"]), name
            continue
        # What a caller may choose goes through the environment: put into the text it could be a command.
        assert "${{" not in step["run"], name
        done = subprocess.run(
            ["bash", "-n"], input=step["run"], text=True, capture_output=True, timeout=20, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), name


def test_the_command_lines_of_the_workflows_are_understood() -> None:
    found = 0
    for path in FILES:
        for _, step in steps(path):
            script = str(step.get("run", "")).replace("\\\n", " ")
            for match in re.finditer(r"python -m matrix ([^|&>\n]+)", script):
                words = [word for word in match[1].split() if "words[@]" not in word]
                build_parser(__version__).parse_args([word.replace('"$CELL"', "x") for word in words])
                found += 1
    assert found == 3


def test_the_sessions_of_ci_exist() -> None:
    data = whole(ROOT / ".github" / "workflows" / "ci.yml")
    named = {
        *data["jobs"]["check"]["strategy"]["matrix"]["session"],
        *data["jobs"]["tests"]["strategy"]["matrix"]["session"],
        *(item["session"] for item in data["jobs"]["tests"]["strategy"]["matrix"]["include"]),
    }
    there = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= there


def test_the_script_for_cron_is_shell_and_its_command_line_is_understood() -> None:
    page = (ROOT / "docs" / "nightly.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    done = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = re.findall(r"verl-matrix/bin/verl-matrix (.*)", script)
    assert build_parser(__version__).parse_args(line.split()).wait == 3600


GH = """#!/bin/bash
printf '%s\\n' "$*" >> "$LOG"
if [ "$1 $2" = "issue list" ]; then echo "$OPEN"; fi
if [ "$1 $2" = "label create" ]; then exit 1; fi
"""


@pytest.fixture
def issue(tmp_path: Path) -> dict[str, Any]:
    """Return the step that opens the issue, with a `gh` that writes down what it is asked."""
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed; runners have it")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "gh").write_text(GH)
    (folder / "gh").chmod(0o755)
    data = whole(ROOT / ".github" / "workflows" / "nightly.yml")
    (step,) = (step for step in data["jobs"]["issue"]["steps"] if "run" in step)
    return {"run": step["run"], "path": f"{folder}:{os.environ['PATH']}", "cwd": tmp_path}


def night(folder: Path, name: str, new: int) -> None:
    (folder / "nights" / name).mkdir(parents=True)
    (folder / "nights" / name / "nightly.json").write_text(json.dumps({"changed": {"new failure": new}}))
    (folder / "nights" / name / "nightly.md").write_text(f"# {name}: {new} newly bad\n" + "x" * 30_000)


CREATE = "issue create --label nightly --title Nightly: 3 newly bad"


@pytest.mark.parametrize(
    ("counts", "already", "asked"),
    [
        ({"nightly-cpu": 0}, "", []),
        ({}, "", []),
        ({"nightly-cpu": 2, "nightly-gpu-a": 0, "nightly-gpu-b": 1}, "", ["label", "issue list", CREATE]),
        ({"nightly-cpu": 1}, "17", ["label", "issue list", "issue comment 17 --body-file short.md"]),
    ],
)  # fmt: skip
def test_what_is_newly_bad_opens_one_issue_or_adds_to_it(
    issue: dict[str, Any], counts: dict[str, int], already: str, asked: list[str]
) -> None:
    for name, new in counts.items():
        night(issue["cwd"], name, new)
    log = issue["cwd"] / "log"
    env = {"PATH": issue["path"], "LOG": str(log), "OPEN": already, "RUN": "https://x/runs/1", "GH_TOKEN": "none"}
    done = subprocess.run(
        ["bash", "-e", "-c", issue["run"]],
        cwd=issue["cwd"],
        env=env,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = log.read_text().splitlines() if log.exists() else []
    assert len(lines) == len(asked)
    assert all(line.startswith(words) for line, words in zip(lines, asked, strict=True))
    if asked:
        body = (issue["cwd"] / "short.md").read_text()
        assert body.endswith("Reports: https://x/runs/1\n")
        assert len(body) < 65_536
        assert [f"# {name}:" in body for name, new in counts.items()] == [bool(new) for new in counts.values()]


def test_the_shell_check_finds_what_is_wrong_in_a_script(tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed; `nox -s workflows` installs it")
    path = tmp_path / "w.yml"
    script = ROOT / "tests" / "accuracy" / "workflow_shell.py"
    for text, code in (('exit "$CODE"', 0), ("exit $CODE", 1)):
        path.write_text(f"jobs:\n  a:\n    steps:\n      - run: {text}\n")
        done = subprocess.run([sys.executable, str(script), str(path)], capture_output=True, timeout=60, check=False)
        assert done.returncode == code
