"""A log as a stream of whole lines of bytes: any size, any of the usual encodings and compressions, bounded memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from matrix.errors import DataError, UsageError

BLOCK = 1 << 20
"""So many bytes are read at once; a block that is handed on is at most this plus one line."""
LINE_BYTES = 1 << 16
"""A line is cut here: no message is longer, and a file without line ends must not be held whole."""
_SNIFFED = 1 << 16
_STDIN = "-"
_HOW = "Give the path of the log, or - for standard input."
OPENERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
"""How a compressed file begins, to what opens it: a path, or a file that is open."""
_MAGIC = {
    b"\x7fELF": "a compiled program or library",
    b"PK\x03\x04": "a zip archive (or a wheel)",
    b"PAR1": "a parquet file",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"\x89PNG": "a picture",
    b"%PDF": "a PDF",
    b"\x80\x04\x95": "a pickle",
    b"\x80\x05\x95": "a pickle",
}
_BOMS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\x0c\x08\x1b"))


class Readable(Protocol):
    """What bytes are read from: a file, standard input, a decompressor."""

    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes, none at the end."""


@dataclass(slots=True, kw_only=True)
class LogFile:
    """An open log: its name for people, and what was met while it was read (`notes`, complete at its end)."""

    name: str
    stream: Readable
    notes: list[str] = field(default_factory=list)
    size: int = 0

    def blocks(self) -> Iterator[bytes]:
        """Yield the log as UTF-8 in blocks of whole lines; bytes that are no text become the replacement sign.

        Raises DataError where it is empty, binary, or ends being readable.
        """
        rest = b""
        for block in self._decoded():
            block = rest + block
            cut = block.rfind(b"\n") + 1
            if not cut and len(block) < LINE_BYTES:
                rest = block
                continue
            rest = block[cut:] if cut else b""
            yield block[:cut] if cut else block + b"\n"
            if len(rest) >= LINE_BYTES:
                # A bar that is redrawn for hours is one line; its ends are as good as line ends here.
                yield rest + b"\n"
                rest = b""
        if rest:
            yield rest + b"\n"
        if not self.size:
            raise self._error("is empty", "There is nothing to diagnose: give the log of a run that wrote something.")

    def _decoded(self) -> Iterator[bytes]:
        first = self._read(BLOCK)
        encoding, skip = self._encoding(first[:_SNIFFED])
        if encoding == "utf-8":
            block = first[skip:]
            while block:
                yield block.replace(b"\0", b"") if b"\0" in block else block
                block = self._read(BLOCK)
            return
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self.notes.append(f"the log is {encoding.upper()}; it was read as such")
        block = first[skip:]
        while block:
            yield decoder.decode(block).encode("utf-8", "replace")
            block = self._read(BLOCK)
        yield decoder.decode(b"", final=True).encode("utf-8", "replace")

    def _read(self, count: int) -> bytes:
        try:
            block = self.stream.read(count)
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile, OSError) as error:
            if self.size:
                self.notes.append(f"the file cannot be read to its end ({error}); what came before was")
                return b""
            raise self._error(f"cannot be read: {error}", "Check the path, its permissions and its disk.") from error
        self.size += len(block)
        return block

    def _encoding(self, head: bytes) -> tuple[str, int]:
        """Return the encoding and how many bytes of mark precede the text; raises DataError for what is no text."""
        for mark, name in _BOMS.items():
            if head.startswith(mark):
                return name, len(mark)
        for magic, what in _MAGIC.items():
            if head.startswith(magic):
                raise self._error(f"is {what}, not a log", "Give the text that the run wrote.")
        zeros = head.count(0)
        if zeros > len(head) // 4:
            for name, odd in (("utf-16-le", 1), ("utf-16-be", 0)):
                if head[odd::2].count(0) > 0.8 * len(head[odd::2]) and zeros < 0.6 * len(head):
                    return name, 0
            raise self._error("is binary: much of it is zero bytes", "Give the text that the run wrote.")
        strange = len(head) - len(head.translate(None, _CONTROL))
        if strange > len(head) // 20:
            raise self._error(
                f"is binary: {strange} of its first {len(head)} bytes are no text", "Give the text that the run wrote."
            )
        return "utf-8", 0

    def _error(self, what: str, then: str) -> DataError:
        return DataError(self.name, "", what, then=then)


def standard_input() -> IO[bytes]:
    """Return standard input as bytes; raises UsageError where the process was started without one."""
    if sys.stdin is None:
        raise UsageError("There is no standard input: it is closed.", then="Give the path of the log.")
    return sys.stdin.buffer


def find_log(given: str) -> Path:
    """Return the path of the log; raises UsageError where there is none: no name, no such file, a folder, a loop."""
    path = Path(given)
    if not given:
        raise UsageError("The log has no name: an empty word was given.", then=_HOW)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UsageError(f"There is no file {given}.", then=_HOW) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{given} cannot be read: {why}.", then="Check the path and its permissions.") from error
    if stat.S_ISDIR(mode):
        raise UsageError(f"{given} is a folder.", then="Give one file of it; Ray's are session_latest/logs/*.")
    return path


@contextmanager
def open_log(given: str) -> Iterator[LogFile]:
    """Give the log at the path `given` (`-`: standard input) for as long as the block runs.

    gzip, bzip2 and xz are read as what they hold. Raises UsageError where there is no file to open.
    """
    if given == _STDIN:
        yield LogFile(name="standard input", stream=standard_input())
        return
    path = find_log(given)
    try:
        with path.open("rb") as probe:
            # Only a plain file may be looked into first: what is read from a pipe does not come back.
            magic = probe.read(6) if path.is_file() else b""
            opener = next((how for start, how in OPENERS.items() if magic.startswith(start)), None)
            if opener is None:
                if path.is_file():
                    probe.seek(0)
                yield LogFile(name=given, stream=probe)
                return
        with opener(path) as stream:
            yield LogFile(name=given, stream=stream)
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"{given} cannot be read: {why}.", then="Check the path and its permissions.") from error
