"""The command `gather`: bring what runs on other machines observed into one store."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.cli.front import Front

_MORE = """

  verl-matrix gather stores/*                 from the homes (or stores) of other runs into that of --home
  verl-matrix report                          then builds the report over all of it

What is there already is passed over, so it may be repeated. docs/executors.md has recipes that end with it."""


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the words of the command."""
    parser = command("gather", "bring what runs on other machines observed into one store", _MORE, asks=False)
    parser.add_argument("stores", nargs="+", metavar="DIR", help="a store, or a folder that holds some")


def run(args: argparse.Namespace, front: Front) -> int:
    """Add what is new and say how much that was; 0 once all of it is in the store."""
    from matrix.executors.gathering import gather
    from matrix.home import Home
    from matrix.store import Store

    home = Home.find(args.home)
    home.prepare()
    found = gather(Store(home.store), [Path(word) for word in args.stores])
    for item in found:
        damaged = f", {item.damaged} lines that are no observations" if item.damaged else ""
        sys.stdout.write(f"{item.folder}: {item.new} new, {item.held} held already{damaged}\n")
    sys.stdout.write(f"{sum(item.new for item in found)} new observations in {home.store}\n")
    return 0
