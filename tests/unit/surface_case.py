"""Checks of a few lines of verl against a few lines of its targets, for the tests of the surface tier."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent

from packaging.version import Version

from matrix.finding import Finding, Kind
from matrix.surface import entrypoints
from matrix.surface.report import SurfaceReport, check_surface
from matrix.surface.subject import Subject
from matrix.surface.world import World
from tests.unit.source_trees import SourceArchive, archives

MAIN = "verl/trainer/main_ppo.py"
SERVER = "verl/workers/rollout/vllm_rollout/vllm_async_server.py"
PACKAGES = (
    "verl/__init__.py",
    "verl/trainer/__init__.py",
    "verl/workers/__init__.py",
    "verl/workers/rollout/__init__.py",
    "verl/workers/rollout/vllm_rollout/__init__.py",
)


def subject_of(sources: Mapping[str, str], version: str = "0.9.1") -> Subject:
    """Return a subject with these modules; the packages on the way to the usual entry points are there."""
    members = dict.fromkeys(PACKAGES, "") | dict(sources)
    return Subject.load(SourceArchive(members, f"verl-{version}.whl"), Version(version))


def report_of(
    verl: Mapping[str, str] | str,
    targets: Mapping[str, str],
    versions: Mapping[str, str] | None = None,
    *,
    release: str = "0.9.1",
) -> SurfaceReport:
    """Return the report; a single text is the module `verl.trainer.main_ppo`, a target version is 1.0 by default."""
    sources = {MAIN: verl} if isinstance(verl, str) else verl
    found = archives(targets)
    pins = {root: Version((versions or {}).get(root, "1.0")) for root in found}
    world = World(found, pins, absent=entrypoints.absent_packages())
    return check_surface(subject_of(sources, release), world, pins)


def lines(report: SurfaceReport, *, absent: bool = False) -> list[str]:
    """Return `effect kind symbol` of every finding, a `?` behind the effect of an uncertain one."""
    return [line(item) for item in report.findings if absent or item.kind is not Kind.PACKAGE_ABSENT]


def line(finding: Finding) -> str:
    """Return a finding as `effect kind symbol`."""
    return f"{finding.effect}{'' if finding.certain else '?'} {finding.kind} {finding.symbol}"


def body(text: str) -> str:
    """Return a function `main` with these statements, as an ordinary run calls it."""
    inner = "\n".join(f"    {item}" for item in dedent(text).strip().splitlines())
    return f"def main(config=None):\n{inner}\n"
