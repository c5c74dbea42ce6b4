"""Records for tests: one failure with every field, and a way to change some."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

from packaging.specifiers import SpecifierSet

from matrix.failure import Confidence, Failure, Family, Fingerprint, Reach, Severity
from matrix.finding import Effect

AIMV2 = Failure(
    id="inspect-aimv2",
    family=Family.INSPECT,
    title="vLLM registers aimv2 twice",
    affects={"vllm": SpecifierSet(">=0.9,<0.10"), "transformers": SpecifierSet(">=4.54")},
    mended={"vllm": SpecifierSet(">=0.10"), "transformers": SpecifierSet("<4.54")},
    fingerprint=Fingerprint(
        exception="ValueError", pattern="'aimv2' is already used", example="ValueError: 'aimv2' is already used by X"
    ),
    cause="both register it",
    way_out=("take a newer vLLM",),
    sources=("vllm-project/vllm#22178",),
    testable=Reach.IMPORT,
    confidence=Confidence.MEASURED,
    severity=Severity.HIGH,
    effect=Effect.BREAKS_IMPORT,
    checked=date(2026, 11, 30),
    default_path=True,
    probe="test_inspect.py::test_aimv2",
)


def changed(**fields: Any) -> Failure:
    """Return the sample with other values in some fields; ranges may be given as text."""
    for name in ("affects", "mended"):
        if name in fields:
            fields[name] = {package: SpecifierSet(text) for package, text in fields[name].items()}
    return replace(AIMV2, **fields)
