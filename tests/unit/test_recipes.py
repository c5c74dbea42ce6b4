"""The recipes of docs/recipes: what they start for which cell, and that a shell can read them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.unit.cli_stack import said

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
SAYS = '#!/bin/sh\nprintf "%s|" "$@"\n'
SAYS += 'printf "%s|%s|%s\\n" "$XDG_DATA_HOME" "$XDG_CACHE_HOME" "${VERL_MATRIX_HOME-unset}"\n'


def bash(*words: str, folder: Path, text: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    given = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), **env}
    return subprocess.run(
        ["bash", *words], input=text, capture_output=True, text=True, env=given, cwd=folder, timeout=30, check=False
    )


def program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return the folder that the nodes share, with two cells and a srun that runs what it is given."""
    listed = said("run", "--list", "--json", "--cells", "verl0.9.1-vllm0.2{0.2,2.1}")
    names = subprocess.run(
        [sys.executable, str(RECIPES / "names.py")], input=listed.out, capture_output=True, text=True, check=True
    )
    assert names.stdout.splitlines() == [cell["name"] for cell in json.loads(listed.out)]
    (tmp_path / "cells.txt").write_text(names.stdout, encoding="utf-8")
    program(tmp_path / "srun", '#!/bin/sh\nshift\nexec "$@"\n')
    program(tmp_path / "verl-matrix", SAYS)
    return tmp_path


def test_a_task_of_the_array_runs_its_cell_with_a_store_of_its_own(shared: Path) -> None:
    cells = (shared / "cells.txt").read_text(encoding="utf-8").split()
    assert len(cells) == 2
    for number, cell in enumerate(cells):
        env = {"MATRIX_ROOT": str(shared), "SLURM_ARRAY_TASK_ID": str(number), "VERL_MATRIX_HOME": "/elsewhere"}
        ran = bash(str(RECIPES / "slurm.sh"), folder=shared, SLURM_TMPDIR=str(shared / "scratch"), **env)
        assert ran.returncode == 0, ran.stderr
        words = ran.stdout.strip().split("|")
        assert words[:7] == [
            "run", "--cells", cell, "--tiers", "import,behave,gpu", "--out", f"{shared}/out/{cell}",
        ]  # fmt: skip
        assert words[7] == f"{shared}/stores/{cell}"
        assert words[8].startswith(f"{shared}/scratch/verl-matrix-")
        assert words[9] == "unset"
        assert Path(words[7]).is_dir()


@pytest.mark.parametrize(
    ("env", "what"),
    [
        ({}, "MATRIX_ROOT"),
        ({"MATRIX_ROOT": "."}, "SLURM_ARRAY_TASK_ID"),
        ({"MATRIX_ROOT": ".", "SLURM_ARRAY_TASK_ID": "2"}, "fewer cells than tasks"),
    ],
)
def test_a_task_without_a_cell_says_so(shared: Path, env: dict[str, str], what: str) -> None:
    ran = bash(str(RECIPES / "slurm.sh"), folder=shared, **env)
    assert ran.returncode != 0
    assert what in ran.stderr
    assert ran.stdout == ""


def block(name: str) -> str:
    """Return the text of a key of sky.yaml that is written as a block."""
    text = (RECIPES / "sky.yaml").read_text(encoding="utf-8")
    match = re.search(rf"^{name}: \|\n((?:  .*\n|\n)+)", text, re.MULTILINE)
    assert match is not None
    return textwrap.dedent(match[1])


@pytest.mark.parametrize("name", ["setup", "run"])
def test_a_shell_reads_what_sky_runs(tmp_path: Path, name: str) -> None:
    ran = bash("-n", folder=tmp_path, text=block(name))
    assert (ran.returncode, ran.stderr) == (0, "")


def test_what_sky_runs_goes_on_with_what_was_kept_and_keeps_what_it_found(tmp_path: Path) -> None:
    kept = tmp_path / "stores" / "verl0.9.1" / "verl-matrix" / "store"
    kept.mkdir(parents=True)
    (kept / "observations.jsonl").write_text("before\n", encoding="utf-8")
    (tmp_path / "verl-matrix" / "bin").mkdir(parents=True)
    found = 'echo "found" >> "$XDG_DATA_HOME/verl-matrix/store/observations.jsonl"\necho "$@"\nexit 1\n'
    program(tmp_path / "verl-matrix" / "bin" / "verl-matrix", f"#!/bin/sh\n{found}")
    text = block("run").replace("/stores/", f"{tmp_path}/stores/")
    ran = bash("-c", text, folder=tmp_path, CELL="verl0.9.1", TIERS="import")
    assert ran.returncode == 1
    assert ran.stdout == f"run --cells verl0.9.1 --tiers import --out {tmp_path}/out\n"
    assert (kept / "observations.jsonl").read_text(encoding="utf-8") == "before\nfound\n"
