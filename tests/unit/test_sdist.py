from __future__ import annotations

import errno
import io
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.cache import Cache
from matrix.errors import CorruptFileError, IndexUnreachableError, NoSpaceError, UsageError
from matrix.index import Archive, File
from matrix.index import sdist as sdist_module
from matrix.index.fetch import Fetcher, Limits
from matrix.index.sdist import SdistArchive
from tests.unit.http_server import Site, sdist, serving

QUICK = Limits(connect=1.0, read=5.0, tries=2, backoff=0.001, longest_wait=0.01)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        yield running


def opened(site: Site, root: Path, content: bytes, *, kind: str = "tar.gz") -> SdistArchive:
    name = f"demo-1.0.{kind}"
    path = site.add("demo", name, content)
    made = File(
        filename=name,
        url=site.url.removesuffix("/simple") + path,
        sha256=sha256(content).hexdigest(),
        version=Version("1.0"),
        uploaded=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return SdistArchive(made, Fetcher(limits=QUICK), Cache(root))


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["demo/__init__.py", "setup.py", "PKG-INFO"], ["demo/__init__.py", "setup.py", "PKG-INFO"]),
        (["src/demo/__init__.py", "setup.py"], ["demo/__init__.py", "setup.py"]),
        (["python/demo/__init__.py", "pyproject.toml"], ["demo/__init__.py", "pyproject.toml"]),
        (["src/__init__.py", "src/demo/__init__.py"], ["src/__init__.py", "src/demo/__init__.py"]),
        (["src/main.toml", "demo/__init__.py"], ["src/main.toml", "demo/__init__.py"]),
    ],
)
def test_names_are_those_of_site_packages(
    site: Site, tmp_path: Path, kind: str, paths: list[str], expected: list[str]
) -> None:
    content = sdist("demo", "1.0", {path: path.encode() for path in paths}, kind=kind)
    archive: Archive = opened(site, tmp_path, content, kind=kind)
    assert list(archive.names()) == expected
    assert archive.read(expected) == {name: path.encode() for name, path in zip(expected, paths, strict=True)}
    assert archive.bytes_read == len(content)
    assert archive.digest == f"sha256:{sha256(content).hexdigest()}"
    assert archive.filename == f"demo-1.0.{kind}"


def test_it_is_read_once_and_other_members_when_asked(site: Site, tmp_path: Path) -> None:
    content = sdist("demo", "1.0", {"src/demo/__init__.py": b"1", "src/demo/data.bin": b"\0\1"})
    first = opened(site, tmp_path, content)
    assert first.read(["demo/__init__.py"]) == {"demo/__init__.py": b"1"}
    assert len(site.asked) == 1
    again = opened(site, tmp_path, content)
    assert again.read(["demo/__init__.py"]) == {"demo/__init__.py": b"1"}
    assert len(again.names()) == 2
    assert again.bytes_read == 0
    assert again.read(["demo/data.bin"]) == {"demo/data.bin": b"\0\1"}
    assert len(site.asked) == 2
    assert opened(site, tmp_path, content).read(["demo/data.bin"]) == {"demo/data.bin": b"\0\1"}
    assert len(site.asked) == 2


def test_a_member_that_is_not_there(site: Site, tmp_path: Path) -> None:
    with pytest.raises(KeyError, match=r"missing\.py is not in demo-1\.0\.tar\.gz"):
        opened(site, tmp_path, sdist("demo", "1.0", {"a.py": b""})).read(["a.py", "missing.py"])


def test_members_that_leave_the_archive_and_links_are_not_there(site: Site, tmp_path: Path) -> None:
    content = io.BytesIO(sdist("demo", "1.0", {"/etc/a.py": b"1", "../b.py": b"1", "ok.py": b"1"}))
    plain = io.BytesIO()
    with tarfile.open(fileobj=content) as old, tarfile.open(fileobj=plain, mode="w:gz") as new:
        for member in old:
            new.addfile(member, old.extractfile(member))
        for name, kind, target in [
            ("l.py", tarfile.SYMTYPE, "/etc/passwd"),
            ("h.py", tarfile.LNKTYPE, "demo-1.0/ok.py"),
        ]:
            link = tarfile.TarInfo(f"demo-1.0/{name}")
            link.type, link.linkname = kind, target
            new.addfile(link)
        inner = tarfile.TarInfo("demo-1.0/sub/../../c.py")
        new.addfile(inner, io.BytesIO())
        new.addfile(tarfile.TarInfo("top-level-file"), io.BytesIO())
    assert opened(site, tmp_path, plain.getvalue()).names() == ("ok.py",)


def test_folders_of_a_zip_are_not_members(site: Site, tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("demo-1.0/", b"")
        archive.writestr("demo-1.0/demo/", b"")
        archive.writestr("demo-1.0/demo/a.py", b"1")
    assert opened(site, tmp_path, content.getvalue(), kind="zip").names() == ("demo/a.py",)


def test_a_cache_that_cannot_be_made(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used"):
        opened(site, tmp_path / "file", sdist("demo", "1.0", {"a.py": b""})).names()


def test_no_room_for_the_download(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: object, part: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", write)
    with pytest.raises(NoSpaceError, match=r"(?s)No room left for .*index-1.*--home"):
        opened(site, tmp_path, sdist("demo", "1.0", {"a.py": b""})).names()


def test_members_too_large_to_look_at_are_named_and_not_read(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdist_module, "LARGEST_MEMBER", 100)
    monkeypatch.setattr(sdist_module, "LARGEST_TOTAL", 150)
    content = sdist("demo", "1.0", {"a.py": b"x" * 101, "b.py": b"x" * 90, "c.py": b"x" * 61, "d.py": b"x" * 60})
    archive = opened(site, tmp_path, content)
    assert archive.names() == ("a.py", "b.py", "c.py", "d.py")
    assert set(archive.read(["b.py", "d.py"])) == {"b.py", "d.py"}
    with pytest.raises(CorruptFileError, match=r"a\.py cannot be read"):
        archive.read(["a.py"])


def test_an_sdist_above_the_limit_is_refused(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdist_module, "LARGEST", 10)
    archive = opened(site, tmp_path, sdist("demo", "1.0", {"a.py": b""}))
    with pytest.raises(IndexUnreachableError, match=r"has \d+ bytes; no more than 10 are read"):
        archive.names()
    assert archive.bytes_read == 0


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_what_cannot_be_unpacked(site: Site, tmp_path: Path, kind: str) -> None:
    for content in (b"not an archive", sdist("demo", "1.0", {"a.py": b"1" * 5000}, kind=kind)[:-40]):
        archive = opened(site, tmp_path, content, kind=kind)
        with pytest.raises(CorruptFileError, match="it cannot be unpacked"):
            archive.names()


def test_a_truncated_download_is_tried_again_and_a_wrong_one_refused(site: Site, tmp_path: Path) -> None:
    content = sdist("demo", "1.0", {"a.py": b"1"})
    archive = opened(site, tmp_path, content)
    path = "/files/demo-1.0.tar.gz"
    site.faults[path] = ["flipped*"]
    with pytest.raises(CorruptFileError, match="SHA-256"):
        archive.names()
    site.faults[path] = ["truncated", "flipped"]
    assert archive.names() == ("a.py",)
