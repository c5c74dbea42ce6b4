from __future__ import annotations

import io
import struct
import zipfile
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.index.zip_directory import Member, NotAZipError, find_end, listed, listed_in, members, payload
from tests.unit.http_server import metadata, wheel

NAMES = st.text(alphabet="abcé_", min_size=1, max_size=6).map(lambda text: f"demo/{text}.py")


def read_all(content: bytes) -> dict[str, bytes]:
    found = listed_in(io.BytesIO(content), len(content))
    bodies = {}
    for name, member in found.items():
        raw = payload(content[member.offset : member.end], member, member.offset)
        assert raw is not None
        bodies[name] = zlib.decompress(raw, -15) if member.method == 8 else raw
    return bodies


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(NAMES, st.binary(max_size=400), max_size=8),
    st.binary(max_size=60),
    st.booleans(),
    st.booleans(),
)
def test_reads_what_zipfile_writes(files: dict[str, bytes], comment: bytes, wide: bool, deflate: bool) -> None:
    method = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    content = wheel("demo", "1.0", files, comment=comment, zip64=wide, method=method)
    assert read_all(content) == {**files, "demo-1.0.dist-info/METADATA": metadata("demo", "1.0")}


def test_a_comment_that_looks_like_an_end_record_does_not_mislead() -> None:
    comment = b"PK\5\6" + b"\0" * 40
    assert set(read_all(wheel("demo", "1.0", {"demo/a.py": b"1"}, comment=comment))) == {
        "demo/a.py",
        "demo-1.0.dist-info/METADATA",
    }


def zip64(content: bytes, *, ahead: int = 0) -> bytes:
    """Return the zip with zip64 end records and an end record that refers to them, `ahead` bytes between the two."""
    end = find_end(content, len(content))
    body = content[: end.start + end.length]
    record = struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, end.count, end.count, end.length, end.start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(body), 1)
    last = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return body + record + b"\0" * ahead + locator + last


def test_zip64_end_records_are_followed() -> None:
    content = zip64(wheel("demo", "1.0", {"demo/a.py": b"1"}))
    assert read_all(content)["demo/a.py"] == b"1"


def test_a_zip64_locator_that_points_nowhere_is_refused() -> None:
    content = zip64(wheel("demo", "1.0", {"demo/a.py": b"1"}))
    broken = content.replace(b"PK\6\6", b"PK\7\7")
    for tail in (broken, content[-42:]):
        with pytest.raises(NotAZipError, match="zip64"):
            find_end(tail, len(content))


def test_an_end_record_that_says_zip64_without_a_locator_is_believed_and_reaches_past_the_file() -> None:
    last = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    with pytest.raises(NotAZipError, match="past the end"):
        find_end(last, 1000)


def test_zip64_entries_take_their_figures_from_the_extra_field() -> None:
    content = wheel("demo", "1.0", {"demo/a.py": b"12345"})
    end = find_end(content, len(content))
    plain = listed(content[end.start :], end.start, end)["demo/a.py"]
    name = b"demo/a.py"
    extra = struct.pack("<HHH", 0x7777, 2, 0) + struct.pack("<HHQQQ", 1, 24, plain.size, plain.length, plain.offset)
    entry = struct.pack(
        "<4sHHHHHHLLLHHHHHLL",
        b"PK\1\2", 45, 45, 0, 8, 0, 0, plain.crc, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra), 0, 0, 0, 0, 0xFFFFFFFF,
    )  # fmt: skip
    wide = type(end)(start=end.start, length=len(entry), count=1)
    found = members(entry + name + extra, wide)["demo/a.py"]
    assert (found.offset, found.length, found.size) == (plain.offset, plain.length, plain.size)
    for lacking in (b"", struct.pack("<HHQ", 1, 8, plain.size)):
        short = entry[:30] + struct.pack("<H", len(lacking)) + entry[32:]
        with pytest.raises(NotAZipError, match="zip64"):
            members(short + name + lacking, wide)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("demo-1.0.data/purelib/demo/a.py", "demo/a.py"),
        ("demo-1.0.data/platlib/demo/a.py", "demo/a.py"),
        ("demo-1.0.data/scripts/run", "demo-1.0.data/scripts/run"),
        ("demo/x.data/purelib/a.py", "demo/x.data/purelib/a.py"),
        ("demo/a.py", "demo/a.py"),
    ],
)
def test_paths_are_relative_to_site_packages(path: str, expected: str) -> None:
    content = wheel("demo", "1.0", {path: b"1"})
    assert set(listed_in(io.BytesIO(content), len(content))) == {expected, "demo-1.0.dist-info/METADATA"}


def test_directories_and_encrypted_files_are_not_members() -> None:
    content = wheel("demo", "1.0", {"demo/": b"", "demo/a.py": b"1"})
    assert "demo/" not in listed_in(io.BytesIO(content), len(content))
    marked = bytearray(content)
    at = content.index(b"PK\1\2", content.index(b"PK\1\2") + 1)
    marked[at + 8] |= 1
    assert "demo/a.py" not in listed_in(io.BytesIO(bytes(marked)), len(marked))


@pytest.mark.parametrize(
    "content",
    [b"", b"not a zip", b"PK\5\6", wheel("demo", "1.0", {})[:-1], wheel("demo", "1.0", {})[:-22]],
)
def test_what_is_no_zip_is_refused(content: bytes) -> None:
    with pytest.raises(NotAZipError):
        listed_in(io.BytesIO(content), len(content))


def test_a_directory_that_reaches_past_the_file_is_refused() -> None:
    content = wheel("demo", "1.0", {"demo/a.py": b"1"})
    with pytest.raises(NotAZipError, match="past the end"):
        find_end(content, 30)


def test_a_damaged_directory_is_refused() -> None:
    content = wheel("demo", "1.0", {"demo/a.py": b"1"})
    end = find_end(content, len(content))
    body = content[end.start : end.start + end.length]
    with pytest.raises(NotAZipError, match="damaged"):
        members(b"XX" + body[2:], end)
    with pytest.raises(NotAZipError, match="truncated"):
        members(body[:60], end)


def test_payload_is_none_where_the_bytes_are_not_all_there() -> None:
    content = wheel("demo", "1.0", {"demo/a.py": b"1" * 50}, method=zipfile.ZIP_STORED)
    member = listed_in(io.BytesIO(content), len(content))["demo/a.py"]
    whole = content[member.offset : member.end]
    assert payload(whole, member, member.offset) == b"1" * 50
    assert payload(whole[:-1], member, member.offset) is None
    assert payload(whole[:10], member, member.offset) is None
    assert payload(whole, member, member.offset + 1) is None
    assert payload(b"XX" + whole[2:], member, member.offset) is None


def test_member_is_a_plain_record() -> None:
    member = Member(offset=0, end=10, length=5, size=5, crc=0, method=0)
    assert member == Member(offset=0, end=10, length=5, size=5, crc=0, method=0)
