"""The shape of the project: the one-way flow, the size of modules, what start-up imports, the page that names all."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path.relative_to(ROOT)
    for package in ("matrix", "reports", "bench")
    for path in (ROOT / package).rglob("*.py")
    if "__pycache__" not in path.parts
)
HEAVY = {
    "pandas",
    "numpy",
    "scipy",
    "jinja2",
    "griffe",
    "rich",
    "urllib3",
    "platformdirs",
    "filelock",
    "hydra",
    "omegaconf",
    "pyarrow",
}


def _imports(path: Path, *, top_level_only: bool) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", [path for path in MODULES if path.parts[0] == "matrix"], ids=str)
def test_matrix_never_imports_what_comes_after_it(path: Path) -> None:
    after = {name for name in _imports(path, top_level_only=False) if name.split(".")[0] in {"reports", "bench"}}
    allowed = {"reports.front"} if path == Path("matrix/__main__.py") else set()
    assert after <= allowed


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_every_module_stands_in_the_architecture_page(path: Path) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    if path.name == "__init__.py":
        assert f"`{path.parent.as_posix()}/`" in page
    else:
        assert f"`{path.as_posix()}`" in page


def test_the_architecture_page_names_no_module_that_is_gone() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = {word for word in page.split("`") if word.endswith(".py") and word.count("/") >= 1 and " " not in word}
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_no_module_grows_past_its_size(path: Path) -> None:
    assert len((ROOT / path).read_text(encoding="utf-8").splitlines()) <= 420
    assert path.stem not in {"utils", "helpers", "misc", "common"}


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_everything_public_is_documented(path: Path) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{path} has no docstring"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{path}: {node.name} has no docstring"


STARTED = """
import sys
sys.argv = ["verl-matrix", "--help"]
from matrix.__main__ import main
try:
    main()
except SystemExit:
    pass
print("LOADED", sorted({name.split(".")[0] for name in sys.modules}))
"""


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=dict(os.environ),
    )
    loaded = set(ast.literal_eval(done.stdout.rsplit("LOADED ", 1)[1]))
    assert "matrix" in loaded
    assert loaded & HEAVY == set()
