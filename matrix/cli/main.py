"""The way through the command line: parse, run one command, turn what was raised into a message and an exit code."""

from __future__ import annotations

import codecs
import errno
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from matrix import __version__
from matrix.cli.parser import build_parser
from matrix.errors import MatrixError, NoSpaceError, UsageError

if TYPE_CHECKING:
    from matrix.cli.front import Front

INTERRUPTED = 130
BROKEN_PIPE = 141
WORD_CHARS = 4096
"""As long as a path may be."""


def main(argv: Sequence[str] | None, front: Callable[[], Front]) -> int:
    """Return the exit code of the command line `argv` (None: this process's own); `front` makes the renderers."""
    return guarded(lambda: _command(argv, front))


def guarded(command: Callable[[], int]) -> int:
    """Return the exit code of a command; what it raises becomes a message and a code of its own.

    Never raises: a fault of this program itself is told with its traceback and has an exit code of its own, so that it
    cannot be taken for a verdict.
    """
    _degrade_output()
    try:
        code = _answer(command)
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_output()
        return BROKEN_PIPE
    except OSError as error:
        _abandon_output()
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return _fault()
        return _told(NoSpaceError("The output cannot be written: no room is left.", then="Free some space."))
    return code


def _answer(command: Callable[[], int]) -> int:
    """Return the exit code of a command whose output can be written; raises OSError where it cannot."""
    try:
        return command()
    except SystemExit as ended:
        # How argparse ends after --help, --version and words that it does not understand.
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except MatrixError as error:
        return _told(error)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; what was finished is kept\n")
        return INTERRUPTED
    except OSError:
        raise
    except Exception:
        return _fault()


def _command(argv: Sequence[str] | None, front: Callable[[], Front]) -> int:
    """Parse the words and run the command that they name."""
    refuse_long(sys.argv[1:] if argv is None else argv)
    args, unknown = build_parser(__version__).parse_known_args(argv)
    if hasattr(args, "spec") and not any(word.startswith("-") for word in unknown):
        # argparse ends a list of positional words at the first option; those after it are left over.
        args.spec += unknown
    elif unknown:
        # Said by the command's own parser, so that the help it names is that of the command.
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    from matrix.cli.commands import COMMANDS

    return COMMANDS[args.command](args, front())


def refuse_long(words: Sequence[str]) -> None:
    """Raise UsageError for a word longer than any path: what reads it as numbers would fail, or take for ever."""
    for word in words:
        if len(word) > WORD_CHARS:
            raise UsageError(
                f"`{word[:40]}…` is {len(word)} characters long.",
                then=f"No word of the command line is longer than {WORD_CHARS} characters.",
            )


def _told(error: MatrixError) -> int:
    """Tell the error and return its exit code; what the command had to say comes first."""
    sys.stdout.flush()
    text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", _LONG.sub(_shortened, str(error)))
    sys.stderr.write(f"error: {text}\n")
    return error.exit_code


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What is said again of a file must not steer the terminal."""
_LONG = re.compile(r"\S{500,}")
"""What was typed or read is said again in messages; so much of it, and no address or path is as long."""


def _shortened(word: re.Match[str]) -> str:
    return f"{word[0][:100]}…"


def _fault() -> int:
    """Tell of a fault of this program and return its exit code."""
    import traceback

    traceback.print_exc()
    sys.stderr.write(
        "error: verl-matrix itself failed; this says nothing of the versions.\n"
        "What was finished is kept. Please report it, with the lines above and the command line.\n"
    )
    return MatrixError.exit_code


def _degrade_output() -> None:
    """Let standard output and error put a plain sign for what their encoding cannot hold: a mark is no fault."""
    codecs.register_error("verl-matrix", _plain)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Started with the stream closed (`>&-`): there is nobody to tell, and the exit code still says it.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="verl-matrix")


_PLAIN = {"✓": "+", "◐": "~", "✕": "x", "≠": "!", "↶": "<", "∅": "0", "…": "...", "→": "->", "━": "-", "─": "-"}
"""Signs for the marks of the reports, none of which is the `?` of what was not tried; anything else becomes `?`."""


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Return the signs for what cannot be encoded, and where to go on; an error handler of `codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(char, "?") for char in error.object[error.start : error.end]), error.end


def _abandon_output() -> None:
    """Send what is left of standard output nowhere: whoever read it has gone, and an error at exit would only hide why.

    Does nothing where the stream is not this process's own (a test has put another one in its place).
    """
    if sys.stdout is sys.__stdout__ and sys.__stdout__ is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())
