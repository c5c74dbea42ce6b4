"""The measured precision of tier `surface` beyond imports: ``python tests/accuracy/review.py`` prints it.

`review.toml` holds findings drawn by `sample.py`, each judged by reading the source on both sides: `right`; `effect`
where the misfit is real but its feature, its guard or whether an ordinary run meets it is not as said; `wrong` where
there is no misfit that anybody could meet. The samples are stratified by kind, effect and release, so the rates are
those of the kinds that exist, not of how often each occurs. Intervals are Wilson's, 95 %.
"""

from __future__ import annotations

import math
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("review.toml")
JUDGEMENTS = ("right", "effect", "wrong")
Z = 1.959964


def wilson(hits: int, n: int, z: float = Z) -> tuple[float, float]:
    """Return the bounds of a proportion by Wilson (1927); (0, 1) of no observation at all."""
    if not n:
        return 0.0, 1.0
    share = hits / n
    middle = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return (middle - spread) / scale, (middle + spread) / scale


def load(path: Path = DATA) -> Sequence[Mapping[str, Any]]:
    """Return the judged findings; raises ValueError for one whose judgement is none of the three."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    judged: Sequence[Mapping[str, Any]] = data["judged"]
    for item in judged:
        if data["schema"] != 1 or item["judgement"] not in JUDGEMENTS:
            raise ValueError(f"{path}: {item['symbol']}: {item['judgement']}")
    return judged


def rate(hits: int, n: int) -> str:
    """Return a share with its denominator and interval."""
    low, high = wilson(hits, n)
    return f"{hits}/{n} = {hits / n:.3f} ({low:.3f} to {high:.3f})"


def table(judged: Sequence[Mapping[str, Any]]) -> str:
    """Return one row a sample: how many were judged how, and the two rates."""
    lines = ["| sample | judged | right | effect | wrong | a real misfit | real, and said right |", "|---" * 7 + "|"]
    for name in dict.fromkeys(str(item["sample"]) for item in judged):
        count = Counter(item["judgement"] for item in judged if item["sample"] == name)
        n = count.total()
        cells = [name, str(n), *(str(count[word]) for word in JUDGEMENTS)]
        cells += [rate(n - count["wrong"], n), rate(count["right"], n)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(load()))
