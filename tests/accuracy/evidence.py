"""Copies what was observed of cells into an evidence store: ``python tests/accuracy/evidence.py TO [--home DIR]``.

Of each question the latest answer is taken: what was imported and done in the cells (tiers `import` and `behave`), and
what was said of the same cells without installing them (`resolve`, `surface`). What was not tried (`untested`) says
nothing and stays behind. What the evidence store holds already is not added again, so the command may be repeated.
The copy has the format of every store (matrix/store.py): agreement.py reads it with --store, the report as any other.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from matrix.home import Home  # noqa: E402
from matrix.observe import Observation  # noqa: E402
from matrix.store import Store  # noqa: E402
from matrix.tier import Outcome, Tier  # noqa: E402

DEEP = frozenset({Tier.IMPORT, Tier.BEHAVE})
STATIC = frozenset({Tier.RESOLVE, Tier.SURFACE})
_SAME = r"lib/python3\.\d+|site-packages|tests/compat|matrix/compat"
_FOLDER = r"""[^\s/"'()<>:,;]+/"""
_WHERE = re.compile(
    rf"(?<![\w.+-])/(?:(?:{_FOLDER})*?(?=(?:{_SAME})/)|(?:{_FOLDER}){{2,}}?(?=bin/python|lib/libpython))"
)
"""What stands in an absolute path before the part that is the same on every machine."""


def latest(store: Iterable[Observation]) -> list[Observation]:
    """Return the latest observation of each probe on each cell and class of machine, oldest first.

    A question whose inputs have changed since (another lock, a mended probe) is the same question here: of an evidence
    one wants to know how it is, not how it was.
    """
    found: dict[tuple[str, str, str], Observation] = {}
    for item in store:
        key = (item.question.cell, item.question.probe, item.question.reads.get("machine", ""))
        found.pop(key, None)
        found[key] = item
    return list(found.values())


def evidence(store: Iterable[Observation], cells: Iterable[str] = ("*",)) -> list[Observation]:
    """Return what is worth keeping of a store: deep answers on those cells, and the static ones of the same cells."""
    patterns = tuple(cells)
    newest = [item for item in latest(store) if any(fnmatchcase(item.question.cell, pattern) for pattern in patterns)]
    deep = [item for item in newest if item.question.tier in DEEP and item.outcome is not Outcome.UNTESTED]
    names = {item.question.cell for item in deep}
    static = [item for item in newest if item.question.tier in STATIC and item.question.cell in names]
    return sorted([*static, *deep], key=lambda item: (item.question.cell, item.question.tier.depth, item.at))


def portable(value: object) -> object:
    """Return plain JSON data without the places at which this machine keeps environments and probes."""
    match value:
        case str():
            return _WHERE.sub("", value)
        case Mapping():
            return {str(name): portable(item) for name, item in value.items()}
        case list() | tuple():
            return [portable(item) for item in value]
        case _:
            return value


def _kept(item: Observation) -> Observation:
    detail = {name: portable(value) for name, value in item.detail.items()}
    return replace(item, reason=_WHERE.sub("", item.reason), detail=detail)


def main(argv: list[str] | None = None) -> int:
    """Copy, and print how many of each tier were added; 1 where there is nothing to copy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("to", type=Path, help="folder of the evidence store, reports/evidence/cpu for one")
    parser.add_argument("--home", help="where the observations are (VERL_MATRIX_HOME)")
    parser.add_argument("--cells", action="append", metavar="GLOB", help="only cells of that name; may be repeated")
    options = parser.parse_args(argv)
    chosen = evidence(Store(Home.find(options.home).store), options.cells or ("*",))
    if not chosen:
        sys.stdout.write("evidence: no such cell was installed and probed yet; `nox -s compat -- CELL` does that\n")
        return 1
    kept = Store(options.to)
    held = {(item.question.key, item.at) for item in kept}
    new = [item for item in chosen if (item.question.key, item.at) not in held]
    kept.add(*map(_kept, new))
    counts = Counter(item.question.tier.value for item in new)
    words = ", ".join(f"{tier} {counts[tier]}" for tier in (tier.value for tier in Tier) if counts[tier]) or "nothing"
    cells = len({item.question.cell for item in chosen})
    sys.stdout.write(f"{len(chosen)} observations of {cells} cells, of them new in {options.to}: {words}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
