"""What the command line prints, as golden files: every command over a small stack, with the real uv and renderers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import matrix
import matrix.evidence
import reports.document
from matrix.cli import wiring
from matrix.gpus.inventory import Inventory
from tests.unit.cli_stack import CELLS, RELEASES, Said, check_golden, process, record_axes, said, steady, stocked
from tests.unit.failure_samples import AIMV2
from tests.unit.http_server import Site

COMMANDS = ("run", "check", "surface", "grid", "bisect", "update", "report")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with stocked() as site:
        yield site


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home that the tests of this module share, so that uv fetches each wheel once."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "cells.toml").write_text(CELLS, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _small_axes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_axes(monkeypatch, home / "axes.toml")
    monkeypatch.setenv("COLUMNS", "100")
    # The real one, and a GPU of this machine, would change what is printed.
    monkeypatch.setattr(matrix.evidence, "SHIPPED", home / "evidence")
    monkeypatch.setattr(wiring, "gpus", Inventory)
    monkeypatch.setattr(reports.document, "_shipped_records", lambda: (AIMV2,))


def _said(site: Site, home: Path, words: str) -> Said:
    argv = words.replace("HOME", str(home)).split()
    # Building a report anew asks no index, so it knows none.
    index = () if argv[0] == "report" else ("--index-url", site.url)
    return said(*argv, "--home", str(home), *index)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_words_of_the_command_line_are_frozen(command: str) -> None:
    heard = said(*command.split(), "--help")
    assert heard.code == 0
    # Python's releases break these lines differently.
    check_golden(f"help-{command or 'all'}.txt", heard.out, loose=True)


CHECKS = {
    "works": (0, "verl==0.9.1 vllm==0.24.0"),
    "degraded": (0, "verl==0.9.1 vllm==0.26.0"),
    "broken": (1, "verl==0.9.1 vllm==0.27.0"),
    "conflict": (1, "verl==0.9.1 vllm==0.28.0"),
    "unavailable": (1, "verl==0.9.1 vllm==0.29.0"),
    "no-such-version": (1, "vllm==0.24.9"),
    "no-such-extra": (1, "verl[foo]==0.9.1"),
    "not-yet": (1, "vllm==0.24.0 --exclude-newer 2020-01-01"),
    "deviation": (0, "verl==0.9.1 vllm==0.28.0 --no-deps"),
    "resolve-only": (0, "verl==0.9.1 vllm==0.27.0 --tiers resolve"),
    "surface-only": (1, "verl==0.9.1 vllm==0.27.0 --tiers surface"),
    "open": (0, "verl vllm==0.24.0"),
    "json": (1, "verl==0.9.1 vllm==0.27.0 --json"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_check_begins_with_the_verdict_and_what_follows(site: Site, home: Path, name: str) -> None:
    code, words = CHECKS[name]
    _said(site, home, f"check {words}")
    heard = _said(site, home, f"check {words}")
    assert heard.code == code
    assert heard.err == ""
    check_golden(f"check-{name}.txt", steady(heard.text))


@pytest.mark.parametrize(
    "words",
    [
        "check verl==0.9.1 --platform x86_64-manylinux_2_35 vllm==0.26.0 --json",
        "check --json verl==0.9.1 vllm==0.26.0",
        "check verl==0.9.1 --json vllm==0.26.0",
        "check --platform x86_64-manylinux_2_35 verl==0.9.1 --json vllm==0.26.0",
    ],
)
def test_options_may_stand_between_the_specs(site: Site, home: Path, words: str) -> None:
    (verdict,) = json.loads(_said(site, home, words).out)["cells"]
    assert verdict["cell"] == "verl0.9.1-vllm0.26.0"


def test_surface_takes_options_between_the_specs_too(site: Site, home: Path) -> None:
    assert _said(site, home, "surface verl==0.9.1 --all vllm==0.27.0").code == 1


def test_a_home_that_cannot_be_written_gives_what_is_stored_and_says_so_where_that_is_not_all(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _said(site, home, "check verl==0.9.1 vllm==0.26.0")
    stored = (home / "store" / "observations.jsonl").read_bytes()
    reads = os.access
    # Not by chmod: root, as whom a CI runs, may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and reads(path, mode))
    heard = _said(site, home, "check verl==0.9.1 vllm==0.26.0")
    assert (heard.code, heard.err) == (0, "")
    assert heard.out.startswith("verl0.9.1-vllm0.26.0: ◐ degraded\n")
    assert "note       Rebuilt from stored observations; nothing was asked." in heard.out
    for words in ("check verl==0.8.0 vllm==0.26.0", "check verl==0.9.1 vllm==0.26.0 --again"):
        heard = _said(site, home, words)
        assert (heard.code, heard.out) == (10, "")
        assert "1 of 1 cell would have to be asked about, and no answer can be kept." in heard.err
        assert "it is not writable" in heard.err
    assert (home / "store" / "observations.jsonl").read_bytes() == stored


def test_check_prints_nothing_but_json_with_json(site: Site, home: Path) -> None:
    heard = _said(site, home, "check verl==0.9.1 vllm==0.26.0 --json")
    (verdict,) = json.loads(heard.out)["cells"]
    assert (verdict["status"], verdict["works"], verdict["features"]) == ("degraded", "degraded", ["qat"])


@pytest.mark.parametrize("form", ["text", "markdown", "annotation", "json"])
@pytest.mark.parametrize(("version", "code"), [("0.24.0", 0), ("0.26.0", 0), ("0.27.0", 1)])
def test_surface_lists_what_does_not_fit(site: Site, home: Path, form: str, version: str, code: int) -> None:
    heard = _said(site, home, f"surface verl==0.9.1 vllm=={version} --format {form}")
    assert heard.code == code
    check_golden(f"surface-{version}-{form}.txt", steady(heard.text))


def test_surface_shows_what_decides_nothing_when_asked_and_knows_json_by_its_short_name(site: Site, home: Path) -> None:
    check_golden("surface-all.txt", _said(site, home, "surface verl==0.9.1 vllm==0.27.0 --all").text)
    assert len(json.loads(_said(site, home, "surface verl==0.9.1 vllm==0.27.0 --json --all").out)) == 2


def test_the_plan_is_listed_without_running_it(site: Site, home: Path) -> None:
    check_golden("run-list.txt", _said(site, home, "run --cells-file HOME/cells.toml --list").text)
    heard = _said(site, home, "run --cells-file HOME/cells.toml --list --json --cells group:image")
    assert [cell["name"] for cell in json.loads(heard.out)] == ["verl0.8.0-vllm0.24.0-nodeps"]


def test_run_prints_the_table_and_where_the_files_are_and_report_the_same_again(site: Site, home: Path) -> None:
    _said(site, home, "run --cells-file HOME/cells.toml --out HOME/out")
    heard = _said(site, home, "run --cells-file HOME/cells.toml --out HOME/out")
    folders = ((home, "HOME"),)
    assert heard.code == 0
    check_golden("run.txt", steady(heard.text, *folders))
    again = _said(site, home, "report --cells-file HOME/cells.toml --out HOME/out")
    assert again.code == 0
    check_golden("report.txt", steady(again.text, *folders))
    names = {path.name for path in (home / "out").iterdir()}
    assert {"index.html", "summary.md", "report.json", "junit.xml"} <= names


@pytest.mark.parametrize(
    ("words", "code"), [("", 0), ("conflict", 1), ("works,broken", 1), ("untested", 0), ("broken --cells *0.24.0", 0)]
)
def test_run_fails_on_the_statuses_it_is_told_to(site: Site, home: Path, words: str, code: int) -> None:
    fail_on = f"--fail-on {words}" if words else ""
    assert _said(site, home, f"run --cells-file HOME/cells.toml --out HOME/out {fail_on}").code == code


def test_run_prints_json_alone(site: Site, home: Path) -> None:
    heard = _said(site, home, "run --cells-file HOME/cells.toml --out HOME/out --json")
    assert [verdict["status"] for verdict in json.loads(heard.out)["cells"]] == [
        "works", "degraded", "broken", "conflict", "works",
    ]  # fmt: skip


def test_grid_counts_the_pairs_and_writes_them_as_csv(site: Site, home: Path) -> None:
    words = "grid --x-only 0.9* --y-only 0.2{4,6,7,8,9}.0 --out HOME/grid"
    _said(site, home, words)
    heard = _said(site, home, words)
    assert heard.code == 0
    check_golden("grid.txt", steady(heard.text, (home, "HOME")))
    check_golden("grid.csv", steady((home / "grid" / "grid-verl-vllm.csv").read_text(encoding="utf-8")))


def test_a_pair_that_only_resolves_is_untested_and_the_run_is_no_failure(site: Site, home: Path) -> None:
    heard = _said(site, home, "grid --x-only 0.9* --y-only 0.2{4,6,7,8,9}.0 --out HOME/grid --tiers resolve")
    assert heard.code == 0
    assert "5 of 5 pairs judged: 2 conflict, 3 untested." in heard.out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("found", "--good 0.24.0 --bad 0.27.0"),
        ("json", "--good 0.24.0 --bad 0.27.0 --json"),
        ("resolve", "--good 0.24.0 --bad 0.28.0 --tier resolve"),
    ],
)
def test_bisect_names_the_first_bad_release_and_what_it_passed_over(
    site: Site, home: Path, name: str, words: str
) -> None:
    heard = _said(site, home, f"bisect --axis vllm --with verl==0.9.1 {words}")
    assert heard.code == 0
    check_golden(f"bisect-{name}.txt", steady(heard.text))


def test_bisect_gives_a_range_where_a_hole_touches_the_boundary(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_axes(monkeypatch, home / "axes.toml", {**RELEASES, "vllm": ("0.25.0", "0.25.1", "0.27.0")})
    heard = _said(site, home, "bisect --axis vllm --with verl==0.9.1 --good 0.25.0 --bad 0.27.0")
    assert heard.code == 1
    check_golden("bisect-range.txt", heard.text)


def test_update_shows_the_difference_writes_it_once_and_only_when_told(site: Site, home: Path) -> None:
    path = home / "axes.toml"
    before = path.read_text(encoding="utf-8")
    heard = _said(site, home, "update --check")
    check_golden("update-check.txt", heard.text)
    assert heard.code == 1
    assert path.read_text(encoding="utf-8") == before
    changes = json.loads(_said(site, home, "update --check --json").out)["changes"]
    assert [(change["version"], change["kind"]) for change in changes] == [("0.25.1", "gone")]
    check_golden("update.txt", _said(site, home, "update").text)
    check_golden("update-again.txt", _said(site, home, "update --check").text)


def test_it_runs_as_a_module_and_tells_its_version() -> None:
    ended = subprocess.run(process("--version"), capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == f"verl-matrix {matrix.__version__}\n"


HEAVY = ("packaging", "urllib3", "rich", "pandas", "jinja2", "griffe", "platformdirs", "filelock", "bracex", "ssl")


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from matrix.__main__ import main; sys.argv = ['verl-matrix', '--help']; code = main();"
        f"sys.stderr.write(' '.join(name for name in {HEAVY!r} if name in sys.modules)); sys.exit(code)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stderr == ""
