"""The command `drift`: where the statements of a repository contradict each other or the index."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.cli.front import Front

MORE = """

  verl-matrix drift path/to/verl
  verl-matrix drift verl-0.9.1.tar.gz --index-check

Reads setup.py (as syntax), pyproject.toml, requirements, Dockerfiles, GitHub workflows, lock files, conda environments
and the code blocks of pages; runs nothing. Exit 1 where something is certain or likely to be wrong."""


def words(parser: argparse.ArgumentParser) -> None:
    """Add the words of the command."""
    parser.add_argument("path", metavar="PATH", help="the folder of a repository, or a source archive")
    parser.add_argument("--index-check", action="store_true", help="compare with the releases of the index too")
    parser.add_argument("--all", action="store_true", help="show what may be on purpose, and what could not be read")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace, front: Front) -> int:
    """Print the contradictions; 1 where one is certain or likely, else 0."""
    from matrix.cli import wiring
    from matrix.drift.comparing import compare, distinct
    from matrix.drift.indexing import compare_with_index
    from matrix.drift.telling import data, text
    from matrix.home import Home
    from matrix.statements.repository import read_repository
    from matrix.statements.unpacking import folder_of

    with folder_of(Path(args.path)) as folder:
        repository = read_repository(folder)
    found = compare(repository)
    answer = None
    if args.index_check:
        answer = compare_with_index(repository, wiring.open_index(args, Home.find(args.home)))
        found = distinct((*found, *answer.contradictions))
    if args.json:
        said = json.dumps(data(repository, found, answer), indent=2, ensure_ascii=False)
    else:
        said = text(repository, found, answer, everything=args.all)
    sys.stdout.write(f"{said}\n")
    return 1 if any(item.counts for item in found) else 0
