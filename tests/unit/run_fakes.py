"""Fakes of the probes, of progress and of results, for the tests of store, run, grid and reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from packaging.version import Version

from matrix.cell import Axis, Cell, Deviation, Pin
from matrix.errors import MatrixError
from matrix.finding import Effect, Finding, Kind, Site
from matrix.job import Versions
from matrix.observe import Observation, Question
from matrix.tier import Outcome, Tier

AT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def cell(deviation: Deviation | None = None, reason: str = "", as_of: datetime | None = None, **axes: str) -> Cell:
    """Return a cell of these versions, e.g. `cell(verl="0.9.1", flash_attn="2.8.3")`."""
    pins = tuple(
        Pin(axis=Axis(name.replace("_", "-")), version=Version(version)) for name, version in axes.items() if version
    )
    return Cell(pins=pins, deviation=deviation, reason=reason, as_of=as_of)


def finding(
    effect: Effect = Effect.BREAKS_IMPORT,
    symbol: str = "vllm.a.b",
    *,
    feature: str = "",
    certain: bool = True,
    message: str = "",
    moved_to: tuple[str, ...] = (),
) -> Finding:
    return Finding(
        kind=Kind.NAME_MISSING,
        effect=effect,
        target="vllm",
        symbol=symbol,
        used_at=Site(path="verl/utils/x.py", line=7),
        found_at=Site(path="vllm/y.py", line=3) if moved_to else None,
        moved_to=moved_to,
        feature=feature,
        certain=certain,
        message=message or f"{symbol} is not there",
        entry_points=("verl.trainer.main_ppo",),
        exception="ImportError" if effect.is_break else "",
    )


def observation(
    name: str,
    tier: Tier,
    outcome: Outcome = Outcome.OK,
    reason: str = "",
    *,
    detail: Mapping[str, object] | None = None,
    findings: Sequence[Finding] | None = None,
    at: datetime = AT,
    reads: Mapping[str, str] | None = None,
    probe: str = "",
    machine: str = "static",
) -> Observation:
    held = dict(detail or {})
    if findings is not None:
        held["findings"] = [item.to_json() for item in findings]
    return Observation(
        question=Question(
            cell=name, probe=probe or tier.value, tier=tier, tool="0.1.0", reads=reads or {"uv": "0.13.9"}
        ),
        outcome=outcome,
        reason=reason or ("" if outcome is Outcome.OK else f"{outcome} for a reason"),
        detail=held,
        machine=machine,
        at=at,
        seconds=0.5,
    )


@dataclass
class FakeResolver:
    """Answers from `outcomes` by cell name (`ok` where it is silent); an error there is raised. `asked` counts."""

    outcomes: Mapping[str, Outcome | MatrixError | BaseException] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    reads: Mapping[str, str] = field(default_factory=lambda: {"uv": "0.13.9"})
    asked: list[str] = field(default_factory=list)
    at: datetime = AT

    def question(self, cell: Cell) -> Question:
        return Question(cell=cell.name, probe="uv", tier=Tier.RESOLVE, tool="0.1.0", reads=self.reads)

    def resolve(self, cell: Cell) -> Observation:
        self.asked.append(cell.name)
        outcome = self.outcomes.get(cell.name, Outcome.OK)
        if isinstance(outcome, BaseException):
            raise outcome
        reason = "" if outcome is Outcome.OK else f"{cell.name} is in {outcome}"
        detail: dict[str, object] = {"versions": dict(self.versions), "lock": "x" * 5000}
        return Observation(question=self.question(cell), outcome=outcome, reason=reason, detail=detail, at=self.at)

    def resolve_many(self, cells: Sequence[Cell]) -> Iterator[Observation]:
        for one in cells:
            yield self.resolve(one)


@dataclass
class FakeChecker:
    """Answers from `outcomes` by the version of vllm; in a worker process it also writes `log` lines to a file."""

    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    errors: Mapping[str, MatrixError] = field(default_factory=dict)
    pause_s: float = 0.0
    log: Path | None = None
    asked: list[str] = field(default_factory=list)
    at: Callable[[], datetime] = lambda: AT

    def question(self, cell: Cell, versions: Versions) -> Question:
        reads = {axis.value: str(version) for axis, version in versions.items()}
        return Question(cell=cell.name, probe="surface", tier=Tier.SURFACE, tool="0.1.0", reads=reads)

    def observe(self, cell: Cell, versions: Versions) -> Observation:
        self.asked.append(cell.name)
        time.sleep(self.pause_s)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{cell.name}\n")
        vllm = str(versions.get(Axis.VLLM, ""))
        if vllm in self.errors:
            raise self.errors[vllm]
        outcome = self.outcomes.get(vllm, Outcome.OK)
        effect = {Outcome.BROKEN: Effect.BREAKS_IMPORT, Outcome.DEGRADED: Effect.BREAKS_FEATURE}.get(outcome)
        found = [] if effect is None else [finding(effect, feature="lora" if outcome is Outcome.DEGRADED else "")]
        return Observation(
            question=self.question(cell, versions),
            outcome=outcome,
            reason="" if outcome is Outcome.OK else f"vllm {vllm} lacks vllm.a.b",
            detail={
                "findings": [item.to_json() for item in found],
                "versions": {a.value: str(v) for a, v in versions.items()},
            },
            at=self.at(),
        )


@dataclass
class Heard:
    """Progress that remembers what it was told."""

    lines: list[str] = field(default_factory=list)
    interrupt_at: int | None = None

    def start(self, tier: Tier, total: int) -> None:
        self.lines.append(f"start {tier} {total}")

    def done(self, tier: Tier, cell: str, outcome: Outcome, *, reused: bool) -> None:
        self.lines.append(f"{tier} {cell} {outcome}{' reused' if reused else ''}")
        if self.interrupt_at is not None and len(self.lines) > self.interrupt_at:
            self.interrupt_at = None
            raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.lines.append(f"note {text}")

    def end(self, tier: Tier) -> None:
        self.lines.append(f"end {tier}")
