"""Family `dependencies`: what lies under the stack, what it forgets to ask for, and ranges without overlap."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest
from kit import Ended, Trial, run_python
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

SUBJECTS = Path(__file__).with_name("subjects")


def _subject(name: str, *argv: str, timeout: float = 250.0) -> Ended:
    return run_python(str(SUBJECTS / "dependencies_calls.py"), name, *argv, timeout=timeout)


def _measured(ended: Ended) -> dict[str, Any]:
    """Return what a subject measured; one that did not get so far is red with its own last line."""
    lines = [line for line in ended.stdout.splitlines() if line.startswith("MEASURED ")]
    assert lines, ended.last_line or ended.fault
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("MEASURED "))
    return found


def _asked(distribution: str, package: str) -> SpecifierSet | None:
    """Return what an installed distribution asks of a package without any extra, None where it asks for nothing."""
    found = None
    for line in importlib.metadata.requires(distribution) or []:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) != package:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found = (found or SpecifierSet()) & requirement.specifier
    return found


def _disjoint(first: SpecifierSet, second: SpecifierSet) -> bool:
    """Return whether no version satisfies both; ranges meet at a bound of one of them, or just above it."""
    bounds = [Version(item.version.removesuffix(".*")) for item in [*first, *second]]
    tried = [*bounds, *(Version(f"{bound.public}.1") for bound in bounds), Version("0"), Version("99999")]
    return not any(first.contains(version) and second.contains(version) for version in tried)


@pytest.mark.failure("verl09-vllm032-transformers-conflict")
@pytest.mark.needs("verl", "vllm")
def test_transformers_ranges_meet(trial: Trial) -> None:
    """Some transformers satisfies both verl and vLLM, by their installed metadata."""
    verl, vllm = (_asked(name, "transformers") or SpecifierSet() for name in ("verl", "vllm"))
    trial.observed(_disjoint(verl, vllm), f"verl wants transformers{verl}, vLLM transformers{vllm}")


@pytest.mark.failure("verl08-numpy1-vllm0141-opencv")
@pytest.mark.needs("verl", "vllm", "opencv-python-headless>=4.13")
def test_numpy_ranges_meet(trial: Trial) -> None:
    """Some NumPy satisfies verl and the OpenCV that vLLM wants, by their installed metadata."""
    verl, opencv = (_asked(name, "numpy") or SpecifierSet() for name in ("verl", "opencv-python-headless"))
    wanted = _asked("vllm", "opencv-python-headless")
    if wanted is not None and wanted.contains("4.12.0"):
        trial.observed(False, f"vLLM takes an OpenCV for NumPy 1: opencv-python-headless{wanted}")
    else:
        trial.observed(_disjoint(verl, opencv), f"verl wants numpy{verl}, OpenCV numpy{opencv}")


@pytest.mark.failure("resolver-picks-transformers5-for-old-pairs")
@pytest.mark.needs("verl", "transformers")
def test_transformers_unbounded(trial: Trial) -> None:
    """Verl's metadata, and those of an installed vLLM, name a newest transformers."""
    version = str(trial.cell.version("transformers"))
    ranges = {name: _asked(name, "transformers") for name in ("verl", "vllm") if trial.cell.version(name)}
    if any(wanted is not None and not wanted.contains(version) for wanted in ranges.values()):
        pytest.skip("this set was not resolved: its transformers is one that the metadata exclude")
    free = all(wanted is None or wanted.contains("99999") for wanted in ranges.values())
    told = {name: str(wanted or "any") for name, wanted in ranges.items()}
    wrong = free and Version(version) >= Version("5")
    trial.observed(wrong, f"transformers {version} is let in by {told}", **told)


@pytest.mark.failure("verl-stable-dockerfile-transformers-override")
@pytest.mark.needs("vllm", "transformers")
def test_transformers_floor(trial: Trial) -> None:
    """The installed transformers is one that the installed vLLM asks for."""
    wanted, version = _asked("vllm", "transformers"), str(trial.cell.version("transformers"))
    outside = wanted is not None and not wanted.contains(version, prereleases=True)
    trial.observed(outside, f"vllm wants transformers{wanted}, installed is {version}")


@pytest.mark.failure("vllm018-ray-not-declared")
@pytest.mark.needs("vllm")
def test_ray_declared(trial: Trial) -> None:
    """vLLM asks for ray."""
    wanted = _asked("vllm", "ray")
    trial.observed(wanted is None, f"vllm asks for ray: {wanted}")


@pytest.mark.failure("verl09-transferqueue-undeclared")
@pytest.mark.needs("verl>=0.9", "torch", "tensordict", "ray")
@pytest.mark.limit(300)
def test_transfer_queue(trial: Trial) -> None:
    """Verl's default trainer imports with what verl's metadata ask for."""
    installed = trial.cell.version("TransferQueue")
    if installed is not None:
        pytest.skip(f"TransferQueue {installed} is installed; the failure is about its absence")
    trial.judge(_subject("transfer-queue"))


@pytest.mark.failure("tensordict-014-nontensor-semantics")
@pytest.mark.tier("behave")
@pytest.mark.needs("tensordict>=0.6.2", "torch")
@pytest.mark.limit(300)
def test_non_tensor_data(trial: Trial) -> None:
    """What is no tensor stays one value when two batches are joined."""
    found = _measured(_subject("non-tensor"))
    trial.observed(not found["scalar"], f"joined, it reads as {found['read']}", **found)


@pytest.mark.failure("tensordict-lt-062-forkingpickler")
@pytest.mark.needs("tensordict", "torch")
@pytest.mark.limit(300)
def test_tensordict_imports(trial: Trial) -> None:
    """Tensordict imports with the installed torch."""
    trial.judge(run_python("-c", "import tensordict", timeout=250))


@pytest.mark.failure("pyarrow-nested-chunked")
@pytest.mark.tier("behave")
@pytest.mark.needs("pyarrow>=15")
@pytest.mark.limit(300)
def test_large_nested_column(trial: Trial, tmp_path: Path) -> None:
    """A row group with more than 2 GiB of nested text can be read."""
    free = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) // 1024**2
    if free < 10:
        pytest.skip(f"needs 10 GiB of memory, {free} GiB are free")
    ended = _subject("chunked", str(tmp_path))
    if ended.code is not None and ended.code < 0:
        pytest.skip(f"killed by signal {-ended.code} for its memory")
    if "requires NumPy 2" in ended.text:
        pytest.skip("pyarrow does not import here: pyarrow26-needs-numpy2")
    trial.judge(ended)


@pytest.mark.failure("pyarrow26-needs-numpy2")
@pytest.mark.needs("pyarrow", "numpy")
def test_pyarrow_imports(trial: Trial) -> None:
    """Pyarrow imports with the installed NumPy."""
    trial.judge(run_python("-c", "import pyarrow, pyarrow.parquet", timeout=100))


@pytest.mark.failure("torchvision-026-read-video")
@pytest.mark.needs("torchvision", "torch")
@pytest.mark.limit(300)
def test_read_video(trial: Trial) -> None:
    """Torchvision reads a video, as qwen_vl_utils falls back to."""
    ended = run_python("-c", "import torchvision; torchvision.io.read_video", timeout=250)
    if "torchvision::nms does not exist" in ended.text:
        pytest.skip("torchvision does not import here: it was built for another torch")
    trial.judge(ended)


@pytest.mark.failure("torchvision-other-torch")
@pytest.mark.needs("torchvision", "torch")
@pytest.mark.limit(300)
def test_torchvision_imports(trial: Trial) -> None:
    """Torchvision imports with the installed torch."""
    trial.judge(run_python("-c", "import torchvision", timeout=250))


@pytest.mark.parametrize("call", ["hydra", "interpolate"])
@pytest.mark.failure("antlr-runtime-not-4-9")
@pytest.mark.tier("behave")
@pytest.mark.needs("hydra-core", "omegaconf", "antlr4-python3-runtime")
def test_antlr(trial: Trial, call: str) -> None:
    """Hydra parses an override, and OmegaConf an interpolation."""
    trial.judge(_subject(call))


@pytest.mark.failure("setuptools-82-pkg-resources")
@pytest.mark.needs("verl>=0.4.0,<0.5.0", "setuptools")
@pytest.mark.limit(240)
def test_verl_asks_for_pkg_resources(trial: Trial) -> None:
    """The first thing that verl 0.4 imports is a module that setuptools has given up."""
    trial.judge(run_python("-c", "import verl", timeout=200))
