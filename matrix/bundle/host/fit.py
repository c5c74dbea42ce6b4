"""Whether the host is the one that a bundle was made for."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Sequence

from matrix.bundle.host.arrival import Json


def same(wanted: str, found: str) -> bool:
    """Return whether two versions are one release; a local suffix (`+cu130`) that one of them lacks counts nothing."""
    left, right = wanted.lower(), found.lower()
    if "+" not in left or "+" not in right:
        left, right = left.partition("+")[0], right.partition("+")[0]
    return re.sub(r"(\.0)+$", "", left) == re.sub(r"(\.0)+$", "", right)


def host_version(name: str) -> str | None:
    """Return the version of a distribution that the running Python has, None where it has none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def host_glibc() -> str:
    """Return the version of the C library, "" where it is not glibc."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        text = ""
    return text.partition(" ")[2]


def misfits(target: Json, cells: Sequence[Json]) -> list[str]:
    """Return a line for each thing in which this host is not what the bundle is for."""
    lines = []
    python = ".".join(platform.python_version_tuple()[:2])
    if (sys.implementation.name, python) != ("cpython", target["python"]):
        what = f"{sys.executable} is {sys.implementation.name} {python}"
        lines.append(f"the bundle is for CPython {target['python']}; {what}")
    if platform.machine() != target["machine"]:
        lines.append(f"the bundle is for {target['machine']}; this machine is {platform.machine()}")
    glibc = host_glibc()
    if numbers(glibc) < numbers(target["glibc"]):
        held = f"glibc {glibc}" if glibc else "another C library"
        lines.append(f"the bundle needs glibc {target['glibc']} or newer; this system has {held}")
    wanted = {name: version for cell in cells for name, version in cell["host"].items()}
    for name, version in sorted(wanted.items()):
        found = host_version(name)
        if found is None or not same(version, found):
            lines.append(f"{name} {version} was said to be here (--have); {sys.executable} has {found or 'none'}")
    return lines


def numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, () where there is none."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
