"""The jobs of verl-matrix; `nox --list` shows this help, `nox -s NAME` runs one.

`nox -s matrix` is the main job: every cell of the matrix gets a verdict. Arguments after `--` go to the command the
session runs, e.g. `nox -s matrix -- --list --json` or `nox -s tests -- -k store`.
"""

from __future__ import annotations

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
LINT = nox.project.dependency_groups(PYPROJECT, "lint")


@nox.session
def matrix(session: nox.Session) -> None:
    """Give every cell its verdict and write reports/out/ (HTML, Markdown, JSON, JUnit). The main job."""
    session.install("-e", ".")
    session.run("python", "-m", "matrix", "run", *session.posargs)


@nox.session
def report(session: nox.Session) -> None:
    """Build reports/out/ again from the observations that are stored; asks nothing of the index."""
    session.install("-e", ".")
    session.run("python", "-m", "matrix", "report", *session.posargs)


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
    """Measure the surface tier: against recorded real imports, findings judged by hand, and known failures."""
    session.install("-e", ".")
    for script in ("score", "review", "known"):
        session.run("python", f"tests/accuracy/{script}.py", *session.posargs)
