"""The kit of the probes for the unit tests: importable as `kit`, anew in each of them, and gone afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

COMPAT = Path(__file__).parents[1] / "compat"


def fresh_kit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let `kit` be imported; a module makes it its fixture: ``_kit = pytest.fixture(autouse=True)(fresh_kit)``."""
    monkeypatch.syspath_prepend(str(COMPAT))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name == "kit" or name.startswith("kit."):
            del sys.modules[name]
