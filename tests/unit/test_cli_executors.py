"""The words of the executors: what goes with what, and a run that goes on where another was cut short."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import executors, wiring
from matrix.cli.parser import build_parser
from matrix.errors import MatrixError, NothingRanError, UsageError
from matrix.executors import journal
from matrix.executors.demand import GIB
from matrix.home import Home
from matrix.job import Silent
from matrix.resolve import Resolver
from matrix.store import Store
from tests.unit.cli_stack import said
from tests.unit.executor_fakes import FakeCluster

AT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(store=tmp_path / "store", cache=tmp_path / "cache")
    found.prepare()
    return found


def words(text: str) -> argparse.Namespace:
    return build_parser("1").parse_args(["run", *text.split()])


def begun(home: Home, text: str) -> None:
    """Leave the journal of a run of these words that was cut short."""
    args = words(text)
    executors.take_up(args, home)
    executors.begin(args, home)


def test_a_run_that_goes_on_needs_no_words(home: Home) -> None:
    begun(home, "--cells verl* --tiers import -k ray --executor ray --address 1.2.3.4:6379 --gpus 2 --accelerator H100")
    args = words("--resume")
    executors.take_up(args, home)
    assert (args.cells, args.tiers, args.probes, args.executor) == (["verl*"], "import", ["ray"], "ray")
    assert (args.address, args.gpus, args.accelerator) == ("1.2.3.4:6379", 2, ["H100"])
    assert not hasattr(args, "since")
    assert executors.begin(args, home).begun == journal.unfinished(home.store).begun


@pytest.mark.parametrize(
    "more",
    [
        "--cells verl*",
        "--executor ray --address 5.6.7.8:6379",
        "--executor local",
        "--cpus 4",
        "--executor local --keep",
    ],
)
def test_how_a_run_goes_on_may_change(home: Home, more: str) -> None:
    begun(home, "--cells verl* --executor ray" if "local" not in more else "--cells verl*")
    args, asked = words(f"--resume {more}"), words(more)
    executors.take_up(args, home)
    for name in ("executor", "address", "cpus", "keep"):
        if getattr(asked, name) != args.parser.get_default(name):
            assert getattr(args, name) == getattr(asked, name)
    assert args.cells == ["verl*"]


@pytest.mark.parametrize(
    ("more", "option"),
    [("--cells vllm*", "--cells"), ("-k torch", "-k"), ("--tiers gpu", "--tiers"), ("--again", "--again")],
)
def test_what_a_run_is_about_does_not_change(home: Home, more: str, option: str) -> None:
    begun(home, "--cells verl* -k ray")
    with pytest.raises(UsageError, match=f"something else: {option} was"):
        executors.take_up(words(f"--resume {more}"), home)


def test_a_run_that_asks_again_goes_on_from_its_own_begin(home: Home) -> None:
    begun(home, "--again")
    args = words("--resume")
    executors.take_up(args, home)
    assert args.again
    assert args.since == journal.unfinished(home.store).begun
    assert wiring.manner(args).since == args.since


def test_there_must_be_a_run_to_go_on_with(home: Home) -> None:
    with pytest.raises(NothingRanError, match="no run to go on with"):
        executors.take_up(words("--resume"), home)


@pytest.mark.parametrize(
    "more", ["--address x", "--gpus 1", "--accelerator H100", "--cpus 1", "--node-home /x", "--patience 3"]
)
def test_options_of_the_cluster_go_with_it_only(home: Home, more: str) -> None:
    with pytest.raises(UsageError, match=f"{more.split()[0]} goes with --executor ray"):
        executors.take_up(words(more), home)
    executors.take_up(words(f"{more} --executor ray"), home)


def test_the_options_reach_the_cluster(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_cluster(address: str, parcel: Any) -> FakeCluster:
        opened.append(address)
        return FakeCluster([])

    monkeypatch.setattr("matrix.executors.ray_cluster.open_cluster", open_cluster)
    args = words(
        "--executor ray --address a:1 --gpus 2 --cpus 3 --accelerator H100 --node-home /scratch "
        "--patience 2 --memory 5 --index-url http://127.0.0.1:1"
    )
    executors.take_up(args, home)
    executors.begin(args, home)
    resolver = Resolver(index=wiring.open_index(args, home), cache_dir=home.cache)
    made: Any = wiring.open_executor(args, home, Store(home.store), resolver, Silent())
    assert opened == ["a:1"]
    given = made.given
    assert (given.gpus, given.cpus, given.kinds, given.memory) == (2, 3, ("H100",), 5 * GIB)
    assert (given.home, given.patience_s, made.recall.cache) == (Path("/scratch"), 120.0, home.cache)


def test_a_run_leaves_its_journal_and_says_that_it_ended(tmp_path: Path) -> None:
    where = ["--home", str(tmp_path / "home"), "--out", str(tmp_path / "out"), "--offline"]
    heard = said("run", "--cells", "verl0.9.1*", "--tiers", "resolve", *where)
    held = json.loads((tmp_path / "home" / "store" / "run.json").read_text(encoding="utf-8"))
    assert held["words"]["cells"] == ["verl0.9.1*"]
    # Offline and with nothing cached it got nowhere: that can be gone on with.
    assert (heard.code, held["ended"]) == (5, False)
    again = said("run", "--resume", *where)
    assert again.code == 5
    assert issubclass(NothingRanError, MatrixError)


def test_without_ray_beside_the_tool_every_cell_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    home = Home(store=tmp_path / "store", cache=tmp_path / "cache")
    args = words("--executor ray --tiers import --index-url http://127.0.0.1:1")
    resolver = Resolver(index=wiring.open_index(args, home), cache_dir=home.cache)
    with pytest.raises(MatrixError, match="needs ray beside this tool"):
        wiring.open_executor(args, home, Store(home.store), resolver, Silent())
