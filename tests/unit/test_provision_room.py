from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.errors import NoSpaceError
from matrix.provision import room
from matrix.provision.room import (
    BASE,
    EXPANSION,
    RESERVE,
    UNKNOWN,
    Estimate,
    added_since,
    can_link,
    check_room,
    estimate,
    existing,
    free_bytes,
    gigabytes,
    usage,
)

SIZES: Mapping[str, int | None] = {"torch": 1000, "ray": 100, "odd": None}
ESTIMATES = {
    "all there, linked": ((), True, Estimate(cache=0, environment=BASE)),
    "torch is to be fetched": (("torch",), True, Estimate(cache=int(1000 * EXPANSION), environment=BASE)),
    "of unknown size": (("odd",), True, Estimate(cache=int(UNKNOWN * EXPANSION), environment=BASE, unsized=1)),
    "all there, copied": ((), False, Estimate(cache=0, environment=BASE + int((1100 + UNKNOWN) * EXPANSION))),
}


@pytest.mark.parametrize("name", ESTIMATES)
def test_estimate(name: str) -> None:
    fetched, linked, expected = ESTIMATES[name]
    assert estimate(SIZES, fetched, linked=linked) == expected


@given(st.dictionaries(st.text(max_size=3), st.none() | st.integers(0, 10**10), max_size=6), st.booleans())
def test_fetching_more_never_takes_less(sizes: dict[str, int | None], linked: bool) -> None:
    some = sorted(sizes)[::2]
    less, more = estimate(sizes, some, linked=linked), estimate(sizes, sizes, linked=linked)
    assert less.total <= more.total
    assert more.total <= estimate(sizes, sizes, linked=False).total


def test_room_is_enough_or_it_is_said_where_it_is_not(tmp_path: Path) -> None:
    needed = Estimate(cache=3_000_000_000, environment=1_000_000_000)
    check_room(needed, tmp_path / "uv", tmp_path / "home", lambda _: 4_000_000_000 + RESERVE)
    with pytest.raises(NoSpaceError, match=r"takes about 4\.0 GB more in .*home, where 5\.1 GB are free"):
        check_room(needed, tmp_path / "uv", tmp_path / "home", lambda _: 4_000_000_000 + RESERVE - 1)


def test_two_file_systems_are_looked_at_each_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Place:
        def __init__(self, path: Path) -> None:
            self.path = path

        def stat(self) -> os.stat_result:
            values = [0] * 10
            values[2] = 1 if self.path.name == "uv" else 2
            return os.stat_result(values)

    monkeypatch.setattr(room, "existing", Place)
    needed = Estimate(cache=3_000_000_000, environment=1_000_000_000)
    free = {"uv": 3_000_000_000 + RESERVE, "home": 1_000_000_000 + RESERVE}
    check_room(needed, tmp_path / "uv", tmp_path / "home", lambda path: free[path.name])

    def short(name: str) -> Callable[[Path], int]:
        return lambda path: free[path.name] - (path.name == name)

    for name in free:
        with pytest.raises(NoSpaceError, match=rf"more in .*{name}"):
            check_room(needed, tmp_path / "uv", tmp_path / "home", short(name))


def test_links(tmp_path: Path) -> None:
    assert can_link(tmp_path / "a" / "b", tmp_path / "c")
    assert list((tmp_path / "a" / "b").iterdir()) == list((tmp_path / "c").iterdir()) == []
    (tmp_path / "file").touch()
    assert not can_link(tmp_path / "file", tmp_path / "c")
    assert not can_link(tmp_path / "a", Path("/dev/shm")) or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev  # noqa: PTH116


def test_usage_tells_what_is_shared(tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "own").write_bytes(b"x" * 40_000)
    (tmp_path / "cached").write_bytes(b"y" * 80_000)
    (folder / "lib" / "linked").hardlink_to(tmp_path / "cached")
    (folder / "lib" / "linked-again").hardlink_to(tmp_path / "cached")
    (folder / "lib" / "symlink").symlink_to(tmp_path / "cached")
    found = usage(folder)
    assert 80_000 <= found.shared < 90_000
    assert 40_000 <= found.own < 60_000
    assert found.total == found.own + found.shared
    assert usage(tmp_path / "nothing").total == 0


def test_what_was_there_before_did_not_add_anything(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "old").write_bytes(b"x" * 80_000)
    os.utime(tmp_path / "e" / "old", (1000, 1000))
    (tmp_path / "e" / "new").write_bytes(b"x" * 40_000)
    os.utime(tmp_path / "e" / "new", (3000, 3000))
    assert 40_000 <= added_since(tmp_path / "e", 2000) < 50_000


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 kB"), (90_112, "90 kB"), (41_400_000, "41 MB"), (999_999_999, "1000 MB"), (9_800_000_000, "9.8 GB")],
)
def test_gigabytes(count: int, text: str) -> None:
    assert gigabytes(count) == text


def test_free_bytes_of_what_will_be_there(tmp_path: Path) -> None:
    assert existing(tmp_path / "a" / "b") == tmp_path
    assert free_bytes(tmp_path / "a" / "b") > 0
