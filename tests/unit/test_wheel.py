from __future__ import annotations

import io
import random
import threading
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from matrix.cache import Cache
from matrix.errors import CorruptFileError, IndexUnreachableError
from matrix.index import Archive, File
from matrix.index import wheel as wheel_module
from matrix.index.fetch import Fetcher, Limits
from matrix.index.wheel import LONGEST, NEAR, REQUESTS, WASTE, WheelArchive, plan_chunks
from matrix.index.zip_directory import Member, listed_in
from tests.unit.http_server import Site, serving, wheel

QUICK = Limits(connect=1.0, read=5.0, tries=2, backoff=0.001, longest_wait=0.01)
NAME = "demo-1.0-py3-none-any.whl"
PATH = f"/files/{NAME}"


def noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def large() -> dict[str, bytes]:
    """Return members like vLLM's: sources in runs between libraries and tables."""
    made: dict[str, bytes] = {"demo/_C.abi3.so": noise(400_000, 1)}
    made |= {f"demo/a{at:02}.py": b"A = %d\n" % at + noise(2_000, at) for at in range(30)}
    made["demo/table.json"] = noise(300_000, 2)
    made |= {f"demo/b{at:02}.py": b"B = %d\n" % at + noise(2_000, at) for at in range(30)}
    made["demo/_D.abi3.so"] = noise(400_000, 3)
    made["demo/end.py"] = b"END = 1\n"
    made["demo-1.0.data/purelib/demo/pure.py"] = b"PURE = 1\n"
    made["demo/_E.abi3.so"] = noise(300_000, 4)
    return made


MEMBERS = large()


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        yield running


@pytest.fixture
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the test wheel (1.5 MB) count as a large one, with a directory that does not fit the first look."""
    monkeypatch.setattr(wheel_module, "SMALL", 10_000)
    monkeypatch.setattr(wheel_module, "TAIL", 2_000)
    monkeypatch.setattr(wheel_module, "AHEAD", 1_000)


def file(site: Site, content: bytes, *, sized: bool = True, digest: str | None = None) -> File:
    site.add("demo", NAME, content)
    return File(
        filename=NAME,
        url=site.url.removesuffix("/simple") + PATH,
        sha256=sha256(content).hexdigest() if digest is None else digest,
        version=Version("1.0"),
        uploaded=datetime(2026, 1, 1, tzinfo=UTC),
        size=len(content) if sized else None,
        tags="py3-none-any",
    )


def opened(made: File, root: Path) -> WheelArchive:
    return WheelArchive(made, Fetcher(limits=QUICK), Cache(root))


def ranges(site: Site) -> list[str]:
    return [headers.get("Range", "whole") for path, headers in site.asked if path == PATH]


def test_a_small_wheel_is_read_whole_by_one_request(site: Site, tmp_path: Path) -> None:
    content = wheel("demo", "1.0", {"demo/a.py": b"1", "demo/data.bin": noise(100, 1)})
    archive: Archive = opened(file(site, content), tmp_path)
    assert archive.names() == ("demo/a.py", "demo/data.bin", "demo-1.0.dist-info/METADATA")
    assert archive.read(["demo/data.bin", "demo/a.py"]) == {"demo/data.bin": noise(100, 1), "demo/a.py": b"1"}
    assert ranges(site) == ["whole"]
    assert archive.bytes_read == len(content)
    assert archive.filename == NAME
    assert archive.digest == f"sha256:{sha256(content).hexdigest()}"


@pytest.mark.usefixtures("_small_limits")
@pytest.mark.parametrize("sized", [True, False])
def test_a_large_wheel_is_read_in_pieces(site: Site, tmp_path: Path, sized: bool) -> None:
    content = wheel("demo", "1.0", MEMBERS, comment=b"built here")
    archive = opened(file(site, content, sized=sized), tmp_path)
    assert len(archive.names()) == len(MEMBERS) + 1
    metadata = archive.read(["demo-1.0.dist-info/METADATA"])
    assert metadata["demo-1.0.dist-info/METADATA"].startswith(b"Metadata-Version")
    assert len(ranges(site)) == (2 if sized else 3), "the directory and METADATA come in two looks"
    wanted = ["demo/a00.py", "demo/a29.py", "demo/b07.py", "demo/end.py", "demo/pure.py"]
    assert archive.read(wanted) == {name: MEMBERS.get(name, b"PURE = 1\n") for name in wanted}
    assert "whole" not in ranges(site)
    assert archive.bytes_read < len(content) / 10


@pytest.mark.usefixtures("_small_limits")
def test_what_was_read_once_is_never_asked_for_again(site: Site, tmp_path: Path) -> None:
    made = file(site, wheel("demo", "1.0", MEMBERS))
    first = opened(made, tmp_path)
    wanted = [name for name in first.names() if name.endswith(".py")]
    contents = first.read(wanted)
    assert first.bytes_read > 0
    asked = len(site.asked)
    again = opened(made, tmp_path)
    assert again.read(wanted) == contents
    assert again.names() == first.names()
    assert first.read(wanted) == contents
    assert again.bytes_read == 0
    assert len(site.asked) == asked


@pytest.mark.usefixtures("_small_limits")
def test_sources_that_lay_between_are_kept_too(site: Site, tmp_path: Path) -> None:
    archive = opened(file(site, wheel("demo", "1.0", MEMBERS)), tmp_path)
    archive.read(["demo/a03.py", "demo/a05.py"])
    asked = len(site.asked)
    assert archive.read(["demo/a04.py"]) == {"demo/a04.py": MEMBERS["demo/a04.py"]}
    assert len(site.asked) == asked


@pytest.mark.usefixtures("_small_limits")
def test_a_damaged_cache_is_read_again(site: Site, tmp_path: Path) -> None:
    made = file(site, wheel("demo", "1.0", MEMBERS))
    wanted = ["demo/a03.py", "demo/b05.py"]
    contents = opened(made, tmp_path).read(wanted)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-200])
    again = opened(made, tmp_path)
    assert again.read(wanted) == contents
    assert again.bytes_read > 0


@pytest.mark.usefixtures("_small_limits")
def test_a_member_that_is_not_there(site: Site, tmp_path: Path) -> None:
    archive = opened(file(site, wheel("demo", "1.0", MEMBERS)), tmp_path)
    with pytest.raises(KeyError, match=r"demo/missing\.py is not in demo-1\.0"):
        archive.read(["demo/a00.py", "demo/missing.py"])
    assert archive.read([]) == {}


@pytest.mark.usefixtures("_small_limits")
def test_a_server_without_ranges_sends_the_whole_once_and_its_sources_are_kept(site: Site, tmp_path: Path) -> None:
    content = wheel("demo", "1.0", MEMBERS)
    made = file(site, content)
    site.faults[PATH] = ["no-range*"]
    archive = opened(made, tmp_path)
    assert archive.read(["demo/a00.py"]) == {"demo/a00.py": MEMBERS["demo/a00.py"]}
    assert archive.read(["demo/b00.py"]) == {"demo/b00.py": MEMBERS["demo/b00.py"]}
    assert archive.bytes_read == len(content)
    assert archive.read(["demo/table.json"]) == {"demo/table.json": MEMBERS["demo/table.json"]}
    assert archive.bytes_read == 2 * len(content)
    assert [path.name for path in (tmp_path / "index-1").iterdir() if path.is_file()] == []


@pytest.mark.usefixtures("_small_limits")
@pytest.mark.parametrize("good", [0, 1])
def test_a_server_that_stops_doing_ranges_midway(site: Site, tmp_path: Path, good: int) -> None:
    made = file(site, wheel("demo", "1.0", MEMBERS))
    archive = opened(made, tmp_path)
    if good:
        archive.names()
    site.faults[PATH] = ["", "no-range*"] if not good else ["no-range*"]
    assert archive.read(["demo/a00.py"]) == {"demo/a00.py": MEMBERS["demo/a00.py"]}


@pytest.mark.parametrize("size", [None, 1000])
def test_a_wheel_that_does_not_match_its_digest(site: Site, tmp_path: Path, size: int | None) -> None:
    content = wheel("demo", "1.0", {"demo/a.py": b"1"})
    archive = opened(file(site, content, sized=size is not None, digest="0" * 64), tmp_path)
    with pytest.raises(CorruptFileError, match="its SHA-256 is not the one that the index states"):
        archive.names()
    assert ranges(site).count("whole") == 2


def test_a_passing_corruption_is_fetched_again(site: Site, tmp_path: Path) -> None:
    made = file(site, wheel("demo", "1.0", {"demo/a.py": b"1"}))
    site.faults[PATH] = ["flipped"]
    assert opened(made, tmp_path).read(["demo/a.py"]) == {"demo/a.py": b"1"}


@pytest.mark.usefixtures("_small_limits")
def test_a_piece_that_does_not_match_its_crc_is_fetched_once_more(site: Site, tmp_path: Path) -> None:
    made = file(site, wheel("demo", "1.0", MEMBERS))
    archive = opened(made, tmp_path)
    archive.names()
    site.faults[PATH] = ["flipped"]
    assert archive.read(["demo/a00.py"]) == {"demo/a00.py": MEMBERS["demo/a00.py"]}
    site.faults[PATH] = ["flipped*"]
    with pytest.raises(CorruptFileError, match=r"demo/b00\.py is not what the directory promises"):
        archive.read(["demo/b00.py"])
    site.faults[PATH] = []
    assert archive.read(["demo/b00.py"]) == {"demo/b00.py": MEMBERS["demo/b00.py"]}


@pytest.mark.usefixtures("_small_limits")
@pytest.mark.parametrize(("fault", "why"), [("flipped*", "no end record"), ("short*", "bytes were asked for")])
def test_a_directory_that_cannot_be_read(site: Site, tmp_path: Path, fault: str, why: str) -> None:
    made = file(site, wheel("demo", "1.0", MEMBERS))
    site.faults[PATH] = [fault]
    with pytest.raises(CorruptFileError, match=why):
        opened(made, tmp_path).names()


def test_a_small_file_that_is_no_wheel(site: Site, tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match="no end record"):
        opened(file(site, b"not a wheel"), tmp_path).names()


@pytest.mark.parametrize(("large", "fault"), [(True, ""), (False, ""), (True, "no-range*")])
def test_a_member_that_is_packed_in_a_way_nobody_knows(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool, fault: str
) -> None:
    if large:
        monkeypatch.setattr(wheel_module, "SMALL", 0)
    content = wheel("demo", "1.0", {"demo/a.py": b"1" * 99}, method=zipfile.ZIP_BZIP2)
    archive = opened(file(site, content), tmp_path)
    assert "demo/a.py" in archive.names()
    site.faults[PATH] = [fault] if fault else []
    with pytest.raises(CorruptFileError, match=r"demo/a\.py is not what the directory promises"):
        archive.read(["demo/a.py"])


def test_a_wheel_that_is_gone(site: Site, tmp_path: Path) -> None:
    made = file(site, wheel("demo", "1.0", {}))
    site.files.clear()
    with pytest.raises(IndexUnreachableError, match="answered 404"):
        opened(made, tmp_path).names()


@pytest.mark.usefixtures("_small_limits")
def test_threads_share_one_archive(site: Site, tmp_path: Path) -> None:
    archive = opened(file(site, wheel("demo", "1.0", MEMBERS)), tmp_path)
    wanted = [name for name in MEMBERS if name.endswith(".py") and name.startswith("demo/")]
    results: list[bool] = []

    def work(seed: int) -> None:
        names = random.Random(seed).sample(wanted, 20)
        results.append(archive.read(names) == {name: MEMBERS[name] for name in names})

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8


GAPS = st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 300_000)), min_size=1, max_size=60)


@given(GAPS)
def test_chunks_hold_each_member_once_and_waste_little(gaps: list[tuple[int, int]]) -> None:
    wanted: dict[str, Member] = {}
    at = 0
    for number, (gap, length) in enumerate(gaps):
        at += gap
        wanted[str(number)] = Member(offset=at, end=at + length, length=length, size=length, crc=0, method=0)
        at += length
    chunks = plan_chunks(wanted)
    assert sorted(name for chunk in chunks for name in chunk.names) == sorted(wanted)
    for chunk in chunks:
        assert chunk.start == min(wanted[name].offset for name in chunk.names)
        assert chunk.stop == max(wanted[name].end for name in chunk.names)
        assert chunk.stop - chunk.start <= LONGEST or len(chunk.names) == 1
    assert all(earlier.stop <= later.start for earlier, later in pairwise(chunks))
    need = sum(length for _, length in gaps)
    assert sum(chunk.stop - chunk.start for chunk in chunks) <= need * (1 + WASTE) + NEAR * len(gaps)
    if all(gap > NEAR for gap, _ in gaps[1:]):
        assert len(chunks) >= min(len(gaps), REQUESTS - 1) or sum(gap for gap, _ in gaps[1:]) <= need * WASTE


def test_chunks_of_members_side_by_side_are_one_request() -> None:
    content = wheel("demo", "1.0", {f"demo/{at}.py": b"x" * 100 for at in range(50)}, method=zipfile.ZIP_STORED)
    found = listed_in(io.BytesIO(content), len(content))
    assert len(plan_chunks(found)) == 1


def test_many_far_members_share_requests_over_the_smallest_gaps() -> None:
    length, gap = 10_000, NEAR + 1
    starts = {str(at): at * (length + gap) for at in range(40)}
    wanted = {
        name: Member(offset=start, end=start + length, length=1, size=1, crc=0, method=0)
        for name, start in starts.items()
    }
    assert len(wanted) - len(plan_chunks(wanted)) == int(WASTE * 40 * length / gap)
    assert len(plan_chunks(dict(list(wanted.items())[:REQUESTS]))) == REQUESTS
