"""Locks as uv writes them, recorded, and the folder that keeps them."""

from __future__ import annotations

import errno
import gzip
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.errors import CorruptFileError, NoSpaceError, ToolError
from matrix.resolve.lock import Locked, LockFolder, parse_lock

RECORDED = (Path(__file__).parent / "golden" / "resolve" / "solved.pylock.toml").read_text(encoding="utf-8")


def test_a_lock_is_read_as_a_toml_parser_reads_it() -> None:
    lock = parse_lock(RECORDED)
    packages = tomllib.loads(RECORDED)["packages"]
    assert {name: str(version) for name, version in lock.versions.items()} == {
        p["name"]: p["version"] for p in packages
    }
    without = tuple(f"{p['name']}=={p['version']}" for p in packages if "wheels" not in p)
    assert lock.to_build == without == ("antlr4-python3-runtime==4.9.3",)
    assert lock.text == RECORDED


def test_a_package_is_replaced_in_place() -> None:
    lock = parse_lock(RECORDED)
    first, last = lock.packages[0].name, lock.packages[-1].name
    for name in (first, last, "torch"):
        entry = f'name = "{name}"\nversion = "9.9"\nwheels = [{{ url = "u" }}]\n'
        text = lock.with_entry(Locked(name=name, version=Version("9.9"), entry=entry)).text
        read = {p["name"]: p["version"] for p in tomllib.loads(text)["packages"]}
        assert read == {n: "9.9" if n == name else str(v) for n, v in lock.versions.items()}
        assert text.count("\n\n") == RECORDED.count("\n\n")
        assert text.endswith("\n")
        assert not text.endswith("\n\n")


def test_a_lock_of_another_form_is_refused() -> None:
    with pytest.raises(ToolError, match="unexpected form"):
        parse_lock('lock-version = "2.0"\n\n[[packages]]\nid = "a"\n')


def test_a_lock_is_kept_once_and_read_back(tmp_path: Path) -> None:
    folder = LockFolder(tmp_path / "locks")
    digest = folder.write(RECORDED)
    stamp = folder.path(digest).stat().st_mtime_ns
    assert folder.write(RECORDED) == digest
    assert folder.path(digest).stat().st_mtime_ns == stamp
    assert folder.read(digest) == RECORDED
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [folder.path(digest).name]


@pytest.mark.parametrize("damage", [b"", b"not gzip", gzip.compress(b"other"), gzip.compress(RECORDED.encode())[:-20]])
def test_a_damaged_lock_is_told_and_set_aside(tmp_path: Path, damage: bytes) -> None:
    folder = LockFolder(tmp_path)
    digest = folder.write(RECORDED)
    folder.path(digest).write_bytes(damage)
    with pytest.raises(CorruptFileError):
        folder.read(digest)
    with pytest.raises(CorruptFileError, match="gone"):
        folder.read(digest)
    assert folder.read(folder.write(RECORDED)) == RECORDED


@pytest.mark.parametrize(("number", "expected"), [(errno.ENOSPC, NoSpaceError), (errno.EACCES, PermissionError)])
def test_a_lock_that_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    def refuse(path: Path, content: bytes) -> int:
        raise OSError(number, "refused")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(expected):
        LockFolder(tmp_path).write("x")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
