from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.cache import Cache
from matrix.errors import UsageError
from matrix.index.pack import DEFLATED, MOST_PACKS, STORED, DamagedMemberError, MemberStore, Packed

KEY = "f" * 64


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def packs(cache: Cache) -> list[Path]:
    return sorted(cache.path("members", KEY).glob("*.pack"))


def stored(body: bytes) -> Packed:
    return Packed(raw=body, method=STORED, size=len(body), crc=zlib.crc32(body))


@given(st.binary(max_size=5000))
def test_packed_gives_the_content_back(content: bytes) -> None:
    assert Packed.of(content).content() == content
    assert stored(content).content() == content


@pytest.mark.parametrize(
    "packed",
    [
        Packed(raw=b"abc", method=STORED, size=3, crc=1),
        Packed(raw=b"abc", method=STORED, size=4, crc=zlib.crc32(b"abc")),
        Packed(raw=b"abc", method=12, size=3, crc=zlib.crc32(b"abc")),
        Packed(raw=b"\xff\xff", method=DEFLATED, size=3, crc=1),
    ],
)
def test_packed_refuses_bytes_that_are_wrong(packed: Packed) -> None:
    with pytest.raises(DamagedMemberError):
        packed.content()


def test_members_are_there_for_the_next_store(cache: Cache) -> None:
    MemberStore(cache, KEY).put({"a.py": Packed.of(b"one"), "b.py": stored(b"two")})
    again = MemberStore(cache, KEY)
    assert again.get(["b.py", "a.py", "c.py"]) == {"a.py": b"one", "b.py": b"two"}
    assert MemberStore(cache, "e" * 64).get(["a.py"]) == {}


def test_nothing_to_put_writes_nothing(cache: Cache) -> None:
    MemberStore(cache, KEY).put({})
    assert packs(cache) == []


@settings(max_examples=25, deadline=None)
@given(st.lists(st.dictionaries(st.text(min_size=1, max_size=8), st.binary(max_size=300), max_size=5), max_size=20))
def test_all_batches_are_kept_in_few_packs(
    tmp_path_factory: pytest.TempPathFactory, batches: list[dict[str, bytes]]
) -> None:
    cache = Cache(tmp_path_factory.mktemp("cache"))
    store = MemberStore(cache, KEY)
    expected: dict[str, bytes] = {}
    for batch in batches:
        fresh = {name: body for name, body in batch.items() if name not in expected}
        store.put({name: Packed.of(body) for name, body in fresh.items()})
        expected |= fresh
    assert store.get(expected) == expected
    assert MemberStore(cache, KEY).get(expected) == expected
    assert len(packs(cache)) <= MOST_PACKS + 1


def test_a_damaged_member_is_not_there_and_the_others_are(cache: Cache) -> None:
    MemberStore(cache, KEY).put({"a.py": stored(b"first"), "b.py": stored(b"second")})
    (pack,) = packs(cache)
    pack.write_bytes(pack.read_bytes().replace(b"first", b"fIrst"))
    store = MemberStore(cache, KEY)
    assert store.get(["a.py", "b.py"]) == {"b.py": b"second"}
    store.put({"a.py": stored(b"first")})
    assert store.get(["a.py", "b.py"]) == {"a.py": b"first", "b.py": b"second"}


@pytest.mark.parametrize("length", [0, 10, 64, 90])
def test_a_truncated_table_loses_its_pack_and_no_other(cache: Cache, length: int) -> None:
    store = MemberStore(cache, KEY)
    store.put({"a.py": Packed.of(b"one")})
    (first,) = packs(cache)
    store.put({"b.py": Packed.of(b"two")})
    first.write_bytes(first.read_bytes()[:length])
    assert MemberStore(cache, KEY).get(["a.py", "b.py"]) == {"b.py": b"two"}
    assert not first.exists()


def test_a_truncated_pack_loses_the_members_that_are_cut_off(cache: Cache) -> None:
    MemberStore(cache, KEY).put({"a.py": stored(b"x" * 100), "b.py": stored(b"y" * 100)})
    (pack,) = packs(cache)
    pack.write_bytes(pack.read_bytes()[:-50])
    assert set(MemberStore(cache, KEY).get(["a.py", "b.py"])) == {"a.py"}


def test_packs_that_another_process_merged_away_are_as_if_not_there(cache: Cache) -> None:
    mine = MemberStore(cache, KEY)
    mine.put({"a.py": Packed.of(b"one")})
    for pack in packs(cache):
        pack.unlink()
    assert mine.get(["a.py"]) == {}


def test_a_pack_that_goes_away_between_listing_and_reading(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    MemberStore(cache, KEY).put({"a.py": Packed.of(b"one")})
    gone = cache.path("members", KEY) / "gone.pack"
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([gone, *packs_in(self)]))
    assert MemberStore(cache, KEY).get(["a.py"]) == {"a.py": b"one"}


def packs_in(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.suffix == ".pack"]


def test_two_stores_at_once_lose_nothing(cache: Cache) -> None:
    one, two = MemberStore(cache, KEY), MemberStore(cache, KEY)
    assert one.get(["x"]) == two.get(["x"]) == {}
    for at in range(MOST_PACKS * 2):
        (one if at % 2 else two).put({f"{at}.py": stored(b"%d" % at)})
    found = MemberStore(cache, KEY).get(f"{at}.py" for at in range(MOST_PACKS * 2))
    assert len(found) == MOST_PACKS * 2


def test_a_pack_that_cannot_be_read_is_an_error_that_says_so(cache: Cache) -> None:
    store = MemberStore(cache, KEY)
    store.put({"a.py": Packed.of(b"one")})
    (pack,) = packs(cache)
    pack.unlink()
    pack.mkdir()
    with pytest.raises(UsageError, match="cannot be used"):
        MemberStore(cache, KEY).get(["a.py"])
    with pytest.raises(UsageError, match="cannot be used"):
        store.get(["a.py"])
