"""The inside of a stage: parts of a script that are measured, may fail, and are written down at once.

A script that a stage runs says `with section("sleep") as out: out["freed"] = 1`. Each section is a line of JSON when
it begins and another when it ends, in the file that `VERL_MATRIX_SECTIONS` names, so that a death later loses nothing;
what a section raises is written and kept from the sections after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLE = "VERL_MATRIX_SECTIONS"
KEPT = 30_000
"""So many characters of what was written to standard error and output while a section ran are kept where it fails."""
_READ, _LINE = 4_000_000, 2_000


@contextlib.contextmanager
def section(name: str, *, stop: bool = False) -> Iterator[dict[str, Any]]:
    """Give the dictionary that becomes the section's data (plain JSON: bytes and seconds); a fault is swallowed.

    With `stop` the fault is raised again once it is written: what follows cannot go on without this section.
    """
    out: dict[str, Any] = {}
    written = [_size(2), _size(1)]
    _say({"event": "begin", "section": name, "at": time.time()})
    start = time.monotonic()
    try:
        yield out
    except BaseException as error:
        log = "".join(_since(number, size) for number, size in zip((1, 2), reversed(written), strict=True))
        _say({"event": "fault", "section": name, "seconds": _spent(start), "data": out, "log": log,
              "traceback": traceback.format_exc()[-KEPT:]})  # fmt: skip
        if stop or not isinstance(error, Exception):
            raise
    else:
        _say({"event": "end", "section": name, "seconds": _spent(start), "data": out})


def _spent(start: float) -> float:
    return round(time.monotonic() - start, 3)


def _say(line: dict[str, Any]) -> None:
    path = os.environ.get(VARIABLE)
    if path:
        # One write of one line: a process that is killed leaves whole lines behind.
        with Path(path).open("ab") as file:
            file.write(json.dumps(line, default=str).encode() + b"\n")
            file.flush()


def _size(number: int) -> int:
    """Return how much has been written to a descriptor that is a file, -1 where it is none."""
    with contextlib.suppress(OSError):
        about = os.fstat(number)
        if stat.S_ISREG(about.st_mode):
            return about.st_size
    return -1


def shortened(text: str) -> str:
    """Return the end of a text whose longest lines are cut: some libraries print a whole vocabulary in one."""
    lines = (line if len(line) <= _LINE else f"{line[:_LINE]} [cut]" for line in text.split("\n"))
    return "\n".join(lines)[-KEPT:]


def _since(number: int, size: int) -> str:
    """Return the end of what was written to a descriptor after it had `size` bytes."""
    now = _size(number)
    if size < 0 or now <= size:
        return ""
    with contextlib.suppress(OSError), Path(f"/proc/self/fd/{number}").open("rb") as file:
        file.seek(max(size, now - _READ))
        return shortened(file.read().decode("utf-8", "replace"))
    return ""
