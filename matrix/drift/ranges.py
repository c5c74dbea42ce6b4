"""Whether two ranges have a version in common, without knowing which versions there are."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version


@functools.lru_cache(maxsize=8192)
def disjoint(one: SpecifierSet, other: SpecifierSet) -> bool:
    """Return whether no version at all satisfies both ranges (PEP 440, pre-releases count as versions).

    Exact for ranges of `==`, `<=`, `<`, `>`, `>=`, `!=`, `~=` and wildcards: the allowed versions only change at the
    bounds that are written, so it is enough to try those, and one on each side of them. `===` compares text, and makes
    nothing disjoint here.
    """
    if any(part.operator == "===" for part in (*one, *other)):
        return False
    both = one & other
    return not any(both.contains(version, prereleases=True) for version in _tried(both))


def _tried(both: SpecifierSet) -> Iterator[Version]:
    """Yield a version for every stretch between the bounds, the bounds themselves, and both ends."""
    yield Version("0.dev0")
    yield Version("0")
    yield Version("99999999")
    for part in both:
        yield from _around(part)


def _around(part: Specifier) -> Iterator[Version]:
    bare = part.version.removesuffix(".*")
    try:
        bound = Version(bare)
    except InvalidVersion:
        return
    yield bound
    yield Version(f"{_release(bound)}.dev0") if not bound.is_prerelease else bound
    release = list(bound.release)
    # Above a bound, below the next that anybody could write: a longer release, a post-release, the next number.
    yield _of(bound.epoch, [*release, 0, 0, 1])
    if not bound.is_devrelease and not bound.is_postrelease:
        yield Version(f"{bound.public}.post1")
    yield _of(bound.epoch, [*release[:-1], release[-1] + 1])
    if release[-1]:
        yield _of(bound.epoch, [*release[:-1], release[-1] - 1, 99999999])


def _release(version: Version) -> str:
    epoch = f"{version.epoch}!" if version.epoch else ""
    return epoch + ".".join(str(number) for number in version.release)


def _of(epoch: int, release: list[int]) -> Version:
    return Version((f"{epoch}!" if epoch else "") + ".".join(str(number) for number in release))
