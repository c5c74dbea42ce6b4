"""Real logs of verl as numbers: `series()` gives a table of the folder as the lines verl's console logger printed."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def console(name: str = "verl_getting_started") -> str:
    """Return the table `name` as console lines with Ray's coloured prefix, each number as it stood in the log."""
    rows = [line.split("\t") for line in (FOLDER / f"{name}.tsv").read_text().splitlines() if not line.startswith("#")]
    heads, *body = rows
    return "".join(
        "\x1b[36m(main_task pid=28294)\x1b[0m "
        + " - ".join([f"step:{row[0]}", *(f"{head}:{word}" for head, word in zip(heads[1:], row[1:], strict=True))])
        + "\n"
        for row in body
    )
