"""The command line of the tiers that need an installation: how deep by default, `--here`, what makes it exit with 1."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.cell import Cell
from matrix.cli import wiring
from matrix.cli.parser import build_parser
from matrix.errors import ToolError, UsageError
from matrix.executors.local import Local
from matrix.gpus.inventory import Gpu, Inventory
from matrix.home import Home
from matrix.job import Silent
from matrix.plan import Planned
from matrix.probing.prober import Prober
from matrix.probing.visit import Stay, Visitor
from matrix.resolve import Resolver
from matrix.store import Store
from matrix.tier import Tier
from tests.unit.cli_stack import said
from tests.unit.run_fakes import cell

ONE, OTHER = cell(verl="0.9.1", vllm="0.24.0"), cell(verl="0.8.0", vllm="0.33.0")
PLANNED = (Planned(cell=ONE, groups=("embedded",)), Planned(cell=OTHER))
R, S, M, B, G = Tier.RESOLVE, Tier.SURFACE, Tier.IMPORT, Tier.BEHAVE, Tier.GPU


def _args(words: str) -> argparse.Namespace:
    return build_parser("1").parse_args(words.split())


@pytest.mark.parametrize(
    ("words", "tiers", "deep"),
    [
        ("run", {R, S, M, B}, {ONE}),
        ("run --tiers resolve,surface", {R, S}, set()),
        ("run --tiers import", {R, M}, {ONE, OTHER}),
        ("run --tiers behave,gpu", {R, B, G}, {ONE, OTHER}),
        ("run --executor ray", {R, S, M, B, G}, {ONE}),
        ("run --here", {S, M, B}, {ONE, OTHER}),
        ("run --here --tiers import", {M}, {ONE, OTHER}),
        ("check verl==0.9.1", {R, S}, set()),
        ("check verl==0.9.1 --tiers surface,import", {R, S, M}, {ONE, OTHER}),
        ("grid", {R, S}, set()),
        ("grid --tiers surface", {S}, set()),
    ],
)
def test_how_deep_each_command_goes(
    monkeypatch: pytest.MonkeyPatch, words: str, tiers: set[Tier], deep: set[Cell]
) -> None:
    monkeypatch.setattr(wiring, "gpus", Inventory)
    args = _args(words)
    wanted = wiring.tiers(args)
    assert wanted == tiers
    assert wiring.deep(args, PLANNED, wanted) == {item.name for item in deep}


GPU_CELL = Planned(cell=cell(verl="0.9.1", vllm="0.26.0"), groups=("gpu",))
H200 = Inventory(gpus=(Gpu(index=0, uuid="GPU-1", name="NVIDIA H200", memory=1 << 37, capability=(9, 0)),))
HIDDEN = Inventory(why="CUDA_VISIBLE_DEVICES shows none of 1 GPU")


@pytest.mark.parametrize(
    ("words", "inventory", "tiers", "deep", "aside"),
    [
        ("run", H200, {R, S, M, B, G}, {ONE, GPU_CELL.cell}, ""),
        ("run --here", H200, {S, M, B, G}, {ONE, OTHER, GPU_CELL.cell}, ""),
        ("run --tiers resolve,surface", H200, {R, S}, set(), "it was not asked for"),
        ("run", Inventory(), {R, S, M, B}, {ONE}, "this machine has no GPU"),
        ("run", HIDDEN, {R, S, M, B}, {ONE}, f"this machine has no GPU: {HIDDEN.why}"),
        ("run --tiers gpu", Inventory(), {R, G}, {ONE, OTHER, GPU_CELL.cell}, ""),
        ("report", Inventory(), {R, S, M, B, G}, set(), "this machine has no GPU"),
    ],
)
def test_where_there_is_a_gpu_its_cells_go_down_to_it_and_else_say_why_not(
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    inventory: Inventory,
    tiers: set[Tier],
    deep: set[Cell],
    aside: str,
) -> None:
    monkeypatch.setattr(wiring, "gpus", lambda: inventory)
    args, planned = _args(words), (*PLANNED, GPU_CELL)
    wanted = wiring.tiers(args) if hasattr(args, "tiers") else frozenset(wiring.BUILT)
    assert wanted == tiers
    names = wiring.deep(args, planned, wanted)
    assert names == {item.name for item in deep}
    assert wiring.aside(planned, wanted, names) == ({GPU_CELL.cell.name: {G: aside}} if aside else {})


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("grid --tiers import", "The tier `import` cannot be tried by `grid`."),
        ("run --tiers bench", "The tier `bench` cannot be tried by this release."),
        ("run --tiers ,", "--tiers names no tier."),
        ("run --tiers imort", "There is no tier `imort`."),
    ],
)
def test_tiers_that_cannot_be_tried_are_refused(words: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        wiring.tiers(_args(words))
    assert caught.value.what == what


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(store=tmp_path / "store", cache=tmp_path / "cache")


def _visitor(words: str, home: Home) -> Visitor | Stay:
    args = _args(f"{words} --index-url http://127.0.0.1:1")
    store = Store(home.store)
    resolver = Resolver(index=wiring.open_index(args, home), cache_dir=home.cache)
    executor = wiring.open_executor(args, home, store, resolver, Silent())
    assert isinstance(executor, Local)
    assert isinstance(executor.visitor, Visitor | Stay)
    return executor.visitor


def test_the_options_reach_the_prober(home: Home) -> None:
    made = _visitor("run --tiers import,behave -k ray -k vllm --memory 3 --again", home)
    assert isinstance(made, Visitor)
    assert isinstance(made.prober, Prober)
    assert made.prober.tiers == {M, B}
    assert made.prober.patterns == ("ray", "vllm")
    assert made.prober.limits.memory == 3 * 2**30
    assert made.prober.again
    assert made.prober.failures


def test_the_environment_one_stands_in_must_have_pytest(home: Home, standing: Path) -> None:
    made = _visitor(f"run --here {standing} --tiers import", home)
    assert isinstance(made, Stay)
    assert made.environment.installed["tensordict"] == "0.9.0"
    made.prober.equip(made.environment)
    from dataclasses import replace

    with pytest.raises(ToolError, match="pytest is not installed"):
        made.prober.equip(replace(made.environment, installed={}))


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with pytest and a tensordict that does nothing."""
    folder = tmp_path_factory.mktemp("standing") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "tensordict").mkdir()
    (site / "tensordict" / "__init__.py").write_text("__version__ = '0.9.0'\n")
    info = site / "tensordict-0.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensordict\nVersion: 0.9.0\n")
    # The tests' own pytest, found after what the environment itself holds.
    (site / "more.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    return folder / "bin" / "python"


def test_here_is_a_cell_named_by_what_is_installed(tmp_path: Path, standing: Path) -> None:
    words = ["run", "--here", str(standing), "--tiers", "import", "-k", "test_package_imports", "--json"]
    heard = said(*words, "--home", str(tmp_path), "--out", str(tmp_path / "out"))
    assert heard.code == 0, heard.err
    (shown,) = json.loads(heard.out)["cells"]
    python = f"py{sys.version_info[0]}.{sys.version_info[1]}"
    assert shown["cell"] == "tensordict0.9.0".replace("tensordict", "td") + ("" if python == "py3.12" else f"-{python}")
    outcomes = {item["probe"].rpartition("[")[2].rstrip("]"): item["outcome"] for item in shown["probes"]}
    assert outcomes.pop("tensordict") == "ok"
    assert set(outcomes.values()) == {"untested"}
    again = said(*words, "--home", str(tmp_path), "--out", str(tmp_path / "out"))
    assert again.code == 0
    assert json.loads(again.out)["tiers"][0]["reused"] == 1


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("--here", "--cells", "*"), 2, "--here is about one environment"),
        (("--here", sys.executable), 10, "has none of the stack installed"),
        (("--here", "/nowhere/python"), 6, "cannot be started"),
        (("--fail-on", "agreement"), 2, "There is no status `agreement`"),
    ],
)
def test_what_makes_no_sense_with_here(tmp_path: Path, words: tuple[str, ...], code: int, what: str) -> None:
    heard = said("run", *words, "--home", str(tmp_path), "--out", str(tmp_path / "out"))
    assert (heard.code, what in heard.err) == (code, True), heard.err


@pytest.mark.parametrize(("fail_on", "code"), [("disagreement", 1), ("conflict", 0), ("", 0)])
def test_a_record_that_is_wrong_exits_with_1_where_that_is_asked_for(
    tmp_path: Path, standing: Path, monkeypatch: pytest.MonkeyPatch, fail_on: str, code: int
) -> None:
    from matrix.probing import folder as folders
    from tests.unit.probing_stack import RECORDS, failure, folder_of

    record = failure("yes-seen", probe="test_records.py::test_yes_absent", affects=">=0")
    monkeypatch.setattr("matrix.records.load_failures", lambda: (record, failure("no-seen"), failure("quiet")))
    made = folder_of(tmp_path / "tests" / "compat", test_records=RECORDS)
    monkeypatch.setattr(folders, "_PACKAGE", made.parents[1] / "matrix")
    words = ["run", "--here", str(standing), "--tiers", "import", "-k", "test_other", "--fail-on", fail_on]
    heard = said(*words, "--home", str(tmp_path / "home"), "--out", str(tmp_path / "out"))
    assert heard.code == code, heard.err
    assert "record wrong" in (tmp_path / "out" / "summary.md").read_text(encoding="utf-8")
