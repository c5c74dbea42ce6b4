"""Fixtures and hooks of the probes: a cell to run in, a trial for each known failure, a JSON line for each outcome."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import Cell, Trial, read_cell
from kit.cell import installed_version
from kit.loopback import no_loopback

TRIALS = "VERL_MATRIX_TRIALS"
GO = "VERL_MATRIX_GO"
"""Names the file in which the id of a probe stands once it may begin; without it none has to wait."""
CURRENT = "VERL_MATRIX_PROBE"
"""Set while a probe runs, so that the processes it starts, and may leave behind, are known by it."""
TIERS = ("import", "behave", "gpu")


@pytest.fixture(scope="session")
def cell() -> Cell:
    """Return the cell these probes run in."""
    found = read_cell()
    if found is None:
        pytest.skip("no cell: run through `python -m matrix run`, which writes VERL_MATRIX_CELL")
    return found


@pytest.fixture
def trial(request: pytest.FixtureRequest, cell: Cell) -> Iterator[Trial]:
    """Return the trial of the probe's failure; it is an error to end without having judged."""
    mark = request.node.get_closest_marker("failure")
    if mark is None:
        raise pytest.UsageError(f"{request.node.nodeid} takes a trial and names no failure")
    (name,) = mark.args
    if name not in cell.records:
        raise pytest.UsageError(f"{request.node.nodeid}: there is no record `{name}`")
    made = Trial(cell, cell.records[name])
    request.node.trial = made
    yield made
    report = getattr(request.node, "call_report", None)
    if report is not None and report.passed and not made.seen:
        pytest.fail(f"{request.node.nodeid} judged nothing")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a probe whose packages are not installed here, or whose network is not, with the reason."""
    for mark in item.iter_markers("needs"):
        for requirement in mark.args:
            lacking = _lacking(requirement)
            if lacking:
                pytest.skip(lacking)
    if item.get_closest_marker("loopback") and no_loopback():
        # Of this machine as it is now, and no answer: it is asked again.
        item.user_properties.append(("not_begun", True))
        pytest.skip(no_loopback())


def _lacking(requirement: str) -> str:
    """Return why a requirement like `verl>=0.7,<0.9` is not met here, "" where it is."""
    match = re.fullmatch(r"([\w.-]+)\s*(.*)", requirement)
    assert match is not None, requirement
    name, wanted = match[1], match[2]
    found = read_cell()
    version = installed_version(name, found.stands_in if found is not None else None)
    if version is None:
        return f"{name} is not installed in this cell"
    if not wanted:
        return ""
    from packaging.specifiers import SpecifierSet

    if SpecifierSet(wanted).contains(version, prereleases=True):
        return ""
    return f"is about {requirement}; this cell has {version}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every probe a tier that exists; one that needs GPUs has the tier `gpu`, and the mark of that name."""
    for item in items:
        if tier_of(item) not in TIERS:
            raise pytest.UsageError(f"{item.nodeid}: there is no tier `{tier_of(item)}` for probes")
        if item.get_closest_marker("gpus") and tier_of(item) != "gpu":
            raise pytest.UsageError(f"{item.nodeid}: needs GPUs, which no probe of tier `{tier_of(item)}` sees")
        if tier_of(item) == "gpu":
            item.add_marker("gpu")


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a probe: its nearest mark, else `gpu` where it needs one, else `import`."""
    mark = item.get_closest_marker("tier")
    if mark is None:
        return "gpu" if item.get_closest_marker("gpus") or item.get_closest_marker("gpu") else "import"
    return str(mark.args[0])


def gpus_of(item: pytest.Item) -> dict[str, Any]:
    """Return what a probe needs of GPUs: how many, of what compute capability ("" for any), with how many GiB each."""
    mark = item.get_closest_marker("gpus")
    if mark is None:
        return {"gpus": int(tier_of(item) == "gpu"), "capability": "", "memory_gib": 0.0}
    (count,) = mark.args or (1,)
    more = dict(mark.kwargs)
    capability, memory = str(more.pop("capability", "")), float(more.pop("memory_gib", 0))
    if more or int(count) < 1 or not re.fullmatch(r"(\d+(\.\d+)?)?", capability):
        raise pytest.UsageError(f"{item.nodeid}: gpus(n, capability='8.0', memory_gib=16), not {mark.args} {more}")
    return {"gpus": int(count), "capability": capability, "memory_gib": memory}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Say what there is to run: one line a probe, when only that is asked for."""
    if session.config.option.collectonly:
        for item in session.items:
            _say({"event": "planned", **_about(item)})


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Say which file cannot be read: its probes are lost, and nobody else would know."""
    if report.failed:
        _say({"event": "lost", "file": report.nodeid, "reason": _last(report.longreprtext)})


def _last(text: str) -> str:
    lines = [line.removeprefix("E").strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def pytest_runtest_logstart(nodeid: str) -> None:
    """Say that a probe begins, so that one that takes the process down can be named."""
    os.environ[CURRENT] = nodeid
    _say({"event": "start", "test": nodeid, "at": time.time()})
    _await_go(nodeid)


def _await_go(nodeid: str) -> None:
    """Return once the probe may begin: when what the one before held of a GPU has come back."""
    path, parent = os.environ.get(GO), os.getppid()
    while path and nodeid not in _lines(Path(path)):
        if os.getppid() != parent:
            pytest.exit("whoever says which probe may begin is gone", returncode=3)
        time.sleep(0.02)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Say how a probe ended, once: at its first failure or skip, else when it is torn down."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if report.when == "call":
        item.call_report = report  # type: ignore[attr-defined]
    spent: float = getattr(item, "spent", 0.0) + report.duration
    item.spent = spent  # type: ignore[attr-defined]
    if getattr(item, "said", False) or (report.passed and report.when != "teardown"):
        return
    item.said = True  # type: ignore[attr-defined]
    trial: Trial | None = getattr(item, "trial", None)
    line: dict[str, Any] = {"event": "end", **_about(item), "seconds": round(spent, 3), "at": time.time()}
    line["outcome"] = "passed" if report.passed else "untested" if report.skipped else "failed"
    line["reason"] = _reason(report, call)
    if trial is not None:
        line |= {"predicted": trial.record.applies, "seen": trial.seen, "detail": trial.detail}
    line.setdefault("detail", {})
    line["detail"] |= dict(item.user_properties)
    _say(line)


def _about(item: pytest.Item) -> dict[str, Any]:
    failure = item.get_closest_marker("failure")
    limit = item.get_closest_marker("limit")
    hurts = item.get_closest_marker("hurts")
    entry = item.get_closest_marker("entry")
    return {
        "test": item.nodeid,
        "tier": tier_of(item),
        "failure": failure.args[0] if failure else None,
        "limit": float(limit.args[0]) if limit else 120.0,
        **gpus_of(item),
        "hurts": str(hurts.args[0]) if hurts and hurts.args else "",
        "default_path": bool(hurts and hurts.kwargs.get("default_path")),
        "entry": dict(entry.kwargs) if entry else None,
    }


def _reason(report: pytest.TestReport, call: pytest.CallInfo[None]) -> str:
    if report.passed:
        return ""
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    lines = str(call.excinfo.value).splitlines() if call.excinfo is not None else []
    return lines[0][:500] if lines else report.longreprtext[-500:]


def _say(line: dict[str, Any]) -> None:
    """Append a line to the file of outcomes; a probe that kills this process loses none before it."""
    path = os.environ.get(TRIALS)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")
            file.flush()
