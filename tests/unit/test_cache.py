from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.cache import LAYOUT, Cache, unusable, write_atomically
from matrix.errors import NoSpaceError, UsageError


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_what_was_put_is_got_and_nothing_else(cache: Cache) -> None:
    assert cache.get("page", "a") is None
    assert not cache.root.exists()
    cache.put("page", "a", b"one")
    cache.put("page", "a", b"two")
    assert cache.get("page", "a") == b"two"
    assert cache.get("metadata", "a") is None
    cache.drop("page", "a")
    cache.drop("page", "a")
    assert cache.get("page", "a") is None


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, max_size=80), st.binary(max_size=200))
def test_any_key_stays_inside_the_cache(tmp_path_factory: pytest.TempPathFactory, key: str, payload: bytes) -> None:
    cache = Cache(tmp_path_factory.mktemp("cache"))
    path = cache.put("kind", key, payload)
    assert path.resolve().is_relative_to(cache.root.resolve())
    assert cache.get("kind", key) == payload


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:30],
        lambda content: b"",
        lambda content: content[:70] + bytes([content[70] ^ 1]) + content[71:],
        lambda content: b"0" * 64 + content[64:],
        lambda content: content + b"more",
    ],
)
def test_a_damaged_entry_is_as_if_it_were_not_there(cache: Cache, damage: object) -> None:
    path = cache.put("page", "a", b"a payload of some length")
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert cache.get("page", "a") is None
    assert not path.exists()


def test_size_and_clear(cache: Cache) -> None:
    assert cache.size() == 0
    assert cache.clear() == 0
    cache.put("page", "a", b"x" * 1000)
    assert cache.size() == 1000 + 65
    assert cache.clear() == 1065
    assert cache.get("page", "a") is None
    cache.put("page", "a", b"again")
    assert cache.get("page", "a") == b"again"


def test_layout_is_part_of_the_path(cache: Cache) -> None:
    assert LAYOUT in cache.put("page", "a", b"").parts


def test_a_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "deep" / "file", b"content")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file"]


def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(NoSpaceError, match=r"(?s)No room left.*--home"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, NoSpaceError), (errno.EDQUOT, NoSpaceError), (errno.EACCES, UsageError), (errno.EROFS, UsageError)],
)
def test_unusable_says_which_error(number: int, kind: type[Exception]) -> None:
    error = unusable(Path("x"), OSError(number, os.strerror(number)))
    assert type(error) is kind
    assert "--home" in str(error)


def test_a_cache_below_a_file_is_unusable_to_write_and_empty_to_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file")
    assert cache.get("page", "a") is None
    with pytest.raises(UsageError, match="cannot be used"):
        cache.put("page", "a", b"")


def test_an_entry_that_is_a_directory_is_unusable(cache: Cache) -> None:
    cache.path("page", "a").mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot be used"):
        cache.get("page", "a")


def test_many_writers_of_one_entry_leave_a_whole_one(cache: Cache) -> None:
    payloads = [bytes([at]) * 50_000 for at in range(6)]
    seen: list[bytes | None] = []

    def work(payload: bytes) -> None:
        for _ in range(5):
            cache.put("page", "a", payload)
            seen.append(cache.get("page", "a"))

    threads = [threading.Thread(target=work, args=(payload,)) for payload in payloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) <= set(payloads)
    assert len(seen) == 30


def test_what_is_written_may_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "report.html", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o644
