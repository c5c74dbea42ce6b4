"""Nights over a small stack on a real server that changes between them, with the real uv and the real renderers."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import matrix.grid
import matrix.store
import reports.build
from matrix.axes import load_axes
from matrix.cli import nightly, wiring
from matrix.cli.parser import build_parser
from matrix.errors import ToolError
from matrix.gpus.inventory import Inventory
from matrix.job import RunResult
from matrix.nightly.archive import Archive
from matrix.nightly.comparison import Comparison
from matrix.nightly.course import Course, Held
from matrix.nightly.turn import turn
from matrix.store import Store
from reports.build import ReportFiles
from reports.front import TerminalFront
from tests.unit.cli_stack import (
    BROKEN,
    CELLS,
    RELEASES,
    ROOT,
    WORKS,
    Said,
    axes_text,
    check_golden,
    process,
    record_axes,
    said,
    stocked,
)  # fmt: skip
from tests.unit.http_server import Site, wheel
from tests.unit.nightly_fakes import night as a_night
from tests.unit.report_samples import sample

TAG = "cp38-abi3-manylinux_2_31_x86_64"
WHEEL = f"vllm-0.24.0-{TAG}.whl"


@pytest.fixture
def site() -> Iterator[Site]:
    with stocked() as site:
        yield site


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cells.toml").write_text(CELLS, encoding="utf-8")
    record_axes(monkeypatch, tmp_path / "axes.toml")
    monkeypatch.setattr(wiring, "gpus", Inventory)
    # The reports of a run have tests of their own, and take longer than the rest of a night over this stack.
    monkeypatch.setattr(reports.build, "build", _no_report)
    return tmp_path


def _no_report(result: RunResult, out_dir: Path, **more: object) -> ReportFiles:
    return ReportFiles(html=out_dir, markdown=out_dir, json=out_dir, junit=out_dir)


def words(site: Site, home: Path, *more: str) -> tuple[str, ...]:
    places = ("--home", str(home / "kept"), "--out", str(home / "out"), "--axes", str(home / "axes.toml"))
    what = ("--cells-file", str(home / "cells.toml"), "--tiers", "resolve,surface", "--newest", "0")
    return ("nightly", *places, *what, "--index-url", site.url, "--evidence", "none", *more)


def night(site: Site, home: Path, *more: str) -> Said:
    """Hold a night, a day after the one before for all that the cache knows: pages are younger than ten minutes."""
    for name in ("index-1", "resolve"):
        shutil.rmtree(home / "kept" / "cache" / name, ignore_errors=True)
    return said(*words(site, home, *more))


def data(home: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((home / "out" / "nightly.json").read_text(encoding="utf-8"))
    return found


def shift(home: Path, name: str) -> dict[str, object]:
    shifts = data(home)["shifts"]
    assert isinstance(shifts, list)
    (found,) = (item for item in shifts if item["name"] == name)
    assert isinstance(found, dict)
    return found


def cause(home: Path, name: str) -> str:
    found = shift(home, name)["cause"]
    assert isinstance(found, dict)
    return str(found["line"])


def serve(site: Site, version: str, modules: dict[str, str], requires: str = "torch==2.11.0") -> None:
    """Put a wheel of vllm on the site, in the place of one of the same version."""
    members = {f"vllm/{path}": text.encode() for path, text in modules.items()} | {"vllm/__init__.py": b""}
    name = f"vllm-{version}-{TAG}.whl"
    site.rows["vllm"] = [row for row in site.rows["vllm"] if row["filename"] != name]
    site.add("vllm", name, wheel("vllm", version, members, requires=[requires]))


def test_night_after_night(site: Site, home: Path) -> None:
    """One story: a first night, nothing new, other bytes, a yank, it is mended, a new release that breaks."""
    first = night(site, home)
    assert (first.code, "first night: 2 of 5 cells fail, nothing to compare with" in first.out) == (0, True)
    assert "releases:" not in first.out
    again = night(site, home)
    assert (again.code, again.out.splitlines()[0]) == (0, "0 new failures, 0 fixed, 2 still failing, of 5 cells")
    assert len(Archive(home / "kept" / "nightly").files) == 2

    serve(site, "0.24.0", dict(BROKEN))
    other = night(site, home)
    assert other.code == 1
    # The same code is in both cells that pin this release.
    assert other.out.splitlines()[0] == "2 new failures (2 index changed), 0 fixed, 2 still failing, of 5 cells"
    assert cause(home, "verl0.9.1-vllm0.24.0") == f"index changed: other bytes under the name of {WHEEL}"
    assert shift(home, "verl0.9.1-vllm0.24.0")["retry"] == "tried twice, bad both times"
    assert json.loads((home / "out" / "badge.json").read_text())["color"] == "red"

    for row in site.rows["vllm"]:
        if row["filename"] == WHEEL:
            row["yanked"] = "bad wheels"
    yanked = night(site, home)
    assert yanked.code == 1
    assert cause(home, "verl0.9.1-vllm0.24.0") == "index changed: vllm 0.24.0: yanked (bad wheels)"
    assert "  - vllm 0.24.0 2026-01-01 yanked: bad wheels" in yanked.out

    serve(site, "0.24.0", dict(WORKS))
    mended = night(site, home)
    assert mended.code == 0
    assert shift(home, "verl0.9.1-vllm0.24.0")["kind"] == "fixed"
    assert cause(home, "verl0.9.1-vllm0.24.0").startswith("index changed: ")

    serve(site, "0.30.0", dict(BROKEN))
    new = night(site, home, "--newest", "1")
    assert new.code == 1
    assert "  + vllm 0.30.0 2026-01-01" in new.out
    assert cause(home, "verl0.9.1-vllm0.30.0") == "release changed: vllm 0.30.0 is new on the index"
    assert "--json" not in new.out
    history = data(home)["history"]
    assert isinstance(history, list)
    assert len(history) == 6


def test_a_change_of_the_tool_is_told_as_ours(site: Site, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    night(site, home)
    monkeypatch.setattr("matrix.surface.check.RULES", 99)
    monkeypatch.setattr("matrix.cli.wiring.open_checker", _strict)
    assert night(site, home).code == 1
    assert cause(home, "verl0.9.1-vllm0.24.0").startswith("ours: the tool: verl-matrix ")


def _strict(*args: object) -> object:
    """Return a checker of newer rules, by which everything is broken."""
    from dataclasses import replace

    from matrix.surface.check import SurfaceChecker
    from matrix.tier import Outcome

    real = _REAL(*args)  # type: ignore[arg-type]
    assert isinstance(real, SurfaceChecker)
    observe = real.observe
    real.observe = lambda cell, versions: replace(  # type: ignore[method-assign]
        observe(cell, versions), outcome=Outcome.BROKEN, reason="by the new rules", detail={}
    )
    return real


_REAL = wiring.open_checker


def test_another_machine_s_nightly_is_waited_for_or_refused(site: Site, home: Path) -> None:
    with turn(home / "kept" / "nightly"):
        refused = night(site, home)
        waited = night(site, home, "--wait", "1")
    assert (refused.code, waited.code) == (9, 9)
    assert "Another nightly is running in " in refused.err
    assert "It did not end within 1 s." in waited.err
    assert night(site, home, "--wait", "1").code == 0


def test_a_night_in_which_nothing_ran_is_not_kept(site: Site, home: Path) -> None:
    (home / "cells.toml").write_text(
        'schema = 1\n[[cell]]\nverl = "0.9.1"\nreason = "r"\nsource = "s"\ndate = 2026-01-01\n', encoding="utf-8"
    )
    heard = night(site, home, "--tiers", "surface")
    assert heard.code == 10
    assert "Nothing ran: 0 of 1 cells were tried, so this night is not kept." in heard.err
    assert data(home)["kept"] is False
    assert Archive(home / "kept" / "nightly").files == ()


def test_an_index_that_refuses_is_told(site: Site, home: Path) -> None:
    site.faults["/simple/vllm/"] = ["403*"]
    assert night(site, home).code == 5
    assert Archive(home / "kept" / "nightly").files == ()


def test_what_a_newer_release_wrote_is_refused(site: Site, home: Path) -> None:
    night(site, home)
    (path,) = Archive(home / "kept" / "nightly").files
    whole = path.read_text()
    path.write_text(whole.replace('"schema":1', '"schema":2', 1))
    heard = night(site, home)
    assert (heard.code, "schema 2; this release reads up to 1" in heard.err) == (11, True)
    path.write_text(whole)
    store = home / "kept" / "store" / "observations.jsonl"
    store.write_text(store.read_text().replace('"schema":1', '"schema":2', 1))
    heard = night(site, home)
    assert (heard.code, "observations.jsonl:1: written with schema 2" in heard.err) == (11, True)


def test_a_store_of_an_older_schema_is_migrated(site: Site, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There was no schema before 1, so the next one is played: what schema 1 calls `seconds` it calls `took`."""
    night(site, home)
    asked = len(Store(home / "kept" / "store"))
    lines = (home / "kept" / "store" / "observations.jsonl").read_text()
    (home / "kept" / "store" / "observations.jsonl").write_text(lines.replace('"seconds"', '"took"'))

    def renamed(old: dict[str, object]) -> dict[str, object]:
        return {"seconds": old["took"], **old, "schema": 2}

    monkeypatch.setattr(matrix.store, "MIGRATIONS", (renamed,))
    monkeypatch.setattr(matrix.store, "SCHEMA", 2)
    monkeypatch.setattr(matrix.store.upgrade, "__defaults__", (None, 2))
    heard = night(site, home)
    assert (heard.code, heard.out.splitlines()[0]) == (0, "0 new failures, 0 fixed, 2 still failing, of 5 cells")
    # Nothing was asked again, so what was migrated is what answers.
    assert len(Store(home / "kept" / "store")) == asked


def test_the_night_as_data_and_without_a_look_for_releases(site: Site, home: Path) -> None:
    before = (home / "axes.toml").read_bytes()
    heard = night(site, home, "--json", "--no-update")
    made = json.loads(heard.out)
    assert made["schema"] == 1
    assert made["snapshot"]["index"] == site.url.rstrip("/")
    assert set(made["snapshot"]["pages"]) >= {"verl", "vllm", "torch"}
    assert made["snapshot"]["releases"]["vllm 0.24.0"]["files"]
    assert (home / "axes.toml").read_bytes() == before


def test_an_earlier_date_compares_with_a_later_one_cell_by_cell(site: Site, home: Path) -> None:
    night(site, home, "--as-of", "2026-02-01")
    heard = night(site, home)
    assert heard.code == 0
    assert heard.out.splitlines()[0] == "0 new failures, 0 fixed, 2 still failing, of 5 cells"
    assert "no longer planned" not in heard.out


def test_a_home_of_its_own_lattice_leaves_the_shipped_one(site: Site, home: Path) -> None:
    from matrix.nightly import lattice

    shipped = home / "shipped.toml"
    shipped.write_text(axes_text(RELEASES), encoding="utf-8")
    before = shipped.read_bytes()
    usual = lattice.bring_up.__kwdefaults__
    assert usual is not None
    usual["shipped"], kept = shipped, usual["shipped"]
    try:
        argv = [word for word in words(site, home) if word not in ("--axes", str(home / "axes.toml"))]
        assert said(*argv).code == 0
    finally:
        usual["shipped"] = kept
    assert shipped.read_bytes() == before
    assert (home / "kept" / "nightly" / "axes.toml").exists()


@pytest.mark.parametrize("text", ["-1", "x", "1234567"])
def test_a_count_that_is_none_is_refused(text: str) -> None:
    heard = said("nightly", "--wait", text)
    assert heard.code == 2
    assert "is not a whole number from 0 to 999999" in heard.err


def test_out_that_is_no_folder_is_told(site: Site, home: Path) -> None:
    (home / "file").write_text("")
    heard = night(site, home, "--out", str(home / "file"))
    assert (heard.code, "Nothing can be written to" in heard.err) == (2, True)


def test_another_driver_makes_everything_be_asked_again(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"machine": "m", "gpus": ["H200 143771 MiB"], "driver": "580.65"}
    monkeypatch.setattr(nightly, "_machine", lambda: dict(facts))
    night(site, home)
    asked = len(Store(home / "kept" / "store"))
    night(site, home)
    assert len(Store(home / "kept" / "store")) == asked
    facts["driver"] = "580.95"
    heard = night(site, home)
    assert "note: The GPUs or their driver are others than on the night before: everything is asked again." in heard.out
    assert len(Store(home / "kept" / "store")) == 2 * asked


# As processes.


def _start(site: Site, home: Path, *more: str) -> subprocess.Popen[str]:
    argv = process(*words(site, home, *more))
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)


def _until_kept(home: Path, count: int) -> None:
    end = time.monotonic() + 60
    while len(Store(home / "kept" / "store")) < count:
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.02)


def test_a_kill_in_the_middle_loses_nothing_and_the_next_one_goes_on(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.http_server.SLOW", 60.0)
    # Its metadata are had from the wheel too, so what waits is the check of its code, or its resolution.
    site.faults[f"/files/vllm-0.27.0-{TAG}.whl"] = ["", "", "slow*"]
    running = _start(site, home)
    _until_kept(home, 5)
    running.send_signal(signal.SIGKILL)
    running.wait(timeout=20)
    assert running.stdout is not None
    running.stdout.close()
    kept = len(Store(home / "kept" / "store"))
    assert Archive(home / "kept" / "nightly").files == ()
    site.faults.clear()
    again = subprocess.run(
        process(*words(site, home)), capture_output=True, text=True, timeout=90, cwd=ROOT, check=False
    )
    assert again.returncode == 0
    assert again.stderr.count("(stored)") == kept
    assert len(Archive(home / "kept" / "nightly").files) == 1


def test_two_at_once_one_is_refused_and_one_waits(site: Site, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.http_server.SLOW", 4.0)
    site.faults["/simple/ray/"] = ["slow"]
    first = _start(site, home)
    end = time.monotonic() + 60
    while not (home / "kept" / "nightly" / "turn.json").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    refused = said(*words(site, home, "--out", str(home / "out2")))
    waited = said(*words(site, home, "--out", str(home / "out3"), "--wait", "60"))
    out, _ = first.communicate(timeout=60)
    assert (first.returncode, refused.code, waited.code) == (0, 9, 0), out
    assert len(Archive(home / "kept" / "nightly").files) == 2


def test_a_full_disk_is_told_and_the_next_night_goes_on(site: Site, home: Path) -> None:
    kept = home / "kept"
    kept.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(kept)]
    try:
        done = subprocess.run(mount, capture_output=True, timeout=20, check=False)
    except OSError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip("a small file system cannot be mounted here; test_nightly_keeping.py limits the size of files")
    try:
        (kept / "ballast").write_bytes(b"x" * 100_000)
        full = said(*words(site, home))
        assert full.code == 8, full.err
        assert Archive(kept / "nightly").files == ()
        before = len(Store(kept / "store"))
        subprocess.run(["mount", "-o", "remount,size=64m", str(kept)], check=True, timeout=20, capture_output=True)
        assert said(*words(site, home)).code == 0
        assert len(Store(kept / "store")) >= before
        assert len(Archive(kept / "nightly").files) == 1
    finally:
        subprocess.run(["umount", "-l", str(kept)], check=True, timeout=20, capture_output=True)


def test_the_words_of_the_command_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    heard = said("nightly", "--help")
    assert heard.code == 0
    # Python's releases break these lines differently.
    check_golden("help-nightly.txt", heard.out, loose=True)


def test_options_of_a_cluster_need_one(site: Site, home: Path) -> None:
    heard = night(site, home, "--address", "127.0.0.1:1")
    assert (heard.code, "--address goes with --executor ray." in heard.err) == (2, True)


def test_a_cluster_that_is_not_there_leaves_what_is_static(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: object) -> object:
        raise ToolError("There is no cluster here.")

    monkeypatch.setattr("matrix.cli.executors.open_cluster", none)
    heard = night(site, home, "--executor", "ray", "--tiers", "resolve,surface,import", "--cells", "*0.24.0")
    assert heard.code == 6
    assert "There is no cluster here." in heard.err
    assert heard.out.startswith("first night: ")


@pytest.mark.parametrize(("more", "shown"), [((), True), (("--as-of", "2026-06-01"), False), (("--cells", "x"), False)])
def test_the_report_of_a_whole_night_shows_the_pairs_of_an_earlier_grid(
    more: tuple[str, ...], shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = build_parser("1").parse_args(["nightly", "--home", str(tmp_path), "--offline", *more])
    held = Held(night=a_night(), comparison=Comparison(before=None, shifts=()), result=sample())
    axes = load_axes()
    course = SimpleNamespace(
        planned=tuple(held.result.plan.values()), as_of=wiring.as_of(args), axes=axes,
        job=lambda items: wiring.open_job(args, items, TerminalFront().progress()),
    )  # fmt: skip
    # Of the lattice as it is that night, not as it is shipped.
    monkeypatch.setattr(matrix.grid, "stored_pairs", lambda job, lattice: (len(job.cells), lattice is axes))
    found = nightly._with_pairs(args, cast("Course", course), held)
    assert found.result.lattice == ((len(held.result.plan), True) if shown else ())
    assert found.night is held.night
