"""The installation check: the packages of the stack import, verl's trainer is there, vLLM and the devices answer.

Corrects the four steps that guides to verl give. Their `from verl.trainer.ppo import PPOTrainer` works in no release:
what every command starts is `verl.trainer.main_ppo`. `from vllm import LLM` works with versions that verl's own gate
refuses (tests/compat/test_import.py: rollout-gate). A version that imports says little where the files come from
somewhere else, so each package must be the one that is installed, and verl must be there once.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import Cell, run_python

_PACKAGES = ("torch", "transformers", "tensordict", "ray", "vllm", "verl")
_WHERE = "import json, {0}; print(json.dumps([str(getattr({0}, '__version__', '')), {0}.__file__ or '']))"
_DEVICES = """
import json, torch
said = {"torch": torch.__version__, "cuda_built": torch.version.cuda, "cuda": torch.cuda.is_available(),
        "count": torch.cuda.device_count(), "bf16_cpu": torch.zeros(2, dtype=torch.bfloat16).sum().item() == 0}
try:
    from verl.utils import device
except ImportError:
    said["verl"] = None
else:
    said["verl"] = device.get_device_name()
print(json.dumps(said))
"""
_RAY_DEVICES = """
import json, ray
ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR")
print(json.dumps(ray.cluster_resources()))
ray.shutdown()
"""


def _answer(code: str, timeout: float) -> Any:
    """Return the JSON that a child prints last; fails with its last words where it does not."""
    ended = run_python("-c", code, timeout=timeout)
    assert ended.code == 0, ended.last_line or ended.fault
    return json.loads(ended.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("package", _PACKAGES)
@pytest.mark.hurts("", default_path=True)
@pytest.mark.limit(260)
def test_package_imports(cell: Cell, package: str) -> None:
    """Step 1 and 3: it imports, from the environment's own site-packages, and is the version that is installed."""
    installed = cell.version(package)
    if installed is None:
        pytest.skip(f"{package} is not installed in this cell")
    version, file = _answer(_WHERE.format(package), 240)
    assert file, f"{package} is imported from a folder without __init__.py: another folder shadows it"
    assert _is_installed(package, Path(file)), f"{package} is shadowed by {file}"
    if version:
        assert version.split("+")[0] == installed.split("+")[0], f"{package}: imports {version}, installed {installed}"


def _is_installed(package: str, file: Path) -> bool:
    """Return whether a module's file lies where packages are installed, or where an editable install points to."""
    if any(file.is_relative_to(folder) for folder in _site_folders()):
        return True
    return any(file.is_relative_to(folder) for folder in _editable(package))


def _site_folders() -> list[Path]:
    return [Path(text) for text in dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"),
                                                  *site.getsitepackages()])]  # fmt: skip


def _editable(package: str) -> Iterator[Path]:
    """Yield the folders that a package is installed from in place (PEP 610)."""
    for found in importlib.metadata.distributions(name=package):
        text = found.read_text("direct_url.json")
        if text:
            url = json.loads(text)
            if url.get("dir_info", {}).get("editable") and url["url"].startswith("file://"):
                yield Path(url["url"].removeprefix("file://"))


@pytest.mark.needs("verl")
@pytest.mark.hurts("", default_path=True)
def test_trainer_is_there() -> None:
    """Step 2: the trainer that every command starts is `verl.trainer.main_ppo`; found without importing it."""
    found = _answer(
        "import importlib.util, json; print(json.dumps(bool(importlib.util.find_spec('verl.trainer.main_ppo'))))", 120
    )
    assert found, (
        "verl has no verl.trainer.main_ppo: an installation that is cut short, or another package of that name"
    )


@pytest.mark.needs("torch")
@pytest.mark.hurts("", default_path=True)
@pytest.mark.limit(150)
def test_devices_of_torch_and_verl_agree(cell: Cell, record_property: Any) -> None:
    """Step 4: torch computes, and verl takes the device that torch has."""
    said = _answer(_DEVICES, 130)
    record_property("devices", said)
    assert said["bf16_cpu"], "torch does not compute in bfloat16 on this CPU"
    assert said["count"] >= int(said["cuda"]), f"torch says that CUDA is there and counts {said['count']} devices"
    # Without any device verl 0.9 says `cuda` all the same, and nothing fails before a worker is placed.
    if said["cuda"] and said["verl"] is not None:
        assert said["verl"] == "cuda", f"torch has CUDA, and verl takes {said['verl']}"


@pytest.mark.needs("ray", "torch")
@pytest.mark.loopback
@pytest.mark.hurts("", default_path=True)
@pytest.mark.limit(150)
def test_ray_sees_the_gpus_that_torch_sees(record_property: Any) -> None:
    """Step 4: Ray counts as many GPUs as torch, or no worker is ever given one."""
    count = _answer("import json, torch; print(json.dumps(torch.cuda.device_count()))", 60)
    seen = _answer(_RAY_DEVICES, 80)
    record_property("resources", {name: value for name, value in seen.items() if not name.startswith("node:")})
    assert seen.get("GPU", 0) == count, f"Ray counts {seen.get('GPU', 0):.0f} GPUs, torch {count}"


@pytest.mark.needs("verl")
@pytest.mark.hurts("", default_path=True)
def test_verl_is_there_once(record_property: Any) -> None:
    """No leftover verl: one distribution, one folder, no egg-link and no path file that leads to another."""
    dists = [
        (str(found.version), str(found.locate_file(""))) for found in importlib.metadata.distributions(name="verl")
    ]
    record_property("distributions", dists)
    assert len(dists) == 1, f"verl is installed {len(dists)} times: {', '.join(sorted(v for v, _ in dists))}"
    left = sorted(_leftovers())
    assert not left, f"leftovers of another verl: {', '.join(left)}"


def _leftovers() -> Iterator[str]:
    """Yield what would lead an import, or somebody who reads the folder, to another verl than the one installed."""
    edited = list(_editable("verl"))
    for folder in dict.fromkeys(Path(text) for text in [*sys.path, *map(str, _site_folders())] if text):
        if not folder.is_dir() or folder.name == "compat":
            continue
        yield from (path.name for path in folder.glob("verl.egg-link"))
        yield from (path.name for path in folder.glob("~erl*"))
        yield from (path.name for path in folder.glob("verl-*.egg-info") if not edited)
        for path in folder.glob("*.pth"):
            yield from _led_away(path, edited)
        if (folder / "verl").is_dir() and folder not in _site_folders() and folder not in edited:
            yield str(folder / "verl")


def _led_away(path: Path, edited: list[Path]) -> Iterator[str]:
    """Yield the folders with a verl in them that a path file adds to sys.path and no installation accounts for."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if re.match(r"import[ \t]", line) or not line.strip() or line.startswith("#"):
            continue
        target = path.parent / line.strip()
        if (target / "verl" / "__init__.py").is_file() and target not in edited:
            yield f"{path.name} -> {target}"
