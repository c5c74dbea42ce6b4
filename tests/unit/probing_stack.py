"""A folder of probes that misbehave in every way there is, and what runs them: real pytest in the Python of the tests.

The conftest and the kit are those of tests/compat, so what is tested is the pair that really runs.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path

from packaging.specifiers import SpecifierSet

from matrix.failure import Confidence, Failure, Family, Fingerprint, Reach, Severity
from matrix.finding import Effect
from matrix.probing.machine import Machine
from matrix.probing.prober import Prober
from matrix.probing.session import Limits
from matrix.provision.environment import Environment
from matrix.store import Store

COMPAT = Path(__file__).parents[1] / "compat"
AT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
QUICK = Limits(memory=600 * 2**20, grace_s=0.5, start_s=60, leave_s=0.3, whole_s=120, poll_s=0.02, weigh_s=0.05)
CPU = Machine(architecture="x86_64", cores=2, memory_gib=8)

PLAIN = """
import pytest

@pytest.mark.hurts("", default_path=True)
def test_passes(record_property):
    record_property("measured", 3)

@pytest.mark.hurts("", default_path=True)
def test_fails():
    assert 1 == 2, "one is not two"

def test_fails_in_a_feature():
    raise ImportError("no such thing")

@pytest.mark.needs("no-such-package>=1")
def test_is_about_another_package():
    pass

@pytest.mark.tier("gpu")
@pytest.mark.gpus(2)
def test_on_gpus():
    pass

@pytest.mark.tier("behave")
def test_behaves(cell):
    assert cell.version("pytest")
    import os
    assert "PYTHONPATH" not in os.environ and "SECRET_OF_THE_CALLER" not in os.environ
    assert os.environ["HOME"].startswith("/tmp/vm-")
"""
RECORDS = """
import pytest

@pytest.mark.failure("yes-seen")
def test_yes_seen(trial):
    trial.judge("Traceback\\nValueError: it is broken")

@pytest.mark.failure("no-seen")
def test_no_seen(trial):
    trial.judge("Traceback\\nValueError: it is broken")

@pytest.mark.failure("yes-seen")
def test_yes_absent(trial):
    trial.judge(None)

@pytest.mark.failure("no-seen")
def test_no_absent(trial):
    trial.observed(False, "fine", gap=0.1, nan=float("nan"))

@pytest.mark.failure("yes-seen")
def test_other(trial):
    trial.judge("Traceback\\nKeyError: something else")

@pytest.mark.failure("yes-seen")
def test_judges_nothing(trial):
    pass

@pytest.mark.failure("quiet")
def test_quiet(trial):
    trial.observed(True, "wrong by 3", gap=3)
"""
FAULTS = """
import os, signal, subprocess, sys, time
import pytest

def test_before():
    pass

def test_dies():
    os.kill(os.getpid(), signal.SIGSEGV)

@pytest.mark.limit(0.5)
def test_hangs():
    time.sleep(600)

def test_eats_memory():
    held = []
    while True:
        held.append(bytearray(b"x" * (20 << 20)))
        time.sleep(0.02)

def test_leaves_a_daemon():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)

def test_exits():
    os._exit(3)

def test_after():
    pass
"""


def failure(name: str, *, effect: Effect = Effect.BREAKS_FEATURE, affects: str = ">=1", **more: object) -> Failure:
    """Return a record about the distribution `thing`."""
    values: dict[str, object] = {
        "id": name,
        "family": Family.VLLM,
        "title": f"title of {name}",
        "affects": {"thing": SpecifierSet(affects)},
        "fingerprint": Fingerprint(exception="ValueError", pattern="it is broken"),
        "cause": "because",
        "way_out": ("thing<1",),
        "sources": ("a/b#1",),
        "testable": Reach.IMPORT,
        "confidence": Confidence.MEASURED,
        "severity": Severity.HIGH,
        "effect": effect,
        "checked": date(2026, 11, 30),
        "feature": "rollout",
        "probe": "test_records.py::test_yes_seen",
        **more,
    }
    return Failure(**values)  # type: ignore[arg-type]


FAILURES = {
    item.id: item
    for item in (
        failure("yes-seen"),
        failure("no-seen", affects="<1"),
        failure("quiet", effect=Effect.DEGRADES, feature="", default_path=True, silent=True),
    )
}


def folder_of(path: Path, **files: str) -> Path:
    """Return a folder of probes with these files and the real conftest, kit and settings."""
    path.mkdir(parents=True, exist_ok=True)
    for name in ("conftest.py", "pytest.ini"):
        shutil.copy(COMPAT / name, path / name)
    shutil.copytree(COMPAT / "kit", path / "kit", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in files.items():
        (path / f"{name}.py").write_text(text, encoding="utf-8")
    return path


def environment(installed: Mapping[str, str] | None = None) -> Environment:
    """Return the environment of the tests themselves, said to hold `installed`."""
    held = {"thing": "2.0", "pytest": "8.0"} if installed is None else dict(installed)
    return Environment(
        cell="a", python=Path(sys.executable), python_version="3.11.7", installed=held, lock="sha256:1", reused=True
    )


def prober(home: Path, folder: Path, **more: object) -> Prober:
    """Return a prober over a folder of probes, with short limits and a machine that has no GPU."""
    frozen: Callable[[Path], Mapping[str, str]] = lambda python: {"thing": "2.0"}  # noqa: E731
    values: dict[str, object] = {
        "store": Store(home / "store"),
        "cache": home / "cache",
        "failures": FAILURES,
        "equip": lambda environment: None,
        "frozen": frozen,
        "limits": QUICK,
        "machine": CPU,
        "folder": folder,
        "clock": lambda: AT,
        **more,
    }
    return Prober(**values)  # type: ignore[arg-type]


def running(marker: str) -> list[str]:
    """Return the processes whose command line holds `marker`, this one left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if marker in words:
                found.append(words)
    return found
