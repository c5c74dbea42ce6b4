"""What the distribution holds: the data files travel with the code, and the console script leads where it says."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from matrix.claims.claim import Topic
from matrix.failure import Family

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = ("matrix", "reports", "bench")
NAMES = {"griffe": "griffelib", "hydra": "hydra-core", "pynvml": "nvidia-ml-py", "pytest_benchmark": "pytest-benchmark",
         "yaml": "pyyaml"}  # fmt: skip
"""Modules whose distribution has another name."""
DATA = (
    "bench/claims.toml",
    "bench/peaks.toml",
    "bench/toggles.toml",
    "bench/verl_flops.toml",
    "matrix/axes.toml",
    "matrix/cells.toml",
    *(f"matrix/claims/{topic}.toml" for topic in Topic),
    "matrix/claims/guides.toml",
    "matrix/claims/results.json",
    "matrix/config/wiring.toml",
    "matrix/doctor/generic.toml",
    "matrix/doctor/variables.toml",
    "matrix/executors/accelerators.toml",
    *(f"matrix/failures/{family}.toml" for family in Family),
    "matrix/memory/constants.toml",
    "matrix/memory/gpus.toml",
    "matrix/memory/recipes.toml",
    "matrix/memory/shapes.toml",
    "matrix/pins/evidence.schema.json",
    "matrix/pins/features.toml",
    "matrix/py.typed",
    "matrix/reproductions.toml",
    "matrix/provision/builds.toml",
    "matrix/resolve/sdists.toml",
    "matrix/surface/verl.toml",
    "matrix/thresholds/questions.toml",
    "reports/schema.json",
)


def _shipped(path: Path) -> bool:
    """Return whether a file of a package is part of what is shipped (hatchling leaves out what git ignores)."""
    return path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"


def test_the_wheel_takes_the_packages_whole() -> None:
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel) == {"packages", "force-include"}, "an include or exclude could leave a data file behind"
    assert tuple(wheel["packages"]) == PACKAGES


def test_the_probes_travel_to_where_they_are_looked_for() -> None:
    assert PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"] == {"tests/compat": "matrix/compat"}


@pytest.mark.parametrize("path", DATA)
def test_a_data_file_lies_in_a_package_and_is_not_ignored(path: str) -> None:
    assert (ROOT / path).is_file()
    assert path.partition("/")[0] in PACKAGES


def test_the_templates_lie_beside_the_code_that_reads_them() -> None:
    assert list((ROOT / "reports" / "templates").glob("*.j2"))


def test_nothing_that_is_needed_is_ignored_by_git() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout, so nothing is ignored")
    files = [str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("*") if _shipped(path)]
    needed = [path for path in files if not path.startswith("reports/out/")]
    ended = subprocess.run(
        ["git", "check-ignore", "--stdin"],
        input="\n".join(needed),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    data = {path for path in needed if Path(path).suffix in {".toml", ".typed", ".json"}}
    assert {path for path in data if not path.startswith("reports/evidence/")} == set(DATA)


def test_every_data_file_is_looked_for_beside_its_module() -> None:
    for path in (path for name in PACKAGES for path in (ROOT / name).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r'__file__\)\.with_name\("([^"]+\.(?:toml|json))"\)', text):
            assert path.with_name(name).is_file(), f"{path} reads {name}"


def test_the_console_script_is_the_module() -> None:
    module, _, name = PYPROJECT["project"]["scripts"]["verl-matrix"].partition(":")
    assert module == "matrix.__main__"
    assert callable(getattr(importlib.import_module(module), name))


def test_what_is_imported_is_declared() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    wanted = [*PYPROJECT["project"]["dependencies"], *(text for texts in extras.values() for text in texts)]
    declared = {re.split(r"[<>=\[ ]", text)[0] for text in wanted}
    imported = set()
    for path in (path for name in PACKAGES for path in (ROOT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(str(node.module).partition(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - set(PACKAGES)
    assert "packaging" in foreign
    assert {NAMES.get(name, name) for name in foreign} <= declared
