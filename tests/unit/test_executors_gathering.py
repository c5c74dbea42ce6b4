"""Stores of other machines in one: nothing twice, nothing lost, oldest first."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from matrix.errors import NothingRanError
from matrix.executors.gathering import Gathered, gather, stores_in
from matrix.store import Store
from matrix.tier import Outcome, Tier
from tests.unit.cli_stack import said
from tests.unit.run_fakes import AT, observation

ONE = observation("td0.9.0", Tier.IMPORT, detail={"large": "x" * 9000})
LATER = replace(ONE, at=AT + timedelta(hours=1), outcome=Outcome.BROKEN, reason="it is broken now")
OTHER = observation("td0.9.1", Tier.IMPORT, at=AT - timedelta(hours=1))


def test_what_is_new_is_added_once_oldest_first(tmp_path: Path) -> None:
    first, second = tmp_path / "homes" / "a" / "store", tmp_path / "homes" / "b" / "deep" / "store"
    Store(first).add(LATER, ONE)
    Store(second).add(ONE, OTHER)
    with (second / "observations.jsonl").open("a", encoding="utf-8") as file:
        file.write("no line of ours\n")
    into = Store(tmp_path / "here")
    assert stores_in(tmp_path / "homes") == (first, second)
    assert gather(into, [tmp_path / "homes"]) == (
        Gathered(folder=first, new=2, held=0, damaged=0),
        Gathered(folder=second, new=1, held=1, damaged=1),
    )
    assert [(item.question.cell, item.at) for item in into] == [
        ("td0.9.1", OTHER.at), ("td0.9.0", ONE.at), ("td0.9.0", LATER.at),
    ]  # fmt: skip
    assert [item.detail["large"] for item in into if item.question == ONE.question] == ["x" * 9000] * 2
    assert [item.new for item in gather(into, [first, second])] == [0, 0]


def test_the_latest_answer_counts_in_whatever_order_they_come(tmp_path: Path) -> None:
    Store(tmp_path / "a").add(LATER)
    Store(tmp_path / "b").add(ONE)
    for number, folders in enumerate(([["a"], ["b"]], [["b"], ["a"]], [["a", "b"]])):
        into = Store(tmp_path / f"into-{number}")
        for names in folders:
            gather(into, [tmp_path / name for name in names])
        assert into.get(ONE.question.key) == LATER


def test_a_folder_without_a_store_is_told(tmp_path: Path) -> None:
    with pytest.raises(NothingRanError, match="holds no store"):
        gather(Store(tmp_path / "here"), [tmp_path])


def test_the_command_says_what_came(tmp_path: Path) -> None:
    Store(tmp_path / "other" / "store").add(ONE)
    words = ["gather", str(tmp_path / "other"), "--home", str(tmp_path / "home")]
    heard = said(*words)
    assert (heard.code, heard.out.splitlines()[-1]) == (0, f"1 new observations in {tmp_path / 'home' / 'store'}")
    assert "0 new, 1 held already" in said(*words).out
    assert said("gather", str(tmp_path / "none"), "--home", str(tmp_path / "home")).code == 10
