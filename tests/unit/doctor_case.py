"""What the tests of the doctor share: records, logs as text, and a diagnosis of them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.axes import load_axes
from matrix.doctor.checkup import Check, Grade
from matrix.doctor.diagnosis import Diagnosis, diagnose
from matrix.doctor.environment import Environment, Installed, Module
from matrix.doctor.logfile import LogFile
from matrix.doctor.scan import Scan, Scanner
from matrix.failure import Confidence, Failure, Family, Fingerprint, Reach, Severity
from matrix.finding import Effect

AXES = load_axes()


def failure(
    name: str,
    pattern: str = "",
    *,
    exception: str = "",
    affects: Mapping[str, str] | None = None,
    mended: Mapping[str, str] | None = None,
    needs: str = "",
    place: str = "",
    severity: Severity = Severity.HIGH,
    testable: Reach = Reach.IMPORT,
    default_path: bool = False,
    feature: str = "a feature",
    effect: Effect = Effect.BREAKS_IMPORT,
) -> Failure:
    return Failure(
        id=name,
        family=Family.VLLM,
        title=f"title of {name}",
        affects={package: SpecifierSet(text) for package, text in (affects or {"vllm": ">=0.9,<0.10"}).items()},
        mended={package: SpecifierSet(text) for package, text in (mended or {}).items()},
        fingerprint=Fingerprint(
            exception=exception, pattern=pattern, place=place, observable="" if pattern else "seen"
        ),
        cause=f"cause of {name}",
        way_out=(f"way out of {name}",),
        sources=("owner/repo#1",),
        testable=testable,
        confidence=Confidence.CONFIRMED,
        severity=severity,
        effect=effect,
        checked=date(2026, 11, 30),
        needs=needs,
        default_path=default_path,
        feature="" if default_path else feature,
        silent=not pattern,
        probe="test_vllm.py::test_x",
    )


CLASH = failure(
    "config-clash",
    "'aimv2' is already used by a Transformers config",
    exception="ValueError",
    affects={"vllm": ">=0.9.0,<0.10.0", "transformers": ">=4.54.0"},
    mended={"vllm": ">=0.10.0", "transformers": "<4.54.0"},
)
HIDDEN = failure(
    "inspection-hides",
    r"Model architectures \[.*\] failed to be inspected",
    exception="ValueError",
    affects={"vllm": ">=0.6.3"},
)
OOM = failure("wakes-too-early", "CUDA out of memory", exception="OutOfMemoryError", affects={"verl": "<0.4"})
RAYLET = failure("raylet-register", "Unable to register worker with raylet", affects={"ray": ">=2.9"})
SILENT = failure("says-nothing", affects={"verl": ">=0.1"})
FAILURES = (CLASH, HIDDEN, OOM, RAYLET, SILENT)


def scan(text: str | bytes, failures: Sequence[Failure] = FAILURES) -> Scan:
    data = text.encode() if isinstance(text, str) else text
    return Scanner(failures).scan(LogFile(name="a log", stream=io.BytesIO(data)))


def diagnosed(
    text: str | bytes,
    failures: Sequence[Failure] = FAILURES,
    given: Mapping[str, tuple[Version | None, str]] | None = None,
) -> Diagnosis:
    return diagnose("a log", scan(text, failures), failures, AXES, given)


def environment(
    tmp_path: Path,
    packages: Mapping[str, str] | None = None,
    *,
    requires: Mapping[str, tuple[str, ...]] | None = None,
    modules: Mapping[str, Module] | None = None,
    variables: Mapping[str, str] | None = None,
    extra: tuple[Installed, ...] = (),
) -> Environment:
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    site.mkdir(parents=True, exist_ok=True)
    distributions = tuple(
        Installed(
            name=name,
            version=Version(version),
            where=site / f"{name}-{version}.dist-info",
            requires=(requires or {}).get(name, ()),
        )
        for name, version in (packages or {}).items()
    )
    return Environment(
        python=Version("3.12.1"),
        executable=tmp_path / "bin" / "python",
        purelib=site,
        path=("", str(site)),
        folder=tmp_path,
        distributions=(*distributions, *extra),
        modules=modules or {},
        variables=variables or {},
    )


def grades(checks: Iterable[Check]) -> list[tuple[Grade, str]]:
    """Return the grade and the matter of each check."""
    return [(check.grade, check.what) for check in checks]


def only(checks: Iterable[Check]) -> Check:
    """Return the one check there is."""
    (found,) = checks
    return found
