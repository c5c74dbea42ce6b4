"""What the records of known failures say of a set: which speak against it, which need a condition, which it avoids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.failure import Applies, Failure, Severity
from matrix.observe import Observation
from matrix.pins.policy import Policy

_LACKS = re.compile(
    r"([A-Za-z][\w.-]*)(?: \([\w-]+\))? (?:is )?not installed|no ([A-Za-z][\w-]*) (?:\([\w-]+\) )?in the environment"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the records say of a set under a policy, each the gravest first.

    Attributes:
        against: failures that any run, or a feature in use, meets: they speak against the set.
        present: those of the same kind that the present set has as well: changing to this one mends nothing there, and
            spoils nothing.
        conditional: those that an ordinary run meets under a condition that the versions do not decide.
        elsewhere: those of features that are not in use, and of low severity.
        avoided: those that the present set has and this one has not, of whatever feature.
    """

    against: tuple[Failure, ...] = ()
    present: tuple[Failure, ...] = ()
    conditional: tuple[Failure, ...] = ()
    elsewhere: tuple[Failure, ...] = ()
    avoided: tuple[Failure, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data (evidence.schema.json: `known_failures`)."""
        return {
            "against": [told(item) for item in self.against],
            "present": [told(item) for item in self.present],
            "conditional": [told(item) for item in self.conditional],
            "elsewhere": [item.id for item in self.elsewhere],
            "avoided": [told(item) for item in self.avoided],
        }


def told(failure: Failure) -> dict[str, str]:
    """Return a failure as plain JSON data, short."""
    return {
        "id": failure.id,
        "title": failure.title,
        "severity": failure.severity.value,
        "confidence": failure.confidence.value,
        "needs": failure.needs,
        "feature": failure.feature,
    }


def complete(locked: Mapping[str, Version], python: str, failures: Iterable[Failure]) -> dict[str, Version | None]:
    """Return the versions of a whole lock, with the packages that records name and the lock lacks as absent."""
    named = {package for failure in failures for package in failure.affects}
    return {**dict.fromkeys(named), **locked, "python": Version(python)}


def weigh(
    failures: Sequence[Failure],
    versions: Mapping[str, Version | None],
    policy: Policy,
    *,
    present: Mapping[str, Version | None] | None = None,
    observations: Iterable[Observation] = (),
    whole: bool = False,
) -> Kept:
    """Return what the records say of a set of versions.

    A failure whose own probe did not see it on this very cell is not kept, nor one that needs a package to be missing
    which is there. One whose trigger a probe brings about says nothing of the versions and is left out. What applies
    is decided by the versions alone: where one is not known, the failure is not kept, as nothing says that it is. Of a
    `whole` set what it lacks is known too, and a condition that is no more than such a lack, or a default, is met.
    """
    unseen = {str(item.detail.get("failure")) for item in observations if item.detail.get("seen") == "absent"}
    against: list[Failure] = []
    kept_on: list[Failure] = []
    conditional: list[Failure] = []
    elsewhere: list[Failure] = []
    avoided: list[Failure] = []
    for failure in sorted(failures, key=lambda item: list(Severity).index(item.severity)):
        if failure.planted:
            continue
        kept = holds(failure, versions) is Applies.YES and failure.id not in unseen
        if not kept:
            if present is not None and holds(failure, present) is Applies.YES:
                avoided.append(failure)
        elif failure.severity is Severity.LOW:
            elsewhere.append(failure)
        elif policy.touches(failure) or (failure.default_path and _unconditional(failure, versions, whole)):
            had = present is not None and holds(failure, present) is Applies.YES
            (kept_on if had else against).append(failure)
        elif failure.default_path:
            conditional.append(failure)
        else:
            elsewhere.append(failure)
    return Kept(
        against=tuple(against),
        present=tuple(kept_on),
        conditional=tuple(conditional),
        elsewhere=tuple(elsewhere),
        avoided=tuple(avoided),
    )


def _unconditional(failure: Failure, versions: Mapping[str, Version | None], whole: bool) -> bool:
    """Return whether an ordinary run meets it whatever else holds: no condition, or none that is left open."""
    if not failure.needs:
        return True
    if not whole or not _LACKS.search(failure.needs) or _met(failure, versions):
        return False
    parts = [part for part in re.split(r",? and ", failure.needs) if not _LACKS.search(part)]
    return all("(the default)" in part for part in parts)


def holds(failure: Failure, versions: Mapping[str, Version | None]) -> Applies:
    """Return whether a failure is to be expected of these versions, with the packages that it needs to be missing."""
    return Applies.NO if _met(failure, versions) else failure.applies(versions)


def _met(failure: Failure, versions: Mapping[str, Version | None]) -> bool:
    """Return whether a package whose absence the failure needs is there."""
    lacking = {str(canonicalize_name(one or other)) for one, other in _LACKS.findall(failure.needs)}
    return any(versions.get(package) is not None for package in lacking)
