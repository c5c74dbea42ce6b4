"""The suites on pytest-benchmark: `pytest bench --benchmark-only`, their options, and what a saved run holds."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from bench.front import Entry, Front, entries, subject_of
from bench.front import machine_info as gpus_of
from bench.recipes import Kind
from matrix.errors import NothingRanError
from matrix.home import Home


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suites."""
    group = parser.getgroup("bench", "benches of verl")
    group.addoption("--bench-python", metavar="PATH", help="the interpreter of the cell that launches run in")
    group.addoption("--bench-cell", metavar="NAME", help="a cell whose environment is kept, or what --bench-python is")
    group.addoption("--bench-recipe", action="append", default=[], metavar="NAME", help="only this recipe; repeat")
    group.addoption("--bench-toggle", action="append", default=[], metavar="NAME", help="only this toggle; repeat")
    group.addoption("--bench-launches", type=int, default=6, metavar="N", help="of ppo, a side (default: 6)")
    group.addoption("--bench-repeats", type=int, default=0, metavar="N", help="of update and rollout, a side")
    group.addoption("--bench-series", default="", metavar="NAME", help="go on with this series (default: by content)")
    group.addoption("--bench-minutes", type=float, metavar="N", help="start no launch after so many minutes")
    group.addoption("--bench-home", metavar="DIR", help="where launches are kept (VERL_MATRIX_HOME)")


def pytest_configure(config: pytest.Config) -> None:
    """Name the plug-in that is needed where it is missing, before a fixture is not found."""
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("The suites need pytest-benchmark: install `verl-matrix[bench]`, or `nox -s bench`.")
    # Names that are none are told before anything is collected.
    for kind in Kind:
        asked_for(config, kind)


def asked_for(config: pytest.Config, kind: Kind) -> list[Entry]:
    """Return the benches of a suite that the options choose; raises pytest.UsageError for names that are none."""
    from matrix.errors import UsageError

    try:
        return entries(kind, config.getoption("--bench-recipe"), config.getoption("--bench-toggle"))
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a suite's test its benches."""
    if "entry" in metafunc.fixturenames:
        found = asked_for(metafunc.config, metafunc.module.KIND)
        none = pytest.param(None, id="none", marks=pytest.mark.skip(reason="no recipe of this bench is asked for"))
        metafunc.parametrize("entry", [pytest.param(one, id=one.id) for one in found] or [none])


@pytest.fixture(scope="session")
def front(request: pytest.FixtureRequest) -> Front:
    """Return what has the launches of this session."""
    option = request.config.getoption
    home = Home.find(option("--bench-home"))
    return Front(
        subject=lambda device: subject_of(home, option("--bench-python"), option("--bench-cell"), device),
        home=home,
        series=option("--bench-series"),
        launches=option("--bench-launches"),
        repeats=option("--bench-repeats"),
        deadline=Front.until(option("--bench-minutes")),
        tell=_tell,
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Make a session in which all was skipped one in which nothing ran, with the exit code of that.

    The plug-in warns that it saves nothing then, which is told and no error of its own.
    """
    from pytest_benchmark.logger import PytestBenchmarkWarning

    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped, ran = (bool(reporter and reporter.stats.get(name)) for name in ("skipped", "passed"))
    if skipped and not ran and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = NothingRanError.exit_code

    with warnings.catch_warnings():
        warnings.simplefilter("default", PytestBenchmarkWarning)
        return (yield)


def _tell(text: str) -> None:
    # Past pytest's capture: a launch takes minutes, and somebody waits.
    if sys.__stderr__ is not None:
        sys.__stderr__.write(f"{text}\n")


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add the GPUs and their driver to a saved run, and take the host's name out of it."""
    machine_info.pop("node", None)
    machine_info.update(gpus_of())
