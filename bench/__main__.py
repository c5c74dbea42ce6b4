"""`python -m bench`: plan, run, compare, tune and show benches; what `nox -s bench -- …` goes to."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Return the exit code of the command line of this process; a polite kill ends it as Ctrl-C does."""
    from bench.cli.main import main as run

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run(None)


if __name__ == "__main__":
    sys.exit(main())
