"""The way through the command line: parse, run one command, turn what was raised into a message and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from matrix import __version__
from matrix.cli.parser import build_parser
from matrix.errors import MatrixError

if TYPE_CHECKING:
    from matrix.cli.front import Front

INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None, front: Callable[[], Front]) -> int:
    """Return the exit code of the command line `argv` (None: this process's own); `front` makes the renderers."""
    args = build_parser(__version__).parse_args(argv)
    from matrix.cli.commands import COMMANDS

    try:
        code = COMMANDS[args.command](args, front())
        sys.stdout.flush()
    except MatrixError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; what was finished is kept\n")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has closed it; a second error at exit would only hide that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code
