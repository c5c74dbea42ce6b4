"""Which wheel an installer takes on a platform, and why none fits (PEP 425, 513, 571, 599, 600)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from matrix.cell import Platform
from matrix.index import File, Release

# The glibc that each legacy manylinux name stands for: PEP 513, PEP 571, PEP 599.
_LEGACY = {(2, 5): "manylinux1", (2, 12): "manylinux2010", (2, 17): "manylinux2014"}
# Wheels older than manylinux2014 exist for the two x86 machines only (PEP 599 added the others).
_OLDEST_GLIBC = {"x86_64": 5, "i686": 5}
_SHOWN = 6


@lru_cache(maxsize=32)
def tag_ranks(platform: Platform) -> dict[str, int]:
    """Return every tag that fits the platform with its rank, 0 the most specific, as CPython's pip orders them."""
    from packaging.tags import compatible_tags, cpython_tags

    version = tuple(int(part) for part in platform.python.split("."))[:2]
    interpreter = "cp" + "".join(str(part) for part in version)
    systems = list(_systems(platform))
    tags = [*cpython_tags(version, [interpreter], systems), *compatible_tags(version, interpreter, systems)]
    ranks: dict[str, int] = {}
    for tag in tags:
        ranks.setdefault(str(tag), len(ranks))
    return ranks


def _systems(platform: Platform) -> Iterator[str]:
    major, minor = (int(part) for part in platform.glibc.split(".")[:2])
    for floor in range(minor, _OLDEST_GLIBC.get(platform.machine, 17) - 1, -1):
        yield f"manylinux_{major}_{floor}_{platform.machine}"
        if (legacy := _LEGACY.get((major, floor))) is not None:
            yield f"{legacy}_{platform.machine}"
    yield f"linux_{platform.machine}"


@lru_cache(maxsize=16384)
def expand(tags: str) -> tuple[str, ...]:
    """Return the single tags that a compressed set stands for: `py2.py3-none-any` → `py2-none-any`, `py3-none-any`."""
    interpreters, abis, systems = tags.lower().split("-")
    return tuple(
        f"{interpreter}-{abi}-{system}"
        for interpreter in interpreters.split(".")
        for abi in abis.split(".")
        for system in systems.split(".")
    )


@lru_cache(maxsize=4096)
def python_fits(requires_python: str, python: str) -> bool:
    """Return whether Requires-Python lets this python in; one that cannot be parsed lets every python in, as in pip.

    A python given as `3.12` stands for 3.12.0, as it does for uv and for the markers (`Platform.environment`).
    """
    try:
        specifiers = SpecifierSet(requires_python)
    except InvalidSpecifier:
        return True
    return specifiers.contains(f"{python}.0", prereleases=True)


def rank(file: File, platform: Platform) -> int | None:
    """Return how well the wheel fits, 0 best; None for an sdist and for a wheel that no installer takes there."""
    if not file.is_wheel or not python_fits(file.requires_python, platform.python):
        return None
    ranks = tag_ranks(platform)
    return min((ranks[tag] for tag in expand(file.tags) if tag in ranks), default=None)


def build_number(filename: str) -> tuple[int, str]:
    """Return the wheel's build tag as it sorts, e.g. (2, "abc") for `x-1.0-2abc-py3-none-any.whl`; (0, "") for none."""
    parts = filename.split("-")
    if len(parts) != 6:
        return (0, "")
    digits = parts[2][: len(parts[2]) - len(parts[2].lstrip("0123456789"))]
    return (int(digits or 0), parts[2][len(digits) :])


def best_wheel(release: Release, platform: Platform) -> File | None:
    """Return the wheel that an installer takes on the platform, else None.

    The most specific tag wins, then the highest build tag; a yanked wheel is taken only when the whole release is
    yanked, as installers do for an exact pin (PEP 592).
    """
    whole = release.yanked is not None
    fitting = [
        (-place, build_number(file.filename), file)
        for file in release.files
        if (whole or file.yanked is None) and (place := rank(file, platform)) is not None
    ]
    return max(fitting, key=lambda item: (*item[:2], item[2].filename))[2] if fitting else None


def why_no_wheel(release: Release, platform: Platform) -> str:
    """Return, in one line, why `best_wheel` finds nothing; "" where it finds a wheel."""
    if best_wheel(release, platform) is not None:
        return ""
    name = f"{release.project} {release.version}"
    wheels = [file for file in release.files if file.is_wheel]
    if not wheels:
        return f"{name} has no wheel, only an sdist"
    usable = [file for file in wheels if release.yanked is not None or file.yanked is None]
    if not usable:
        return f"{name} has yanked wheels only"
    by_tags = [file for file in usable if any(tag in tag_ranks(platform) for tag in expand(file.tags))]
    if by_tags:
        wanted = ", ".join(sorted({file.requires_python for file in by_tags}))
        return f"{name} needs python {wanted}; this platform has python {platform.python}"
    return _why_tags(name, usable, platform)


def _why_tags(name: str, wheels: list[File], platform: Platform) -> str:
    """Return which part of the tags is in the way: the system when the interpreter fits, else the interpreter."""
    fitting = {tag.rsplit("-", 1)[0] for tag in tag_ranks(platform)}
    single = [tag for file in wheels for tag in expand(file.tags)]
    systems = {tag.rsplit("-", 1)[1] for tag in single if tag.rsplit("-", 1)[0] in fitting}
    if not systems:
        interpreters = {tag.rsplit("-", 1)[0] for tag in single}
        return f"{name} has wheels only for {_listed(interpreters)}; this platform has python {platform.python}"
    same_machine = {system for system in systems if system.endswith(platform.machine) and "linux" in system}
    glibc = {system for system in same_machine if "manylinux" in system}
    if glibc:
        return f"{name} has wheels only for {_listed(glibc)}; this platform has glibc {platform.glibc}"
    return f"{name} has wheels only for {_listed(systems)}; this platform is Linux on {platform.machine}"


def _listed(tags: set[str]) -> str:
    shown = sorted(tags)[:_SHOWN]
    return ", ".join(shown) + (f" and {len(tags) - _SHOWN} more" if len(tags) > _SHOWN else "")
