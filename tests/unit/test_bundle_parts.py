"""The stream: a tar that anybody reads, cut where it was asked for."""

from __future__ import annotations

import errno
import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from matrix.bundle.parts import Cutter, Source, parse_size, write_parts
from matrix.errors import NoSpaceError, UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("60MB", 60_000_000),
        ("58MiB", 58 << 20),
        ("500000", 500_000),
        ("1.5 gb", 1_500_000_000),
        ("64KiB", 65_536),
        ("100k", 100_000),
        ("70000B", 70_000),
    ],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "60 MBit", "-1MB", "1", "65535", "sixty", "60MB60"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no size of a part"):
        parse_size(text)


def _sources(folder: Path, sizes: list[int]) -> dict[str, Source]:
    made = {}
    for number, size in enumerate(sizes):
        path = folder / f"{number}"
        path.write_bytes(bytes((number + place) % 251 for place in range(size)))
        name = f"wheels/{'n' * (120 if number % 2 else 3)}-{number}.whl"
        made[name] = Source(path=path, size=size, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), mode=0o755)
    return made


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=6), size=st.integers(100, 12000))
def test_the_parts_make_up_a_tar_in_which_each_file_lies_where_it_says(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], size: int
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    sources = _sources(folder, sizes)
    entries, parts = write_parts(sources, folder, size)
    bodies = [(folder / part.name).read_bytes() for part in parts]
    assert [len(body) for body in bodies] == [part.size for part in parts]
    assert [hashlib.sha256(body).hexdigest() for body in bodies] == [part.sha256 for part in parts]
    assert all(part.size == size for part in parts[:-1])
    assert 0 < parts[-1].size <= size
    stream = b"".join(bodies)
    with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
        assert tar.getnames() == list(sources)
        assert {info.mode for info in tar} == {0o755}
        assert {(info.mtime, info.uid, info.uname) for info in tar} == {(0, 0, "")}
    for name, entry in entries.items():
        assert hashlib.sha256(stream[entry.offset : entry.offset + entry.size]).hexdigest() == sources[name].sha256


@pytest.mark.parametrize(("written", "sizes"), [(0, []), (9, [9]), (10, [10]), (11, [10, 1]), (20, [10, 10])])
def test_a_part_ends_where_it_is_full(tmp_path: Path, written: int, sizes: list[int]) -> None:
    cutter = Cutter(tmp_path, 10)
    cutter.write(b"x" * written)
    cutter.close()
    cutter.close()
    assert [part.size for part in cutter.parts] == sizes
    assert cutter.tell() == written


def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Cutter, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(Cutter, "write", full)
    with pytest.raises(NoSpaceError, match="No room is left"):
        write_parts(_sources(tmp_path, [10]), tmp_path, 1000)
    monkeypatch.setattr(Cutter, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"):
        write_parts(_sources(tmp_path, [10]), tmp_path, 1000)
