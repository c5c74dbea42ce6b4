"""Logs of any kind: encodings, compressions, bars, what is no log; and that a scan's memory and time are bounded."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
from pathlib import Path

import pytest

import matrix.doctor.scan as scanning
from matrix.doctor.logfile import LINE_BYTES, LogFile, open_log
from matrix.errors import DataError, MatrixError, UsageError
from tests.unit.doctor_case import CLASH, diagnosed, scan

TEXT = (
    "Initializing a V1 LLM engine (v0.9.2) with config: x\n"
    "Traceback (most recent call last):\n"
    '  File "/srv/a.py", line 3, in go\n'
    "ValueError: 'aimv2' is already used by a Transformers config, pick another name.\n"
)


def blocks(data: bytes) -> tuple[bytes, LogFile]:
    log = LogFile(name="a log", stream=io.BytesIO(data))
    return b"".join(log.blocks()), log


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        TEXT.encode("utf-8-sig"),
        TEXT.encode("utf-16"),
        TEXT.encode("utf-16-le"),
        TEXT.encode("utf-16-be"),
        TEXT.replace("\n", "\r\n").encode(),
        b"\0" * 100 + TEXT.encode() * 10,
        b"caf\xe9\n" + TEXT.encode(),
        TEXT.encode().rstrip(b"\n"),
    ],
    ids=["utf8", "bom", "utf16", "utf16-le", "utf16-be", "crlf", "zeros", "latin1", "no-last-newline"],
)
def test_encodings(data: bytes) -> None:
    root = diagnosed(data).root
    assert root is not None
    assert root.failure is CLASH


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\x7fELF\x02\x01", "a compiled program"),
        (b"PK\x03\x04zip", "a zip archive"),
        (b"PAR1", "a parquet file"),
        (b"\x28\xb5\x2f\xfdxx", "zstd"),
        (bytes(range(1, 9)) * 50, "is binary"),
        (b"\0" * 5000, "zero bytes"),
    ],
)
def test_what_is_no_log_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        blocks(data)


def test_lines_are_whole_and_long_ones_are_cut() -> None:
    text, _ = blocks(b"a" * (3 * LINE_BYTES) + b"\n" + TEXT.encode())
    assert text.endswith(TEXT.encode())
    assert scan(b"\r".join(b"50%|###| it/s" for _ in range(200_000)) + b"\n" + TEXT.encode()).events


def test_a_bar_that_never_ends_its_line_hides_nothing() -> None:
    bar = "\r".join(f"Training Progress: {at}%|##| {at}/100" for at in range(100))
    found = diagnosed(f"{bar} {TEXT[TEXT.index('Traceback') :]}")
    assert found.root is not None
    assert found.root.failure is CLASH
    assert found.scan.lines == 3


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=["gz", "bz2", "xz"])
def test_compressed_logs_are_read(tmp_path: Path, compress: object) -> None:
    path = tmp_path / "train.log"
    assert callable(compress)
    path.write_bytes(compress(TEXT.encode()))
    with open_log(str(path)) as log:
        assert b"".join(log.blocks()).decode() == TEXT
    assert log.notes == []


def test_a_truncated_archive_is_read_to_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    lines = "".join(f"line {at * 7919 % 104729}\n" for at in range(400_000))
    path.write_bytes(gzip.compress(lines.encode())[:-2000])
    with open_log(str(path)) as log:
        read = b"".join(log.blocks())
    assert lines.startswith(read.decode().rsplit("\n", 2)[0])
    assert "cannot be read to its end" in log.notes[0]
    path.write_bytes(b"\x1f\x8b" + b"nonsense")
    with pytest.raises(MatrixError, match="cannot be read"), open_log(str(path)) as log:
        list(log.blocks())


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"), open_log(str(tmp_path / "none")):
        pass
    with pytest.raises(UsageError, match="a folder"), open_log(str(tmp_path)):
        pass
    loop = tmp_path / "loop"
    loop.write_text("x")
    with pytest.raises(UsageError, match="cannot be read: broken"), open_log(str(loop)):
        raise OSError(5, "broken")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Given:
        buffer = io.BytesIO(TEXT.encode())

    monkeypatch.setattr(sys, "stdin", Given())
    with open_log("-") as log:
        assert b"".join(log.blocks()).decode() == TEXT
    assert log.name == "standard input"


def test_numbers_of_lines_are_those_of_an_editor() -> None:
    found = diagnosed("x\n" * 50_000 + TEXT + "y\n" * 50_000)
    assert found.root is not None
    assert found.root.number == 50_002
    assert found.scan.lines == 100_004


def test_kinds_of_lines_are_forgotten_and_the_errors_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "SEEN", 10)
    words = "".join(f"{chr(97 + at % 26)}{chr(97 + at // 26 % 26)}{chr(97 + at // 676)}\n" for at in range(17_000))
    assert diagnosed(words * 20 + TEXT).root is not None


def test_events_processes_and_shapes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "EVENTS", 5)
    monkeypatch.setattr(scanning, "PROCESSES", 3)
    text = "".join(
        f"(W pid={at}) Traceback (most recent call last):\n"
        f'(W pid={at})   File "/srv/a.py", line 3, in go\n'
        f"(W pid={at}) mine.{chr(65 + at)}Error: no\n"
        for at in range(20)
    )
    found = scan(text)
    assert len(found.events) == 5
    assert found.left_out == 15
    assert any("15 more errors" in note for note in diagnosed(text).notes)


def test_after_so_many_lines_only_new_errors_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "READ_LINES", 1000)
    late = TEXT.replace("ValueError: 'aimv2' is", "mine.LateError: something new is")
    found = scan(TEXT * 100_000 + late + "\n")
    assert [event.line.text[:14] for event in found.events] == ["ValueError: 'a", "mine.LateError"]
    assert found.events[0].count < 100_000
    assert "only new ones were read" in found.notes[0]


def test_a_process_that_falls_silent_in_a_traceback_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "FORGOTTEN", 20)
    text = (
        "(W pid=1) Traceback (most recent call last):\n"
        '(W pid=1)   File "/srv/a.py", line 3, in go\n'
        '(W pid=1)   File "/srv/a.py", line 4, in on\n' + "(T pid=2) step\n" * 200 + TEXT
    )
    found = scan(text)
    assert [event.line.text.split(":")[0] for event in found.events] == ["(cut short)", "ValueError"]
