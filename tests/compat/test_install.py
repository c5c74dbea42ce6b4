"""The installation check: the packages of the stack import, verl's trainer entry point is there, nothing is shadowed.

Corrects the four steps that guides to verl give: `verl.__version__`, the trainer, vLLM, the devices.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit import Cell, run_python

_PACKAGES = ("torch", "transformers", "tensordict", "ray", "vllm", "verl")
_WHERE = "import json, {0}; print(json.dumps([str(getattr({0}, '__version__', '')), {0}.__file__ or '']))"


@pytest.mark.parametrize("package", _PACKAGES)
@pytest.mark.limit(200)
def test_package_imports(cell: Cell, package: str) -> None:
    """The package imports, from the environment's own site-packages, and its version is the one installed."""
    installed = cell.version(package)
    if installed is None:
        pytest.skip(f"{package} is not installed in this cell")
    ended = run_python("-c", _WHERE.format(package), timeout=180)
    assert ended.code == 0, ended.last_line or ended.fault
    version, file = json.loads(ended.stdout.strip().splitlines()[-1])
    assert "site-packages" in Path(file).parts, f"{package} is shadowed by {file}"
    if version:
        assert version.split("+")[0] == installed.split("+")[0], f"{package}: imports {version}, installed {installed}"
