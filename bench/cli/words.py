"""The words of `python -m bench`, as argparse parsers; imports nothing heavier than words."""

from __future__ import annotations

import argparse
from typing import NoReturn

EPILOG = """\
  python -m bench plan                                    what the named toggles would cost and could show
  python -m bench run --here --python CELL/bin/python --toggles chunked-prefill checkpointing --minutes 25
  python -m bench run --cells CELL-A CELL-B --recipe rollout-short
  python -m bench show                                    the series that are kept, with their verdicts
  python -m bench compare RUN.json [RUN2.json]            what `pytest bench --benchmark-json` saved
  python -m bench tune --here --python CELL/bin/python    the fastest settings that keep numerics, confirmed

exit codes: 0 done; 1 nothing could be compared; 2 to 12, 70, 130 as of `python -m matrix --help`.
A verdict that is `slower` or `inconclusive` is an answer and no failure (docs/benches.md).
"""
TOGGLES = ("ulysses", "chunked-prefill", "checkpointing")
"""The three that this project is named for."""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints look like every other error of this project."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where the help is, and exit with 2."""
        self.exit(2, f"error: {message[:300]}\nRun `{self.prog} --help` to see what there is.\n")


def build_parser(version: str) -> Parser:
    """Return the parser of `python -m bench`."""
    parser = Parser(
        prog="bench",
        description="Short benches of verl: launches in turns, raw samples kept, verdicts with their intervals.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"verl-matrix {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def made(name: str, summary: str) -> Parser:
        one = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
        )
        one.add_argument("--home", metavar="DIR", help="where observations are kept (VERL_MATRIX_HOME)")
        one.add_argument("--json", action="store_true", help="print JSON instead of text")
        return one

    _plan(made("plan", "launches, minutes and what they could show, before any time of a GPU is spent"))
    _run(made("run", "run a series of pairings, keep every launch at once, and judge"))
    _compare(made("compare", "judge one saved run of pytest-benchmark, or a second against a first"))
    _tune(made("tune", "search the toggles that keep numerics for the fastest settings, and confirm them on ppo"))
    _show(made("show", "the series that are kept, their verdicts, and the promises of guides beside them"))
    return parser


def _asked(parser: Parser) -> None:
    """Add what says which pairings are asked about."""
    group = parser.add_argument_group("what is compared")
    group.add_argument("--recipe", action="append", default=[], metavar="NAME", help="default: ppo-short; repeat")
    group.add_argument("--toggles", nargs="+", default=[], metavar="NAME", help=f"default: {' '.join(TOGGLES)}")
    group.add_argument("--cells", nargs="+", default=[], metavar="NAME", help=_CELLS)
    group.add_argument("--here", action="store_true", help="in the environment of --python; nothing is installed")
    group.add_argument("--python", metavar="PATH", help="with --here: its interpreter (default: this one)")
    group.add_argument("--cell", metavar="NAME", help="with --here: the cell that it is meant to be")


_CELLS = "cells whose environments are kept: one, or the first compared with each of the others"


def _sizes(parser: Parser) -> None:
    """Add how much is run and against which margin."""
    parser.add_argument("--launches", type=int, default=6, metavar="N", help="of ppo, a side (default: %(default)s)")
    parser.add_argument("--repeats", type=int, metavar="N", help="of update and rollout, a side (the recipe's)")
    _margin(parser)


def _margin(parser: Parser) -> None:
    parser.add_argument("--margin", type=float, default=0.02, metavar="X", help="nobody cares below it (%(default)s)")


def _plan(parser: Parser) -> None:
    _asked(parser)
    _sizes(parser)
    _verl(parser)
    parser.add_argument("--noise", type=float, metavar="X", help="take this, not the recorded or assumed one")


def _verl(parser: Parser) -> None:
    parser.add_argument("--verl", default="0.9.1", metavar="VERSION", help="without a cell: the release (%(default)s)")


def _run(parser: Parser) -> None:
    _asked(parser)
    _sizes(parser)
    parser.add_argument("--series", metavar="NAME", help="go on with this one, or name a new one")
    parser.add_argument("--warm", action="store_true", help="first a launch a side that only fills caches")
    parser.add_argument("--minutes", type=float, metavar="N", help="start no launch after so many minutes")


def _compare(parser: Parser) -> None:
    parser.add_argument("saved", nargs="+", metavar="RUN.json", help="one: its pairs; two: second against first")
    _margin(parser)


def _tune(parser: Parser) -> None:
    _asked(parser)
    _margin(parser)
    _verl(parser)
    parser.add_argument("--launches", type=int, default=6, metavar="N", help="of ppo, to confirm (%(default)s)")
    parser.add_argument("--repeats", type=int, default=4, metavar="N", help="of the first round (%(default)s)")
    parser.add_argument("--width", type=int, default=2, metavar="N", help="sets that are tried at first (%(default)s)")
    parser.add_argument("--minutes", type=float, metavar="N", help="start no launch after so many minutes")
    parser.add_argument("--plan", action="store_true", help="print the rounds, launches and minutes; run nothing")


def _show(parser: Parser) -> None:
    parser.add_argument("series", nargs="*", metavar="SERIES", help="only these (default: all that are kept)")
    parser.add_argument("--whole", action="store_true", help="every metric, not the main ones alone")
    parser.add_argument("--claims", action="store_true", help="the promises of guides, beside what was measured")
    parser.add_argument("--evidence", metavar="DIR", help="recorded launches (default: those shipped; `none`)")
    _margin(parser)
