"""Stages: one expensive launch that many probes read.

A stage is a script of `subjects/` that runs once for a cell and its arguments, in a process group of its own, and
writes down what each of its sections found (kit/sections.py). What it left is kept in the cell's scratch folder: a
pytest process that starts after another one died reads it there, and a stage that died is not run a second time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit import sections
from kit.cell import Cell
from kit.child import run_python

COMPAT = Path(__file__).resolve().parent.parent
_ran: dict[str, Stage] = {}


@dataclass(frozen=True)
class Part:
    """What a section of a stage found.

    `reached` is whether it began; `data` is {} where it faulted and `fault` then what a fingerprint is looked for in:
    what was written while it ran and its traceback, or how the stage died before it or in it. `found` is what the
    section had noted before its fault.
    """

    name: str
    reached: bool
    data: dict[str, Any] = field(default_factory=dict)
    fault: str | None = None
    seconds: float = 0.0
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def last_line(self) -> str:
        """Return the last line of the fault that is not blank, "" where there is none."""
        lines = [line.strip() for line in (self.fault or "").splitlines() if line.strip()]
        return lines[-1][:500] if lines else ""


@dataclass(frozen=True)
class Stage:
    """How a stage ended: `code` as of subprocess, None where it was killed; `text` is the end of what it wrote."""

    script: str
    code: int | None
    text: str
    seconds: float
    lines: tuple[dict[str, Any], ...] = ()

    def part(self, name: str) -> Part:
        """Return what the section found; of one that ran several times, the last."""
        mine = [line for line in self.lines if line["section"] == name]
        if not mine:
            return Part(name, reached=False, fault=f"{self.text}\n[{self.script} {self._how()} before {name}]")
        last = mine[-1]
        if last["event"] == "begin":
            return Part(name, reached=True, fault=f"{self.text}\n[{self.script} {self._how()} in {name}]")
        if last["event"] == "fault":
            fault = f"{last['log']}\n{last['traceback']}"
            return Part(name, reached=True, fault=fault, seconds=last["seconds"], found=last["data"])
        return Part(name, reached=True, data=last["data"], seconds=last["seconds"], found=last["data"])

    def _how(self) -> str:
        return "was killed when its time ran out" if self.code is None else f"ended with exit code {self.code}"


def stage(cell: Cell, script: str, *argv: str, limit: float = 300.0, env: Mapping[str, str] | None = None) -> Stage:
    """Return how `subjects/SCRIPT *argv` ended, run at most once for a cell, its arguments and its environment."""
    key = _key(script, argv, env or {})
    if key not in _ran:
        folder = cell.scratch / "stages"
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / f"{key}.lock"):
            _ran[key] = _kept(folder / key, script) or _run(folder / key, script, argv, limit, env or {})
    return _ran[key]


def _key(script: str, argv: tuple[str, ...], env: Mapping[str, str]) -> str:
    asked = json.dumps([script, argv, sorted(env.items())])
    return f"{Path(script).stem}-{hashlib.sha256(asked.encode()).hexdigest()[:10]}"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from running the same stage; a process that dies lets go."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _kept(path: Path, script: str) -> Stage | None:
    """Return the stage that was run before, one that died with its pytest process too; None where it never began."""
    end, begun = path.with_suffix(".end"), path.with_suffix(".jsonl")
    if end.is_file():
        ended = json.loads(end.read_text(encoding="utf-8"))
        return Stage(script, ended["code"], ended["text"], ended["seconds"], _lines(begun))
    if begun.is_file():
        return Stage(script, None, "the process that ran this stage died with it", 0.0, _lines(begun))
    return None


def _run(path: Path, script: str, argv: tuple[str, ...], limit: float, env: Mapping[str, str]) -> Stage:
    begun = path.with_suffix(".jsonl")
    begun.touch()
    start = time.monotonic()
    ended = run_python(
        str(COMPAT / "subjects" / script),
        *argv,
        timeout=limit,
        env={**env, "PYTHONPATH": str(COMPAT), sections.VARIABLE: str(begun)},
    )
    text = f"{sections.shortened(ended.stdout)}\n{sections.shortened(ended.stderr)}"
    seconds = round(time.monotonic() - start, 3)
    written = path.with_suffix(".writing")
    written.write_text(json.dumps({"code": ended.code, "text": text, "seconds": seconds}), encoding="utf-8")
    written.rename(path.with_suffix(".end"))
    return Stage(script, ended.code, text, seconds, _lines(begun))


def _lines(path: Path) -> tuple[dict[str, Any], ...]:
    """Return the lines of the sections' file that are whole."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return tuple(found)
