"""How well tier `surface` foretells tier `import`: ``python tests/accuracy/agreement.py [--store DIR] [--wrong]``.

Reads the store of --home, or the one that --store names (reports/evidence/cpu is shipped): for each cell that was
installed and probed, what the surface check said of each of verl's entry points (`ok`, `breaks`, `absent`), and what
its import came to there. A pair counts where both have an answer at the same versions; one that was not tried, or that
fails for want of a whole package or of a GPU's library, or by a package outside the axes, is aside: that is a fact
about the environment, not about the versions that are compared. A *hit* is an import that fails and was foretold;
precision is hits of what was foretold, recall hits of what failed.

The recorded imports of other environments are measured by score.py; here the tool's own observations are.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from matrix.cell import Axis  # noqa: E402
from matrix.home import Home  # noqa: E402
from matrix.observe import Observation  # noqa: E402
from matrix.store import Store  # noqa: E402
from matrix.tier import Outcome, Tier  # noqa: E402

PROBE = "compat/test_import.py::test_entry_point_imports["
ASIDE = re.compile(
    r"No module named '\w+'|version None not supported|pyarrow requires NumPy"
    r"|lib(?:cuda|cudart|nccl|cupti|nv\w+)[\w.-]*\.so"
)
"""What a failed import says where a package is absent, the machine has no GPU, or packages outside the axes clash."""
ROOTS = frozenset({axis.module for axis in Axis})
ENOUGH = 60
"""So many pairs make the two figures worth reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An entry point of a cell: what was foretold, what came, and the exception or the finding behind it."""

    cell: str
    entry: str
    foretold: str
    real: str
    why: str = ""

    @property
    def kind(self) -> str:
        """Return `hit`, `false alarm`, `miss`, `right` (nothing foretold, nothing failed) or `aside`."""
        if "aside" in (self.foretold, self.real):
            return "aside"
        kinds = {("breaks", "breaks"): "hit", ("breaks", "ok"): "false alarm", ("ok", "breaks"): "miss"}
        return kinds.get((self.foretold, self.real), "right")


def pairs(store: Iterable[Observation]) -> Iterator[Pair]:
    """Yield a pair for each entry point that was imported in a cell of which there is a surface check."""
    surfaces: dict[str, Observation] = {}
    imports: dict[tuple[str, str], Observation] = {}
    for item in store:
        question = item.question
        if question.tier is Tier.SURFACE:
            surfaces[question.cell] = item
        elif question.tier is Tier.IMPORT and question.probe.startswith(PROBE):
            imports[question.cell, question.probe.removeprefix(PROBE).rstrip("]")] = item
    for (cell, entry), seen in sorted(imports.items()):
        surface = surfaces.get(cell)
        states = surface.detail.get("entry_points") if surface is not None else None
        if isinstance(states, Mapping):
            yield Pair(cell=cell, entry=entry, foretold=_foretold(states, entry), real=_real(seen), why=seen.reason)


def _foretold(states: Mapping[str, object], entry: str) -> str:
    state = str(states.get(entry, "aside"))
    return "aside" if state == "absent" else state


def _real(seen: Observation) -> str:
    outside = re.search(r"cannot import name '\w+' from '(\w+)", seen.reason)
    if outside is not None and outside[1] not in ROOTS:
        return "aside"
    if seen.outcome is Outcome.UNTESTED or ASIDE.search(seen.reason):
        return "aside"
    return "ok" if seen.outcome is Outcome.OK else "breaks"


def table(found: list[Pair]) -> list[str]:
    """Return the lines of the table: a row a cell, then all together with precision and recall."""
    kinds = ("hit", "false alarm", "miss", "right", "aside")
    lines = ["| cell | " + " | ".join(kinds) + " |", "| --- |" + " ---: |" * len(kinds)]
    for cell in dict.fromkeys(pair.cell for pair in found):
        counts = Counter(pair.kind for pair in found if pair.cell == cell)
        lines.append(f"| {cell} | " + " | ".join(str(counts[kind]) for kind in kinds) + " |")
    counts = Counter(pair.kind for pair in found)
    lines.append("| all | " + " | ".join(str(counts[kind]) for kind in kinds) + " |")
    hits, counted = counts["hit"], len(found) - counts["aside"]
    lines += [
        "",
        f"{counted} pairs of {len(dict.fromkeys(pair.cell for pair in found))} cells"
        + ("" if counted >= ENOUGH else f"; fewer than {ENOUGH}, so this says little"),
        f"precision {_share(hits, hits + counts['false alarm'])}, recall {_share(hits, hits + counts['miss'])}",
    ]
    return lines


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f} ({part} of {whole})" if whole else "undefined (0 of 0)"


def main(argv: list[str] | None = None) -> int:
    """Print the table; 0, also where nothing is stored yet, which is said."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--home", help="where the observations are (VERL_MATRIX_HOME)")
    parser.add_argument("--store", type=Path, help="an evidence store instead, as evidence.py makes one")
    parser.add_argument("--wrong", action="store_true", help="list every pair that disagrees")
    options, _ = parser.parse_known_args(argv)
    found = list(pairs(Store(options.store or Home.find(options.home).store)))
    if not found:
        sys.stdout.write("agreement: no cell was installed and probed yet; `nox -s compat -- CELL` does that\n")
        return 0
    sys.stdout.write("\n".join(table(found)) + "\n")
    for pair in found:
        if pair.kind in ("false alarm", "miss") or (options.wrong and pair.kind == "hit"):
            sys.stdout.write(f"{pair.kind}: {pair.cell} {pair.entry}: {pair.why or 'imports'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
