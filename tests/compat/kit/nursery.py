"""Imports modules, each in a fork of its own, of a process that has torch and transformers loaded and nothing else.

Runs as a script: `python nursery.py OUT PARALLEL MODULE…` appends a JSON line to OUT for each module. What is loaded
before the fork is third-party code that nearly every module imports first anyway; it saves most of the time. A fork
ends with its whole session, so that no import sees what another one left.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

LIMIT_S = 240.0
PRELOADED = ("torch", "transformers")
KEPT = 6000
"""So many characters of a traceback are kept."""


def attempt(module: str) -> dict[str, Any]:
    """Return how the import of a module ended."""
    start = time.monotonic()
    try:
        importlib.import_module(module)
    except BaseException as error:  # whatever an import raises, SystemExit too, is how it ended
        # What the import left on sys.path does not matter any more, and the traceback is text.
        text = traceback.format_exc()[-KEPT:]
        lacks = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        ended = {"ok": False, "exception": type(error).__name__, "message": str(error)[:1000], "text": text,
                 "lacks": lacks}  # fmt: skip
    else:
        ended = {"ok": True}
    return {"module": module, **ended, "seconds": round(time.monotonic() - start, 2)}


def say(out: Path, line: dict[str, Any]) -> None:
    """Append one line, whole."""
    with out.open("ab") as file:
        file.write(json.dumps(line).encode() + b"\n")


def fork(out: Path, module: str) -> int:
    """Return the pid of a child that imports the module and says how that ended."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    code = 1
    try:
        say(out, attempt(module))
        code = 0
    finally:
        # Not sys.exit: what the import has registered to run at exit is not asked about.
        os._exit(code)


def main(out: Path, parallel: int, modules: list[str]) -> None:
    """Import every module, so many at a time; one that kills its fork or takes too long is told of from here."""
    for name in PRELOADED:
        # One that fails here fails in the modules that need it, and is told of there.
        with contextlib.suppress(BaseException):
            importlib.import_module(name)
    running: dict[int, tuple[str, float]] = {}
    waiting = list(modules)
    while waiting or running:
        while waiting and len(running) < parallel:
            module = waiting.pop(0)
            running[fork(out, module)] = (module, time.monotonic())
        for pid, (module, since) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            spent = time.monotonic() - since
            if not ended and spent < LIMIT_S:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            if not ended:
                os.waitpid(pid, 0)
                how = f"did not end within {LIMIT_S:.0f} s"
            elif status == 0:
                how = ""
            else:
                code = os.waitstatus_to_exitcode(status)
                how = f"took its process down ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"
            del running[pid]
            if how:
                say(out, {"module": module, "ok": False, "exception": "", "message": how, "text": "", "lacks": "",
                          "seconds": round(spent, 2)})  # fmt: skip
        time.sleep(0.05)


if __name__ == "__main__":
    # As with `python -c`: not the folder of this script.
    sys.path[0] = ""
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
