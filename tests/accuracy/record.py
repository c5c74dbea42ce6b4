"""Records which verl modules really import in real environments: the ground truth for the surface tier.

``python tests/accuracy/record.py --pairs tests/accuracy/pairs.toml --python /path/to/python3.12 [--only NAME]``

For each pair: a fresh environment made by uv, then inside.py in it. Writes, next to the pairs file,
``imports/<pair>.jsonl`` (every module), ``uses/<pair>.jsonl`` (every conditional import statement of the stack) and
``frozen/<pair>.txt`` (the installed set). A pair with records is left alone unless it is named by ``--only``.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

SCHEMA = 1
INSTALL_S = 1800
IMPORT_S = 330  # inside.py ends an import after 300 s by itself and says so
TREE_S = 3600
INSIDE = Path(__file__).with_name("inside.py")
Record = dict[str, Any]
Word = str | Path


class RecordingError(Exception):
    """A pair could not be recorded: what happened and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One environment to build."""

    name: str
    requirements: tuple[str, ...]
    overrides: tuple[str, ...]
    exclude_newer: str | None

    @property
    def deviation(self) -> str | None:
        """How the set departs from what the packages declare, in words, or None."""
        return "override " + ", ".join(self.overrides) if self.overrides else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What pairs.toml says."""

    pairs: tuple[Pair, ...]
    entries: tuple[str, ...]
    fresh: tuple[str, ...]
    may_build: frozenset[str]

    def is_entry(self, module: str) -> bool:
        """Whether a module is one of the listed entry points."""
        return any(fnmatchcase(module, pattern) for pattern in self.entries)


def read_plan(path: Path) -> Plan:
    """The plan in a pairs file; raises RecordingError where a field is missing or unknown."""
    with path.open("rb") as stream:
        data = tomllib.load(stream)
    if data.get("schema") != SCHEMA:
        raise RecordingError(f"{path}: schema is {data.get('schema')!r}, this script reads {SCHEMA}")
    try:
        pairs = tuple(
            Pair(
                name=row["name"],
                requirements=tuple(row["requirements"]),
                overrides=tuple(row.get("overrides", ())),
                exclude_newer=row.get("exclude_newer"),
            )
            for row in data["pair"]
        )
        entries, fresh, built = tuple(data["entries"]), tuple(data["fresh"]), frozenset(data["may_build"])
    except KeyError as error:
        raise RecordingError(f"{path}: field {error} is missing") from error
    return Plan(pairs=pairs, entries=entries, fresh=fresh, may_build=built)


def run(command: Sequence[Word], *, log: Path, env: Mapping[str, str], timeout_s: float) -> str:
    """The output of a command run in its own process group, all of which is ended when it returns or times out."""
    with log.open("wb") as sink:
        child = subprocess.Popen(
            [str(word) for word in command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
        try:
            status = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    output = log.read_text(errors="replace")
    if status != 0:
        said = "ran past its limit" if status is None else f"exited with {status}"
        raise RecordingError(f"{' '.join(map(str, command[:4]))} … {said}:\n{output[-3000:]}")
    return output


def uv_environment() -> dict[str, str]:
    """The caller's variables, without downloads of interpreters."""
    return {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}


def provision(pair: Pair, plan: Plan, uv: str, python: Path, folder: Path) -> Path:
    """The interpreter of a new environment that holds the pair; raises RecordingError where more had to be built."""
    env, log = uv_environment(), folder / "install.log"
    run([uv, "venv", "--quiet", "--clear", "--python", python, folder / "env"], log=log, env=env, timeout_s=120)
    inside = folder / "env" / "bin" / "python"
    command: list[Word] = [uv, "pip", "install", "--no-config", "--python", inside, *pair.requirements]
    if pair.overrides:
        (folder / "overrides.txt").write_text("\n".join(pair.overrides) + "\n")
        command += ["--overrides", folder / "overrides.txt"]
    if pair.exclude_newer:
        command += ["--exclude-newer", pair.exclude_newer]
    output = run(command, log=log, env=env, timeout_s=INSTALL_S)
    built = {name.lower() for name in re.findall(r"^ +Built ([\w.-]+?)==", output, re.MULTILINE)}
    if built - plan.may_build:
        raise RecordingError(f"{pair.name}: built {sorted(built - plan.may_build)}, not listed in may_build")
    return inside


def import_environment(home: Path) -> dict[str, str]:
    """The whole environment of an import: quiet, one thread, no network, nothing of the caller's."""
    home.mkdir(exist_ok=True)
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def inside(python: Path, folder: Path, command: str, *modules: str, timeout_s: float) -> list[Record]:
    """The records that one command of inside.py appends; -I keeps this directory and the user's site off its path."""
    out = folder / "records.jsonl"
    out.unlink(missing_ok=True)
    words: list[Word] = [python, "-I", "-W", "ignore", INSIDE, command, out, *modules]
    env = import_environment(folder / "home")
    try:
        run(words, log=folder / f"{command}.log", env=env, timeout_s=timeout_s)
    except RecordingError as error:
        if command != "one":
            raise
        said = str(error).splitlines()[0][-80:]
        return [{"entry": modules[0], "method": "fresh", "outcome": "crash", "message": said}]
    return [json.loads(line) for line in out.read_text().splitlines()]


def same(one: Record, other: Record) -> bool:
    """Whether two imports of a module ended alike."""
    return all(one.get(key) == other.get(key) for key in ("outcome", "exception", "message"))


def import_records(plan: Plan, python: Path, folder: Path) -> list[Record]:
    """One record per verl module; where both were run, the fresh process's, saying whether the forked one agreed."""
    forked = {row["entry"]: row for row in inside(python, folder, "tree", timeout_s=TREE_S)}
    for module in plan.fresh:
        if module in forked:
            (row,) = inside(python, folder, "one", module, timeout_s=IMPORT_S)
            forked[module] = row | {"fork_agrees": same(row, forked[module])}
    return [row | {"listed": plan.is_entry(name)} for name, row in sorted(forked.items())]


def write_records(path: Path, rows: Sequence[Record]) -> None:
    """Replaces a file by JSON lines, at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    part.replace(path)


def record(pair: Pair, plan: Plan, *, uv: str, python: Path, work: Path, target: Path, with_uses: bool) -> str:
    """Builds, imports, writes and removes one pair; returns a line that says what came out."""
    with tempfile.TemporaryDirectory(dir=work, prefix="pair-") as name:
        folder = Path(name)
        interpreter = provision(pair, plan, uv, python, folder)
        freeze: list[Word] = [uv, "pip", "freeze", "--python", interpreter]
        frozen = run(freeze, log=folder / "freeze.log", env=uv_environment(), timeout_s=60)
        (about,) = inside(interpreter, folder, "about", timeout_s=60)
        shared = {"schema": SCHEMA, "pair": pair.name, "deviation": pair.deviation, **about}
        imports = import_records(plan, interpreter, folder)
        uses = inside(interpreter, folder, "uses", timeout_s=TREE_S) if with_uses else []
    lines = [line for line in frozen.splitlines() if "==" in line]
    (target / "frozen").mkdir(parents=True, exist_ok=True)
    (target / "frozen" / f"{pair.name}.txt").write_text("\n".join(lines) + "\n")
    if with_uses:
        write_records(target / "uses" / f"{pair.name}.jsonl", [shared | row for row in uses])
    write_records(target / "imports" / f"{pair.name}.jsonl", [shared | row for row in imports])
    return f"{pair.name}: {summary(imports)}; uses {summary(uses) or 'not run'}"


def summary(rows: Sequence[Record]) -> str:
    """How many records had which outcome."""
    return ", ".join(f"{n} {outcome}" for outcome, n in sorted(Counter(row["outcome"] for row in rows).items()))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--pairs", type=Path, required=True, help="the pairs file; records are written next to it")
    add("--python", type=Path, required=True, help="interpreter that the environments are made from")
    add(
        "--only", action="append", metavar="NAME", help="record this pair, again if need be (repeatable, shell pattern)"
    )
    add("--uv", default=shutil.which("uv") or "uv", help="the uv to use")
    add(
        "--work", type=Path, default=Path(tempfile.gettempdir()), help="where an environment lives while in use (10 GB)"
    )
    add("--skip-uses", action="store_true", help="record the imports only, which is half of the time")
    return parser.parse_args()


def say(text: str, *, error: bool = False) -> None:
    """Writes one line at once, so that a log can be followed."""
    stream = sys.stderr if error else sys.stdout
    stream.write(text + "\n")
    stream.flush()


def main() -> int:
    """Records the chosen pairs; 0 when all were, 1 when one failed, 2 on a bad file or when there is nothing to do."""
    options = arguments()
    target = options.pairs.parent
    try:
        plan = read_plan(options.pairs)
    except (OSError, tomllib.TOMLDecodeError, RecordingError) as error:
        say(f"record: {error}", error=True)
        return 2
    wanted = options.only or ["*"]
    chosen = [pair for pair in plan.pairs if any(fnmatchcase(pair.name, name) for name in wanted)]
    if not options.only:
        chosen = [pair for pair in chosen if not (target / "imports" / f"{pair.name}.jsonl").exists()]
    if not chosen:
        say("record: no pair to record: all have records, or --only names none", error=True)
        return 2
    failed = 0
    for pair in chosen:
        try:
            done = record(
                pair,
                plan,
                uv=options.uv,
                python=options.python,
                work=options.work,
                target=target,
                with_uses=not options.skip_uses,
            )
            say(done)
        except RecordingError as error:
            failed += 1
            say(f"{pair.name}: {error}", error=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
