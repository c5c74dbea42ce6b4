"""The command line of every trial: `--spec SPEC.json --out LINES.jsonl`, and how a trial that cannot start says so."""

from __future__ import annotations

import argparse
import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trials.telling import TEXT, Teller


def main(about: str | None, script: str, serve: Callable[[dict[str, Any], Teller, Path], int]) -> int:
    """Return the exit code of `serve`, which gets the spec, the teller and the file of lines.

    What cannot even start is told as one line and ends with 2.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    asked = parser.parse_args()
    teller = Teller(asked.out)
    teller.tell("start", script=script, pid=os.getpid())
    try:
        return serve(json.loads(asked.spec.read_text(encoding="utf-8")), teller, asked.out)
    except Exception as error:
        text = "".join(traceback.format_exception(error))[-TEXT:]
        teller.tell("unable", text=text, kind=type(error).__name__)
        return 2
