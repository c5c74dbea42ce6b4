"""Measuring in a child: a subject imports what it is about, says `READY`, and prints its numbers as a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kit.child import Ended, run_python

READY = "READY"
SUBJECTS = Path(__file__).resolve().parent.parent / "subjects"


def run_subject(name: str, *argv: str, timeout: float = 150.0, env: Mapping[str, str] | None = None) -> Ended:
    """Return how `subjects/<name>.py *argv` ended; where its imports fail the probe is skipped, with the reason.

    That a package does not import is the matter of other probes; here it only means that nothing could be tried.
    """
    ended = run_python(str(SUBJECTS / f"{name}.py"), *argv, timeout=timeout, env=env)
    if READY not in ended.stdout:
        why = ended.last_line or f"ended with {ended.code}"
        pytest.skip(f"what {name} {' '.join(argv)} is about does not import here: {why[:300]}")
    return ended


def measure(name: str, *argv: str, timeout: float = 150.0, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the numbers of a subject that ends well; raises AssertionError where it does not."""
    ended = run_subject(name, *argv, timeout=timeout, env=env)
    assert ended.fault is None, ended.last_line or ended.fault
    found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return found
