"""The Markdown table of what was recorded: ``python tests/accuracy/table.py [FOLDER]`` prints it."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
HEAD = ("pair", "entry points ok", "package absent", "raises", "all modules ok", "package absent", "raises")
USES = ("statements ok", "package absent", "raises")


def root_cause(row: Record) -> Record:
    """The first error of a chain: what went wrong before anybody handled it."""
    causes: list[Record] = row.get("causes") or []
    return causes[-1] if causes else row


def is_absent_package(row: Record) -> bool:
    """Whether a record failed because a whole package is not installed, which says nothing about versions."""
    cause = root_cause(row)
    kind, message = str(cause.get("exception")), str(cause.get("message"))
    return kind == "ModuleNotFoundError" and message.startswith("No module named ") and "." not in message.split("'")[1]


def counts(rows: Iterable[Record]) -> list[str]:
    """The three numbers of a group of records: ok, package absent, anything else."""
    found = Counter("ok" if row["outcome"] == "ok" else is_absent_package(row) for row in rows)
    return [str(found["ok"]), str(found[True]), str(found[False])]


def read(path: Path) -> list[Record]:
    """The records of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(folder: Path, pairs: Sequence[str]) -> str:
    """One row a pair."""
    lines = ["| " + " | ".join(HEAD + USES) + " |", "|---" * len(HEAD + USES) + "|"]
    for pair in pairs:
        imports, statements = read(folder / "imports" / f"{pair}.jsonl"), folder / "uses" / f"{pair}.jsonl"
        uses = counts(read(statements)) if statements.exists() else ["not run"] * len(USES)
        name = f"{pair} ({imports[0]['deviation']})" if imports[0]["deviation"] else pair
        cells = [name, *counts(row for row in imports if row["listed"]), *counts(imports), *uses]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prints the table of all recorded pairs."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    sys.stdout.write(table(folder, sorted(path.stem for path in (folder / "imports").glob("*.jsonl"))))


if __name__ == "__main__":
    main()
