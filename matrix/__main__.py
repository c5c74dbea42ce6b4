"""`python -m matrix`, and the console script `verl-matrix`: the one place where the tool and its renderers meet."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.cli.front import Front


def main() -> int:
    """Return the exit code of the command line of this process; a polite kill ends it as Ctrl-C does."""
    from matrix.cli.main import main as run

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run(None, _front)


def _front() -> Front:
    from reports.front import TerminalFront

    return TerminalFront()


if __name__ == "__main__":
    sys.exit(main())
