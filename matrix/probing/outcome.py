"""From how a probe ended to what its observation says, and where that contradicts the record of a known failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from packaging.version import Version

from matrix.failure import Failure
from matrix.finding import Effect
from matrix.probing.lines import EndedProbe, PlannedProbe
from matrix.tier import Outcome

REPRODUCED, ABSENT, OTHER = "reproduced", "absent", "other"


class Disagreement(StrEnum):
    """How what was seen contradicts a record; each is red, and the run exits 1 where it is asked to be strict."""

    NOT_SEEN = "predicted and not seen"
    NOT_PREDICTED = "seen and not predicted"
    OTHER = "another reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What an observation says: outcome, one line, plain JSON detail."""

    outcome: Outcome
    reason: str = ""
    detail: Mapping[str, object] = field(default_factory=dict)


def said(
    probe: PlannedProbe, ended: EndedProbe, failure: Failure | None, versions: Mapping[str, Version | None]
) -> Said:
    """Return what the end of `probe` says of the cell in which these versions are installed.

    A known failure that is seen breaks the cell where it breaks an import or any run, and else degrades the feature it
    is about; one that the probe planted does neither. A trial that fails for another reason than its record's is
    broken. A plain probe that fails breaks the
    cell where an ordinary run would meet that, and else degrades its feature. One that left processes is degraded; one
    that left memory on a GPU, for good, is broken whatever else it found.
    """
    found = _said(probe, ended, failure, versions)
    lost = ended.detail.get("gpu_left_mib")
    if not lost:
        return found
    also = f"; {found.reason}" if found.reason else ""
    reason = f"left {lost} MiB on the GPU, which did not come back{also}"
    finding = _finding(Effect.BREAKS_FEATURE, "", reason, default_path=True)
    return Said(outcome=Outcome.BROKEN, reason=reason, detail={**found.detail, "findings": [finding]})


def _said(
    probe: PlannedProbe, ended: EndedProbe, failure: Failure | None, versions: Mapping[str, Version | None]
) -> Said:
    if ended.outcome == "untested":
        return Said(outcome=Outcome.UNTESTED, reason=ended.reason or "skipped without a reason", detail=ended.detail)
    if failure is not None:
        found = _trial(probe, ended, failure, versions)
    elif ended.outcome == "passed":
        found = Said(outcome=Outcome.OK, detail=ended.detail)
    else:
        found = _failed(probe, ended, ended.reason)
    left = ended.detail.get("left")
    if found.outcome is Outcome.OK and isinstance(left, list):
        reason = f"left processes that had to be ended: {', '.join(map(str, left))}"
        found = _failed(probe, ended, reason, effect=Effect.DEGRADES)
    if probe.entry:
        found = Said(outcome=found.outcome, reason=found.reason, detail={**found.detail, "entry": dict(probe.entry)})
    return found


def _trial(probe: PlannedProbe, ended: EndedProbe, failure: Failure, versions: Mapping[str, Version | None]) -> Said:
    known: dict[str, object] = {
        **ended.detail,
        "failure": failure.id,
        "title": failure.title,
        "predicted": ended.predicted,
        "seen": ended.seen,
        "way_out": list(failure.way_out),
    }
    match ended.seen:
        case "reproduced":
            if ended.predicted == "no":
                known |= _disagrees(Disagreement.NOT_PREDICTED, failure, versions)
            reason = f"known failure {failure.id}: {failure.title}"
            if failure.planted:
                # Its trigger was brought about by the probe: that it shows says nothing against these versions.
                return Said(outcome=Outcome.OK, detail={**known, "planted": True})
            effect, outcome = _weighed(failure.effect, default_path=failure.default_path)
            finding = _finding(effect, failure.feature, reason, default_path=failure.default_path)
            return Said(outcome=outcome, reason=reason, detail={**known, "findings": [finding]})
        case "absent" if ended.outcome != "killed":
            if ended.predicted == "yes":
                known |= _disagrees(Disagreement.NOT_SEEN, failure, versions)
            return Said(outcome=Outcome.OK, detail=known)
        case _:
            known |= {"disagreement": Disagreement.OTHER.value, "proposal": ""}
            reason = ended.reason if failure.id in ended.reason else f"{failure.id}: {ended.reason}"
            if failure.planted:
                return Said(outcome=Outcome.UNTESTED, reason=reason, detail=known)
            finding = _finding(Effect.BREAKS_FEATURE, "", reason, default_path=True)
            return Said(outcome=Outcome.BROKEN, reason=reason, detail={**known, "findings": [finding]})


def _weighed(effect: Effect, *, default_path: bool) -> tuple[Effect, Outcome]:
    """Return the outcome of a failure that was seen; what degrades silently is no break, however often it is met."""
    if effect is Effect.GUARDED:
        return effect, Outcome.OK
    broken = effect is Effect.BREAKS_IMPORT or (effect is Effect.BREAKS_FEATURE and default_path)
    return effect, Outcome.BROKEN if broken else Outcome.DEGRADED


def _failed(probe: PlannedProbe, ended: EndedProbe, reason: str, *, effect: Effect | None = None) -> Said:
    """Return what a failed plain probe says: the cell is broken where any run would fail so."""
    importing = Effect.BREAKS_IMPORT if probe.entry else Effect.BREAKS_FEATURE
    what = effect or importing
    outcome = Outcome.BROKEN if probe.default_path and what.is_break else Outcome.DEGRADED
    reason = f"{probe.entry['module']}: {reason}" if probe.entry else reason
    finding = _finding(what, probe.feature, reason, default_path=probe.default_path)
    return Said(outcome=outcome, reason=reason or "failed", detail={**ended.detail, "findings": [finding]})


def _finding(effect: Effect, feature: str, message: str, *, default_path: bool) -> dict[str, object]:
    """Return what a verdict reads of a finding, of one that was had by running."""
    return {
        "kind": "seen",
        "effect": effect.value,
        "feature": feature,
        "default_path": default_path,
        "certain": True,
        "message": message,
    }


def _disagrees(kind: Disagreement, failure: Failure, versions: Mapping[str, Version | None]) -> dict[str, object]:
    return {"disagreement": kind.value, "proposal": proposal(kind, failure, versions)}


def proposal(kind: Disagreement, failure: Failure, versions: Mapping[str, Version | None]) -> str:
    """Return an edit of the record's ranges that would agree with what was seen in a cell of these versions.

    One observation says nothing of the releases beside it, so the edit moves an edge to this release at most: bisect
    between it and the next one that is known.
    """
    parts = []
    for package, wanted in sorted(failure.affects.items()):
        version = versions.get(package)
        if version is None:
            continue
        inside = wanted.contains(version, prereleases=True)
        if kind is Disagreement.NOT_SEEN and inside:
            parts.append(f'{package} = "{wanted},!={version}"' if str(wanted) else f'{package} = "!={version}"')
        elif kind is Disagreement.NOT_PREDICTED and not inside:
            parts.append(f'{package}: take {version} into "{wanted}"')
    if not parts:
        return ""
    joint = " or " if kind is Disagreement.NOT_SEEN else " and "
    return f"affects of {failure.id}: {joint.join(parts)}"
