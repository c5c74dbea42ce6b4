"""The records of known failures in the reports: what each says, how it stands by what was observed, whom it affects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from matrix.cell import Axis
from matrix.failure import Applies, Failure
from matrix.observe import Observation
from matrix.standing import Stand, stands
from matrix.tier import Outcome, Tier
from matrix.verdict import Verdict


def failures_document(failures: Sequence[Failure], verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return every record (schema.json: `failure`) and how it stands by the observations behind these verdicts."""
    observations = [item for verdict in verdicts for item in verdict.evidence if item.question.tier.is_deep]
    return [_record(stand) for stand in stands(failures, sorted(observations, key=lambda item: item.at))]


def _record(stand: Stand) -> dict[str, Any]:
    failure = stand.failure
    return {
        **failure.to_json(),
        "affects": {name: _range(wanted) for name, wanted in failure.affects.items()},
        "mended": {name: _range(wanted) for name, wanted in failure.mended.items()},
        "planted": failure.planted,
        "standing": stand.standing.value,
        "told": stand.told,
        "seen": [_seen(item) for item in stand.seen],
    }


def _range(wanted: SpecifierSet) -> str:
    """Return a range with its lower end first, as people write it; a set of clauses has no order of its own."""
    return ",".join(str(clause) for clause in sorted(wanted, key=lambda one: (one.operator[0] == "<", str(one))))


def _seen(item: Observation) -> dict[str, Any]:
    return {
        "cell": item.question.cell,
        "tier": item.question.tier.value,
        "machine": item.machine,
        "at": item.at.isoformat(),
        "shipped": item.shipped,
        "reason": item.reason,
    }


class Matcher:
    """Which failures apply to a cell; what several cells ask alike is worked out once."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        """Match against `failures`; `untried` remembers which features no probe of a set of probes is about."""
        self.failures = tuple(failures)
        self.untried: dict[frozenset[tuple[str, str]], tuple[str, ...]] = {}
        self._known: dict[tuple[str, tuple[Version | None, ...]], Applies] = {}

    def known(self, verdict: Verdict) -> list[Failure]:
        """Return the failures that apply for certain to the versions that the cell has.

        These are its pins and, where it resolves, the axes of its lock; an axis that a lock does not hold is absent.
        """
        held = installed(verdict)
        return [failure for failure in self.failures if self._applies(failure, held) is Applies.YES]

    def _applies(self, failure: Failure, installed: Mapping[str, Version | None]) -> Applies:
        if any(package not in installed for package in failure.affects):
            return Applies.UNKNOWN
        key = (failure.id, tuple(installed[package] for package in failure.affects))
        if key not in self._known:
            self._known[key] = failure.applies(installed)
        return self._known[key]


def installed(verdict: Verdict) -> dict[str, Version | None]:
    """Return what is known to be in the cell, by package; python has the version X.Y.0 of the cell's platform."""
    found: dict[str, Version | None] = {"python": Version(f"{verdict.cell.platform.python}.0")}
    resolved = verdict.observation(Tier.RESOLVE)
    if resolved is not None and resolved.outcome is Outcome.OK:
        versions = resolved.detail.get("versions")
        held = versions if isinstance(versions, Mapping) else {}
        found |= {axis.value: None for axis in Axis if held and axis.value not in held}
        found |= {str(name): version for name, text in held.items() if (version := _version(text)) is not None}
    return found | {pin.axis.value: pin.version for pin in verdict.cell.pins}


def _version(text: object) -> Version | None:
    try:
        return Version(str(text))
    except InvalidVersion:
        return None
