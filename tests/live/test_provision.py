"""Real environments of small cells, from the live index: `python -m pytest tests/live/test_provision.py`.

Not among the unit tests: it needs the network. It downloads about 100 MB the first time (ray), and nothing of it stays
but in uv's cache.
"""

from __future__ import annotations

import subprocess

import pytest
from packaging.version import Version

from matrix.cell import Axis, Cell, Deviation, Pin
from matrix.errors import ProvisionError
from matrix.home import Home
from matrix.index.simple import SimpleIndex
from matrix.provision import Environment, Provisioner, add_probe_needs
from matrix.resolve import Resolver


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("home")
    return Home(store=folder / "store", cache=folder / "cache")


@pytest.fixture(scope="module")
def resolver(home: Home) -> Resolver:
    cache = Home.find(None).cache
    return Resolver(index=SimpleIndex.from_environment(cache_dir=cache), cache_dir=cache)


@pytest.fixture(scope="module")
def provisioner(home: Home) -> Provisioner:
    return Provisioner(home=home, uv_cache=None)


def cell(axis: Axis, version: str, *, added: tuple[str, ...] = (), no_deps: bool = False) -> Cell:
    deviation = Deviation(no_deps=True) if no_deps else None
    return Cell(pins=(Pin(axis=axis, version=Version(version)),), added=added, deviation=deviation)


def build(resolver: Resolver, provisioner: Provisioner, asked: Cell) -> Environment:
    return provisioner.provision(asked, resolver.lock(resolver.resolve(asked)))


def says(environment: Environment, code: str) -> str:
    return subprocess.check_output([environment.python, "-c", code], text=True, timeout=300).strip()


def test_ray_is_installed_imported_given_pytest_and_removed(resolver: Resolver, provisioner: Provisioner) -> None:
    environment = build(resolver, provisioner, cell(Axis.RAY, "2.55.0"))
    assert environment.installed["ray"] == "2.55.0" == says(environment, "import ray; print(ray.__version__)")
    added = add_probe_needs(environment, provisioner.installer)
    assert set(added) == {"pytest", "pluggy", "iniconfig", "pygments"}
    assert says(environment, "import pytest; print(pytest.__version__)") == added["pytest"]
    provisioner.release(environment)
    assert not environment.python.exists()


def test_a_named_build_with_its_pinned_backend(resolver: Resolver, provisioner: Provisioner) -> None:
    asked = cell(Axis.TENSORDICT, "0.10.0", added=("antlr4-python3-runtime==4.9.3",), no_deps=True)
    environment = build(resolver, provisioner, asked)
    assert environment.built == ("antlr4-python3-runtime==4.9.3",)
    assert environment.installed == {"antlr4-python3-runtime": "4.9.3", "tensordict": "0.10.0"}
    assert says(environment, "import antlr4; print(antlr4.InputStream.__name__)") == "InputStream"
    provisioner.release(environment)


def test_flash_attn_is_refused_with_the_reason(resolver: Resolver, provisioner: Provisioner) -> None:
    with pytest.raises(ProvisionError, match="nvcc") as caught:
        build(resolver, provisioner, cell(Axis.FLASH_ATTN, "2.8.3", no_deps=True))
    assert caught.value.packages == ("flash-attn",)
