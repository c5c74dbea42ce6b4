"""How well tier `surface` predicts what was recorded: ``python tests/accuracy/score.py [PAIR…]`` prints two tables.

Each recorded module is predicted from the wheels alone (read from the index, kept in the cache) and compared with what
its import did. Which packages the environment lacked is taken from the record: that is a fact about the environment,
not about versions. A failure that comes from such a package, from the missing GPU or from a package outside the axes is
no misfit; it counts `aside`, and so does a target's own circle of imports. `inside` says how many of the failures are
met inside a target, by vLLM importing transformers; they are hits and misses like the others.

``--wrong`` lists every disagreement with the recorded message.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from matrix.cell import Axis, Platform  # noqa: E402
from matrix.home import Home  # noqa: E402
from matrix.index import Archive, PackageIndex  # noqa: E402
from matrix.index.simple import SimpleIndex  # noqa: E402
from matrix.surface import entrypoints  # noqa: E402
from matrix.surface.answer import Presence  # noqa: E402
from matrix.surface.factstore import FactStore  # noqa: E402
from matrix.surface.report import failing_imports  # noqa: E402
from matrix.surface.subject import Subject  # noqa: E402
from matrix.surface.world import World  # noqa: E402

Record = dict[str, Any]
TARGETS = (Axis.VLLM, Axis.TRANSFORMERS, Axis.TORCH, Axis.RAY, Axis.TENSORDICT, Axis.FLASH_ATTN)
ROOTS = frozenset({"verl", *(axis.module for axis in TARGETS)})
NAMED = re.compile(r"(?:No module named|cannot import name '[^']*' from|module) '([\w.]+)'")
IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "AttributeError", "TypeError", "ValueError"})


def read(path: Path) -> list[Record]:
    """Return the records of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def root_cause(row: Record) -> Record:
    """Return the first error of a chain: what went wrong before anybody handled it."""
    causes: list[Record] = row.get("causes") or []
    return causes[-1] if causes else row


def real(row: Record) -> str:
    """Return what happened: `ok`, `breaks`, or something that is no misfit of verl with a package.

    `absent`: a package is not installed. `inside`: a break as well, but verl's import is right and the target's own
    code fails, at a misfit of one target with another (vLLM 0.13 with transformers 5). `else`: no GPU, packages outside
    the axes, a target's own circle of imports.
    """
    if row["outcome"] == "ok":
        return "ok"
    for cause in (root_cause(row), row):
        named = NAMED.search(str(cause.get("message")))
        module = named[1] if named is not None else ""
        root = module.partition(".")[0]
        if cause.get("exception") == "ModuleNotFoundError" and (
            module == root or root in entrypoints.absent_packages()
        ):
            return "absent"
        if root in ROOTS or "vllm version" in str(cause.get("message")):
            if str(cause.get("exception")) not in IMPORT_ERRORS:
                return "else"
            place = str(cause.get("frame") or "verl").partition("/")[0]
            return "breaks" if place == "verl" else "else" if place == root else "inside"
    return "else"


class Pair:
    """One recorded environment, and the same releases as the tier sees them."""

    def __init__(self, name: str, index: PackageIndex, cache: Path) -> None:
        """Read the records; open the wheels of every axis that was installed."""
        folder = Path(__file__).parent
        self.name = name
        self.imports = read(folder / "imports" / f"{name}.jsonl")
        uses = folder / "uses" / f"{name}.jsonl"
        self.uses = read(uses) if uses.exists() else []
        installed: Mapping[str, str | None] = self.imports[0]["versions"]
        self.versions = {axis.module: Version(str(v)) for axis in TARGETS if (v := installed.get(axis.value))}
        self.missing = [axis.module for axis in TARGETS if not installed.get(axis.value)]
        archives = {
            axis.module: self._open(index, axis, self.versions[axis.module])
            for axis in TARGETS
            if axis.module in self.versions
        }
        verl = Version(str(installed["verl"]))
        self.subject = Subject.load(self._open(index, Axis.VERL, verl), verl)
        absent = entrypoints.absent_packages() | frozenset(self.missing)
        self.world = World(archives, self.versions, absent=absent, facts=FactStore(cache))

    @staticmethod
    def _open(index: PackageIndex, axis: Axis, version: Version) -> Archive:
        public = Version(version.public)
        release = index.require_release(axis.value, public)
        file = index.best_file(release, Platform()) or release.files[0]
        return index.archive(file)

    def predicted_imports(self) -> dict[str, str]:
        """Return the modules that are predicted to fail, and why."""
        roots = {
            str(root_cause(row).get("message")).split("'")[1].partition(".")[0]
            for row in self.imports
            if real(row) == "absent"
        }
        covered = {axis.module for axis in TARGETS if axis.module not in self.missing}
        modules = [row["entry"] for row in self.imports]
        absent = {*self.missing, *roots} - covered - {"verl"}
        found = failing_imports(
            self.subject, self.world, self.versions, modules, absent=absent, gpu=bool(self.imports[0]["gpu"])
        )
        self.world.save()
        return found

    def fails_inside(self, module: str, names: Sequence[str]) -> bool:
        """Return whether the target's own code is predicted to raise when these names are imported."""
        if module.partition(".")[0] not in entrypoints.load(self.subject.version).followed:
            return False
        return any(self.world.import_failure(module, name) is not None for name in names)

    def predicted_use(self, row: Record) -> str:
        """Return `ok`, `breaks`, or `else` where the tier cannot tell, for one import statement taken by itself."""
        (statement,) = ast.parse(row["statement"]).body
        if not self.world.covers(row["root"]):
            return "else"
        found = []
        if isinstance(statement, ast.Import):
            found = [self.world.module(alias.name) for alias in statement.names]
            if any(self.fails_inside(alias.name, [""]) for alias in statement.names):
                return "breaks"
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            module = statement.module
            found = [self.world.module(module)]
            if found[0] is not Presence.MISSING:
                found += [
                    self.world.lookup(module, alias.name).presence for alias in statement.names if alias.name != "*"
                ]
            if self.fails_inside(module, [alias.name for alias in statement.names]):
                return "breaks"
        if Presence.MISSING in found:
            return "breaks"
        return "ok" if all(presence is Presence.PRESENT for presence in found) else "else"


def score(expected: Sequence[tuple[str, str, Record]]) -> tuple[Counter[str], list[str]]:
    """Return hits and misses of `(predicted, real, record)`, and a line for each disagreement."""
    tally: Counter[str] = Counter()
    wrong = []
    for predicted, happened, row in expected:
        tally["inside"] += happened == "inside"
        if happened in ("absent", "else") or predicted == "absent":
            tally["aside" if happened in ("absent", "else") else "aside-wrong"] += 1
            if happened == "ok" and predicted == "absent":
                wrong.append(f"predicted absent, imports: {where(row)}")
            continue
        breaks, did = predicted == "breaks", happened in ("breaks", "inside")
        word = {(True, True): "TP", (True, False): "FP", (False, True): "FN", (False, False): "TN"}[breaks, did]
        tally[word] += 1
        if word in ("FP", "FN"):
            wrong.append(f"{word} {where(row)}: {row.get('exception', '')} {row.get('message', '')}")
    return tally, wrong


def where(row: Record) -> str:
    """Return what a record is about."""
    return row["entry"] if "entry" in row else f"{row['file']}:{row['line']} {row['statement']}"


def line(name: str, tally: Counter[str]) -> str:
    """Return a row of the table: counts, precision and recall."""
    hits, false, missed = tally["TP"], tally["FP"], tally["FN"]
    precision = f"{hits / (hits + false):.2f}" if hits + false else "-"
    recall = f"{hits / (hits + missed):.2f}" if hits + missed else "-"
    cells = [
        name,
        *(str(tally[word]) for word in ("TP", "FP", "FN", "TN", "inside", "aside", "aside-wrong")),
        precision,
        recall,
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the tables for the pairs named, all recorded ones by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="*")
    parser.add_argument("--wrong", action="store_true", help="list the disagreements")
    parser.add_argument("--home", help="where downloads are kept")
    options = parser.parse_args()
    folder = Path(__file__).parent / "imports"
    names = options.pairs or sorted(path.stem for path in folder.glob("*.jsonl"))
    cache = Home.find(options.home).cache
    index = SimpleIndex.from_environment(cache_dir=cache)
    rows: dict[str, list[str]] = {"entry points": [], "modules": [], "statements": []}
    totals: dict[str, Counter[str]] = {group: Counter() for group in rows}
    faults: list[str] = []
    for name in names:
        pair = Pair(name, index, cache)
        failing = pair.predicted_imports()
        graded = [
            (
                "ok" if (why := failing.get(row["entry"])) is None else "absent" if why == "absent" else "breaks",
                real(row),
                row,
            )
            for row in pair.imports
        ]
        used = [(pair.predicted_use(row), real(row), row) for row in pair.uses]
        used = [item for item in used if item[0] != "else"]
        pair.world.save()
        for group, items in (
            ("entry points", [item for item in graded if item[2]["listed"]]),
            ("modules", graded),
            ("statements", used),
        ):
            tally, wrong = score(items)
            totals[group] += tally
            rows[group].append(line(name, tally))
            if group != "entry points":
                faults += [f"{name}: {text}" for text in wrong]
    columns = ("pair", "TP", "FP", "FN", "TN", "inside", "aside", "aside-wrong", "precision", "recall")
    head = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"
    for group, lines in rows.items():
        sys.stdout.write(f"\n## {group}\n{head}\n" + "\n".join([*lines, line("all", totals[group])]) + "\n")
    if options.wrong:
        sys.stdout.write("\n" + "\n".join(faults) + "\n")


if __name__ == "__main__":
    main()
