"""The words of the command line, as argparse parsers; imports nothing heavier than words, so `--help` is quick."""

from __future__ import annotations

import argparse
import functools
import re
from typing import TYPE_CHECKING, NoReturn

from matrix.cli import bundle, diagnose, executors, gather, gpus, nightly, pins, workload

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction["Parser"]

EPILOG = """\
exit codes:
   0 works (or degraded) as far as tried      8 no disk space
   1 broken or conflict                       9 another run holds the lock
   2 the command line makes no sense         10 nothing ran
   3 a data file is wrong                    11 a stored file is of a newer schema
   4 no such package or release              12 a cell cannot be installed
   5 the package index cannot be reached     70 a fault of this program, no verdict
   6 a tool (uv, a python) failed           130 interrupted; what was finished is kept
   7 a file is corrupt
`check` answers for any versions, so a release that does not exist is a verdict (1, unavailable);
`surface` and `bisect` compare code, so for them it is an error (4).
"""


SHOWN_CHARS = 300
"""So much of a complaint is shown: it repeats what was typed, however long that is."""
COMMANDS = (
    "run", "check", "surface", "grid", "bisect", "update", "report", "nightly", "gather",
    "env", "bundle", "gpus", "workload", "failures", "config", "data", "health", "memory", "thresholds", "drift",
    "claims", "doctor",
)  # fmt: skip


class Parser(argparse.ArgumentParser):
    """A parser whose complaints look like every other error of this program."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where the help is, and exit with 2."""
        match = re.match(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if match is not None:
            import difflib

            near = difflib.get_close_matches(match[1], COMMANDS, n=1)
            message = f"there is no command `{match[1]}`" + (f"; did you mean `{near[0]}`?" if near else "")
        if len(message) > SHOWN_CHARS:
            message = f"{message[:SHOWN_CHARS]}…"
        self.exit(2, f"error: {message}\nRun `{self.prog} --help` to see what there is.\n")


def build_parser(version: str) -> Parser:
    """Return the parser of `python -m matrix` (`verl-matrix`)."""
    parser = Parser(
        prog="verl-matrix",
        description="Which versions of the verl stack fit together, and what breaks where they do not.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"verl-matrix {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_run(commands)
    _add_check(commands)
    _add_surface(commands)
    _add_grid(commands)
    _add_bisect(commands)
    _add_update(commands)
    _add_report(commands)
    _add_nightly(commands)
    gather.add(functools.partial(_command, commands))
    bundle.add(functools.partial(_command, commands))
    gpus.add(functools.partial(_command, commands))
    workload.add(functools.partial(_command, commands))
    diagnose.add(functools.partial(_command, commands))
    pins.words(_command(commands, "pins", "say what is safe to install or upgrade to, and why", pins.MORE, asks=False))
    return parser


def _command(commands: _Commands, name: str, summary: str, more: str = "", *, asks: bool = True) -> Parser:
    """Return a new subcommand; one that `asks` has the options of how answers are had."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.{more}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    shared = parser.add_argument_group("shared options")
    shared.add_argument("--home", metavar="DIR", help="where observations and downloads are kept (VERL_MATRIX_HOME)")
    parser.set_defaults(parser=parser, index_url=None, offline=False, workers=None, max_age=24, again=False)
    if asks:
        _add_index(shared)
        shared.add_argument(
            "--workers", type=_positive, metavar="N", help="parallel workers (default: the cores there are)"
        )
        shared.add_argument("--max-age", type=_positive, metavar="HOURS", help=_MAX_AGE)
        shared.add_argument("--again", action="store_true", help="ask again what was already answered")
    return parser


def _add_index(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--index-url", metavar="URL", help="package index (default: UV_DEFAULT_INDEX, else PyPI)")
    group.add_argument("--offline", action="store_true", help="use only what is already cached")


_MAX_AGE = "ask the resolver again when its answer is older (default: 24; an answer as of a date never ages)"


_NEWER = (
    "answer as of that day, which is included (YYYY-MM-DD, in UTC), or that moment (RFC 3339); "
    "the cell is named by the moment from which files are not seen"
)


def _target(parser: Parser) -> None:
    """Add the options that say what a cell is meant to run on, and as of when."""
    group = parser.add_argument_group("target")
    group.add_argument("--python", metavar="X.Y", help="CPython version (default: 3.12)")
    group.add_argument("--platform", metavar="TAG", help="uv platform (default: x86_64-manylinux_2_35)")
    group.add_argument("--exclude-newer", metavar="DATE", help=_NEWER)


def _deviation(parser: Parser) -> None:
    """Add the options that depart from what the metadata say; the cell is marked with them."""
    group = parser.add_argument_group("deviation")
    group.add_argument(
        "--override", action="append", default=[], metavar="REQ", help="replace all statements on a package"
    )
    group.add_argument("--no-deps", action="store_true", help="take the pins and nothing they ask for")
    group.add_argument(
        "--with", dest="added", action="append", default=[], metavar="REQ", help="install this package too"
    )


def _tiers(parser: Parser) -> None:
    parser.add_argument("--tiers", default="resolve,surface", metavar="LIST", help="how deep (default: %(default)s)")


def _probes(parser: Parser) -> None:
    """Add the options of the tiers that need an installation."""
    group = parser.add_argument_group("installed tiers (import, behave, gpu)")
    group.add_argument("-k", "--probes", action="append", default=[], metavar="PATTERN", help=_PROBES)
    group.add_argument("--keep", action="store_true", help="keep the environments that are made")
    group.add_argument("--memory", type=_positive, metavar="GIB", help=_MEMORY)
    parser.set_defaults(here=None, cell=None)


_PROBES = "only probes whose id matches this glob or holds this text, or of this failure; may be repeated"
_MEMORY = "end a probe that takes more than this (default: 16, or 80 %% of the memory there is)"
_HERE = (
    "try the environment of this interpreter (default: that of --python PATH, else the one this runs in); "
    "nothing is resolved or installed"
)
_HERE_CELL = "with --here: the cell that the environment is meant to be (default: named by what is installed)"


def _evidence(parser: Parser) -> None:
    """Add the option that names what is recorded of other machines."""
    parser.add_argument("--evidence", metavar="DIR", help=_EVIDENCE)


_EVIDENCE = "recorded observations for what is not tried here (default: those shipped; `none`: without)"


def _add_run(commands: _Commands) -> None:
    parser = _command(commands, "run", "give every cell its verdict and write the report", _RUN)
    parser.add_argument("--cells", action="append", default=[], metavar="PATTERN", help=_CELLS)
    parser.add_argument("--cells-file", metavar="FILE", help="cells from this file instead of the ones shipped")
    parser.add_argument("--tiers", metavar="LIST", help=_RUN_TIERS)
    parser.add_argument("--list", action="store_true", help="print the plan and run nothing")
    parser.add_argument("--fail-on", default="", metavar="LIST", help=_FAIL_ON)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--out", default="reports/out", metavar="DIR", help="where the report goes (default: %(default)s)"
    )
    _evidence(parser)
    _target(parser)
    _probes(parser)
    parser.add_argument("--here", nargs="?", const="", metavar="PYTHON", help=_HERE)
    parser.add_argument("--cell", metavar="NAME", help=_HERE_CELL)
    executors.add(parser, _positive)


_RUN = """ This is what `nox -s matrix` runs.
The exit code says whether the run came through, not what it found; --fail-on changes that."""
_FAIL_ON = "exit 1 if a cell has one of these statuses, e.g. broken,conflict; `disagreement`: if a record is wrong"
_RUN_TIERS = (
    "how deep (default: resolve,surface, and import,behave for the cells of group embedded; where there is a GPU "
    "import,behave,gpu for those of group gpu too)"
)
_CELLS = "cells by name: globs, braces, group:NAME, !PATTERN to leave out; may be repeated"


def _add_check(commands: _Commands) -> None:
    more = (
        "\n\n  verl-matrix check verl==0.9.1 vllm==0.26.0 transformers==5.10.4\n  verl-matrix check verl vllm==0.17.0"
    )
    parser = _command(commands, "check", "print the verdict of one set of versions", more)
    parser.add_argument("spec", nargs="+", metavar="SPEC", help="PACKAGE==VERSION for any of the axes")
    _tiers(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    _evidence(parser)
    _target(parser)
    _deviation(parser)
    _probes(parser)


def _add_surface(commands: _Commands) -> None:
    parser = _command(commands, "surface", "list what one release uses of the others and does not find there")
    parser.add_argument("spec", nargs="+", metavar="SPEC", help="PACKAGE==VERSION; verl and at least one other")
    parser.add_argument("--all", action="store_true", help="also what is guarded, uncertain or in unreached code")
    parser.add_argument("--format", choices=["text", "markdown", "annotation", "json"], default="text")
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="short for --format json")
    _target(parser)


def _add_grid(commands: _Commands) -> None:
    parser = _command(commands, "grid", "give every pair of two axes its verdict; CSV and an HTML heat map")
    parser.add_argument("--x", default="verl", metavar="AXIS", help="rows (default: %(default)s)")
    parser.add_argument("--y", default="vllm", metavar="AXIS", help="columns (default: %(default)s)")
    parser.add_argument("--x-only", metavar="PATTERN", help="only these versions of x, e.g. '0.{8,9}*'")
    parser.add_argument("--y-only", metavar="PATTERN", help="only these versions of y")
    _tiers(parser)
    parser.add_argument("--out", default="reports/out", metavar="DIR", help="where the files go (default: %(default)s)")
    _target(parser)


def _add_bisect(commands: _Commands) -> None:
    parser = _command(commands, "bisect", "name the first release of an axis that is bad, and why")
    parser.add_argument("--axis", required=True, metavar="AXIS", help="the axis whose releases are searched")
    parser.add_argument("--with", dest="fixed", action="append", default=[], required=True, metavar="SPEC", help=_WITH)
    parser.add_argument("--good", required=True, metavar="VERSION")
    parser.add_argument("--bad", required=True, metavar="VERSION")
    parser.add_argument("--tier", choices=["resolve", "surface"], default="surface")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    _target(parser)


_WITH = "a version that stays as it is, PACKAGE==VERSION; may be repeated"


def _add_update(commands: _Commands) -> None:
    parser = _command(commands, "update", "look for new releases of each axis and rewrite axes.toml", asks=False)
    _add_index(parser.add_argument_group("index"))
    parser.add_argument(
        "--check", action="store_true", help="show the difference, write nothing; exit 1 if there is one"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _add_report(commands: _Commands) -> None:
    parser = _command(commands, "report", "build the report again from what is stored; asks nothing", asks=False)
    parser.add_argument("--cells", action="append", default=[], metavar="PATTERN", help=_CELLS)
    parser.add_argument("--cells-file", metavar="FILE", help="cells from this file instead of the ones shipped")
    parser.add_argument(
        "--out", default="reports/out", metavar="DIR", help="where the report goes (default: %(default)s)"
    )
    _evidence(parser)
    _target(parser)


def _add_nightly(commands: _Commands) -> None:
    parser = _command(
        commands, "nightly", "run what is new or stale and tell what changed since last time", nightly.MORE
    )
    nightly.words(parser)
    _evidence(parser)
    _target(parser)
    _probes(parser)
    executors.add(parser, _positive, resume=False)


def _positive(text: str) -> int:
    """Return `text` as a whole number above 0 that can be counted in hours, for argparse."""
    if not text.isdecimal() or len(text) > _DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number from 1 to {10**_DIGITS - 1}")
    return int(text)


_DIGITS = 6
