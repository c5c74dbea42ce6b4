"""The way through the command line of the benches: parse, run one command, tell what was raised."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.cli.words import build_parser
from matrix import __version__
from matrix.cli.main import guarded, refuse_long


def main(argv: Sequence[str] | None) -> int:
    """Return the exit code of the command line `argv` (None: this process's own); never raises."""
    return guarded(lambda: _command(argv))


def _command(argv: Sequence[str] | None) -> int:
    refuse_long(sys.argv[1:] if argv is None else argv)
    args = build_parser(__version__).parse_args(argv)
    from bench.cli.commands import COMMANDS

    return COMMANDS[args.command](args)
