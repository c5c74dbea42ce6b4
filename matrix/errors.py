"""Every error this project raises on purpose: one root, one exit code each.

A message says what happened, the likely cause and what to do next; the data behind it are attributes. The command line
prints `str(error)` and exits with `error.exit_code`; nothing else decides exit codes except the verdicts themselves
(0 works as far as tried, 1 broken or conflict).
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class MatrixError(Exception):
    """Root of the errors raised on purpose; `exit_code` is what the command line exits with."""

    exit_code: ClassVar[int] = 70

    def __init__(self, what: str, *, why: str = "", then: str = "") -> None:
        """Keep the three parts of the message: what happened, why it probably did, what to do next."""
        super().__init__(what)
        self.what = what
        self.why = why
        self.then = then

    def __str__(self) -> str:
        """Return the parts that are there, a line each."""
        return "\n".join(part for part in (self.what, self.why, self.then) if part)


class UsageError(MatrixError):
    """The command line's words do not make sense: a malformed specifier, a selector that matches nothing."""

    exit_code = 2


class DataError(MatrixError):
    """A data file cannot be read, or a field in it has the wrong type or value."""

    exit_code = 3

    def __init__(self, path: Path | str, field: str, what: str, *, then: str = "") -> None:
        """Name the file and the field, e.g. `cells.toml: cell[3].vllm: …`."""
        where = f"{path}: {field}: " if field else f"{path}: "
        super().__init__(f"{where}{what}", then=then or "Correct the file; CONTRIBUTING.md shows the format.")
        self.path = Path(path)
        self.field = field


class UnknownReleaseError(MatrixError):
    """No package, or no release, of that name; `near` holds the closest ones that exist."""

    exit_code = 4

    def __init__(self, name: str, *, near: tuple[str, ...] = (), then: str = "") -> None:
        """Say what does not exist and what comes close."""
        hint = f"Closest: {', '.join(near)}." if near else ""
        super().__init__(f"{name} does not exist on the index.", why=hint, then=then)
        self.name = name
        self.near = near


class IndexUnreachableError(MatrixError):
    """The package index did not answer, or answered with an error, after the retries."""

    exit_code = 5


class ToolError(MatrixError):
    """A tool this project calls (uv, a python) is missing, timed out or failed in a way that is no verdict."""

    exit_code = 6


class CorruptFileError(MatrixError):
    """A downloaded or cached file is truncated or does not match its hash, and fetching it again did not help."""

    exit_code = 7


class NoSpaceError(MatrixError):
    """The disk is full, or has less room than the step needs."""

    exit_code = 8


class BusyError(MatrixError):
    """Another run holds the lock and did not let go in time."""

    exit_code = 9


class NothingRanError(MatrixError):
    """No cell was selected or no probe ran: that is a failure, never a pass."""

    exit_code = 10


class NewerSchemaError(MatrixError):
    """A stored file was written by a newer release of this tool than the one reading it."""

    exit_code = 11


class ProvisionError(MatrixError):
    """A cell cannot be installed: that is its verdict, where it is so whoever tries.

    Attributes:
        packages: those in the way, where known.
        wheel_missing: all that is missing is a wheel that has to be built first, which this tool does not do.
    """

    exit_code = 12

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        then: str = "",
        packages: tuple[str, ...] = (),
        wheel_missing: bool = False,
    ) -> None:
        """Keep the message, the packages and whether a wheel is all that is missing."""
        super().__init__(what, why=why, then=then)
        self.packages = packages
        self.wheel_missing = wheel_missing
