"""What uv's words mean when it does not install: whose fault it is, and what to do about it."""

from __future__ import annotations

import re

from matrix.errors import CorruptFileError, IndexUnreachableError, MatrixError, NoSpaceError, ProvisionError, ToolError
from matrix.resolve.process import Ended

_UNREACHED = (
    "error sending request", "Failed to fetch", "Request failed after", "client error (Connect)", "dns error",
    "operation timed out", "HTTP status server error", "HTTP status client error",
)  # fmt: skip
# What uv says beside its error: logs, warnings (that pylock is experimental), what it did before.
_ASIDE = re.compile(r"^(?:\s*(?:\S+\s+)?(?:DEBUG|TRACE|INFO) |warning: |Using Python |Resolved |Prepared |Installed )")
# Of a package that has wheels in the lock: none of them is for this machine.
_MISFIT = ("for the current platform", "has no binary distribution", "has no usable wheels")
_LIES = (
    "does not match package name",
    "does not match given",
    "does not match filename",
    "Invalid `.dist-info`",
    "metadata name",
    "metadata version",
)
_DAMAGED = ("Failed to extract archive", "Failed to read from zip", "invalid Zip archive", "CRC", "wheel is invalid")


def mismatched(text: str) -> str:
    """Return the package whose file has not the digest that the lock states, as `name==version`; "" for none."""
    match = re.search(r"Hash mismatch for `([^`]+)`", text)
    return match[1] if match else ""


def refusal(what: str, ended: Ended) -> MatrixError:
    """Return the error that uv's output stands for; `what` names the uv command."""
    text = "\n".join(line for line in ended.stderr.splitlines() if not _ASIDE.match(line))
    why = tail(text)
    if ended.code is None:
        return ToolError(f"`{what}` was stopped before its end.", why=why, then="Run again: what it had is kept.")
    if "No space left on device" in text or "Disk quota exceeded" in text:
        return NoSpaceError("The disk ran full while a cell was installed.", why=why, then="Free some disk space.")
    if package := mismatched(text):
        return CorruptFileError(
            f"The file of {package} has not the digest that the lock states.",
            why=f"It was fetched again and was no better. {_one_line(text)}",
            then="The index, a mirror or a proxy serves another file than when the cell was resolved; resolve it anew.",
        )
    if "Network connectivity is disabled" in text:
        return IndexUnreachableError(
            "A file of the cell is not in uv's cache, and the network is not to be used.",
            why=_one_line(text),
            then="Run once without --offline.",
        )
    if any(sign in text for sign in _UNREACHED):
        return IndexUnreachableError(
            "uv could not fetch a file of the cell.",
            why=why,
            then="Check the network, proxy and index address, then run again: what was fetched is kept.",
        )
    if "No solution found" in text:
        return ProvisionError(f"No pytest fits the cell's own packages: {_one_line(text)}", why=why)
    if "Failed to build" in text or "build backend returned" in text:
        return ProvisionError(f"A package of the cell could not be built: {_one_line(text)}", why=why)
    if any(sign in text for sign in _MISFIT):
        return ToolError(
            f"The cell's lock does not fit this machine: {_one_line(text)}",
            why="The lock is for the platform in the cell's name; this machine's glibc is older, perhaps.",
            then="Install it where that platform is, or choose cells with --platform.",
        )
    if any(sign in text for sign in (*_LIES, *_DAMAGED)):
        return ProvisionError(f"A file of the cell is not what the lock says: {_one_line(text)}", why=why)
    return ToolError(
        f"`{what}` failed with exit code {ended.code}.",
        why=why,
        then="Run again; if it stays, `python -m pip install --upgrade uv`.",
    )


def tail(text: str) -> str:
    """Return the end of a program's output, short enough for a message."""
    return "\n".join(text.strip().splitlines()[-12:])[-2000:]


def _one_line(text: str) -> str:
    """Return uv's error and its causes as one line."""
    start = text.find("error:")
    message = text[start + len("error:") :] if start >= 0 else text
    return " ".join(message.split("\nhint:")[0].split())[:500]
