"""What the tests of provisioning share: an index of tiny wheels, locks of it, cells for the Python that runs them."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

from packaging.version import Version

from matrix.cell import Axis, Cell, Pin, Platform
from matrix.home import Home
from matrix.provision import Provisioner
from matrix.provision.builds import BuildTable
from matrix.provision.inventory import take_inventory
from matrix.resolve.process import surroundings
from matrix.resolve.solver import find_uv
from tests.unit.local_index import LocalIndex

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PLATFORM = Platform(python=PYTHON)
BACKEND = """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    info = "{name}-{version}.dist-info"
    with zipfile.ZipFile(folder + "/{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("{name}.py", "")
        wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "/RECORD", "")
    return "{name}-{version}-py3-none-any.whl"
"""


def cell(version: str = "1.0", axis: Axis = Axis.RAY, *, variant: str = "", platform: Platform = PLATFORM) -> Cell:
    return Cell(pins=(Pin(axis=axis, version=Version(version), variant=variant),), platform=platform)


def lock(index: LocalIndex, hashes: Mapping[str, str] | None = None, /, **packages: str) -> str:
    """Return a lock of these releases as uv writes it; `hashes` replaces a package's digest."""
    blocks = [f'lock-version = "1.0"\ncreated-by = "uv"\nrequires-python = ">={PYTHON}"\n']
    for name, version in sorted(packages.items()):
        wheels, sdist = [], ""
        for path in sorted((index.folder / name).glob(f"{name}-{version}[-.]*")):
            body = path.read_bytes()
            digest = (hashes or {}).get(name) or hashlib.sha256(body).hexdigest()
            file = f'{{ url = "{path.absolute().as_uri()}", size = {len(body)}, hashes = {{ sha256 = "{digest}" }} }}'
            if path.suffix == ".whl":
                wheels.append(file)
            else:
                sdist = f"sdist = {file}\n"
        line = f"wheels = [{', '.join(wheels)}]\n" if wheels else ""
        blocks.append(f'name = "{name.replace("_", "-")}"\nversion = "{version}"\n{sdist}{line}')
    return "\n[[packages]]\n".join(blocks)


def index(folder: Path) -> LocalIndex:
    """Return an index with `ray` 1.0, 1.1 and `shared` 1.0."""
    made = LocalIndex(folder)
    made.wheel("ray", "1.0")
    made.wheel("ray", "1.1")
    made.wheel("shared", "1.0")
    return made


def source_only(made: LocalIndex, name: str, version: str, backend: str = BACKEND) -> None:
    """Add a package that has to be built, by a backend that lies in its sdist and needs nothing installed."""
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    info = f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n"
    body = backend.replace("{name}", name).replace("{version}", version)
    made.sdist(name, version, {"PKG-INFO": info, "pyproject.toml": project, "backend.py": body})


def provisioner(tmp: Path, made: LocalIndex, *, keep: bool = True, **more: object) -> Provisioner:
    options: dict[str, object] = {
        "home": Home(store=tmp / "home" / "store", cache=tmp / "home" / "cache"),
        "index_url": made.url,
        "keep": keep,
        # One for all tests of a run: in a new one uv asks every interpreter about itself again, which takes longest.
        "uv_cache": tmp.parent / "uv",
        "patience_s": 20.0,
        "timeout_s": 60.0,
        "find_python": lambda _: Path(sys.executable),
        "builds": BuildTable(builds=(), backends={}),
    }
    return Provisioner(**(options | more))  # type: ignore[arg-type]


def installed(python: Path) -> dict[str, str]:
    return dict(take_inventory(python, surroundings()).packages)


def fake_uv(folder: Path, body: str) -> Path:
    """Return a uv that runs `body` (sh) first, with the real one as $UV, and then is the real one."""
    path = folder / "uv"
    folder.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nUV={find_uv()}\n{dedent(body)}\nexec $UV "$@"\n')
    path.chmod(0o755)
    return path


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    import time

    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def shelved(folder: Path) -> list[str]:
    """Return what lies on the shelf, latches left out."""
    root = folder / "home" / "cache" / "environments"
    return sorted(path.name for path in root.iterdir() if not path.name.endswith((".latch", ".needs")))
