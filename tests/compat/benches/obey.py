"""The inside of a side: orders as JSON lines on standard input, answers as JSON lines on a pipe of their own.

What libraries print goes to the side's log and is read by nobody. A side that fails once has ended: FSDP does not
survive an interrupted pass, nor vLLM the death of its core.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from trials.telling import TEXT, how_of

from benches.record import strict

_DIE_WITH_PARENT = 1


def fault_of(error: BaseException, log: str = "") -> dict[str, str]:
    """Return what an exception is told as: its kind (the way in which memory ran out, where it did) and its text."""
    text = "".join(traceback.format_exception(error))
    return {"kind": how_of(f"{log}\n{text}") or type(error).__name__, "text": text[-TEXT:]}


def serve(worker: Any, orders: TextIO, answer: Callable[[dict[str, Any]], None]) -> int:
    """Do what is ordered until there are no more orders, and return 0; 1 after the first that failed."""
    for line in filter(str.strip, orders):
        order = json.loads(line)
        try:
            found = getattr(worker, f"do_{order.pop('do')}")(**order)
        except BaseException as error:  # SystemExit of a library too: whoever waits is to know
            answer({"fault": fault_of(error, getattr(worker, "log", str)())})
            return 1
        answer({"found": found or {}})
    return 0


def main(make: Callable[[dict[str, Any]], Any]) -> int:
    """Return the exit code of a side, whose worker `make` makes of the specification in `--spec FILE`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--answers", type=int, required=True)
    asked = parser.parse_args()
    # A conductor that is killed takes its sides along: nobody else would end them.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)

    def answer(line: dict[str, Any]) -> None:
        os.write(asked.answers, (json.dumps(strict(line), default=str) + "\n").encode())

    try:
        worker = make(json.loads(asked.spec.read_text(encoding="utf-8")))
    except BaseException as error:  # as in `serve`
        answer({"fault": fault_of(error)})
        code = 1
    else:
        code = serve(worker, sys.stdin, answer)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads of an engine's front may never end.
    os._exit(code)
