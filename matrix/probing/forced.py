"""Forced failures on a GPU: each dies in its own way while it holds memory, and what it leaves is measured.

They run as probes do, through the same watch, guard and pool, so that what is proved of them holds for every probe.
"""

from __future__ import annotations

import fnmatch
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matrix.errors import NothingRanError
from matrix.probing import processes
from matrix.probing.folder import probes_folder
from matrix.probing.lines import EndedProbe, PlannedProbe
from matrix.probing.placement import Fingerprint, Placement
from matrix.probing.session import Limits, Surroundings, collect
from matrix.probing.surroundings import Scratch, scratch, surroundings

FILE = "gpu_failures/forced_failures.py"
TRIALS = "VERL_MATRIX_TRIALS"
_KILLED = ("test_hangs", "test_takes")
"""Beginnings of the names of those that the watch itself must end."""
_UNSEEN = "test_killed_while_it_starts"
"""Such a one may die before it holds anything."""
SEEN_MIB = 32
"""So much more in use than before at least: a failure that held nothing proves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """What came of one forced failure; memory in MiB, times in seconds.

    Attributes:
        name: which one.
        told: how it ended, as the watch tells it: `passed` (the failure came as it was meant to), `failed`, `killed`,
            `untested`.
        reason: one line, "" where there is nothing to say.
        as_meant: whether the failure happened, with memory held.
        left_mib: what was left on the GPU for good; None where that was not measured.
        detail: the rest that was measured.
    """

    name: str
    told: str
    reason: str = ""
    as_meant: bool = False
    left_mib: int | None = None
    settle_s: float = 0.0
    peak_mib: int = 0
    seconds: float = 0.0
    detail: dict[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return {
            "name": self.name,
            "told": self.told,
            "reason": self.reason,
            "as_meant": self.as_meant,
            "left_mib": self.left_mib,
            "settle_s": self.settle_s,
            "peak_mib": self.peak_mib,
            "seconds": round(self.seconds, 3),
            "detail": self.detail,
        }


def force(
    python: Path,
    *,
    patterns: Sequence[str] = (),
    placement: Placement | None = None,
    limits: Limits | None = None,
    tell: Callable[[Forced], None] = lambda forced: None,
) -> list[Forced]:
    """Return what came of each forced failure whose name matches a pattern (all for none), in the Python given.

    `tell` hears each as it ends.

    Raises:
        ToolError: pytest cannot be started there, or no GPU be granted.
        NothingRanError: no name matches, or there is no GPU.
    """
    found: list[Forced] = []
    placed = placement or Placement.here()
    processes.end_orphans()
    with scratch() as made:
        given = _given(python, made, limits or Limits(grace_s=1.0, leave_s=1.0))
        planned = _chosen(collect(given, given.folder / FILE)[0], patterns)
        reason = next(filter(None, (placed.lacking(probe) for probe in planned)), "")
        if reason or not planned:
            raise NothingRanError("No failure was forced.", why=reason or "No name matches.")

        def ended(end: EndedProbe) -> None:
            found.append(_forced(end))
            tell(found[-1])

        version = platform.python_version()
        placed.run(given, planned, ended, _nobody, python=version, installed={})
    return found


def _given(python: Path, made: Scratch, limits: Limits) -> Surroundings:
    token, trials = processes.new_token(), made.root / "trials.jsonl"
    env = surroundings(python, made, {TRIALS: str(trials), processes.TAG: token})
    return Surroundings(
        python=python, folder=probes_folder(), env=env, work=made.work, trials=trials, token=token, limits=limits
    )


def _chosen(planned: Sequence[PlannedProbe], patterns: Sequence[str]) -> list[PlannedProbe]:
    return [
        probe
        for probe in planned
        if not patterns or any(fnmatch.fnmatchcase(_name(probe.test), f"*{pattern}*") for pattern in patterns)
    ]


def _name(test: str) -> str:
    return test.partition("::")[2]


def _nobody(fingerprint: Fingerprint) -> None:
    """Take the fingerprint and do nothing: it is no observation of a cell."""


def _forced(end: EndedProbe) -> Forced:
    detail = dict(end.detail)
    left, peak, base = (detail.get(f"gpu_{word}_mib") for word in ("left", "peak", "base"))
    name = _name(end.test)
    rose = peak - base if isinstance(peak, int) and isinstance(base, int) else 0
    meant = end.outcome == ("killed" if name.startswith(_KILLED) else "passed")
    seen = rose >= SEEN_MIB or name.startswith(_UNSEEN)
    reason = end.reason
    if meant and not seen:
        reason = f"held {rose} MiB where it should have held {SEEN_MIB} at least"
    return Forced(
        name=name,
        told=end.outcome,
        reason=reason,
        as_meant=meant and seen,
        left_mib=left if isinstance(left, int) else None,
        settle_s=_number(detail.get("gpu_settle_s")),
        peak_mib=peak if isinstance(peak, int) else 0,
        seconds=end.seconds,
        detail=detail,
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
