from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from matrix.errors import BusyError
from matrix.provision.environment import MANIFEST, Manifest, read_manifest
from matrix.provision.latch import attempt
from matrix.provision.shelf import Shelf


def manifest(cell: str = "ray1.0", **more: object) -> Manifest:
    values: dict[str, object] = {
        "cell": cell, "lock": "sha256:0", "python_version": "3.12.1", "installed": {"ray": "1.0"},
        "made": datetime(2026, 1, 1, tzinfo=UTC), "uv": "uv 0", "seconds": 1.5, "added_bytes": 7, "built": ("a==1",),
        "notes": ("x",),
    }  # fmt: skip
    return Manifest(**(values | more))  # type: ignore[arg-type]


def shelved(shelf: Shelf, cell: str, *, whole: bool = True) -> Path:
    folder = shelf.folder(cell)
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "file").write_bytes(b"x" * 10_000)
    if whole:
        manifest(cell).write(folder)
    return folder


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(root=tmp_path / "environments")


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = manifest()
    written.write(tmp_path)
    assert read_manifest(tmp_path) == written
    kept = written.keep(tmp_path)
    assert kept.kept
    assert read_manifest(tmp_path) == kept == kept.keep(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 2}', '{"schema": 1, "cell": "x"}', "\xff"])
def test_a_manifest_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_bytes(text.encode("latin-1"))
    assert read_manifest(tmp_path) is None


def test_names_are_folders_and_long_ones_end_in_their_digest(shelf: Shelf) -> None:
    assert shelf.folder("ray1.0").name == "ray1.0"
    long = ["ray1.0-" + "with.x.eq.1-" * 30 + end for end in ("a", "b")]
    names = {shelf.folder(name).name for name in long}
    assert len(names) == 2
    assert max(map(len, names)) <= 150


def test_entries(shelf: Shelf) -> None:
    assert shelf.entries() == []
    shelved(shelf, "ray1.0")
    shelved(shelf, "ray1.1", whole=False)
    (shelf.root / ".gone-1").mkdir()
    held = attempt(shelf.latch(shelf.folder("ray1.0")), shared=True)
    assert held is not None
    one, two = shelf.entries()
    assert (one.name, one.in_use, two.name, two.in_use) == ("ray1.0", True, "ray1.1", False)
    assert one.manifest is not None
    assert two.manifest is None
    assert one.usage.own >= 10_000
    assert datetime.now(UTC) - one.used < timedelta(minutes=5)
    held.drop()
    assert [item.in_use for item in shelf.entries()] == [False, False]


def test_removing(shelf: Shelf) -> None:
    folder = shelved(shelf, "ray1.0")
    (shelf.root / ".ray1.0.needs").touch()
    (shelf.root / ".gone-1" / "left").mkdir(parents=True)
    assert shelf.remove(folder).own >= 10_000
    assert list(shelf.root.iterdir()) == []
    assert shelf.remove(folder).total == 0


def test_what_is_in_use_is_not_removed(shelf: Shelf) -> None:
    folder = shelved(shelf, "ray1.0")
    held = attempt(shelf.latch(folder), shared=True)
    assert held is not None
    with pytest.raises(BusyError, match=r"The environment ray1\.0 is in use"):
        shelf.remove(folder)
    assert not shelf.try_remove(folder)
    assert read_manifest(folder) is not None
    held.drop()
    assert shelf.try_remove(folder)
    assert not folder.exists()


def test_an_environment_that_vanishes_while_it_is_listed(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelved(shelf, "ray1.0")
    monkeypatch.setattr(Shelf, "_folders", lambda self: [self.root / "ray1.0", self.root / "ray1.1"])
    assert [item.name for item in shelf.entries()] == ["ray1.0"]
