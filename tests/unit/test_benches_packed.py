"""The cheap benches travel: every file of them is in the tool's wheel, and runs from there with nothing but Python."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from bench.variant import SCRIPTS
from matrix.bundle.toolwheel import build_tool_wheel
from matrix.probing.folder import probes_folder

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "compat" / "benches"
FILES = sorted(path.name for path in FOLDER.glob("*.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an installation of the tool's wheel, which is what a bundle carries."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(BytesIO(build_tool_wheel())) as wheel:
        wheel.extractall(folder)
    return folder


def test_wheel_holds_every_file_as_it_is(site: Path) -> None:
    there = site / "matrix" / "compat" / "benches"
    assert sorted(path.name for path in there.iterdir()) == FILES
    for name in FILES:
        assert (there / name).read_bytes() == (FOLDER / name).read_bytes()


def test_scripts_of_benches_are_where_they_are_looked_for() -> None:
    for script in (*SCRIPTS.values(), "benches/ceiling.py"):
        assert (probes_folder() / script).is_file(), script


@pytest.mark.parametrize("script", ["update", "rollout", "ceiling"])
def test_script_says_from_there_what_it_takes(script: str, site: Path) -> None:
    path = site / "matrix" / "compat" / "benches" / f"{script}.py"
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(path), "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "--out DIR" in ended.stdout


@pytest.mark.parametrize("script", ["update", "rollout"])
def test_plan_that_is_wrong_is_refused_from_there(script: str, site: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"repeat": 3}', encoding="utf-8")
    path = site / "matrix" / "compat" / "benches" / f"{script}.py"
    argv = [sys.executable, "-I", "-S", str(path), "--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path)]
    ended = subprocess.run([*argv, "--device", "cpu"], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stderr
    found = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (found["bench"], found["ended"]) == (script, "refused")


def test_git_ignores_none_of_them() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout, so nothing is ignored")
    argv = ["git", "check-ignore", *(str(FOLDER / name) for name in FILES)]
    assert subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False).stdout == ""


@pytest.mark.parametrize("name", FILES)
def test_file_is_for_every_python_that_a_cell_may_have_and_knows_nothing_of_the_tool(name: str) -> None:
    tree = ast.parse((FOLDER / name).read_text(encoding="utf-8"), feature_version=(3, 10))
    found = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    found |= {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    assert not {name.partition(".")[0] for name in found} & {"matrix", "bench", "reports", "tomllib", "pytest"}
