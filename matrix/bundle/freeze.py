"""What a host has already: the `pip freeze` of `--have`, and whether that is what a lock asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from matrix.errors import DataError

_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*==\s*([^\s;#]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """The packages of a host by canonical name, and the lines that state no version (an address, `-e`)."""

    versions: Mapping[str, str]
    passed_over: tuple[str, ...] = ()


NOTHING = Freeze(versions={})


def read_freeze(path: Path) -> Freeze:
    """Return what the `pip freeze` (or `uv pip freeze`) in `path` states; raises DataError for a file that is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(path, "", f"cannot be read: {error}", then="Write it with `pip freeze` on the host.") from error
    versions: dict[str, str] = {}
    passed_over = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        if line.startswith("#"):
            continue
        pinned = _PINNED.match(line)
        if pinned is None:
            passed_over.append(line)
            continue
        name = str(canonicalize_name(pinned[1]))
        if versions.setdefault(name, pinned[2]) != pinned[2]:
            raise DataError(path, name, f"is there twice, as {versions[name]} and {pinned[2]}")
    if not versions:
        raise DataError(path, "", "states no `name==version`", then="Write it with `pip freeze` on the host.")
    return Freeze(versions=versions, passed_over=tuple(passed_over))
