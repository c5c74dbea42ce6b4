"""How right doctor is on the logs of `doctor.toml`: right, wrong or unknown, by family; 1 where one is wrong.

right: the record, the class or the health that the case names. unknown: no record named where one fits (a class, or
nothing, was said instead). wrong: another record as the cause, something found in a healthy log, or nothing in a sick
one.

    python tests/accuracy/doctor.py [--all] [--json]
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from matrix.axes import load_axes
from matrix.datafile import read
from matrix.doctor.diagnosis import Diagnosis, diagnose
from matrix.doctor.logfile import LogFile
from matrix.doctor.scan import Scanner
from matrix.failure import Failure
from matrix.records import load_failures

CASES = Path(__file__).with_name("doctor.toml")
NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A log and what must be said of it."""

    id: str
    log: str
    source: str
    record: str = NONE
    sort: str = ""
    allowed: tuple[str, ...] = ()
    healthy: bool = False


def load_cases(path: Path = CASES) -> tuple[Case, ...]:
    """Return the cases of the file; raises DataError."""
    whole = read(path)
    found = []
    for table in whole.tables("case"):
        healthy = table.flag("healthy", False)
        record = NONE if healthy else table.text("record")
        found.append(
            Case(
                id=table.text("id"),
                log=table.text("log"),
                source=table.text("source"),
                record=record,
                sort=table.text("class") if record == NONE and not healthy else "",
                allowed=table.texts("allowed", ()),
                healthy=healthy,
            )
        )
        table.end()
    whole.end()
    return tuple(found)


def diagnosed(case: Case, failures: Sequence[Failure]) -> Diagnosis:
    """Return what doctor says of a case's log."""
    scan = Scanner(failures).scan(LogFile(name=case.id, stream=io.BytesIO(case.log.encode())))
    return diagnose(case.id, scan, failures, load_axes())


def graded(case: Case, found: Diagnosis) -> tuple[str, str]:
    """Return `right`, `wrong` or `unknown`, and what was said."""
    root = found.root
    if root is None:
        return ("right" if case.healthy else "wrong"), "nothing wrong found"
    record = root.failure.id if root.failure is not None else NONE
    sort = root.sort.id if root.sort is not None else "unknown"
    said = f"{record if record != NONE else sort} ({root.sureness})"
    if case.healthy:
        return "wrong", said
    if case.record != NONE:
        if record in (case.record, *case.allowed):
            return "right", said
        return ("wrong" if record != NONE else "unknown"), said
    return ("right" if record == NONE and sort == case.sort else "wrong"), said


def main() -> int:
    """Print the score; return 1 where a case is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--all", action="store_true", help="show the cases that are right too")
    parser.add_argument("--json", action="store_true")
    # Nox hands the same words to all scripts of the session.
    args, _ = parser.parse_known_args()
    failures = load_failures()
    families = {failure.id: failure.family.value for failure in failures}
    rows = []
    for case in load_cases():
        grade, said = graded(case, diagnosed(case, failures))
        family = "healthy" if case.healthy else families.get(case.record, "no record fits")
        rows.append({"case": case.id, "family": family, "grade": grade, "wanted": case.record, "said": said})
    if args.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        for row in rows:
            if args.all or row["grade"] != "right":
                sys.stdout.write(f"{row['grade']:8} {row['case']}: wanted {row['wanted']}, said {row['said']}\n")
        for family in dict.fromkeys(row["family"] for row in rows):
            counts = Counter(row["grade"] for row in rows if row["family"] == family)
            sys.stdout.write(f"{family:16} {_spelt(counts)}\n")
        sys.stdout.write(f"{'doctor':16} {_spelt(Counter(row['grade'] for row in rows))} of {len(rows)} logs\n")
    return 1 if any(row["grade"] == "wrong" for row in rows) else 0


def _spelt(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[grade]} {grade}" for grade in ("right", "wrong", "unknown"))


if __name__ == "__main__":
    raise SystemExit(main())
