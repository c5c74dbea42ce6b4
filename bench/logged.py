"""Lines of verl's file logger, read one by one: steps with their numbers, and what is wrong with which line.

A line is `{"step": N, "data": {…}}` (verl/utils/tracking.py, from 0.6.0); NaN is `NaN` up to 0.7.0 (json) and `null`
since (orjson), where the infinities are `null` too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matrix.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is wrong with a line of a log, or with what lines say together (line 0)."""

    line: int
    what: str

    def __str__(self) -> str:
        """Return it with the line, where it is one line's."""
        return f"line {self.line}: {self.what}" if self.line else self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """The numbers of one line; `values` holds NaN where the log does."""

    line: int
    step: int
    values: Mapping[str, float]


def read_lines(path: Path) -> tuple[tuple[Logged, ...], tuple[Trouble, ...]]:
    """Return the lines of a file that hold numbers, and what is wrong with the others.

    Raises:
        DataError: the file cannot be read, or is empty.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(path, "", f"cannot be read: {error}", then="The run may not have come to a step.") from error
    if not raw.strip():
        raise DataError(path, "", "is empty", then="The run did not come to the end of a step; its log says why.")
    found: list[Logged] = []
    troubles: list[Trouble] = []
    pieces = raw.split(b"\n")
    for number, piece in enumerate(pieces, 1):
        if not piece.strip():
            continue
        try:
            found.append(_logged(piece, number, troubles))
        except ValueError as error:
            half = number == len(pieces)
            troubles.append(
                Trouble(line=number, what="it is half a line: writing stopped in it" if half else str(error))
            )
    return tuple(found), tuple(troubles)


def _logged(piece: bytes, number: int, troubles: list[Trouble]) -> Logged:
    """Return the numbers of a line; raises ValueError that says why there are none."""
    try:
        whole = json.loads(piece)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    step, data = (whole.get("step"), whole.get("data")) if isinstance(whole, dict) else (None, None)
    if not isinstance(step, int) or isinstance(step, bool) or not isinstance(data, dict):
        raise ValueError("it is not of the form {step, data}")
    values: dict[str, float] = {}
    odd = []
    for name, value in data.items():
        if value is None:
            values[name] = math.nan
        elif isinstance(value, int | float):
            values[name] = float(value)
        else:
            odd.append(name)
    if odd:
        troubles.append(Trouble(line=number, what=f"not numbers: {', '.join(sorted(odd)[:5])}"))
    return Logged(line=number, step=step, values=values)
