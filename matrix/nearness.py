"""What comes close to a name or version that does not exist."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

from packaging.version import Version

_SHOWN = 4


def near_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known names that look like `name`, the closest first; names that differ a lot are left out."""
    return tuple(difflib.get_close_matches(name, sorted(set(known)), n=_SHOWN, cutoff=0.6))


def near_versions(version: Version, known: Iterable[Version]) -> tuple[str, ...]:
    """Return the existing versions closest to `version`, closest first.

    Closest is the one that shares the most leading release numbers, then the smallest distance at the first number
    that differs, then a final release before a pre-release, then what lies least far above, then least far below: of
    a version that is newer than all, the newest are the closest.
    """
    ordered = sorted(known)
    # Among those below the newest come first, among those above the oldest.
    places = {other: place if other >= version else -place for place, other in enumerate(ordered)}
    closest = sorted(ordered, key=lambda other: (*_distance(version, other), places[other]))
    return tuple(str(other) for other in closest[:_SHOWN])


def _distance(wanted: Version, other: Version) -> tuple[object, ...]:
    width = max(len(wanted.release), len(other.release))
    left = wanted.release + (0,) * (width - len(wanted.release))
    right = other.release + (0,) * (width - len(other.release))
    differing = next((at for at in range(width) if left[at] != right[at]), None)
    # Numbers that are all the same share more than any that are not, however many are written.
    shared = math.inf if differing is None else differing
    gap = abs(left[differing] - right[differing]) if differing is not None else 0
    return (
        -shared,
        wanted.epoch != other.epoch,
        gap,
        other.is_prerelease,
        other < wanted,
    )
