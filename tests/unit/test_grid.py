"""The grid: pairs, selection, rows and CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.axes import load_axes
from matrix.cell import Axis, Platform
from matrix.errors import NothingRanError, UsageError
from matrix.grid import CSV_FIELDS, chosen, grid_of, pairs, run_grid, stored_pairs
from matrix.job import Job
from matrix.store import Store
from matrix.tier import Outcome, Status, Tier
from tests.unit.run_fakes import AT, FakeChecker, FakeResolver, cell

XS = [Version(text) for text in ("0.8.0", "0.9.1")]
YS = [Version(text) for text in ("0.9.2", "0.24.0", "0.33.0")]


def _job(folder: Path, ys: list[Version], **more: object) -> Job:
    checker = FakeChecker(outcomes={"0.33.0": Outcome.BROKEN, "0.24.0": Outcome.DEGRADED})
    values: dict[str, object] = {
        "cells": pairs(Axis.VERL, Axis.VLLM, XS, ys),
        "resolver": FakeResolver(
            outcomes={"verl0.8.0-vllm0.33.0": Outcome.CONFLICT}, versions={"torch": "2.11.0", "transformers": "5.9.0"}
        ),
        "checker": lambda: checker,
        "store": Store(folder),
        "clock": lambda: AT,
        **more,
    }
    return Job(**values)  # type: ignore[arg-type]


def test_pairs_are_every_pair_of_one_release_after_another() -> None:
    cells = pairs(Axis.VERL, Axis.VLLM, XS, YS, platform=Platform(python="3.11"), as_of=AT)
    assert len(cells) == 6
    assert cells[0].name == "verl0.8.0-vllm0.9.2-py3.11-asof20261130T120000Z"
    assert [str(one.pins[0].version) for one in cells] == ["0.8.0"] * 3 + ["0.9.1"] * 3


@pytest.mark.parametrize(
    ("y", "ys", "error"), [(Axis.VERL, YS, UsageError), (Axis.VLLM, [], NothingRanError)], ids=["one axis", "empty"]
)
def test_pairs_that_make_no_grid(y: Axis, ys: list[Version], error: type[Exception]) -> None:
    with pytest.raises(error):
        pairs(Axis.VERL, y, XS, ys)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (None, ["0.8.0", "0.9.0", "0.9.1", "0.19.0"]),
        ("0.9*", ["0.9.0", "0.9.1"]),
        ("verl0.9*", ["0.9.0", "0.9.1"]),
        ("0.{8,19}.*", ["0.8.0", "0.19.0"]),
        ("verl0.{8,9}.{0,1}", ["0.8.0", "0.9.0", "0.9.1"]),
        ("!0.9*", ["0.8.0", "0.19.0"]),
    ],
)
def test_chosen(pattern: str | None, expected: list[str]) -> None:
    versions = [Version(text) for text in ("0.8.0", "0.9.0", "0.9.1", "0.19.0")]
    assert [str(version) for version in chosen(Axis.VERL, versions, pattern)] == expected


@pytest.mark.parametrize("pattern", ["vllm0.9*", "0.8", "0.{8"])
def test_a_selector_that_takes_nothing_or_is_malformed_is_told(pattern: str) -> None:
    with pytest.raises(UsageError):
        chosen(Axis.VERL, XS, pattern)


def test_rows_show_both_verdicts_and_the_csv_is_one_line_a_row(tmp_path: Path) -> None:
    grid = run_grid(Axis.VERL, Axis.VLLM, _job(tmp_path, YS))
    assert ([str(v) for v in grid.xs], [str(v) for v in grid.ys]) == (["0.8.0", "0.9.1"], ["0.9.2", "0.24.0", "0.33.0"])
    text = grid.to_csv()
    assert len(text.splitlines()) == 7
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == ["verl", "vllm", *CSV_FIELDS]
    # By version, not by text: 0.9.2 is older than 0.24.0.
    assert [(row["verl"], row["vllm"]) for row in rows[:3]] == [("0.8.0", v) for v in ("0.9.2", "0.24.0", "0.33.0")]
    assert [(row["status"], row["resolvable"], row["works"]) for row in rows] == [
        ("works", "ok", "ok"),
        ("degraded", "ok", "degraded"),
        ("conflict", "conflict", "broken"),
        ("works", "ok", "ok"),
        ("degraded", "ok", "degraded"),
        ("broken", "ok", "broken"),
    ]
    assert (rows[1]["features"], rows[1]["deepest"]) == ("lora", "surface")
    assert rows[2]["resolve_reason"] == "verl0.8.0-vllm0.33.0 is in conflict"
    assert rows[2]["surface_reason"] == "vllm 0.33.0 lacks vllm.a.b"
    keys = {item.question.key for item in Store(tmp_path)}
    assert {row["resolve_key"] for row in rows} | {row["surface_key"] for row in rows} == keys


def test_a_pair_is_checked_at_its_own_releases_only(tmp_path: Path) -> None:
    run_grid(Axis.VERL, Axis.VLLM, _job(tmp_path, YS))
    for item in Store(tmp_path).find(tier=Tier.SURFACE):
        assert set(item.question.reads) == {"verl", "vllm"}


def test_a_new_release_asks_its_own_rows_only(tmp_path: Path) -> None:
    run_grid(Axis.VERL, Axis.VLLM, _job(tmp_path, YS[:2]))
    job = _job(tmp_path, YS)
    grid = run_grid(Axis.VERL, Axis.VLLM, job)
    assert [(tally.new, tally.reused) for tally in grid.run.tallies] == [(2, 4), (2, 4)]
    resolver = job.resolver
    assert isinstance(resolver, FakeResolver)
    assert resolver.asked == ["verl0.8.0-vllm0.33.0", "verl0.9.1-vllm0.33.0"]


def test_only_keeps_the_rows_of_a_status_and_the_denominators(tmp_path: Path) -> None:
    grid = run_grid(Axis.VERL, Axis.VLLM, _job(tmp_path, YS)).only({Status.BROKEN, Status.CONFLICT})
    assert [row.cell for row in grid.rows] == ["verl0.8.0-vllm0.33.0", "verl0.9.1-vllm0.33.0"]
    assert grid.run.planned == 6


def test_cells_without_both_axes_are_no_rows_and_what_did_not_run_is_untested(tmp_path: Path) -> None:
    job = _job(
        tmp_path, YS, cells=(cell(verl="0.9.1"), cell(verl="0.9.1", vllm="0.24.0")), tiers=frozenset({Tier.RESOLVE})
    )
    result = run_grid(Axis.VERL, Axis.VLLM, job).run
    (row,) = grid_of(Axis.VERL, Axis.VLLM, result).rows
    assert (row.works, row.surface_key, row.fields()["surface_reason"]) == (Outcome.UNTESTED, "", "")


def test_pairs_of_an_earlier_grid_are_recalled_and_those_of_the_plan_are_not_told_twice(tmp_path: Path) -> None:
    run_grid(Axis.VERL, Axis.VLLM, _job(tmp_path, YS))
    planned = cell(verl="0.9.1", vllm="0.24.0")
    job = _job(tmp_path, YS, cells=(planned,))
    rows = stored_pairs(job, load_axes())
    assert {row.cell for row in rows} == {one.name for one in pairs(Axis.VERL, Axis.VLLM, XS, YS)} - {planned.name}
    found = {row.cell: (row.status, row.surface_reason) for row in rows}
    assert found["verl0.9.1-vllm0.33.0"][0] is Status.BROKEN
    assert found["verl0.8.0-vllm0.33.0"][0] is Status.CONFLICT
    # Nothing was asked: the fakes would say so.
    assert isinstance(job.resolver, FakeResolver)
    assert job.resolver.asked == []
    assert stored_pairs(_job(tmp_path / "empty", YS, cells=()), load_axes()) == ()
