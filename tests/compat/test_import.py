"""Each of verl's entry points imports, alone: where users enter, and what verl's own registries load by name.

All are tried in forks of one process that has loaded torch and transformers and nothing of verl (kit/nursery.py). What
fails there is tried again in a fresh process, whose answer counts; `VERL_MATRIX_FRESH=1` has every one tried so.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import Cell, read_cell, run_python

Entry = dict[str, Any]
NURSERY = Path(__file__).parent / "kit" / "nursery.py"
LIMIT_S = 400.0
FRESH = """
import json, sys
sys.path.insert(0, {kit!r})
from nursery import attempt, say
from pathlib import Path
sys.path.pop(0)
say(Path({out!r}), attempt({module!r}))
import os
os._exit(0)
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a probe of each entry point of the cell; none where verl is not installed."""
    if "entry" not in metafunc.fixturenames:
        return
    found = read_cell()
    entries = found.entry_points if found is not None else []
    metafunc.parametrize("entry", [_param(entry) for entry in entries])


def _param(entry: Entry) -> Any:
    marks = [
        pytest.mark.entry(name=entry["name"], module=entry["module"]),
        pytest.mark.hurts(entry["feature"], default_path=entry["default_path"]),
    ]
    return pytest.param(entry, id=entry["name"], marks=marks)


@pytest.fixture(scope="session")
def forked(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return the file to which the outcomes of the chosen entry points come, in the order of the probes."""
    params = [getattr(item, "callspec", None) for item in request.session.items]
    modules = [spec.params["entry"]["module"] for spec in params if spec is not None and "entry" in spec.params]
    env = {name: value for name, value in os.environ.items() if name != "VERL_MATRIX_PROBE"}
    with tempfile.TemporaryDirectory(prefix="imports-") as folder:
        out = Path(folder, "imports.jsonl")
        out.touch()
        cores = len(os.sched_getaffinity(0))
        command = [sys.executable, str(NURSERY), str(out), str(min(cores, 4)), *dict.fromkeys(modules)]
        with Path(folder, "log").open("wb") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=folder, start_new_session=True
            )
        try:
            yield out
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _ended(out: Path, module: str) -> Entry | None:
    """Return what is said of a module, once it is; None where that does not come in time."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        for line in out.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                found: Entry = json.loads(line)
                if found["module"] == module:
                    return found
        time.sleep(0.1)
    return None


def _fresh(module: str) -> Entry:
    """Return how the import of a module ends in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="import-") as folder:
        out = Path(folder, "import.jsonl")
        code = FRESH.format(kit=str(NURSERY.parent), out=str(out), module=module)
        ended = run_python("-c", code, timeout=LIMIT_S)
        if out.is_file():
            found: Entry = json.loads(out.read_text(encoding="utf-8"))
            return found
        return {"ok": False, "exception": "", "message": ended.last_line or ended.fault, "text": ended.text,
                "lacks": "", "seconds": ended.seconds}  # fmt: skip


@pytest.mark.limit(2 * LIMIT_S)
def test_entry_point_imports(cell: Cell, entry: Entry, request: pytest.FixtureRequest, record_property: Any) -> None:
    """The module imports in a process that has imported nothing of verl before."""
    module = entry["module"]
    if os.environ.get("VERL_MATRIX_FRESH"):
        ended = _fresh(module)
    else:
        ended = _ended(request.getfixturevalue("forked"), module) or _fresh(module)
        if not ended["ok"]:
            again = _fresh(module)
            record_property("fork_agrees", again["ok"] == ended["ok"] and again["exception"] == ended["exception"])
            ended = again
    record_property("import_seconds", ended["seconds"])
    if ended["ok"]:
        return
    record_property("text", ended["text"])
    record_property("exception", ended["exception"])
    lacks = ended["lacks"].partition(".")[0]
    if lacks in cell.not_held and not entry["default_path"]:
        pytest.skip(f"{module} needs {lacks}, which no cell holds")
    pytest.fail(_line(ended), pytrace=False)


def _line(ended: Entry) -> str:
    """Return what was raised on one line, without the path of this environment."""
    message = re.sub(r"/\S*?/site-packages/", "", " ".join(str(ended["message"]).split()))
    return f"{ended['exception']}: {message}" if ended["exception"] else message
