from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.errors import ProvisionError, ToolError
from matrix.provision import Environment, Provisioner, add_probe_needs, here
from tests.unit import provision_stack as stack
from tests.unit.local_index import LocalIndex

PYTEST = {"iniconfig": "2.0", "packaging": "25.0", "pluggy": "1.6", "pytest": "9.0"}


@pytest.fixture
def made(tmp_path: Path) -> LocalIndex:
    index = stack.index(tmp_path / "index")
    for version in ("24.0", "25.0"):
        index.wheel("packaging", version)
    index.wheel("iniconfig", "2.0")
    index.wheel("pluggy", "1.6")
    return index


def with_pytest(index: LocalIndex, *more: str) -> LocalIndex:
    index.wheel("pytest", "9.0", ["iniconfig", "packaging>=22", "pluggy", *more])
    return index


def environment(tmp_path: Path, index: LocalIndex, **packages: str) -> tuple[Provisioner, Environment]:
    provisioner = stack.provisioner(tmp_path, index)
    return provisioner, provisioner.provision(stack.cell(), stack.lock(index, **packages))


def test_pytest_is_added_and_nothing_of_the_cell_moves(tmp_path: Path, made: LocalIndex) -> None:
    provisioner, built = environment(tmp_path, with_pytest(made), ray="1.0", packaging="24.0")
    added = {name: version for name, version in PYTEST.items() if name != "packaging"}
    assert add_probe_needs(built, provisioner.installer) == added
    assert stack.installed(built.python) == {"ray": "1.0", "packaging": "24.0"} | added
    assert add_probe_needs(built, provisioner.installer) == added
    again = provisioner.provision(stack.cell(), stack.lock(made, ray="1.0", packaging="24.0"))
    assert again.reused
    assert again.installed == built.installed


def test_threads_that_add_at_once(tmp_path: Path, made: LocalIndex) -> None:
    provisioner, built = environment(tmp_path, with_pytest(made), ray="1.0")
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(add_probe_needs(built, provisioner.installer))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [PYTEST] * 2


def test_a_cell_that_has_pytest_gets_nothing(tmp_path: Path, made: LocalIndex) -> None:
    provisioner, built = environment(tmp_path, with_pytest(made), ray="1.0", pytest="9.0")
    assert add_probe_needs(built, provisioner.installer) == {}


def test_more_than_pytest_is_not_added_silently(tmp_path: Path, made: LocalIndex) -> None:
    provisioner, built = environment(tmp_path, with_pytest(made, "shared"), ray="1.0")
    with pytest.raises(ToolError, match="Adding pytest changed the cell: shared"):
        add_probe_needs(built, provisioner.installer)


def test_no_pytest_that_fits(tmp_path: Path, made: LocalIndex) -> None:
    made.wheel("pytest", "9.0", ["packaging>=25"])
    provisioner, built = environment(tmp_path, made, ray="1.0", packaging="24.0")
    with pytest.raises(ProvisionError, match="No pytest fits the cell"):
        add_probe_needs(built, provisioner.installer)
    assert stack.installed(built.python) == {"ray": "1.0", "packaging": "24.0"}


def test_where_one_stands_nothing_is_installed(tmp_path: Path, made: LocalIndex) -> None:
    provisioner, built = environment(tmp_path, with_pytest(made), ray="1.0")
    standing = here(Path(sys.executable))
    assert add_probe_needs(standing) == {}, "the tests themselves run by pytest"
    bare = replace(built, lock="")
    with pytest.raises(ToolError, match="nothing is installed there by this tool"):
        add_probe_needs(bare)
    with pytest.raises(ToolError, match="nothing is installed there by this tool"):
        add_probe_needs(bare, provisioner.installer)
    assert "pytest" not in stack.installed(built.python)
