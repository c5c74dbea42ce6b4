"""A host that cannot talk to itself: noticed once, by trying, and the probes that need it say so at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.probing.lines import NOT_BEGUN
from tests.unit.kit_import import COMPAT, fresh_kit

_kit = pytest.fixture(autouse=True)(fresh_kit)
PROBES = """
import pytest
from kit.measure import on_both

@pytest.mark.loopback
def test_a():
    assert True

def test_b():
    assert True

@pytest.mark.parametrize("device", on_both())
def test_over_gloo_or_on_a_gpu(device):
    assert True
"""


def test_this_host_reaches_itself() -> None:
    from kit.loopback import no_loopback

    assert no_loopback() == ""


def test_an_address_that_nothing_answers_is_told() -> None:
    from kit.loopback import no_loopback

    # For documentation (RFC 5737): no device has it.
    told = no_loopback("192.0.2.1")
    assert told.startswith("the loopback device is not up: 192.0.2.1 cannot be reached (")
    assert no_loopback("192.0.2.1") is told, "asked once"


@pytest.mark.parametrize(("up", "ended"), [(True, "4 passed"), (False, "2 passed, 2 skipped")])
def test_only_probes_that_need_it_are_skipped(tmp_path: Path, up: bool, ended: str) -> None:
    for name in ("conftest.py", "pytest.ini", "kit"):
        (tmp_path / name).symlink_to(COMPAT / name)
    (tmp_path / "test_x.py").write_text(PROBES, encoding="utf-8")
    # A plug-in that makes the one fact other than it is here; all else is the probes' own conftest.
    planted = "import kit.loopback\nkit.loopback.no_loopback = lambda: %r\n" % ("" if up else "lo is down")
    (tmp_path / "planted.py").write_text(planted, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "planted", "-c", str(tmp_path / "pytest.ini")]
    told = tmp_path / "told.jsonl"
    env = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "VERL_MATRIX_TRIALS": str(told)}
    seen = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60, check=False,
    )  # fmt: skip
    assert ended in seen.stdout, seen.stdout + seen.stderr
    assert ("lo is down" in seen.stdout) is not up
    first = next(line for line in map(json.loads, told.read_text().splitlines()) if line["event"] == "end")
    # It is no answer: once the device is up the probe is asked again.
    assert first["detail"] == ({} if up else {NOT_BEGUN: True})
